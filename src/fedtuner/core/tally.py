"""What the server makes of a round's reports, in three stages: screens, a mean, and privacy.

    reports -> screens (bound or drop single reports) -> combine (means and totals) -> privacy (noise) -> Tally

With secure aggregation the server receives a tally, and none of these stages runs.

Means of vectors weigh clients by |T|, their training examples; means of metrics by |V|, their validation examples.
Shares |T_i| / sum |T| are computed first and products added in plan order, in float32: the bits are always the same.

- A client that does not report is absent.
- An update that is not finite is left out of the mean; its client's metrics are the worst (``penalised``).
- Client memory that is not finite is not kept, and its client is left out of ``Tally.sums``. Where nobody trained, no
  memory is kept.
- A client without training or validation examples has weight 0 in the one or the other mean.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from fedtuner.core.model import NOTHING, Metrics, Vector, Vectors, finite
from fedtuner.core.records import Key, Plan, Report, Row, Tally

_BLOCK = 1 << 15  # entries that are added at a time, so that they stay in the processor's cache
Reports = Sequence[Report | None]


def spread(rows: Sequence[Row], name: str) -> float:
    """Return the standard error of a mean by |V| over clients, as if they were drawn from many; NaN below two."""
    known = [(row.validated, getattr(row, name)) for row in rows if row.validated]
    known = [(n, value) for n, value in known if not math.isnan(value)]
    if len(known) < 2:
        return math.nan
    total = sum(n for n, _ in known)
    mean = sum(n * value for n, value in known) / total
    off = [n * (value - mean) for n, value in known]
    squares = sum(x * x for x in off)  # x**2 would raise an error where it overflows
    return math.sqrt(squares * len(known) / (len(known) - 1)) / total


@runtime_checkable
class Screen(Protocol):
    """Bounds or drops single reports, by comparing the reports of a round."""

    def __call__(self, plan: Plan, reports: Reports) -> list[Report | None]:
        """Return the reports in the same order; None where one is dropped."""


@runtime_checkable
class Combine(Protocol):
    """Makes a tally of a round's reports."""

    @property
    def each(self) -> bool:
        """Whether it needs single reports, so that sums (secure aggregation) are not enough."""

    def __call__(self, plan: Plan, reports: Reports) -> Tally:
        """Return the tally."""


@runtime_checkable
class Privacy(Protocol):
    """Bounds what each client adds to a tally, adds noise, and accounts for the privacy spent."""

    def over(self, rounds: int) -> Privacy:
        """Return it as a study of so many rounds uses it; refuse more rounds than it allows."""

    def bound(self, plan: Plan, reports: Reports) -> list[Report | None]:
        """Return the reports, each bounded on its own: this is the last screen."""

    def release(self, tally: Tally, key: Key, seed: int) -> Tally:
        """Return the tally with noise, and without rows and memory of single clients."""

    def spent(self, keys: Sequence[Key]) -> float:
        """Return the privacy spent by these rounds, over all arms."""


@dataclass(frozen=True)
class Mean:
    """The mean by |T| of changes and extra vectors, and by |V| of metrics."""

    each = False

    def __call__(self, plan: Plan, reports: Reports) -> Tally:
        arrived = [r for r in reports if r is not None]
        sound = [r for r in arrived if r.finite]
        trained = [r for r in sound if r.examples]
        total = sum(r.examples for r in trained)
        shares = [r.examples / total for r in trained]
        with np.errstate(over="ignore", invalid="ignore"):
            change = weighted(shares, [r.change for r in trained]) if trained else None
            names = trained[0].extra if trained else ()
            extra = {name: weighted(shares, [r.extra[name] for r in trained]) for name in names}
        return Tally(
            asked=len(reports),
            reported=len(arrived),
            broken=len(arrived) - len(sound),
            trained=len(trained),
            examples=sum(r.examples for r in sound),
            trainings=sum(len(r.tried) for r in arrived),
            change=change,
            extra=extra,
            before=mean_metrics([r.before for r in arrived]),
            after=mean_metrics([r.after for r in arrived]),
            memory={r.client: r.memory for r in sound if r.memory and _kept(r)},
        )

    def describe(self) -> str:
        return "mean"


mean = Mean()


def weighted(shares: Sequence[float], vectors: Sequence[Vector]) -> Vector:
    """Return the sum of share_i v_i, added in the order given."""
    total, scratch = np.zeros_like(vectors[0]), np.empty_like(vectors[0][:_BLOCK])
    for start in range(0, total.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        sums, part = total[block], scratch[: total.size - start]
        for share, vector in zip(shares, vectors, strict=True):
            np.multiply(vector[block], np.float32(share), out=part)
            sums += part
    return total


def without(report: Report, names: Collection[str]) -> Report:
    """Return a report without some of its extra vectors."""
    return replace(report, extra={name: v for name, v in report.extra.items() if name not in names})


def sums(names: Iterable[str], reports: Reports) -> Vectors:
    """Return sums of extra vectors, without weights, in plan order, over the clients whose memory is kept.

    Where nobody trained, as in an evaluation, there are no sums.
    """
    sound = [r for r in reports if r is not None and r.finite]
    if not any(r.examples for r in sound):
        return {}
    counted = [r for r in sound if _kept(r)]
    with np.errstate(over="ignore", invalid="ignore"):
        return {name: sum((r.extra[name] for r in counted), np.zeros_like(sound[0].extra[name])) for name in names}


def _kept(report: Report) -> bool:
    return report.finite and finite(*report.memory.values())


def mean_metrics(metrics: Sequence[Metrics]) -> Metrics:
    """Return the mean by |V|, of errors where they are defined; NaN where there are no examples."""
    counted = [m for m in metrics if m.count]
    total = sum(m.count for m in counted)
    if not total:
        return NOTHING
    defined = [m for m in counted if not m.undefined]
    of = sum(m.count for m in defined)
    error = sum(m.count * m.error for m in defined) / of if of else math.nan
    return Metrics(sum(m.count * m.loss for m in counted) / total, error, total)


def penalised(metrics: Metrics, worst: float) -> Metrics:
    """Return the metrics; where the loss is not finite, an infinite loss and the worst error."""
    return metrics if metrics.finite or not metrics.count else Metrics(math.inf, worst, metrics.count)
