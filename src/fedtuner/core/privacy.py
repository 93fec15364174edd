"""Differential privacy of clients: what a client adds to a round is bounded, and Gaussian noise hides it.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018, for bounded and equal parts;
Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, for the exact amount of noise.

A client's part in a round is one vector: its change, cut to the norm ``clip`` and divided by it; ``METRICS`` times its
losses and errors; and, at the place of its label, ``METRICS`` times the value that the tuner learns from. A number is
cut to its range and counted from the middle, in units of the range, so it is at most 1/2 in size, and a part's norm is
at most ``SENSITIVITY``. All clients have the same weight. Noise is added to the sum of the parts; all that the server
uses and keeps of a round is computed from that. So every set of results is at most e^epsilon times as probable, plus
delta, as it would be if the parts of one client, in all rounds of all arms, were zero; and the other way round.

What is not hidden: which clients take part and report; the means that ``Study.evaluate`` returns, which are exact; and
what is seen by a server that does not follow this code. The noise comes from the study's seed: keep it and the store to
yourself. Cohorts are assumed to be known, so their random choice does not lower epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from fedtuner import checks
from fedtuner.core.metric import Metrics
from fedtuner.core.model import finite
from fedtuner.core.records import Key, Plan, Report, Seen, Tally, Tried
from fedtuner.core.stages import Reports
from fedtuner.errors import SpecError, brief
from fedtuner.rng import Generator, stream

METRICS = 0.4  # weight of losses, errors and values beside the change: they get more noise, and the change less
SENSITIVITY = math.sqrt(1 + 5 * (METRICS / 2) ** 2)  # the change, two losses, two errors and a value


@dataclass(frozen=True)
class Gaussian:
    """(epsilon, delta)-differential privacy of clients, over all rounds of a study."""

    kind: ClassVar[str] = "gaussian"
    epsilon: float = 8.0
    delta: float = 1e-5  # below 1 / (the number of clients)
    clip: float = 1.0  # the largest norm of a client's change
    loss: float = 5.0  # losses are cut to 0..loss
    error: tuple[float, float] = (0.0, 1.0)  # errors are cut to this range
    value: tuple[float, float] = (0.0, 1.0)  # what the tuner learns from is cut to this range
    rounds: int | None = None  # that the noise is made for; None: the schedule's budget

    def __post_init__(self) -> None:
        for name, most in (("epsilon", 100.0), ("delta", 0.1), ("clip", 1e6), ("loss", 1e6)):
            value = checks.number(f"privacy.{name}", getattr(self, name), 0, most)
            if not value:
                raise SpecError(f"privacy.{name} = 0, but must be > 0")
            checks.settle(self, **{name: value})
        for name, given in (("error", self.error), ("value", self.value)):
            ends = tuple(given) if isinstance(given, (list, tuple)) else ()
            if len(ends) != 2 or not all(map(checks.is_number, ends)) or not ends[0] < ends[1]:
                raise SpecError(f"privacy.{name} = {brief(given)}, but must be two numbers, the lower one first")
            checks.settle(self, **{name: ends})
        if self.rounds is not None:
            checks.settle(self, rounds=checks.whole("privacy.rounds", self.rounds))

    def over(self, rounds: int) -> Gaussian:
        """Return it with noise for so many rounds; refuse more than it was made for."""
        if self.rounds is not None and rounds > self.rounds:
            raise SpecError(f"privacy.rounds = {self.rounds}, but the schedule may take {rounds}: begin with more")
        return self if self.rounds else replace(self, rounds=rounds)

    @cached_property
    def noise(self) -> float:
        """The noise's standard deviation, in units of the sensitivity."""
        assert self.rounds is not None
        return math.sqrt(self.rounds) / _largest(lambda mu: _delta(self.epsilon, mu) <= self.delta)

    def spent(self, keys: Sequence[Key]) -> float:
        """Return epsilon for these rounds."""
        mu = math.sqrt(len(keys)) / self.noise
        return _largest(lambda epsilon: _delta(epsilon, mu) > self.delta) if keys else 0.0

    def bound(self, plan: Plan, reports: Reports) -> list[Report | None]:
        """Return the reports, each cut to its ranges by itself, with equal weights; an evaluation's as they are."""
        return [r if r is None or not r.change.size else self._bounded(r) for r in reports]

    def _bounded(self, report: Report) -> Report:
        sound = report.finite and finite(report.change)
        norm = math.sqrt(float(np.square(report.change, dtype=np.float64).sum())) if sound else math.inf
        scale = np.float32(min(1.0, self.clip / norm * (1 - 1e-6))) if norm else np.float32(1)  # float32 rounds up, too
        change = report.change * scale if sound else np.zeros_like(report.change)
        tried = tuple(Tried(t.label, self._cut(t.before), self._cut(t.after)) for t in report.tried)
        return replace(report, change=change, memory={}, examples=1, tried=tried, finite=True)

    def _cut(self, metrics: Metrics) -> Metrics:
        loss, error = (metrics.loss, metrics.error) if metrics.count else (math.nan, math.nan)
        return Metrics(_inside(loss, 0.0, self.loss), _inside(error, *self.error), 1)

    def release(self, tally: Tally, key: Key, seed: int) -> Tally:
        """Return the tally with noise, and nothing of single clients; that of an evaluation as it is."""
        if tally.change is None:
            return tally
        rng = stream(seed, "privacy", *key)
        unit = self.noise * SENSITIVITY / tally.reported  # of a mean of parts
        noise = rng.standard_normal(tally.change.size, np.float32) * np.float32(unit * self.clip)
        before, after = (self._released(metrics, unit / METRICS, rng) for metrics in (tally.before, tally.after))
        seen, change = self._by_label(tally, rng), tally.change + noise
        made = replace(tally, change=change, before=before, after=after, seen=seen)
        return replace(made, rows=(), memory={}, breakdown={})

    def _released(self, metrics: Metrics, unit: float, rng: Generator) -> Metrics:
        loss = metrics.loss + unit * self.loss * rng.normal()
        error = metrics.error + unit * (self.error[1] - self.error[0]) * rng.normal()
        return Metrics(_inside(loss, 0.0, self.loss), _inside(error, *self.error), metrics.count)

    def _by_label(self, tally: Tally, rng: Generator) -> tuple[Seen, ...]:
        """Return the mean value of each label that was tried, with noise; how often it was is not hidden."""
        low, high = self.value
        tried: dict[int, list[Seen]] = {}
        for seen in tally.seen:
            tried.setdefault(seen.labels[0], []).append(seen)
        made = []
        for label, some in sorted(tried.items()):
            mean = math.fsum(_inside(seen.values[0], low, high) for seen in some) / len(some)
            noise = (high - low) * self.noise * SENSITIVITY / METRICS / len(some) * rng.normal()
            made.append(Seen((label,), (mean + noise,), float(len(some)), some[0].configs))
        return tuple(made)


def _inside(value: float, low: float, high: float) -> float:
    """Return a value cut to a range; its middle for what is no number."""
    return (low + high) / 2 if math.isnan(value) else min(max(value, low), high)


def _delta(epsilon: float, mu: float) -> float:
    """Return delta of Gaussian noise of standard deviation 1/mu on a sum that one client changes by at most 1.

    Rounds add up: t of them are as one whose mu is sqrt(t) times as large.
    """
    return _normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * _normal(-mu / 2 - epsilon / mu)


def _normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def _largest(holds: Callable[[float], bool]) -> float:
    """Return the largest positive number for which something holds, that holds below it, by bisection."""
    low, high = 0.0, 1e-3
    while holds(high) and high < 500:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
