"""A belief over the whole space: a Gaussian over the client's hyperparameters, moved by an evolution strategy.

Wierstra et al., "Natural Evolution Strategies", JMLR 2014: separable NES, on a round's clients as its population. Each
hyperparameter is a place in its range, from 0 to 1 in the sampling scale (``Ordered.unit``); the belief has a mean mu
and a deviation sigma of it. In every round client i trains with the configuration at x_i, drawn from N(mu, sigma^2) and
cut to the range, and reports its value L_i with |V_i| validation examples. With shares p_i = |V_i| / sum |V|,

    b = sum p_i L_i                              the baseline
    a_i = (b - L_i) / sqrt(sum p_i (L_i - b)^2)  how much better than the baseline, whatever the scale of values
    s_i = (x_i - mu) / sigma                     the draw in deviations, at most 3 of them
    mu = mu + r sigma sum p_i a_i s_i            steps along the natural gradient, by the score function
    log sigma = log sigma + r e/2 sum p_i a_i (s_i^2 - 1)

The values of a ``Choice`` have no places, but odds pi: log pi = log pi + r sum p_i a_i (1[i has the value] - pi), and
normalised. Draws that the space's constraints forbid are drawn again.

Step sizes. NES has 1 for mu and e = (3 + log d) / (5 sqrt(d)) for sigma, with d hyperparameters, and a population of
4 + 3 log d: about 9 for the paper's five or six, so about a cohort. r is ``rate``, and less by the factor
n / (4 + 3 log d) where n = 1 / sum p_i^2 is below that. The baseline is the round's own, as the values of earlier
rounds are those of worse models; so a round with one client says nothing. By default a client's value is that after
local training minus that before (``signal``): clients differ by more than configurations do, and the value before does
not depend on the configuration. sigma stays within [0.05, 0.5]: below, draws hardly differ, and whole numbers never.

- The belief begins at the arm's configuration, with ``deviation``; a choice is redrawn with that probability. A
  hyperparameter whose value is not in its domain (such as 0 where that is logarithmic) stays as it is.
- A value that is NaN or infinite is clearly worse than the round's others (``values.made_finite``).
- Configurations have no labels that are common to clients, so ``labels`` is None: secure aggregation and privacy, which
  show the server only sums by label, are refused. What travels to a client is its configuration alone.
- There is no theta: the one configuration that it offers is that of the mean, with probability 1. A record's entropy is
  sum log(sigma / 0.05), plus the entropies of the choices: 0 when it is as sure as it can be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fedtuner import checks
from fedtuner.core.model import Vectors
from fedtuner.core.records import Arm, Choice, Seen, Summary, Tried
from fedtuner.core.tuner import Floats, Streams
from fedtuner.rng import Generator
from fedtuner.space import TRIES, Config, Ordered, Space, absent, fixed, settled, unconditional
from fedtuner.tuners.fedex_settings import METRICS, SIGNALS, value
from fedtuner.tuners.values import made_finite, normalised

NARROWEST, WIDEST = 0.05, 0.5  # deviations
UNKNOWN = 0.3  # deviation of a conditional hyperparameter that the arm does not have: about that of a uniform draw
_FAR = 3.0  # deviations that a draw counts as, at most: a whole number is at the middle of its share
_LEAST = 1e-6  # odds of a value
_SAME = 1e-12  # values that differ by less of their size differ by rounding


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian belief over the client's hyperparameters, moved by an evolution strategy."""

    kind: ClassVar[str] = "gaussian"
    deviation: float = 0.1  # at the beginning, as a part of the ranges
    rate: float = 1.0  # of the steps of means, deviations and odds
    metric: str = "error"  # the clients' validation value that moves it: error or loss
    signal: str = "improvement"  # improvement: the value after local training minus the one before; absolute: after

    labels = None
    tried = 1

    def __post_init__(self) -> None:
        deviation = checks.number("tuner.deviation", self.deviation, NARROWEST, WIDEST)
        checks.settle(self, deviation=deviation, rate=checks.number("tuner.rate", self.rate))
        checks.one_of("tuner.metric", self.metric, METRICS)
        checks.one_of("tuner.signal", self.signal, SIGNALS)

    def begin(self, arm: Arm, space: Space, seed: int, parent: Belief | None) -> Belief:
        """Return the belief around the arm's configuration; a child with its parent's keeps the parent's belief."""
        if parent is not None and parent.client == arm.client:
            return parent
        gone = absent(space.client, arm.client)
        mean, log_deviation, log_odds = dict[str, float](), dict[str, float](), dict[str, Floats]()
        for name, conditional in space.client.items():
            domain, own, new = unconditional(conditional), arm.client.get(name), name in gone
            if not new and (fixed(domain) or own not in domain):
                continue
            if isinstance(domain, Ordered):
                mean[name] = 0.5 if new else domain.unit(own)
                log_deviation[name] = math.log(UNKNOWN if new else self.deviation)
            else:
                values, redrawn = domain.ends(), 1.0 if new else self.deviation
                p = [redrawn / len(values) + (1 - redrawn) * (own == value) for value in values]
                log_odds[name] = _normalised(np.log(p))
        return Belief(arm.client, arm.server, space, mean, log_deviation, log_odds)

    def choose(self, belief: Belief, n: int, streams: Streams) -> tuple[tuple[Choice, ...], ...]:
        """Draw a configuration for each client; its label is the number of the draw."""
        rng = streams("choose")
        return tuple((Choice(i, belief.draw(rng)),) for i in range(n))

    def value(self, tried: Tried) -> float:
        return value(tried, self.metric, self.signal)

    def update(self, belief: Belief, seen: Sequence[Seen]) -> Belief:
        """Move the belief toward the configurations that did better than the round's mean."""
        counted = [s for s in seen if math.isfinite(s.weight) and s.weight > 0]
        shares = normalised(np.array([s.weight for s in counted], np.float64))
        better = _better(np.array([s.values[0] for s in counted], np.float64), shares)
        if better is None:
            return belief
        d = len(belief.mean) + len(belief.log_odds)
        enough = 4 + 3 * math.log(max(1, d))
        rate = self.rate * min(1.0, 1 / float(shares @ shares) / enough)
        return belief.moved([s.configs[0] for s in counted], better, rate)

    def best(self, belief: Belief) -> Config:
        return belief.centre

    def offers(self, belief: Belief) -> tuple[tuple[Config, ...], Floats]:
        return (belief.centre,), np.ones(1)

    def summary(self, belief: Belief) -> Summary:
        return Summary(entropy=belief.entropy)

    def pack(self, belief: Belief) -> Vectors:
        """Return what moves as arrays, in the order of the space; ``begin`` gives the rest again."""
        numbers = np.array([list(belief.mean.values()), list(belief.log_deviation.values())])
        odds = np.concatenate([np.zeros(0), *belief.log_odds.values()])
        return {"normal": numbers.ravel(), "log_odds": odds}

    def unpack(self, begun: Belief, arrays: Vectors) -> Belief:
        mean, log_deviation = np.asarray(arrays["normal"], np.float64).reshape(2, -1).tolist()
        ends = np.cumsum([p.size for p in begun.log_odds.values()])[:-1]
        odds = np.split(np.asarray(arrays["log_odds"], np.float64), ends)
        return replace(
            begun, mean=dict(zip(begun.mean, mean, strict=True)),
            log_deviation=dict(zip(begun.mean, log_deviation, strict=True)),
            log_odds=dict(zip(begun.log_odds, odds, strict=False)),
        )  # fmt: skip


