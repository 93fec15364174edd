"""FedEx: exponentiated gradient on a distribution theta over k client configurations.

Khodak et al., "Federated Hyperparameter Tuning", NeurIPS 2021: Algorithm 2, the appendix "Hyperparameters of FedEx"
(baseline) and the ablation appendix (step sizes). Where the paper is silent:

- lambda_t before any past round is 0; gamma = 0 is the limit, the latest round's value.
- The baseline's mean weighs clients by |V|, as the score does (the paper's formula omits the weight by a slip).
- A value that is not finite counts as the worst: the largest of the round's finite values, lambda_t and 1.
- All is done on log theta, so theta can neither leave the simplex nor become NaN.

Beyond the paper: ``step="none"`` draws the candidates and never moves theta, so that what they do can be told from what
FedEx learns. Its mode is then the first candidate, the arm's own configuration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtuner.errors import SpecError, suggest
from fedtuner.rng import Generator

Floats = NDArray[np.float64]
Number = TypeVar("Number")
Tries = Sequence[Number] | Sequence[Sequence[Number]]  # one of each client, or of each client a list

STEPS = ("aggressive", "adaptive", "constant", "none")
METRICS = ("error", "loss")
SIGNALS = ("absolute", "improvement")
_FLOOR = -700.0  # the smallest log theta beside the largest: below -708 its exponential loses precision, then is 0
_HUGE = 1e100  # values beyond this count as this


def _is_within(value: object, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= high


@dataclass(frozen=True)
class FedEx:
    """How FedEx tunes: the number of candidates, their spread, and the update of theta."""

    k: int = 27  # candidates per arm; 1 is plain training
    eps: float = 0.1  # size of the neighbourhood that candidates 2..k are drawn from; 1 is the whole space
    step: str = "aggressive"  # schedule of the step size: aggressive, adaptive, constant; or none: theta stays uniform
    gamma: float | None = None  # discount of the baseline; None draws it from U[0, 1] per arm
    metric: str = "error"  # the clients' validation value that moves theta: error or loss
    cutoff: float = 0.0  # once theta's entropy (in nats) is below this, theta stays and the mode is used
    signal: str = "absolute"  # absolute: the value after local training; improvement: after minus before
    tries: int | str = 1  # candidates that a client trains with and validates in a round, or "all"; the model takes one

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1:
            raise SpecError(f"fedex.k = {self.k!r}, but must be a whole number >= 1")
        if not _is_within(self.eps, math.inf):
            raise SpecError(f"fedex.eps = {self.eps!r}, but must be >= 0")
        if self.gamma is not None and not _is_within(self.gamma, 1):
            raise SpecError(f"fedex.gamma = {self.gamma!r}, but must be in [0, 1] (or left out: drawn per arm)")
        if not _is_within(self.cutoff, math.inf):
            raise SpecError(f"fedex.cutoff = {self.cutoff!r}, but must be >= 0")
        for name, known in (("step", STEPS), ("metric", METRICS), ("signal", SIGNALS)):
            value = getattr(self, name)
            if value not in known:
                raise SpecError(f"fedex.{name} = {value!r}, but must be one of {known}{suggest(str(value), known)}")
        if self.tries != "all" and (isinstance(self.tries, bool) or not isinstance(self.tries, int)):
            raise SpecError(f"fedex.tries = {self.tries!r}, but must be a whole number or 'all'")
        if not 1 <= self.tried <= self.k:
            raise SpecError(f"fedex.tries = {self.tries}, but must be from 1 to the {self.k} candidates (fedex.k)")

    @property
    def tried(self) -> int:
        """How many candidates a client tries in a round."""
        return self.k if self.tries == "all" else int(self.tries)

    def tried_at(self, entropy: float) -> int:
        """How many candidates a client tries in a round that theta enters with this entropy: past the cutoff, one."""
        return self.tried if entropy >= self.cutoff else 1

    def describe(self) -> dict[str, Any]:
        """Return the ``[fedex]`` table."""
        table = asdict(self)
        if self.tries == 1:  # as in stores from before there was a choice
            del table["tries"]
        return table


@dataclass(frozen=True)
class Belief:
    """theta (as its logarithm) and what the update remembers of past rounds."""

    log_theta: Floats
    past: float = 0.0  # sum over past rounds s of gamma^(t-1-s) times that round's mean value
    mass: float = 0.0  # sum over past rounds s of gamma^(t-1-s)
    log_squares: float = -math.inf  # log of the sum of the squared max-norms of the gradients so far

    @property
    def theta(self) -> Floats:
        """The distribution over the k candidates."""
        p = np.exp(self.log_theta - self.log_theta.max())
        return np.asarray(p / p.sum())

    @property
    def baseline(self) -> float:
        """lambda_t: the discounted mean of past values; 0 where there is no past."""
        return self.past / self.mass if self.mass > 0 else 0.0

    @property
    def entropy(self) -> float:
        """Entropy of theta in nats: log k at the start, 0 when one candidate is left."""
        p = self.theta
        return float(max(0.0, -(p * np.log(np.maximum(p, 1e-300))).sum()))

    @property
    def mode(self) -> int:
        """The most probable candidate; of equals, the first."""
        return int(np.argmax(self.log_theta))


def uniform(k: int) -> Belief:
    """Return theta_1 = (1/k, ..., 1/k)."""
    if k < 1:
        raise SpecError(f"k = {k}, but must be >= 1")
    return Belief(np.full(k, -math.log(k)))


def choose(belief: Belief, n: int, rng: Generator, cutoff: float = 0.0) -> list[int]:
    """Draw n candidates from theta; the mode n times once theta's entropy is below ``cutoff``."""
    u = rng.random(n)
    if belief.entropy < cutoff:
        return [belief.mode] * n
    edges = np.cumsum(belief.theta)
    return [int(j) for j in np.searchsorted(edges / edges[-1], u, side="right")]


