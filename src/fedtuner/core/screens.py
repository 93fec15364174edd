"""Screens: they bound or drop single reports of devices that may be broken or lie.

Values are compared with the median of their round, which fewer than half of the clients cannot move beyond the values
of honest ones. The bounds are wide, so that they hardly ever change an honest report. They keep a single false report
from deciding a round; they do not find false reports within the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedtuner import checks
from fedtuner.core.metric import penalised
from fedtuner.core.model import Metrics, Vector
from fedtuner.core.records import Plan, Report, Tried
from fedtuner.core.stages import Reports
from fedtuner.errors import SpecError
from fedtuner.space import Config

_BLOCK = 1 << 15  # entries whose squares are added at a time
_MEDIANS = 10  # the most that a client may weigh, in medians of its round


@dataclass(frozen=True)
class Values:
    """A screen for losses and errors: impossible values drop a report, values far above the round's median are cut.

    An error is from 0 to ``worst``; a loss, and an error where ``worst`` is infinite, is at least ``least``, and counts
    as at most ``times`` medians of its kind in the round. An infinite loss, that of a model that is not finite, is cut,
    too: one client cannot make a round's loss infinite, but half of the clients can. Of an even number of values the
    median is the higher of the two middle ones, so that one of two clients cannot lower the other's bound.
    """

    kind: ClassVar[str] = "values"
    worst: float = 1.0  # 1 where errors are rates, else infinity
    least: float = 0.0  # minus infinity where a loss may be negative
    times: float = 100.0
    undefined: bool = False  # whether an error may be NaN: the metric is not defined for every client

    def __post_init__(self) -> None:
        checks.number("values.times", self.times, 1)
        if not self.least < math.inf or not self.worst > 0:
            raise SpecError(f"values: least = {self.least}, worst = {self.worst}, but no value is between")

    def __call__(self, plan: Plan, reports: Reports) -> list[Report | None]:
        known = [None if r is None else _with_tried(r, [self._known(t) for t in r.tried]) for r in reports]
        possible = [r if r is not None and all(map(self._possible, r.tried)) else None for r in known]
        tried = [t for r in possible if r is not None for t in r.tried]
        before, after = self._limits([t.before for t in tried]), self._limits([t.after for t in tried])
        return [
            None if r is None else _with_tried(r, [Tried(t.label, before(t.before), after(t.after)) for t in r.tried])
            for r in possible
        ]

    def _known(self, tried: Tried) -> Tried:
        return Tried(tried.label, penalised(tried.before, self.worst), penalised(tried.after, self.worst))

    def _possible(self, tried: Tried) -> bool:
        low, high = (0.0, self.worst) if math.isfinite(self.worst) else (self.least, math.inf)

        def possible(m: Metrics) -> bool:
            return m.loss >= self.least and (low <= m.error <= high or (self.undefined and m.undefined))

        return all(not m.count or possible(m) for m in (tried.before, tried.after))

    def _limits(self, metrics: Sequence[Metrics]) -> _Cut:
        there = [m for m in metrics if m.count]
        loss = self._limit([m.loss for m in there])
        return _Cut(loss, math.inf if math.isfinite(self.worst) else self._limit([m.error for m in there]))

    def _limit(self, values: Sequence[float]) -> float:
        sizes = sorted(abs(value) for value in values if value and not math.isnan(value))
        return self.times * sizes[len(sizes) // 2] if sizes else math.inf


@dataclass(frozen=True)
class _Cut:
    """Cuts metrics to the largest loss and error, by their size."""

    loss: float
    error: float

    def __call__(self, metrics: Metrics) -> Metrics:
        if not metrics.count:
            return metrics
        loss, error = min(max(metrics.loss, -self.loss), self.loss), min(max(metrics.error, -self.error), self.error)
        return metrics if (loss, error) == (metrics.loss, metrics.error) else replace(metrics, loss=loss, error=error)


def _with_tried(report: Report, tried: Sequence[Tried]) -> Report:
    """Return the report with other values; the report itself where they are its own."""
    same = all(a.before is b.before and a.after is b.after for a, b in zip(tried, report.tried, strict=True))
    return report if same else replace(report, tried=tuple(tried))


@dataclass(frozen=True)
class Weights:
    """A screen for |T| and |V|: none counts for more than ``most`` examples, nor for more than ``share`` of its round.

    By default ``most`` is ten medians of the round. The median of an even number of clients is the lower of the two
    middle ones: one of two clients cannot raise it. In a small round, of which a client has a large share anyway, it
    may weigh as much as twice the mean of the others: 2 / (n + 1) of a round of n clients. That holds of all who have
    validated, and of those among them for whom the metric is defined, who alone have a part in its mean and in theta.
    """

    kind: ClassVar[str] = "weights"
    most: int | None = None
    share: float = 0.1

    def __post_init__(self) -> None:
        if self.most is not None:
            checks.whole("most_examples", self.most)
        checks.number("weights.share", self.share, 0, 1)

    def __call__(self, plan: Plan, reports: Reports) -> list[Report | None]:
        arrived = [r for r in reports if r is not None]
        train = self._limit([r.examples for r in arrived if r.finite])
        judged = [r for r in arrived if not any(m.undefined for m in _metrics(r))]
        valid = min(self._limit(list(map(_validated, of))) for of in (arrived, judged or arrived))
        return [None if r is None else _cut(r, train, valid) for r in reports]

    def _limit(self, counts: Sequence[int]) -> int:
        positive = sorted(n for n in counts if n)
        if not positive:
            return self.most or 0
        most = self.most or _MEDIANS * int(_lower_median(positive))
        return min(most, _by_share([min(n, most) for n in positive], max(self.share, 2 / (len(positive) + 1))))


def _by_share(counts: Sequence[int], share: float) -> int:
    """Return the largest c such that no min(n, c) is more than a share of their sum; ``counts`` are in order."""
    rest = sum(counts)
    for above, n in enumerate(reversed(counts)):  # so many are above c: c = share (rest + above c)
        limit = share * rest / (1 - share * above)
        if n <= limit * (1 + 1e-12):
            return max(1, int(limit * (1 + 1e-12))) if above else n
        rest -= n
    return counts[0]  # the share is that of equal clients


def _lower_median(values: Sequence[float]) -> float:
    """Return the lower median of the positive values; 0 where there are none."""
    positive = sorted(value for value in values if value > 0)
    return positive[(len(positive) - 1) // 2] if positive else 0.0


def _cut(report: Report, train: int, valid: int) -> Report:
    if report.examples <= train and _validated(report) <= valid:
        return report
    tried = tuple(Tried(t.label, _counting(t.before, valid), _counting(t.after, valid)) for t in report.tried)
    return replace(report, examples=min(report.examples, train), tried=tried)


def _metrics(report: Report) -> list[Metrics]:
    return [metrics for t in report.tried for metrics in (t.before, t.after)]


def _validated(report: Report) -> int:
    """Return |V|; where a report has several, the largest."""
    return max(metrics.count for metrics in _metrics(report))


def _counting(metrics: Metrics, most: int) -> Metrics:
    """Return metrics that count as those of at most so many examples."""
    count = min(metrics.count, most)
    return replace(metrics, count=count, sums=tuple(x * count / metrics.count for x in metrics.sums))


@dataclass(frozen=True)
class Norm:
    """A screen for updates: one that is longer than ``times`` medians of its round is shortened to that.

    One of more than ``most`` medians is left out, and its client's |T| counts as 0; what the client measured is used,
    so that a tuner learns of configurations that diverge. Candidates may differ in their learning rate by orders of
    magnitude, and updates do so with them. So a client's update is compared with the larger of two values: the median
    length, and the client's learning rate times the median length per unit of learning rate. ``rate`` is the name of
    the learning rate in the client's configuration; where there is none it is 1. What is trained (the first
    ``trainable`` entries) and statistics are compared apart. Medians are the lower ones, of the vectors that are not
    zero.

    Further vectors of a method are shortened in the same way; where a client keeps a vector and the server sums its
    changes (SCAFFOLD's control), the one that it keeps. Single numbers, such as squared lengths, are not compared.
    """

    kind: ClassVar[str] = "norm"
    times: float = 3.0
    most: float = 30.0
    rate: str = "lr"
    trainable: int | None = None  # None: all of w

    def __post_init__(self) -> None:
        checks.number("norm.times", self.times, 1)
        checks.number("norm.most", self.most, self.times)

    def __call__(self, plan: Plan, reports: Reports) -> list[Report | None]:
        """Return the reports with their vectors shortened, or their updates left out."""
        rates = {job.client: self._rate(job.config) for job in plan.jobs}
        used = {n: r for n, r in enumerate(reports) if r is not None and r.finite and r.examples}
        rate = {n: rates.get(r.client, 1.0) for n, r in used.items()}
        vectors = {n: {**self._parts(r), **further(r)} for n, r in used.items()}
        factors: dict[int, dict[str, float]] = {n: {} for n in used}
        for name in {name for of in vectors.values() for name in of}:
            lengths = {n: length(of[name]) for n, of in vectors.items() if name in of}
            usual = _lower_median(list(lengths.values()))
            per_rate = _lower_median([x / rate[n] for n, x in lengths.items()])
            for n, x in lengths.items():
                limit = self.times * max(usual, per_rate * rate[n])
                if x > limit:
                    factors[n][name] = limit / x
        return [r if r is None or not factors.get(n) else self._screened(r, factors[n]) for n, r in enumerate(reports)]

    def _rate(self, config: Config) -> float:
        rate = config.get(self.rate, 1.0)
        return float(rate) if checks.is_number(rate) and rate > 0 else 1.0  # type: ignore[operator]

    def _parts(self, report: Report) -> dict[str, Vector]:
        head = report.change[: self.trainable]
        return {".trained": head, ".statistics": report.change[head.size :]}

    def _screened(self, report: Report, factors: Mapping[str, float]) -> Report:
        parts, compared, change = self._parts(report), further(report), report.change
        if parts.keys() & factors.keys():
            change = np.concatenate([_times(v, factors.get(name, 1.0)) for name, v in parts.items()])
        extra, memory = (
            {name: _times(v, factors.get(name, 1.0)) if v is compared.get(name) else v for name, v in of.items()}
            for of in (report.extra, report.memory)
        )
        left_out = min(factors.get(name, 1.0) for name in parts) < self.times / self.most
        examples = 0 if left_out else report.examples
        return replace(report, change=change, extra=extra, memory=memory, examples=examples)


def further(report: Report) -> dict[str, Vector]:
    """Return a method's vectors beside the change: of those that the client keeps, what it keeps."""
    named = {name: report.memory.get(name, v) for name, v in report.extra.items()}
    return {name: v for name, v in named.items() if v.size > 1}


def length(v: Vector) -> float:
    """Return the Euclidean norm, in which squares do not overflow."""
    blocks = (v[n : n + _BLOCK].astype(np.float64) for n in range(0, v.size, _BLOCK))
    return math.sqrt(sum(float(block @ block) for block in blocks))


def _times(v: Vector, factor: float) -> Vector:
    return v if factor == 1 else np.asarray(v.astype(np.float64) * factor, np.float32)


def differences(before: Report, after: Report | None) -> dict[str, str]:
    """Return what screens did to a report, in words, by its kind: screened, capped, bounded, shortened."""
    if after is None:
        return {"screened": f"its report is left out: {_values_text(before)}"}
    found = {}
    left_out = before.examples and not after.examples
    sizes, counted = ((r.examples, r.after.count) for r in (before, after))
    if sizes != counted and not left_out:
        found["capped"] = f"{sizes[0]} and {sizes[1]} examples count as {counted[0]} and {counted[1]}"
    if _values(before) != _values(after):
        found["bounded"] = f"{_values_text(before)} count as {_values_text(after)}"
    vectors, used = ({"an update": r.change, **further(r)} for r in (before, after))
    lengths = {name: (length(v), length(used[name])) for name, v in vectors.items() if v is not used[name]}
    if lengths:
        cut = [f"{name} of length {x:.3g} counts as {0 if left_out else y:.3g}" for name, (x, y) in lengths.items()]
        found["shortened"] = ", ".join(cut)
    return found


def _values(report: Report) -> str:
    return repr([(m.loss, m.error) for t in report.tried for m in (t.before, t.after)])


def _values_text(report: Report) -> str:
    losses, errors = ([getattr(m, what) for m in (report.before, report.after)] for what in ("loss", "error"))
    return f"losses {losses[0]:.6g}, {losses[1]:.6g} and errors {errors[0]:.6g}, {errors[1]:.6g}"
