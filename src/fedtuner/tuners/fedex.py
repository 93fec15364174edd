"""FedEx: exponentiated gradient on a distribution theta over k client configurations.

Khodak et al., "Federated Hyperparameter Tuning", NeurIPS 2021: Algorithm 2, the appendix "Hyperparameters of FedEx"
(baseline) and the ablation appendix (step sizes). In round t client i trains with candidate j_i, drawn from theta, and
reports the value L_i of its model on its validation data V_i. Then

    gradient_j = sum_i |V_i| (L_i - lambda_t) 1[j_i = j] / (theta_j sum_i |V_i|)
    theta      = theta * exp(-eta_t gradient), normalised
    lambda_t   = the mean of the past rounds' mean values, in which round s has weight gamma^(t-s)
    eta_t      = sqrt(2 log k) divided by the gradient's max-norm ("aggressive"), by the root of the sum of its squared
                 max-norms so far ("adaptive"), or by 1 ("constant")

Where the paper is silent:

- lambda_t is 0 before the first round. For gamma = 0 it is the latest round's mean value, the limit of the formula.
- The baseline's mean weighs clients by |V|, as the score does; the paper's formula omits the weight by a slip.
- A value that is NaN or infinite counts as clearly worse than the round's other values and lambda_t (``beyond``). In
  the baseline it counts only as the largest of these, so that diverging clients do not drive lambda_t up.
- A value of -infinity (an improvement from an infinite loss) counts as the best of the round's values and lambda_t.
- Only log theta is stored and updated, so theta stays a distribution and cannot become NaN.

Beyond the paper: clients may try several candidates (``tries``); and ``step="none"`` draws candidates but leaves theta
uniform, a control that separates the effect of drawing from that of learning. Its mode is the arm's own configuration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtuner import checks
from fedtuner.core.model import Vectors, beyond
from fedtuner.core.records import Arm, Choice, Seen, Summary, Tried
from fedtuner.core.tuner import Floats, Streams
from fedtuner.errors import SpecError, brief
from fedtuner.rng import Generator, stream
from fedtuner.space import Config, Space
from fedtuner.tables import Table

Number = TypeVar("Number")
Tries = Sequence[Number] | Sequence[Sequence[Number]]  # one number per client, or a list per client

STEPS = ("aggressive", "adaptive", "constant", "none")
METRICS = ("error", "loss")
SIGNALS = ("absolute", "improvement")
MOST = 10_000  # candidates: every arm draws all of them and the journal lists them
DOUBT = 0.2  # of a prior's theta, the part that is spread over all candidates
_FLOOR = -700.0  # least log theta relative to the largest: below -708 the exponential loses precision
_HUGE = 1e100  # larger values count as this


@dataclass(frozen=True)
class Settings:
    """How FedEx tunes: the number of candidates, their spread, and the update of theta."""

    k: int = 27  # candidates per arm; 1 is plain training
    eps: float = 0.1  # candidates 2..k are drawn from the eps-neighbourhood of the first; 1 is the whole space
    step: str = "aggressive"  # eta_t: aggressive, adaptive or constant; none leaves theta uniform
    gamma: float | None = None  # discount of the baseline lambda_t; None draws it from U[0, 1] per arm
    metric: str = "error"  # the clients' validation value that moves theta: error or loss
    cutoff: float = 0.0  # once theta's entropy (nats) is below this, theta stays and all clients use its mode
    signal: str = "absolute"  # absolute: the value after local training; improvement: after minus before
    tries: int | str = 1  # candidates that a client tries in a round, or "all"; the first one's update is used
    prior: tuple[Table, ...] | None = None  # what arms begin with whose c_1 is its mode: candidates and theta

    def __post_init__(self) -> None:
        k, eps = checks.whole("fedex.k", self.k, 1, MOST), checks.number("fedex.eps", self.eps)
        gamma = self.gamma
        if gamma is not None:
            gamma = checks.number("fedex.gamma", gamma, 0, 1, " (or left out: drawn per arm)")
        cutoff = checks.number("fedex.cutoff", self.cutoff)
        checks.one_of("fedex.step", self.step, STEPS)
        checks.one_of("fedex.metric", self.metric, METRICS)
        checks.one_of("fedex.signal", self.signal, SIGNALS)
        tries = checks.python(self.tries)
        if not checks.is_whole(tries) and not (isinstance(tries, str) and tries == "all"):
            raise SpecError(f"fedex.tries = {brief(tries)}, but must be a whole number or 'all'")
        checks.settle(self, k=k, eps=eps, gamma=gamma, cutoff=cutoff, tries=tries)
        if self.prior is not None:
            if not isinstance(self.prior, Sequence) or isinstance(self.prior, str):
                raise SpecError(f"fedex.prior = {brief(self.prior)}, but must be a list of tables")
            checks.settle(self, prior=tuple(map(_checked, self.prior)))
        if not 1 <= self.tried <= k:
            raise SpecError(f"fedex.tries = {brief(tries)}, but must be from 1 to the {k} candidates (fedex.k)")

    @property
    def tried(self) -> int:
        """How many candidates a client tries in a round, while theta moves."""
        return self.k if self.tries == "all" else int(self.tries)

    @property
    def labels(self) -> int:
        """k: values can be summed by candidate, as the gradient is linear in them."""
        return self.k


@dataclass(frozen=True)
class FedEx(Settings):
    """Exponentiated gradient on a distribution theta over k candidates, as in the paper."""

    kind: ClassVar[str] = "fedex"

    def begin(self, arm: Arm, space: Space, seed: int, parent: Belief | None) -> Belief:
        """Return c_1 as proposed, c_2..c_k from its eps-neighbourhood, and theta_1 = (1/k, ..., 1/k).

        An arm's b and c_1 do not depend on k, so a study with FedEx and one without it have the same arms. A child with
        its parent's client configuration keeps the parent's candidates and theta. An arm that a prior knows has its
        candidates, the most probable ones, and its theta, of which ``DOUBT`` is spread over all candidates.
        """
        if parent is not None and parent.candidates[0] == arm.client:
            return parent
        known, p = self._known(arm)
        drawn = (
            space.near(arm.client, self.eps, stream(seed, "arm", arm.id, "candidate", j), arm.server)
            for j in range(len(known), self.k)
        )
        gamma = float(stream(seed, "arm", arm.id, "gamma").random()) if self.gamma is None else self.gamma
        return Belief((*known, *drawn), gamma, uniform(self.k) if p is None else Theta(np.log(p)))

    def _known(self, arm: Arm) -> tuple[tuple[Config, ...], Floats | None]:
        """Return the candidates that an arm has before any are drawn, its own first; and theta, if a prior knows it."""
        for prior in self.prior or ():
            ranked = sorted(zip(prior["theta"], prior["candidates"], strict=True), key=lambda pair: -pair[0])[: self.k]
            if all(arm.client.get(name) == value for name, value in ranked[0][1].items()):
                share = np.array([p for p, _ in ranked] + [0.0] * (self.k - len(ranked)))
                theta = (1 - DOUBT) * share / share.sum() + DOUBT / self.k
                return tuple({**arm.client, **config} for _, config in ranked), theta
        return (arm.client,), None

    def choose(self, belief: Belief, n: int, streams: Streams) -> tuple[tuple[Choice, ...], ...]:
        """Draw a candidate from theta for each client, and the further ones that it tries."""
        theta = belief.theta
        drawn = choose(theta, n, streams("choose"), self.cutoff)
        tries = self.tried if theta.entropy >= self.cutoff else 1
        further = further_choices(drawn, self.k, tries, streams("tries"))
        return tuple(
            tuple(Choice(label, belief.candidates[label]) for label in (j, *more))
            for j, more in zip(drawn, further, strict=True)
        )

    def value(self, tried: Tried) -> float:
        """Return the validation value after local training, or its difference to the one before."""
        return value(tried, self.metric, self.signal)

    def update(self, belief: Belief, seen: Sequence[Seen], spread: Floats | None = None) -> Belief:
        """Update theta by ``exponentiate``, unless its entropy is below the cutoff."""
        if belief.theta.entropy < self.cutoff:
            return belief
        # If clients tried different numbers of candidates, only the first one of each, drawn from theta, counts.
        tries = None if len({len(s.labels) for s in seen}) <= 1 else 1
        labels, values = [list(s.labels[:tries]) for s in seen], [list(s.values[:tries]) for s in seen]
        weights = [s.weight for s in seen]
        theta = exponentiate(belief.theta, labels, values, weights, self.step, belief.gamma, spread=spread)
        return replace(belief, theta=theta)

    def best(self, belief: Belief) -> Config:
        return belief.candidates[belief.theta.mode]

    def offers(self, belief: Belief) -> tuple[tuple[Config, ...], Floats]:
        return belief.candidates, belief.theta.p

    def summary(self, belief: Belief) -> Summary:
        return Summary(belief.theta.entropy, belief.theta.mode, float(belief.theta.p.max()))

    def pack(self, belief: Belief) -> Vectors:
        """Return theta as arrays; ``begin`` gives candidates and gamma again."""
        theta = belief.theta
        memory = np.array([theta.past, theta.mass, theta.log_squares])
        return {"log_theta": theta.log_theta, "memory": memory}

    def unpack(self, begun: Belief, arrays: Vectors) -> Belief:
        past, mass, log_squares = map(float, arrays["memory"])
        log_theta = np.asarray(arrays["log_theta"], np.float64)
        return replace(begun, theta=Theta(log_theta, past, mass, log_squares))


def value(tried: Tried, metric: str, signal: str) -> float:
    """Return the validation value after local training; for the signal "improvement" minus the one before."""
    after = float(getattr(tried.after, metric))
    return after - float(getattr(tried.before, metric)) if signal == "improvement" else after


def _checked(prior: Any) -> Table:
    """Return a prior, if it is one."""
    try:
        candidates, theta = tuple(map(dict, prior["candidates"])), tuple(map(float, prior["theta"]))
        if candidates and len(candidates) == len(theta) and min(theta) >= 0 and 0 < sum(theta) < math.inf:
            return {"candidates": candidates, "theta": theta}
    except (TypeError, LookupError, ValueError):
        pass
    raise SpecError(f"fedex.prior has {brief(prior)}, but must have tables of candidates and their theta")


@dataclass(frozen=True)
class Belief:
    """What FedEx knows in an arm."""

    candidates: tuple[Config, ...]  # c_1..c_k
    gamma: float  # discount of the baseline
    theta: Theta


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


def uniform(k: int) -> Theta:
    """Return theta_1 = (1/k, ..., 1/k)."""
    if k < 1:
        raise SpecError(f"k = {k}, but must be >= 1")
    return Theta(np.full(k, -math.log(k)))


def choose(theta: Theta, n: int, rng: Generator, cutoff: float = 0.0) -> list[int]:
    """Draw n candidates from theta; the mode n times once theta's entropy is below ``cutoff``."""
    u = rng.random(n)
    if theta.entropy < cutoff:
        return [theta.mode] * n
    edges = np.cumsum(theta.p)
    return [int(j) for j in np.searchsorted(edges / edges[-1], u, side="right")]


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