def also(choices: Sequence[int], k: int, tries: int, rng: Generator) -> list[list[int]]:
    """Return which further candidates each client tries: ``tries - 1`` of the others, each as likely as the next."""
    if tries == k:
        return [[j for j in range(k) if j != chosen] for chosen in choices]
    if tries == 1:
        return [[] for _ in choices]
    drawn = [sorted(rng.permutation(k - 1)[: tries - 1].tolist()) for _ in choices]
    return [[j + (j >= chosen) for j in others] for chosen, others in zip(choices, drawn, strict=True)]


def log_chances(belief: Belief, tries: int) -> Floats:
    """Return the logarithm of each candidate's chance to be among a client's tries.

    The first is drawn from theta, the other m - 1 uniformly from the rest: theta_j + (1 - theta_j) (m-1)/(k-1). With
    one try this is theta_j, as in Algorithm 2; with all k it is 1, the full information of the paper's Section 4.
    """
    k = belief.log_theta.size
    if tries == 1:
        return belief.log_theta
    theta = belief.theta
    return np.zeros(k) if tries == k else np.asarray(np.log(theta + (1 - theta) * (tries - 1) / (k - 1)))


def gradient(belief: Belief, choices: Tries[int], values: Tries[float], weights: Sequence[float]) -> Floats:
    """Return Algorithm 2's unbiased estimate of the gradient of the expected value with respect to theta."""
    sign, log_size = _log_gradient(belief, *_clean(belief, choices, values, weights))
    return np.asarray(sign * np.exp(np.minimum(log_size, 700.0)))


def exponentiate(
    belief: Belief,
    choices: Tries[int],
    values: Tries[float],
    weights: Sequence[float],
    step: str = "aggressive",
    gamma: float = 0.0,
) -> Belief:
    """Return the belief after one round: theta * exp(-eta_t gradient), normalised.

    ``choices``, ``values`` and ``weights`` are the clients' candidates, validation values and |V|. With no client of
    positive weight nothing is learned and the belief is returned as it is. Where clients try several candidates, each
    has a list of them and of their values: first the one drawn from theta, then distinct others as ``also`` draws them.
    A value counts by the inverse of its candidate's chance to be tried, so the gradient's estimate stays unbiased.
    """
    if step not in STEPS:
        raise SpecError(f"step = {step!r}, but must be one of {STEPS}{suggest(step, STEPS)}")
    if not _is_within(gamma, 1):
        raise SpecError(f"gamma = {gamma!r}, but must be in [0, 1]")
    j, v, p = _clean(belief, choices, values, weights)
    if p.size == 0:
        return belief
    k = belief.log_theta.size
    sign, log_size = _log_gradient(belief, j, v, p)
    log_norm = float(log_size.max())  # log of the gradient's max-norm
    squares = float(np.logaddexp(belief.log_squares, 2 * log_norm))
    log_theta = belief.log_theta
    if k > 1 and math.isfinite(log_norm) and step != "none":
        log_eta = 0.5 * math.log(2 * math.log(k))
        if step == "adaptive":
            log_eta -= 0.5 * squares
        elif step == "aggressive":
            log_eta -= log_norm
        log_theta = _normalise(log_theta - sign * np.exp(np.minimum(log_eta + log_size, 300.0)))
    return Belief(log_theta, gamma * belief.past + float(p @ v[:, 0]), gamma * belief.mass + 1.0, squares)


