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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedtuner.core.across import ALL
from fedtuner.core.metric import NOTHING, mean_metrics
from fedtuner.core.model import Vector
from fedtuner.core.records import Plan, Report, Tally
from fedtuner.core.reports import breakdown_of, recomputed, row, seen, sums, without
from fedtuner.core.stages import Reports

if TYPE_CHECKING:
    from fedtuner.core.federation import Federation
    from fedtuner.core.setup import Setup

_BLOCK = 1 << 15  # entries that are added at a time, so that they stay in the processor's cache


def screen(setup: Setup, federation: Federation, plan: Plan, reports: Reports) -> list[Report | None]:
    """Return the reports after the study's screens, in the same order; None where one is dropped."""
    screened, trainable = list(reports), federation.model.trainable
    for bounded in setup.screens if setup.privacy is None else (*setup.screens, setup.privacy.bound):
        each = zip(plan.jobs, screened, bounded(plan, screened), strict=True)
        screened = [recomputed(setup.method, trainable, plan, *three) for three in each]
    return screened


def combine(setup: Setup, federation: Federation, plan: Plan, reports: Reports, screened: Reports) -> Tally:
    """Return the tally of ``screened``; ``reports`` are the same before the screens, to count the changed ones."""
    arrived, summed = [r for r in screened if r is not None], setup.method.sums
    combined = setup.combine(plan, [without(r, summed) if r and summed else r for r in screened])
    breakdown = breakdown_of(arrived, federation)
    if not federation.model.metric.pooled:
        breakdown[ALL] = combined.before, combined.after
    before, after = breakdown.get(setup.across, (NOTHING, NOTHING))
    tally = replace(
        combined, sums=sums(summed, screened) if summed else {}, before=before, after=after, breakdown=breakdown,
        bounded=sum(a is not b for a, b in zip(reports, screened, strict=True)),
        seen=tuple(seen(setup.tuner, job, r) for job, r in zip(plan.jobs, screened, strict=True) if r is not None),
        rows=tuple(row(r, federation.id_of(r.client)) for r in arrived),
    )  # fmt: skip
    return tally if setup.privacy is None else setup.privacy.release(tally, (plan.arm, plan.round), setup.seed)


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
            memory={r.client: r.memory for r in sound if r.memory and r.remembered},
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
