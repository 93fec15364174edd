"""What the theorem prescribes and bounds: step sizes, k, eta, and the regret.

Khodak et al., "Federated Hyperparameter Tuning", NeurIPS 2021: Section 4 and its proof in the appendix. FedEx tunes
the step size of online gradient descent (OGD). Tasks come one after the other. A task is m convex losses. Its client
runs OGD on them from the server's start w_t, with a step size c_j = D / (G j sqrt(m)) that FedEx draws. The server then
moves to the mean of the optima of the tasks so far (its step size is 1/t), and FedEx updates theta by the regret of the
step size that was drawn.

D is the diameter of the set W of all w, G the Lipschitz constant of the losses, b their largest value, V the similarity
of the tasks: the root mean squared distance of their optima from the mean optimum. docs/theory.md says where the proof
is not followed to the letter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtuner import checks
from fedtuner.errors import SpecError

Floats = NDArray[np.float64]

MOST = 10_000  # losses of a task, and step sizes


@dataclass(frozen=True)
class Setting:
    """The constants of the tasks."""

    m: int = 9  # losses of a task
    similarities: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2)  # values of V / D, a run for each; at most 0.288 fits in W
    diameter: float = 1.0  # D
    lipschitz: float = 1.0  # G
    dimensions: int = 2  # d
    k: int | None = None  # number of step sizes; None: the theorem's, which grows with the number of tasks
    noise: float = 0.1  # Laplace scale of the points around their task's optimum, in units of D / sqrt(d)

    def __post_init__(self) -> None:
        if self.m < 1 or self.dimensions < 1:
            raise SpecError(f"m = {self.m} and dimensions = {self.dimensions}, but both must be >= 1")
        if self.k is not None and self.k < 2:
            raise SpecError(f"k = {self.k}, but there must be at least 2 steps to choose from")
        checks.whole("m", self.m, 1, MOST)
        checks.whole("k", 2 if self.k is None else self.k, 2, MOST)
        if not self.similarities or any(not 0 <= v <= 0.288 for v in self.similarities):
            raise SpecError(f"similarities = {self.similarities}, but there must be some, in [0, 0.288] (V / D)")
        if not (self.diameter > 0 and self.lipschitz > 0 and self.noise >= 0):
            raise SpecError("diameter and lipschitz must be > 0 and noise >= 0")

    @property
    def b(self) -> float:
        """The largest value of a loss on W."""
        return self.lipschitz * self.diameter

    @property
    def half(self) -> float:
        return self.diameter / (2 * math.sqrt(self.dimensions))

    @property
    def unit(self) -> float:
        """D G sqrt(m): up to a constant, the regret that no method avoids on a single task; the unit of all results."""
        return self.diameter * self.lipschitz * math.sqrt(self.m)


def steps(setting: Setting, k: int) -> Floats:
    """Return the step sizes c_1, ..., c_k."""
    return np.asarray(setting.diameter / (setting.lipschitz * math.sqrt(setting.m) * np.arange(1, k + 1)))


def candidates(setting: Setting, tau: int, full: bool = False) -> int:
    """Return k for tau tasks: k^(3/2) = (D G / b) sqrt(tau / 2m), rounded, at least 2.

    With full information the cost of learning theta does not grow with k, and the exponent of k is 1.
    """
    if setting.k is not None and not full:
        return setting.k
    size = setting.diameter * setting.lipschitz / setting.b * math.sqrt(tau / (2 * setting.m))
    return max(2, round(size if full else size ** (2 / 3)))


def eta(setting: Setting, k: int, tau: int, full: bool = False) -> float:
    """Return the step size of theta: sqrt(log k / (k tau)) / (m b); with full information, without the k."""
    return math.sqrt(math.log(k) / ((1 if full else k) * tau)) / (setting.m * setting.b)


def known_step(setting: Setting, v: Floats, tau: int) -> Floats:
    """Return the step size for a known V: the minimiser of the bound on the regret of a fixed step size."""
    spread = setting.diameter**2 * (1 + math.log(tau)) / tau + v**2
    return np.asarray(np.sqrt(spread / (2 * setting.m)) / setting.lipschitz)


def bound(setting: Setting, tau: int, v: float, full: bool = False) -> dict[str, float]:
    """Return the terms of the proof's bound on the expected task-averaged regret (its fifth line), and their sum.

    ``feedback`` is the cost of learning theta, ``similarity`` is sqrt(2) G V sqrt(m), and ``start`` is the rest: the
    cost of learning the start, and of having only k step sizes. ``printed`` is the proof's last line, for comparison:
    it does not follow from the fifth (docs/theory.md).
    """
    D, G, m, b = setting.diameter, setting.lipschitz, setting.m, setting.b
    k = candidates(setting, tau, full)
    c = steps(setting, k)
    feedback = 2 * m * b * math.sqrt((1 if full else k) * math.log(k) / tau)
    fixed = float(np.min((D**2 * (1 + math.log(tau)) / tau + v**2) / (2 * c) + c * m * G**2))
    similarity = math.sqrt(2) * G * v * math.sqrt(m)
    printed = m * b * math.sqrt(2 * math.log(tau) / tau) + 4 * D * math.sqrt((1 + math.log(tau)) / (2 * tau))
    printed += (D * G / tau + 2 * G * v) * math.sqrt(m / 2)
    terms = {"feedback": feedback, "start": fixed - similarity, "similarity": similarity}
    return terms | {"total": feedback + fixed, "printed": printed}