def exponentiate_sums(
    belief: Belief, sums: Floats, counts: Floats, step: str = "aggressive", gamma: float = 0.0
) -> Belief:
    """Return the belief after one round of which only sums are known: S_j = sum |V| v and N_j = sum |V|, by candidate.

    The gradient is linear in the clients' values, so all those of one candidate are as good as one client with their
    mean: this is ``exponentiate`` up to rounding.
    """
    known = np.flatnonzero(counts > 0)
    means = sums[known] / counts[known]
    return exponentiate(belief, known.tolist(), means.tolist(), counts[known].tolist(), step, gamma)


def _clean(
    belief: Belief, choices: Tries[int], values: Tries[float], weights: Sequence[float]
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return choices, finite values (a row per client) and weights that sum to 1, of clients of positive weight."""
    p = np.asarray(weights, dtype=np.float64).reshape(-1)
    j, v = np.asarray(choices, dtype=np.int64), np.asarray(values, dtype=np.float64)
    if j.size != v.size or p.size != (j.shape[0] if j.ndim == 2 else j.size):
        raise SpecError(f"{j.size} choices, {v.size} values and {p.size} weights, but there must be one of each")
    columns = -1 if j.size else 1
    j, v = j.reshape(p.size, columns), v.reshape(p.size, columns)
    if j.size and (j.min() < 0 or j.max() >= belief.log_theta.size):
        raise SpecError(f"choices {j.ravel().tolist()} are not all in 0..{belief.log_theta.size - 1}")
    counted = np.isfinite(p) & (p > 0)
    j, v, p = j[counted], v[counted], p[counted]
    finite = np.isfinite(v)
    worst = max([belief.baseline, 1.0, *v[finite].tolist()])
    v = np.clip(np.where(finite, v, worst), -_HUGE, _HUGE)
    p = p / p.max() if p.size else p  # in two steps: the sum of finite weights may overflow
    return j, v, p / p.sum() if p.size else p


def _log_gradient(belief: Belief, j: NDArray[np.int64], v: Floats, p: Floats) -> tuple[Floats, Floats]:
    """Return the gradient's signs and the logarithms of its sizes: theta may be too small to divide by."""
    k, baseline = belief.log_theta.size, belief.baseline
    tries, j, share = j.shape[1], j.ravel(), p[:, None]
    total = np.bincount(j, weights=(share * (v - baseline)).ravel(), minlength=k)
    # What differences leave of rounding is no gradient, but an aggressive step would make a full step of it.
    rounding = 1e-12 * np.bincount(j, weights=(share * (np.abs(v) + abs(baseline))).ravel(), minlength=k)
    total = np.where(np.abs(total) > rounding, total, 0.0)
    with np.errstate(divide="ignore"):
        return np.sign(total), np.log(np.abs(total)) - log_chances(belief, tries)


def _normalise(log_theta: Floats) -> Floats:
    shifted = np.maximum(log_theta - log_theta.max(), _FLOOR)
    return np.asarray(shifted - math.log(np.exp(shifted).sum()))


def pack(belief: Belief) -> dict[str, Any]:
    """Return the belief as arrays, for a store."""
    return {
        "log_theta": belief.log_theta,
        "memory": np.array([belief.past, belief.mass, belief.log_squares]),
    }


def unpack(arrays: dict[str, Any]) -> Belief:
    """Return the belief that ``pack`` packed."""
    past, mass, log_squares = map(float, arrays["memory"])
    return Belief(arrays["log_theta"], past, mass, log_squares)