def gradient(theta: Theta, choices: Tries[int], values: Tries[float], weights: Sequence[float]) -> Floats:
    """Return Algorithm 2's unbiased estimate of the gradient, with respect to theta, of the expected value."""
    j, v, shares, _ = _clean(theta, choices, values, weights)
    sign, log_size = _log_gradient(theta, j, v, shares)
    return np.asarray(sign * np.exp(np.minimum(log_size, 700.0)))


def exponentiate(
    theta: Theta, choices: Tries[int], values: Tries[float], weights: Sequence[float], step: str = "aggressive",
    gamma: float = 0.0, *, spread: Floats | None = None,
) -> Theta:  # fmt: skip
    """Return theta after one round: theta * exp(-eta_t gradient), normalised.

    ``choices``, ``values`` and ``weights`` are the clients' candidates, validation values and |V|. Without a client of
    positive weight theta stays as it is. Where clients try several candidates, each client has a list of them and of
    their values: first the one drawn from theta, then those of ``further_choices``. Each value is divided by the
    probability that its candidate was tried (``log_chances``), which keeps the gradient's estimate unbiased.

    With a ``spread``, k by k, each value also counts for other candidates (kernel.py).
    """
    checks.one_of("step", step, STEPS)
    checks.number("gamma", gamma, 0, 1)
    j, v, shares, top = _clean(theta, choices, values, weights)
    if shares.size == 0:
        return theta
    k = theta.log_theta.size
    sign, log_size = _log_gradient(theta, j, v, shares, spread)
    log_norm = float(log_size.max())  # log of the gradient's max-norm
    log_squares = float(np.logaddexp(theta.log_squares, 2 * log_norm))
    log_theta = theta.log_theta
    if k > 1 and math.isfinite(log_norm) and step != "none":
        log_eta = 0.5 * math.log(2 * math.log(k))
        if step == "adaptive":
            log_eta -= 0.5 * log_squares
        elif step == "aggressive":
            log_eta -= log_norm
        log_theta = _normalise(log_theta - sign * np.exp(np.minimum(log_eta + log_size, 300.0)))
    mean = float(shares @ np.minimum(v, top)[:, 0])
    return Theta(log_theta, gamma * theta.past + mean, gamma * theta.mass + 1.0, log_squares)


