"""Jobs and reports as Flower messages.

    handshake  query.fedtuner  nothing -> the client's id, the kind of its app, the size of its model (handshake.py)
    work       train.fedtuner  model, slots, memory, configuration -> update, |T|, |V|, loss and error before and after

A method's memory of a client is sent with the job and returned with the report. The server keeps it, so that it
survives the loss of a client's disk and is there when a study is continued.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedtuner.arm import readable
from fedtuner.federation import Report, Try
from fedtuner.methods.base import Job, Update, Vectors, finite
from fedtuner.space import Config, Value
from fedtuner.task import Metrics, Vector

VERSION = 1  # of the messages
HANDSHAKE, WORK = "query.fedtuner", "train.fedtuner"
ABOUT, ARRAYS, SLOTS, MEMORY, EXTRA, CLIENT, SERVER, REPORT = (
    "fedtuner", "arrays", "slots", "memory", "extra", "config", "server", "report",
)  # fmt: skip


class MalformedError(Exception):
    """A message that cannot be used; the text says why."""


class Wire(Protocol):
    """How a model is encoded in messages."""

    def record(self, w: Vector) -> ArrayRecord:
        """Return the model as arrays."""
        ...

    def vector(self, record: ArrayRecord) -> Vector:
        """Return the model that these arrays are, or raise ``MalformedError``."""
        ...


class Flat:
    """The model as one array, for a task that both sides have."""

    def __init__(self, size: int) -> None:
        self._size = size

    def record(self, w: Vector) -> ArrayRecord:
        """Return the vector as one array, ``w``."""
        return _arrays({"w": w})

    def vector(self, record: ArrayRecord) -> Vector:
        """Return the vector, if it has the model's size and type."""
        w = _vectors(record).get("w")
        if w is None or w.shape != (self._size,) or w.dtype != np.float32:
            given = "no w" if w is None else f"w of shape {w.shape} and type {w.dtype}"
            raise MalformedError(f"{given}, but the model has {self._size} entries of type float32")
        return np.asarray(w)


@dataclass(frozen=True)
class Order:
    """The instructions of a job: what to do with the arrays, slots and memory in the same message."""

    method: str
    seed: int
    arm: int
    round: int
    candidate: int
    split: str
    others: tuple[tuple[int, Config], ...]


def plain(config: Config) -> dict[str, Value]:
    """Return a configuration in Python's own types, the only ones that a ConfigRecord takes."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in config.items()}


def _arrays(vectors: Mapping[str, Vector]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(v, order="C")) for name, v in vectors.items()})


def _vectors(record: ArrayRecord | None) -> dict[str, Any]:
    try:
        return {} if record is None else {name: array.numpy() for name, array in record.items()}
    except Exception as error:  # bytes that are no array
        raise MalformedError(f"an array cannot be read: {error}") from error


def job_content(job: Job, method: str, model: ArrayRecord) -> RecordDict:
    """Return a job as a message's content; ``model`` is its w, shared by all the jobs of a round."""
    content = RecordDict(
        {
            # The seed is text: a whole number of any size.
            ABOUT: ConfigRecord(
                {
                    "version": VERSION,
                    "method": method,
                    "seed": str(job.seed),
                    "arm": job.arm,
                    "round": job.round,
                    "candidate": job.candidate,
                    "split": job.split,
                    "others": json.dumps([[j, plain(c)] for j, c in job.others]),
                }
            ),
            ARRAYS: model,
            CLIENT: ConfigRecord(plain(job.config)),  # type: ignore[arg-type]
            SERVER: ConfigRecord(plain(job.server)),  # type: ignore[arg-type]
        }
    )
    for name, vectors in ((SLOTS, job.slots), (MEMORY, job.memory)):
        if vectors:
            content[name] = _arrays(vectors)
    return content


def order_of(content: RecordDict) -> Order:
    """Return the instructions in a job's message."""
    try:
        about: Any = content.config_records[ABOUT]
        if about["version"] != VERSION:
            raise MalformedError(
                f"messages of version {about['version']}, but this side has {VERSION}: update fedtuner"
            )
        return Order(
            about["method"], int(about["seed"]), about["arm"], about["round"], about["candidate"], about["split"],
            tuple((j, c) for j, c in json.loads(about["others"])),
        )  # fmt: skip
    except KeyError as error:
        raise MalformedError(f"no {error} in a message of fedtuner") from error


def config_of(content: RecordDict, name: str) -> Config:
    """Return a configuration as it was sent."""
    known: Any = content.config_records[name]
    return dict(known)