@dataclass(frozen=True)
class Belief:
    """What is believed of the hyperparameters of an arm's clients, by name."""

    client: Config  # the arm's own
    server: Config
    space: Space
    mean: Mapping[str, float]
    log_deviation: Mapping[str, float]
    log_odds: Mapping[str, Floats]  # of the values of a choice

    @cached_property
    def centre(self) -> Config:
        """The configuration of the mean; if it is forbidden, the last on the way to it that is not."""
        likely = {name: self._domain(name).ends()[int(np.argmax(log_p))] for name, log_p in self.log_odds.items()}
        for part in np.linspace(1.0, 0.1, 10):
            places = {n: (1 - part) * self._start(n) + part * mean for n, mean in self.mean.items()}
            made = self._config(places, likely)
            if self.space.allows(made, self.server):
                return made
        return self.client

    @property
    def entropy(self) -> float:
        """In nats, and 0 where the belief is as sure as it can be."""
        odds = sum(float(-(np.exp(log_p) * log_p).sum()) for log_p in self.log_odds.values())
        return max(0.0, sum(self.log_deviation.values()) - len(self.mean) * math.log(NARROWEST) + odds)

    def draw(self, rng: Generator) -> Config:
        """Return a draw that is allowed; the mean's configuration, if none is."""
        for _ in range(TRIES):
            places = {
                name: min(max(mean + math.exp(self.log_deviation[name]) * float(rng.standard_normal()), 0.0), 1.0)
                for name, mean in self.mean.items()
            }
            chosen = {n: self._domain(n).ends()[int(rng.choice(p.size, p=np.exp(p)))] for n, p in self.log_odds.items()}
            made = self._config(places, chosen)
            if self.space.allows(made, self.server):
                return made
        return self.centre

    def moved(self, configs: Sequence[Config], better: Floats, rate: float) -> Belief:
        """Return the belief after a round; ``better`` is p_i a_i of each client's configuration."""
        there = [{*config} - absent(self.space.client, config) for config in configs]
        d = len(self.mean) + len(self.log_odds)
        growth = (3 + math.log(max(1, d))) / (5 * math.sqrt(max(1, d)))
        mean, log_deviation, log_odds = dict(self.mean), dict(self.log_deviation), dict(self.log_odds)
        for name, mu in self.mean.items():
            sigma, weight = math.exp(self.log_deviation[name]), better * [name in names for names in there]
            unit, pairs = self._domain(name).unit, zip(configs, there, strict=True)
            places = np.array([unit(config[name]) if name in names else mu for config, names in pairs])
            s = np.clip((places - mu) / sigma, -_FAR, _FAR)
            wider = self.log_deviation[name] + rate * growth / 2 * float(weight @ (s * s - 1))
            mean[name] = min(max(mu + rate * sigma * float(weight @ s), 0.0), 1.0)
            log_deviation[name] = min(max(wider, math.log(NARROWEST)), math.log(WIDEST))
        for name, log_p in self.log_odds.items():
            weight = better * [name in names for names in there]
            has = np.array([[c.get(name) == value for value in self._domain(name).ends()] for c in configs], np.float64)
            log_odds[name] = _normalised(log_p + rate * (weight @ (has - np.exp(log_p))))
        return replace(self, mean=mean, log_deviation=log_deviation, log_odds=log_odds)

    def _config(self, places: Mapping[str, float], chosen: Config) -> Config:
        """Return the configuration at these places; what is where the arm began has the arm's value, to the bit."""
        made = dict[str, Any]({**self.client, **chosen})
        for name, place in places.items():
            own, domain = self.client.get(name), self._domain(name)
            made[name] = own if own in domain and domain.unit(own) == place else domain.at(place)
        return settled(self.space.client, made)

    def _start(self, name: str) -> float:
        own, domain = self.client.get(name), self._domain(name)
        return domain.unit(own) if own in domain else 0.5

    def _domain(self, name: str) -> Any:
        return unconditional(self.space.client[name])


def _better(values: Floats, shares: Floats) -> Floats | None:
    """Return p_i a_i; None if all values are the same, but for rounding."""
    if not values.size:
        return None
    values, _ = made_finite(values)
    behind = values - float(shares @ values)
    scale = math.sqrt(float(shares @ behind**2))
    return None if scale <= _SAME * float(np.abs(values).max()) else -shares * behind / scale


def _normalised(log_p: Floats) -> Floats:
    p = np.exp(log_p - log_p.max())
    p = np.maximum(p / p.sum(), _LEAST)
    return np.asarray(np.log(p / p.sum()))