def _clean(
    theta: Theta, choices: Tries[int], values: Tries[float], weights: Sequence[float]
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
    if j.size and (j.min() < 0 or j.max() >= theta.log_theta.size):
        raise SpecError(f"choices {j.ravel().tolist()} are not all in 0..{theta.log_theta.size - 1}")
    counted = np.isfinite(shares) & (shares > 0)
    j, v, shares = j[counted], v[counted], shares[counted]
    v, top = made_finite(v, theta.baseline)
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


def _log_gradient(
    theta: Theta, j: NDArray[np.int64], v: Floats, shares: Floats, spread: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return the gradient as signs and logarithms of absolute values, as theta may be too small to divide by."""
    k, baseline = theta.log_theta.size, theta.baseline
    tries, j, share = j.shape[1], j.ravel(), shares[:, None]
    total = np.bincount(j, weights=(share * (v - baseline)).ravel(), minlength=k)
    # Rounding errors count as 0: the aggressive step size would make a full step of them.
    rounding = 1e-12 * np.bincount(j, weights=(share * (np.abs(v) + abs(baseline))).ravel(), minlength=k)
    chances = log_chances(theta, tries)
    if spread is not None:
        total, rounding, reached = ((spread * row).sum(axis=1) for row in (total, rounding, np.exp(chances)))
        chances = np.log(reached)
    total = np.where(np.abs(total) > rounding, total, 0.0)
    with np.errstate(divide="ignore"):
        return np.sign(total), np.log(np.abs(total)) - chances


def _normalise(log_theta: Floats) -> Floats:
    shifted = np.maximum(log_theta - log_theta.max(), _FLOOR)
    return np.asarray(shifted - math.log(np.exp(shifted).sum()))
