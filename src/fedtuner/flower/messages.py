"""Plans, jobs and reports as Flower messages.

    handshake  query.fedtuner  nothing -> the client's id, the kind of its app, the size of its model (handshake.py)
    work       train.fedtuner  the plan (model, slots, b), the job (choices, memory)
                               -> w_i - w or the app's arrays, extra, memory, |T|, |V|, losses and errors by choice

What all clients of a plan are sent is the same records in all its messages: Flower transfers them once. A method's
memory of a client is sent with the job and returned with the report. The server keeps it, so that it survives the loss
of a client's disk and is there when a study is continued.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedtuner.core.model import Vectors
from fedtuner.core.records import Choice, Job, Plan, Report
from fedtuner.errors import brief
from fedtuner.flower.wire import MalformedError, arrays_of, vectors_of

VERSION = 3  # of the messages: a name or a meaning that changes makes another one
HANDSHAKE, WORK = "query.fedtuner", "train.fedtuner"
ABOUT, ARRAYS, SLOTS, JOB, MEMORY, EXTRA, REPORT = "fedtuner", "arrays", "slots", "job", "memory", "extra", "report"
MEASURED = ("loss_before", "error_before", "loss_after", "error_after")
Records = Mapping[str, ArrayRecord | ConfigRecord]
Kind = TypeVar("Kind")


def text(value: Any) -> str:
    """Return configurations as JSON, with NumPy's numbers as Python's own."""
    return json.dumps(value, default=np.generic.item)


@dataclass(frozen=True)
class Lineage:
    """What a device that keeps something for each arm must know of them."""

    parent: int | None = None  # the arm that this one goes on from
    out: tuple[int, ...] = ()  # arms that get no more rounds
    evaluation: bool = False  # nothing is kept of this work


_ALONE = Lineage()


def plan_records(plan: Plan, method: str, model: ArrayRecord, lineage: Lineage = _ALONE) -> Records:
    """Return what all clients of a plan are sent; ``model`` is its w."""
    about = {"version": VERSION, "method": method, "arm": plan.arm, "round": plan.round, "split": plan.split}
    # The seed is text: a whole number of any size.
    about |= {"seed": str(plan.seed), "progress": float(plan.progress), "server": text(dict(plan.server))}
    about |= {"evaluation": True} if lineage.evaluation else {}
    about |= {"out": list(lineage.out)} if lineage.out else {}  # Flower cannot measure the size of an empty list
    about |= {} if lineage.parent is None else {"parent": lineage.parent}
    return {ABOUT: ConfigRecord(about), ARRAYS: model, **_if_any(SLOTS, plan.slots)}  # type: ignore[arg-type]


def job_content(shared: Records, job: Job) -> RecordDict:
    """Return a message's content: what all clients of the plan are sent, and one client's job."""
    choices = text([[choice.label, dict(choice.config)] for choice in job.choices])
    return RecordDict({**shared, JOB: ConfigRecord({"choices": choices}), **_if_any(MEMORY, job.remembered)})


def _if_any(name: str, vectors: Vectors) -> dict[str, ArrayRecord]:
    return {name: arrays_of(vectors)} if vectors else {}


def plan_of(content: RecordDict) -> tuple[str, Plan]:
    """Return a message's method and its plan, without w, and with one job: a device has one client, number 0."""
    configs, records = content.config_records, content.array_records
    about = configs.get(ABOUT, ConfigRecord())
    if about.get("version") != VERSION:
        version = brief(about.get("version"))
        raise MalformedError(f"messages of version {version}, but this side has {VERSION}: update fedtuner")
    for name, there in ((JOB, configs), (ARRAYS, records)):
        if name not in there:
            raise MalformedError(f"no {name!r} in a message of fedtuner")
    method, split, seed, server = (_field(about, name, str) for name in ("method", "split", "seed", "server"))
    if not re.fullmatch(r"-?[0-9]{1,4000}", seed):
        raise MalformedError(f"seed = {brief(seed)}, but must be a whole number")
    choices = _json("choices", _field(configs[JOB], "choices", str), list)
    for choice in choices or [None]:
        if type(choice) is not list or [type(part) for part in choice] != [int, dict]:
            raise MalformedError(f"choices = {brief(choices)}, but must be labels, each with a configuration")
    job = Job(0, tuple(Choice(*choice) for choice in choices), vectors_of(records.get(MEMORY)))
    arm, round, progress = _field(about, "arm", int), _field(about, "round", int), _field(about, "progress", float)
    slots = vectors_of(records.get(SLOTS))
    return method, Plan(
        int(seed), arm, round, split, _json("server", server, dict), progress,
        w=np.zeros(0, np.float32), slots=slots, jobs=(job,),
    )  # fmt: skip


def lineage_of(content: RecordDict) -> Lineage:
    """Return what a message says of the arms."""
    about = content.config_records[ABOUT]
    parent = _field(about, "parent", int) if "parent" in about else None
    out = _field(about, "out", list) if "out" in about else []
    if not all(type(arm) is int for arm in out):
        raise MalformedError(f"out = {brief(out)}, but must be numbers of arms")
    return Lineage(parent, tuple(out), bool(about.get("evaluation")))


def _field(record: Mapping[str, Any], name: str, kind: type[Kind]) -> Kind:
    value = record.get(name)
    if type(value) is not kind:
        raise MalformedError(f"{name} = {brief(value)} in a message of fedtuner, but must be of type {kind.__name__}")
    return value


def _json(name: str, text: str, kind: type[Kind]) -> Kind:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{name} cannot be read: {error}") from error
    return _field({name: value}, name, kind)


def report_content(report: Report, arrays: ArrayRecord) -> RecordDict:
    """Return a client's report as a message's content; ``arrays`` is w_i - w, or what the app's own code returned."""
    numbers: dict[str, Any] = {"examples": report.examples, "validated": report.before.count}
    for name in MEASURED:
        metric, when = name.split("_")
        numbers[name] = [float(getattr(getattr(tried, when), metric)) for tried in report.tried]
    for when in ("before", "after"):
        parts = [getattr(tried, when).sums for tried in report.tried]
        size = max(map(len, parts))
        if size:  # of a pooled metric; a model that is not finite has none
            numbers[f"sums_{when}"] = [float(x) for part in parts for x in part or (0.0,) * size]
    vectors = {**_if_any(EXTRA, report.extra), **_if_any(MEMORY, report.memory)}
    return RecordDict({ARRAYS: arrays, REPORT: MetricRecord(numbers), **vectors})


def reason_of(error: str | None) -> str:
    """Return one line of an error reply's reason: the last, which of a traceback names the error."""
    lines = [line.strip() for line in (error or "")[-10_000:].splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason given")[:300]
