"""A cluster that only pretends: its workers do nothing for as long as a round takes, on a clock that does not wait.

The driver, the session, the schedule, the policy and the journal are the real ones. Time passes by what workers would
take, by bytes on the driver's network, and by the driver's own processor time, which is measured; what its calls to Ray
and its copies of models would cost it is added, as measured on this machine (``calibrate.py``).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner.core.executor import Advance
from fedtuner.core.model import Part, Vector, Vectors
from fedtuner.core.records import Key, Record, Row, State
from fedtuner.rng import stream
from fedtuner.run.executors.on_ray import Ray
from fedtuner.run.executors.on_ray.worker import Stretch
from fedtuner.run.store import Folder
from fedtuner.run.versions import versions
from fedtuner.testing.toys import Quadratics


@dataclass(frozen=True)
class Costs:
    """What things take, in seconds."""

    call: float = 4e-4  # of the driver's processor, to make a call and take its answer
    waiting: float = 5e-6  # of it, for each call that is waited for
    copy: float = 3e-10  # of it, for each byte of a state that it copies
    save: float = 3e-9  # of it, for each byte of a state that it saves
    byte: float = 8e-10  # of the driver's network, for each byte: 10 Gbit/s
    delay: float = 1e-3  # between a call and its arrival


class Model(Quadratics):
    """A model of so many bytes, none of which is there: all entries are the same one."""

    def __init__(self, size: int) -> None:
        super().__init__(size // 4)

    def layout(self) -> list[Part]:
        return [Part("w", (self.size,))]

    def initial(self, seed: int) -> Vector:
        return np.broadcast_to(np.zeros(1, np.float32), (self.size,))


class Store(Folder):
    """A folder in which states are not written, though that takes its time."""

    def __init__(self, path: Path, wire: PretendWire) -> None:
        super().__init__(path)
        self._wire, self._states = wire, dict[Key, tuple[State, Vectors]]()

    def open(self, room: int = 0) -> None:
        super().open()

    def save(self, key: Key, state: State, belief: Vectors) -> str:
        self._wire.charge(state.w.nbytes * self._wire.costs.save)
        self._states[key] = state, belief
        return f"{key[0]:04x}{key[1]:04x}"

    def load(self, key: Key, known: str = "") -> tuple[State, Vectors]:
        return self._states[key]

    def has(self, key: Key) -> bool:
        return key in self._states

    def drop(self, keys: Any) -> None:
        for key in keys:
            del self._states[key]


class GoneError(Exception):
    """No pretended worker dies."""


@dataclass(eq=False)
class Call:
    """A call, and what it will have answered at a time that is known at once."""

    at: float
    value: Any
    size: int = 0


@dataclass
class PretendWire:
    """The connection to the pretended workers."""

    workers: int
    seconds: float  # of a round, on one worker
    clients: int = 10  # of a round
    costs: Costs = field(default_factory=Costs)
    lost: Any = GoneError
    clock: float = 0.0
    cpu: float = 0.0  # of the driver
    bytes: int = 0  # that the driver has sent and received
    worked: float = 0.0  # seconds of all workers
    _since: float = field(default_factory=time.process_time)
    _out: float = 0.0  # until when the driver's network sends
    _into: float = 0.0  # until when it receives
    _numbers: Any = field(default_factory=itertools.count)

    def charge(self, seconds: float) -> None:
        """Let the driver's processor have worked for so long."""
        self.clock += seconds
        self.cpu += seconds

    def now(self) -> float:
        here = time.process_time()
        self.charge(here - self._since)
        self._since = here
        return self.clock

    def pretended(self) -> None:
        """Leave out the time since the driver last did something."""
        self._since = time.process_time()

    def nodes(self) -> Mapping[str, Mapping[str, float]]:
        return {f"node{i}": {"CPU": min(16.0, self.workers - 16.0 * i)} for i in range(math.ceil(self.workers / 16))}

    def room(self, part: float) -> int:
        return int(part * 30e9)  # of a machine with 100 GB

    def hire(self, settings: Ray, paths: Sequence[str], folder: str) -> PretendWorker:
        return PretendWorker(self, next(self._numbers))

    def kill(self, actor: Any) -> None:
        pass

    def put(self, value: Any) -> Any:
        return value

    def called(self, at: float, value: Any, size: int = 0) -> Call:
        self.charge(self.costs.call)
        self.bytes += size
        return Call(at, value, size)

    def sent(self, size: int) -> float:
        """Return when so many bytes have been sent."""
        self._out = max(self._out, self.clock) + size * self.costs.byte
        return self._out

    def received(self, at: float, size: int) -> float:
        if not size:
            return at
        self._into = max(self._into, at) + size * self.costs.byte
        return self._into

    def wait(self, calls: Sequence[Call], few: int, seconds: float) -> list[Call]:
        self.now()
        self.charge(2 * len(calls) * self.costs.waiting)  # Ray is asked twice
        until = sorted(call.at for call in calls)[few - 1] if calls else math.inf
        self.clock = max(self.clock, min(until, self.clock + seconds))
        ready = [call for call in calls if call.at <= self.clock]
        self._since = time.process_time()
        return ready

    def get(self, call: Call) -> Any:
        return call.value

    def own(self, message: Any) -> Any:
        if isinstance(message, State):
            self.charge(message.w.nbytes * self.costs.copy)
        return message


