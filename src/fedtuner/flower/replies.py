"""What the server accepts of a client's report: vectors as the method declares them, and a number where one must be.

Whether numbers can be true is for the study's screens to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict

from fedtuner.core.method import Method, Optimiser, Recount, Shape
from fedtuner.core.metric import penalised
from fedtuner.core.model import NOTHING, Metrics, Model, Vectors, finite
from fedtuner.core.records import Job, Plan, Report, Tried
from fedtuner.errors import brief
from fedtuner.flower.messages import ARRAYS, EXTRA, MEASURED, MEMORY, REPORT
from fedtuner.flower.wire import MalformedError, Wire, vectors_of

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Expected:
    """What the reports on a plan's jobs must be."""

    plan: Plan
    wire: Wire
    worst: float  # the error of a model that is not made of numbers
    trainable: int
    optimiser: Optimiser
    extra: Shapes
    memory: Shapes
    recount: Recount | None = None
    sums: int = 0  # numbers that a client sends of a pooled metric
    rate: bool = True  # whether these are counts of examples, as a rate's are

    def read(self, content: RecordDict, job: Job) -> Report:
        """Return the report on a job, or raise ``MalformedError``.

        What the server can find out by itself is not taken from the report: the labels, whether the change is finite,
        what the server's optimiser asks of a change, and sums that follow from what the client remembers.
        """
        records, numbers = content.array_records, content.metric_records.get(REPORT)
        if numbers is None or ARRAYS not in records:
            raise MalformedError(f"a report has the records {ARRAYS!r} and {REPORT!r}, not {brief(sorted(content))}")
        examples, validated = (_count(numbers, name) for name in ("examples", "validated"))
        tried = tuple(self._tried(numbers, job, validated))
        extra = _declared("extra", records.get(EXTRA), self.extra, all_of=True)
        memory = _declared("memory", records.get(MEMORY), self.memory, all_of=self.recount is not None)
        change = self.wire.change(records[ARRAYS], self.plan.w)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.recount is not None:
                sent, memory = self.recount(job, examples, memory)
                extra = {**extra, **sent}
            extra = {**extra, **self.optimiser.extra(change[: self.trainable])}
        ok = finite(change, *extra.values())
        if not ok and validated:
            tried = (replace(tried[0], after=Metrics(math.inf, self.worst, validated)), *tried[1:])
        return Report(job.client, change, extra, memory, examples, tried, finite=ok)

    def _tried(self, numbers: MetricRecord, job: Job, count: int) -> Iterator[Tried]:
        columns = {name: numbers.get(name) for name in MEASURED}
        for name, values in columns.items():
            if not isinstance(values, list) or len(values) != len(job.choices):
                raise MalformedError(f"{name} = {brief(values)}, but must be a list of {len(job.choices)} numbers")
        before, after = (self._sums(numbers, f"sums_{when}", len(job.choices), count) for when in ("before", "after"))
        for n, (choice, row) in enumerate(zip(job.choices, zip(*columns.values(), strict=True), strict=True)):
            yield Tried(choice.label, self._metrics(row[:2], count, before[n]), self._metrics(row[2:], count, after[n]))

    def _metrics(self, measured: tuple[float, ...], count: int, sums: tuple[float, ...]) -> Metrics:
        if not count:
            return NOTHING
        loss, error = measured
        return penalised(Metrics(float(loss), float(error), count, sums), self.worst)

    def _sums(self, numbers: MetricRecord, name: str, tried: int, count: int) -> list[tuple[float, ...]]:
        """Return the sums of each choice; none where the client sends none."""
        given: Any = numbers.get(name)
        if not self.sums or given is None:
            return [()] * tried
        if not isinstance(given, list) or len(given) != tried * self.sums:
            raise MalformedError(f"{name} must be a list of {tried * self.sums} numbers")
        most = count if self.rate else math.inf
        if not all(math.isfinite(x) and abs(x) <= most for x in given):
            raise MalformedError(f"{name} has numbers that are not finite, or more than the {count} examples")
        return [tuple(map(float, given[n * self.sums : (n + 1) * self.sums])) for n in range(tried)]


def expected(plan: Plan, method: Method, model: Model, wire: Wire) -> Expected:
    """Return what the reports on a plan must be: the method declares its vectors."""
    optimiser = method.optimiser(plan.server)
    extra, memory = _shapes(method.extra, model), _shapes(method.memory, model)
    added = {name: v.shape for name, v in optimiser.extra(np.zeros(model.trainable, np.float32)).items()}
    sent = {} if wire.own_training else {**extra, **added}
    recount = None if wire.own_training else method.recount
    of = model.metric
    return Expected(
        plan, wire, of.worst, model.trainable, optimiser, sent, memory=memory, recount=recount, sums=of.sent,
        rate=of.rate,
    )  # fmt: skip


def _shapes(declared: Mapping[str, Shape], model: Model) -> Shapes:
    lengths = {"trainable": (model.trainable,), "all": (model.size,)}
    return {name: lengths[shape] if isinstance(shape, str) else shape for name, shape in declared.items()}


def _declared(what: str, record: ArrayRecord | None, declared: Shapes, all_of: bool = False) -> Vectors:
    """Return vectors; refuse those of other names, shapes or types than declared; ``all_of`` must be there."""
    names = set() if record is None else set(record)
    if not names <= declared.keys() or (all_of and names != declared.keys()):
        raise MalformedError(f"{what} has {brief(sorted(names))}, but the method declares {sorted(declared)}")
    vectors = vectors_of(record, {name: math.prod(shape) for name, shape in declared.items()})
    for name, v in vectors.items():
        if v.shape != declared[name] or v.dtype != np.float32:
            rule = f"the method declares {declared[name]} of float32"
            raise MalformedError(f"{what}: {name!r} is of shape {v.shape} and type {v.dtype}, but {rule}")
    return vectors


def _count(numbers: MetricRecord, name: str) -> int:
    value = numbers.get(name)
    if type(value) is not int or value < 0:
        raise MalformedError(f"{name} = {brief(value)}, but must be a whole number >= 0")
    return value
