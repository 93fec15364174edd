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
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtuner import checks
from fedtuner.core.model import Vectors
from fedtuner.core.records import Arm, Choice, Seen, Summary, Tried
from fedtuner.core.tuner import Floats, Streams
from fedtuner.rng import stream
from fedtuner.space import Config, Space
from fedtuner.tuners.fedex_settings import DOUBT, METRICS, SIGNALS, STEPS, Settings, value
from fedtuner.tuners.theta import Theta, choose, normalise, read, uniform
from fedtuner.tuners.tries import further_choices, log_chances
from fedtuner.tuners.values import Tries, clean


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
        known, p = self.known(arm)
        drawn = (
            space.near(arm.client, self.eps, stream(seed, "arm", arm.id, "candidate", j), arm.server)
            for j in range(len(known), self.k)
        )
        gamma = float(stream(seed, "arm", arm.id, "gamma").random()) if self.gamma is None else self.gamma
        return Belief((*known, *drawn), gamma, uniform(self.k) if p is None else Theta(np.log(p)))

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
        return belief.theta.arrays

    def unpack(self, begun: Belief, arrays: Vectors) -> Belief:
        return replace(begun, theta=read(arrays))


@dataclass(frozen=True)
class Belief:
    """What FedEx knows in an arm."""

    candidates: tuple[Config, ...]  # c_1..c_k
    gamma: float  # discount of the baseline
    theta: Theta


def gradient(theta: Theta, choices: Tries[int], values: Tries[float], weights: Sequence[float]) -> Floats:
    """Return Algorithm 2's unbiased estimate of the gradient, with respect to theta, of the expected value."""
    j, v, shares, _ = clean(theta.log_theta.size, theta.baseline, choices, values, weights)
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
    j, v, shares, top = clean(theta.log_theta.size, theta.baseline, choices, values, weights)
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
        log_theta = normalise(log_theta - sign * np.exp(np.minimum(log_eta + log_size, 300.0)))
    mean = float(shares @ np.minimum(v, top)[:, 0])
    return Theta(log_theta, gamma * theta.past + mean, gamma * theta.mass + 1.0, log_squares)


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


__all__ = [
    "DOUBT", "METRICS", "SIGNALS", "STEPS", "Belief", "FedEx", "Settings", "Theta", "choose", "exponentiate",
    "further_choices", "gradient", "log_chances", "uniform", "value",
]  # fmt: skip