class _Method:
    """A worker's method; what it takes to pretend is not the driver's time."""

    def __init__(self, wire: PretendWire, call: Any) -> None:
        self._wire, self._call = wire, call

    def remote(self, *args: Any) -> Call:
        self._wire.now()
        made: Call = self._call(*args)
        self._wire.pretended()
        return made


class PretendWorker:
    """A worker: its calls are done one after the other."""

    def __init__(self, wire: PretendWire, number: int) -> None:
        self.wire, self.number = wire, number
        self.free, self.work = wire.now(), None  # what it takes to start one is measured elsewhere
        methods = (self._begin, self._take, self._continue, self._advance, self._state)
        self.begin, self.take, self.continue_to, self.advance, self.state = (_Method(wire, call) for call in methods)

    def _begin(self, study: Any, blobs: Any) -> Call:
        return self.wire.called(self.free, (f"node{self.number // 16}", versions()))

    def _take(self, work: Advance) -> Call:
        size = work.state.w.nbytes
        self.free, self.work = max(self.free, self.wire.sent(size) + self.wire.costs.delay), work
        return self.wire.called(self.free, None, size)

    def _continue(self, until: int) -> Call:
        assert self.work is not None
        self.work = replace(self.work, until=until)
        return self.wire.called(self.wire.clock + self.wire.costs.delay, None)

    def _advance(self, seconds: float, ship: bool, helpers: Mapping[int, Any]) -> Call:
        work, wire = self.work, self.wire
        start = max(self.free, wire.clock + wire.costs.delay)
        if work is None or work.done:
            return wire.called(start, None)
        each = math.ceil(wire.clients / (1 + len(helpers))) / wire.clients * wire.seconds
        if helpers:  # the model to each node of helpers, and their reports back
            each += work.state.w.nbytes * wire.costs.byte * (1 + min(len(helpers), wire.clients))
        rounds = min(work.until - work.state.round, max(1, math.ceil(seconds / each)))
        state = replace(work.state, round=work.state.round + rounds)
        records = tuple(record(work.arm.id, t, wire.clients) for t in range(work.state.round + 1, state.round + 1))
        self.free = start + rounds * each
        wire.worked += rounds * wire.seconds
        self.work = replace(work, state=state)
        size = state.w.nbytes if ship or self.work.done else 0
        stretch = Stretch(work.arm.id, records, state if size else None, state.round)
        return wire.called(wire.received(self.free + wire.costs.delay, size), stretch, size)

    def _state(self) -> Call:
        assert self.work is not None
        stretch = Stretch(self.work.arm.id, (), self.work.state, self.work.state.round)
        return self.wire.called(self.wire.received(self.free, self.work.state.w.nbytes), stretch)


def record(arm: int, round: int, clients: int) -> Record:
    """Return a round's record: arms differ, and get better."""
    error = 0.2 + 0.5 * stream(0, "pretend", arm).random() / (1 + 0.02 * round)
    rows = tuple(Row(i, 0, 100, 30, 2 * error, error, error, error) for i in range(clients))
    metrics = (2 * error, error, error, error, error, error)
    counts = (clients, 0, 0, 0, 100 * clients, 30 * clients, clients)
    return Record(arm, round, *counts, *metrics, 0.0, 0, 1.0, False, rows)
