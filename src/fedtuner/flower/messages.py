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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedtuner.core.model import Vectors
from fedtuner.core.records import Choice, Job, Plan, Report
from fedtuner.flower.wire import MalformedError, arrays_of, vectors_of

VERSION = 2  # of the messages
HANDSHAKE, WORK = "query.fedtuner", "train.fedtuner"
ABOUT, ARRAYS, SLOTS, JOB, MEMORY, EXTRA, REPORT = "fedtuner", "arrays", "slots", "job", "memory", "extra", "report"
MEASURED = ("loss_before", "error_before", "loss_after", "error_after")
Records = Mapping[str, ArrayRecord | ConfigRecord]


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
    try:
        about: Any = content.config_records[ABOUT]
        if about["version"] != VERSION:
            raise MalformedError(
                f"messages of version {about['version']}, but this side has {VERSION}: update fedtuner"
            )
        records, sent = content.array_records, json.loads(str(content.config_records[JOB]["choices"]))
        job = Job(0, tuple(Choice(label, config) for label, config in sent), vectors_of(records.get(MEMORY)))
        plan = Plan(
            int(about["seed"]), about["arm"], about["round"], about["split"], json.loads(about["server"]),
            about["progress"], np.zeros(0, np.float32), vectors_of(records.get(SLOTS)), (job,),
        )  # fmt: skip
        return str(about["method"]), plan
    except KeyError as error:
        raise MalformedError(f"no {error} in a message of fedtuner") from error


def lineage_of(content: RecordDict) -> Lineage:
    """Return what a message says of the arms."""
    about: Any = content.config_records[ABOUT]
    return Lineage(about.get("parent"), tuple(about.get("out", ())), bool(about.get("evaluation")))


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
