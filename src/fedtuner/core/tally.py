"""What the server makes of a round's reports, in three stages: screens, a mean, and privacy.

    reports -> screens (bound or drop single reports) -> combine (means and totals) -> privacy (noise) -> Tally

Where the server sees only sums (secure aggregation), the sum *is* the tally and none of this is called.

Faults are ordinary events. A client that does not report is absent. A client whose update is not finite is
left out of the mean, and counts as the worst value for theta; memory that is not finite is not kept, and its client is
in no sum. A client without training examples changes nothing (|T| = 0), one without validation examples says nothing
about theta or the score (|V| = 0). Where nobody trained, nothing is remembered. Shares |T_i| / sum |T| are taken first,
in plan order, in float32: the same bits wherever it runs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from fedtuner.core.model import NOTHING, Metrics, Vector, Vectors, finite
from fedtuner.core.records import Key, Plan, Report, Tally

_BLOCK = 1 << 15  # entries that are added at a time, so that they stay in the processor's cache
Reports = Sequence[Report | None]


@runtime_checkable
class Screen(Protocol):
    """Bounds or drops single reports, given all reports of the round."""

    def __call__(self, plan: Plan, reports: Reports) -> list[Report | None]:
        """Return the reports; None where one is dropped."""
        ...


@runtime_checkable
class Combine(Protocol):
    """Makes one tally of a round's reports."""

    @property
    def each(self) -> bool:
        """Whether it must see every single report, which secure sums do not show."""
        ...

    def __call__(self, plan: Plan, reports: Reports) -> Tally:
        """Return the tally."""
        ...


@runtime_checkable
class Privacy(Protocol):
    """Adds noise to all that a round releases, and accounts for it."""

    def release(self, tally: Tally, key: Key, seed: int) -> Tally:
        """Return the tally with noise, without anything of single clients."""
        ...

    def spent(self, keys: Sequence[Key]) -> float:
        """Return the privacy that these rounds of all arms have cost."""
        ...


@dataclass(frozen=True)
class Mean:
    """The mean by |T| of changes and further vectors, and by |V| of metrics."""

    each = False

    def __call__(self, plan: Plan, reports: Reports) -> Tally:
        """Return the tally."""
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
        """Return its name."""
        return "mean"


mean = Mean()


def weighted(shares: Sequence[float], vectors: Sequence[Vector]) -> Vector:
    """Return sum share_i v_i, added in the order given."""
    total, scratch = np.zeros_like(vectors[0]), np.empty_like(vectors[0][:_BLOCK])
    for start in range(0, total.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        sums, part = total[block], scratch[: total.size - start]
        for share, vector in zip(shares, vectors, strict=True):
            np.multiply(vector[block], np.float32(share), out=part)
            sums += part
    return total


def without(report: Report, names: Collection[str]) -> Report:
    """Return a report without some of its further vectors."""
    return replace(report, extra={name: v for name, v in report.extra.items() if name not in names})


def sums(names: Iterable[str], reports: Reports) -> Vectors:
    """Return plain sums of further vectors, added in plan order, over the clients whose memory is kept.

    There are none where nobody trained, as in an evaluation.
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
    """Return the mean over all examples of several clients; NaN where there are none."""
    counted = [m for m in metrics if m.count]
    total = sum(m.count for m in counted)
    if not total:
        return NOTHING
    return Metrics(
        sum(m.count * m.loss for m in counted) / total, sum(m.count * m.error for m in counted) / total, total
    )


def penalised(metrics: Metrics, worst: float) -> Metrics:
    """Return the metrics; if the loss is not finite, with an infinite loss and the worst error."""
    return metrics if metrics.finite or not metrics.count else Metrics(math.inf, worst, metrics.count)
