"""Clients that try several candidates in a round: which ones, and how probable each is to be tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedtuner.core.tuner import Floats
from fedtuner.rng import Generator

if TYPE_CHECKING:
    from fedtuner.tuners.theta import Theta


def further_choices(choices: Sequence[int], k: int, tries: int, rng: Generator) -> list[list[int]]:
    """Return the further candidates that each client tries: ``tries - 1`` others, drawn uniformly."""
    if tries == k:
        return [[j for j in range(k) if j != chosen] for chosen in choices]
    if tries == 1:
        return [[] for _ in choices]
    drawn = [sorted(rng.permutation(k - 1)[: tries - 1].tolist()) for _ in choices]
    return [[j + (j >= chosen) for j in others] for chosen, others in zip(choices, drawn, strict=True)]


def log_chances(theta: Theta, tries: int) -> Floats:
    """Return the logarithm of each candidate's probability to be among a client's m tries.

    The first is drawn from theta, the other m - 1 uniformly from the rest: theta_j + (1 - theta_j) (m-1)/(k-1). With
    one try this is theta_j, as in Algorithm 2; with all k it is 1, the full information of the paper's Section 4.
    """
    k = theta.log_theta.size
    if tries == 1:
        return theta.log_theta
    p = theta.p
    return np.zeros(k) if tries == k else np.asarray(np.log(p + (1 - p) * (tries - 1) / (k - 1)))