def job_of(content: RecordDict, wire: Wire) -> Job:
    """Return the job in a message; a device has one client, number 0."""
    order = order_of(content)
    records = content.array_records
    return Job(
        order.seed, order.arm, order.round, 0, order.candidate, config_of(content, CLIENT),
        config_of(content, SERVER), wire.vector(records[ARRAYS]), _vectors(records.get(SLOTS)),
        _vectors(records.get(MEMORY)), order.split, order.others,
    )  # fmt: skip


def report_content(
    model: ArrayRecord,
    examples: int,
    before: Metrics,
    after: Metrics,
    extra: Vectors,
    memory: Vectors,
    tried: Sequence[Try] = (),
) -> RecordDict:
    """Return a client's report as a message's content."""
    content = RecordDict(
        {
            ARRAYS: model,
            REPORT: MetricRecord(
                {
                    "examples": examples,
                    "validated": before.count,
                    "loss_before": before.loss,
                    "error_before": before.error,
                    "loss_after": after.loss,
                    "error_after": after.error,
                    "tried": [x for t in tried for m in (t.before, t.after) for x in (m.loss, m.error)],
                }
            ),
        }
    )
    for name, vectors in ((EXTRA, extra), (MEMORY, memory)):
        if vectors:
            content[name] = _arrays(vectors)
    return content


def report_of(content: RecordDict, job: Job, wire: Wire, worst_error: float) -> Report:
    """Return the report on a job, or raise ``MalformedError``.

    What the server can find out by itself is not taken from the report: the candidate, and whether the update is
    finite.
    """
    records, numbers = content.array_records, content.metric_records.get(REPORT)
    if numbers is None or ARRAYS not in records:
        raise MalformedError(f"a report has the records {ARRAYS!r} and {REPORT!r}, not {sorted(content)}")
    examples, validated = (_count(numbers, name) for name in ("examples", "validated"))
    before, after = (
        _metrics((numbers.get(f"loss_{when}"), numbers.get(f"error_{when}")), validated, worst_error)
        for when in ("before", "after")
    )
    tried = tuple(_tried(numbers.get("tried", []), job, validated, worst_error))
    extra, memory = _vectors(records.get(EXTRA)), _vectors(records.get(MEMORY))
    for name, v in {**extra, **memory}.items():
        if v.dtype != np.float32:
            raise MalformedError(f"{name!r} is of type {v.dtype}, but must be float32")
    for name in memory.keys() & job.memory.keys():
        if memory[name].shape != job.memory[name].shape:
            raise MalformedError(f"{name!r} has shape {memory[name].shape}, but was {job.memory[name].shape}")
    w = wire.vector(records[ARRAYS])
    ok = finite(w, *extra.values())
    if not ok and validated:
        after = Metrics(math.inf, worst_error, validated)
    return Report(job.client, job.candidate, Update(w, extra, memory), examples, before, after, ok, tried)


def reason_of(error: str | None) -> str:
    """Return one line of an error reply's reason: the last, which of a traceback names the error."""
    lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason given")[:300]


def _count(numbers: Mapping[str, Any], name: str) -> int:
    value = numbers.get(name)
    if type(value) is not int or value < 0:
        raise MalformedError(f"{name} = {value!r}, but must be a whole number >= 0")
    return value


def _metrics(measured: Sequence[Any], count: int, worst_error: float) -> Metrics:
    if not count:
        return Metrics(math.nan, math.nan, 0)
    loss, error = measured
    if not isinstance(loss, (int, float)) or not isinstance(error, (int, float)):
        raise MalformedError(f"a loss of {loss!r} and an error of {error!r}, but both must be numbers")
    metrics = readable(Metrics(float(loss), float(error), count), worst_error)
    if math.isnan(metrics.error) or metrics.error > worst_error or (worst_error < math.inf and metrics.error < 0):
        hint = "; if it is no rate: Fleet(worst_error=math.inf)"
        raise MalformedError(f"an error of {error!r}, but it must be from 0 to {worst_error:g}{hint}")
    return metrics


def _tried(values: Any, job: Job, count: int, worst_error: float) -> Iterator[Try]:
    if not isinstance(values, list) or len(values) != 4 * len(job.others):
        raise MalformedError(f"tried = {values!r}, but must be four numbers for each of {len(job.others)} candidates")
    for n, (candidate, _) in enumerate(job.others):
        before, after = values[4 * n : 4 * n + 2], values[4 * n + 2 : 4 * n + 4]
        yield Try(candidate, _metrics(before, count, worst_error), _metrics(after, count, worst_error))
