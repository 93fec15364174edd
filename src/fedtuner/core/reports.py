"""What is taken from single reports for a tally, and what is computed anew where a report was changed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedtuner.core.across import across
from fedtuner.core.method import Method
from fedtuner.core.metric import NOTHING, Metrics, penalised
from fedtuner.core.model import Vectors, finite
from fedtuner.core.records import Job, Plan, Report, Row, Seen, Tried
from fedtuner.core.stages import Reports
from fedtuner.core.tuner import Tuner

if TYPE_CHECKING:
    from fedtuner.core.federation import Federation


def completed(method: Method, federation: Federation, plan: Plan, report: Report) -> Report:
    """Return a report that ``Plan.report`` made, with what ``work`` would have added.

    These are the vectors that the server's optimiser needs of each client, and the worst values for metrics that
    are not numbers.
    """
    model, worst = federation.model, federation.model.metric.worst
    with np.errstate(over="ignore", invalid="ignore"):
        extra = method.optimiser(plan.server).extra(report.change[: model.trainable])
    tried = tuple(Tried(t.label, penalised(t.before, worst), penalised(t.after, worst)) for t in report.tried)
    sound = report.finite and finite(report.change, *extra.values())
    return replace(report, extra={**extra, **report.extra}, tried=tried, finite=sound)


def recomputed(
    method: Method, trainable: int, plan: Plan, job: Job, given: Report | None, screened: Report | None
) -> Report | None:  # fmt: skip
    """Return a screened report; what is computed from its change, its |T| and its memory is computed again."""
    if given is None or screened is None:
        return screened
    made = screened
    if screened.change is not given.change:
        extra = method.optimiser(plan.server).extra(screened.change[:trainable])
        made = replace(made, extra={**made.extra, **extra}) if extra else made
    same = screened.examples == given.examples and screened.memory is given.memory
    if not same and method.recount is not None and screened.memory:
        with np.errstate(over="ignore", invalid="ignore"):
            sent, kept = method.recount(job, screened.examples, screened.memory)
        made = replace(made, extra={**made.extra, **sent}, memory={**made.memory, **kept})
    return made


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
    counted = [r for r in sound if r.remembered]
    with np.errstate(over="ignore", invalid="ignore"):
        return {name: sum((r.extra[name] for r in counted), np.zeros_like(sound[0].extra[name])) for name in names}


def breakdown_of(reports: Sequence[Report], federation: Federation) -> dict[str, tuple[Metrics, Metrics]]:
    """Return metrics over clients, before and after local training, in every way that there is."""
    groups, metric = federation.groups, federation.model.metric
    of = [groups.get(federation.id_of(r.client), "") if groups else "" for r in reports]
    before, after = across([r.before for r in reports], of, metric), across([r.after for r in reports], of, metric)
    return {name: (before.get(name, NOTHING), after.get(name, NOTHING)) for name in (before | after)}


def seen(tuner: Tuner, job: Job, report: Report) -> Seen:
    """Return what a tuner learns from a report."""
    labels = tuple(t.label for t in report.tried)
    configs = {choice.label: choice.config for choice in job.choices}
    values = tuple(map(tuner.value, report.tried))
    undefined = any(m.undefined for t in report.tried for m in (t.before, t.after))  # it says nothing of candidates
    weight = 0 if undefined and any(map(math.isnan, values)) else report.after.count
    return Seen(labels, values, weight, tuple(configs[label] for label in labels))


def row(report: Report, client: str | int) -> Row:
    """Return what the journal keeps of a report."""
    before, after = report.before, report.after
    return Row(
        client, report.tried[0].label, report.examples, after.count, before.loss, after.loss, before.error, after.error
    )  # fmt: skip
