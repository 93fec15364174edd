"""The distribution theta over k candidates: how it is stored, and how candidates are drawn from it.

Only log theta is stored, so theta cannot become NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedtuner.core.model import Vectors
from fedtuner.core.tuner import Floats
from fedtuner.errors import SpecError
from fedtuner.rng import Generator

_FLOOR = -700.0  # least log theta relative to the largest: below -708 the exponential loses precision


@dataclass(frozen=True)
class Theta:
    """log theta, and the sums over past rounds that the update needs."""

    log_theta: Floats
    past: float = 0.0  # sum over past rounds s of gamma^(t-1-s) times the mean value of round s
    mass: float = 0.0  # sum over past rounds s of gamma^(t-1-s)
    log_squares: float = -math.inf  # log of the sum of the squared max-norms of the gradients so far

    @property
    def p(self) -> Floats:
        """The distribution over the k candidates."""
        p = np.exp(self.log_theta - self.log_theta.max())
        return np.asarray(p / p.sum())

    @property
    def baseline(self) -> float:
        """lambda_t: the discounted mean of past rounds' values; 0 before the first round."""
        return self.past / self.mass if self.mass > 0 else 0.0

    @cached_property
    def entropy(self) -> float:
        """Entropy of theta in nats: log k at the start, 0 when one candidate is left."""
        p = self.p
        return float(max(0.0, -(p * np.log(np.maximum(p, 1e-300))).sum()))

    @property
    def mode(self) -> int:
        """The most probable candidate; the first of equally probable ones."""
        return int(np.argmax(self.log_theta))

    @property
    def arrays(self) -> Vectors:
        """It as arrays, which ``read`` reads."""
        return {"log_theta": self.log_theta, "memory": np.array([self.past, self.mass, self.log_squares])}


def uniform(k: int) -> Theta:
    """Return theta_1 = (1/k, ..., 1/k)."""
    if k < 1:
        raise SpecError(f"k = {k}, but must be >= 1")
    return Theta(np.full(k, -math.log(k)))


def read(arrays: Vectors) -> Theta:
    """Return theta from its arrays."""
    return Theta(np.asarray(arrays["log_theta"], np.float64), *map(float, arrays["memory"]))


def choose(theta: Theta, n: int, rng: Generator, cutoff: float = 0.0) -> list[int]:
    """Draw n candidates from theta; the mode n times once theta's entropy is below ``cutoff``."""
    u = rng.random(n)
    if theta.entropy < cutoff:
        return [theta.mode] * n
    edges = np.cumsum(theta.p)
    return [int(j) for j in np.searchsorted(edges / edges[-1], u, side="right")]


def normalise(log_theta: Floats) -> Floats:
    """Return log theta whose exponentials sum to 1."""
    shifted = np.maximum(log_theta - log_theta.max(), _FLOOR)
    return np.asarray(shifted - math.log(np.exp(shifted).sum()))
