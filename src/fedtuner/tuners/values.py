"""Clients' values as tuners use them: checked, made finite, with weights that sum to 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtuner.core.model import beyond
from fedtuner.core.tuner import Floats
from fedtuner.errors import SpecError

Number = TypeVar("Number")
Tries = Sequence[Number] | Sequence[Sequence[Number]]  # one number per client, or a list per client
_HUGE = 1e100  # larger values count as this


def clean(
    k: int, baseline: float, choices: Tries[int], values: Tries[float], weights: Sequence[float]
) -> tuple[NDArray[np.int64], Floats, Floats, float]:
    """Return choices, values made finite (a row per client) and weights that sum to 1, of clients of positive weight.

    The last item is the largest of lambda_t and the values that were finite.
    """
    shares = np.asarray(weights, dtype=np.float64).reshape(-1)
    j, v = np.asarray(choices, dtype=np.int64), np.asarray(values, dtype=np.float64)
    if j.size != v.size or shares.size != (j.shape[0] if j.ndim == 2 else j.size):
        raise SpecError(f"{j.size} choices, {v.size} values and {shares.size} weights, but there must be one of each")
    columns = -1 if j.size else 1
    j, v = j.reshape(shares.size, columns), v.reshape(shares.size, columns)
    if j.size and (j.min() < 0 or j.max() >= k):
        raise SpecError(f"choices {j.ravel().tolist()} are not all in 0..{k - 1}")
    counted = np.isfinite(shares) & (shares > 0)
    j, v, shares = j[counted], v[counted], shares[counted]
    v, top = made_finite(v, baseline)
    return j, v, normalised(shares), top


def made_finite(v: Floats, baseline: float | None = None) -> tuple[Floats, float]:
    """Return values with finite ones for those that are not, and the largest of the baseline and the finite ones.

    What is NaN or infinite is clearly worse than all others (``beyond``); -infinity is the best of them.
    """
    finite = np.isfinite(v)
    v = np.where(finite, np.clip(v, -_HUGE, _HUGE), v)
    known = [*([] if baseline is None else [baseline]), *v[finite].tolist()] or [0.0]
    return np.where(finite, v, np.where(v == -np.inf, min(known), beyond(known))), max(known)


def normalised(weights: Floats) -> Floats:
    """Return weights that sum to 1."""
    if not weights.size:
        return weights
    weights = weights / weights.max()  # first: the sum of the weights may overflow
    return np.asarray(weights / weights.sum())
