"""A cluster of one's imagination: Ray's interface over a clock that only counts.

The driver of the Ray executor, its workers' code, the schedule, the session and the journal are the real ones. What is
simulated is the transport and the training: calls take a latency, bytes take the network's time, and a client's
training takes the seconds that it is given. The driver's clock also goes on by the processor time that its own code
takes here, and by what Ray costs a driver for each call, wait and byte (``calibrate.py``).

A call is carried out when it is made, at the time when its worker would begin it: a worker does its calls in order, so
its answer is known before the clock gets there.
"""

from __future__ import annotations

import math
import sys
import time
import types
from bisect import bisect, insort
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

HOME = "node 0"  # the driver's


@dataclass(frozen=True)
class Costs:
    """What things cost, in seconds."""

    call: float = 0.5e-3  # of the driver's processor, to make a call and read its answer
    wait: float = 2e-6  # for each call that it waits for
    latency: float = 1e-3  # from a call to its begin, and from its end to the answer
    get_byte: float = 0.3e-9  # to copy what has come out of the object store
    put_byte: float = 0.3e-9
    save: float = 1e-3  # a state
    save_byte: float = 2e-9
    sync: float = 2e-3  # until a file is on the disk
    disk_byte: float = 1e-9  # 1 GB/s
    network_byte: float = 8 / 10e9  # 10 Gbit/s for each node
    start: float = 5.0  # of a worker


class Ghost(np.ndarray):
    """A small array that stands for a large one: it says that it has ``scale`` times its bytes."""

    scale = 1.0

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return int(self.size * self.itemsize * Ghost.scale)


@dataclass
class Node:
    """A machine: one thing at a time is on its network."""

    taken: list[tuple[float, float]] = field(default_factory=list)  # begin and end of what is on it, in order
    moved: int = 0  # bytes

    def gap(self, when: float, length: float) -> float:
        """Return the first time from ``when`` on at which the network is free for so long."""
        for begin, end in self.taken[max(0, bisect(self.taken, (when, math.inf)) - 1) :]:
            if begin >= when + length:
                break
            when = max(when, end)
        return when

    def take(self, when: float, length: float, now: float) -> None:
        """Keep the network busy; what ended before ``now`` is forgotten."""
        insort(self.taken, (when, when + length))
        while self.taken and self.taken[0][1] < now:
            del self.taken[0]


@dataclass(eq=False)
class Ref:
    """An answer, or something that was put."""

    value: Any
    ready: float
    size: int
    node: str
    there: dict[str, float] = field(default_factory=dict)  # when it is on other nodes


@dataclass(eq=False)
class Actor:
    """A worker."""

    value: Any
    node: str
    free: float
    busy: float = 0.0  # seconds of its clients' training

    def __getattr__(self, name: str) -> Any:
        return types.SimpleNamespace(remote=lambda *args: CLUSTER[-1].call(self, name, args))


CLUSTER: list[Cluster] = []


class Cluster:
    """The clock and the machines; it stands in for the modules ``ray`` and ``time``."""

    def __init__(self, workers: int, per_node: int, memory: float, costs: Costs) -> None:
        self.costs, self.memory = costs, memory
        self.places = {HOME: 0, **{f"node {n + 1}": per_node for n in range(-(-workers // per_node))}}
        self.nodes = {name: Node() for name in self.places}
        self.actors: list[Actor] = []
        self.now = 0.0  # of the driver
        self.processor = self.charged = 0.0  # seconds that its own code took, and that Ray and saving would take
        self.calls = 0
        self._at: list[tuple[Actor, list[float]]] = []  # the worker whose code runs, and its time
        self._mark = time.process_time()
        self._outside = 0

    # Time

    def monotonic(self) -> float:
        if self._at:
            return self._at[-1][1][0]
        self._catch_up()
        return self.now

    def sleep(self, seconds: float) -> None:
        if self._at:
            self._at[-1][1][0] += seconds
        else:
            self.now += seconds

    def work(self, seconds: float) -> None:
        """Train for so long, as a client of the worker whose code runs."""
        self._at[-1][0].busy += seconds
        self.sleep(seconds)

    def charge(self, seconds: float) -> None:
        """Let what is done take so much of whoever does it."""
        if not self._at:
            self.charged += seconds
        self.sleep(seconds)

    def _catch_up(self) -> None:
        mark = time.process_time()
        if not self._outside:
            self.now += mark - self._mark
            self.processor += mark - self._mark
        self._mark = mark

    @contextmanager
    def _unpaid(self) -> Iterator[None]:
        """Do what is no work of the driver's."""
        self._catch_up()
        self._outside += 1
        try:
            yield
        finally:
            self._catch_up()
            self._outside -= 1

    # Transport

    @property
    def _here(self) -> str:
        return self._at[-1][0].node if self._at else HOME

    def _move(self, size: int, source: str, target: str, when: float) -> float:
        """Return when so many bytes are there; both networks are busy for as long."""
        if source == target or not size:
            return when
        ends, length, begin = (self.nodes[source], self.nodes[target]), size * self.costs.network_byte, -1.0
        while begin != when:  # a time that suits both
            begin, when = when, ends[1].gap(ends[0].gap(when, length), length)
        for node in ends:
            node.take(when, length, self.now)
            node.moved += size
        return when + length

    def _fetched(self, ref: Ref, node: str, when: float) -> float:
        """Return when something is on a node; it is sent there once."""
        if node not in ref.there:
            ref.there[node] = self._move(ref.size, ref.node, node, max(when, ref.ready))
        return max(when, ref.there[node])

    def call(self, actor: Actor, name: str, args: Sequence[Any]) -> Ref:
        self.calls += not self._at
        self.charge(self.costs.call)
        with self._unpaid():
            begins = self.monotonic() + self.costs.latency
            given = [self._argument(arg, actor) for arg in args]
            for arg, size in given:
                moved = self._fetched(arg, actor.node, begins) if isinstance(arg, Ref) else 0.0
                begins = (
                    max(begins, moved) if isinstance(arg, Ref) else self._move(size, self._here, actor.node, begins)
                )
            at = [max(begins, actor.free)]
            self._at.append((actor, at))
            try:
                at[0] += sum(size for _, size in given) * self.costs.get_byte
                values = [arg.value if isinstance(arg, Ref) else arg for arg, _ in given]
                answer = getattr(actor.value, name)(*values)
                size = weight(answer)
                at[0] += size * self.costs.put_byte
            finally:
                self._at.pop()
            actor.free = at[0]
            return Ref(answer, at[0] + self.costs.latency, size, actor.node)

    @staticmethod
    def _argument(arg: Any, actor: Actor) -> tuple[Any, int]:
        return (arg, arg.size if actor.node not in arg.there else 0) if isinstance(arg, Ref) else (arg, weight(arg))

    # The module ``ray``

    def put(self, value: Any) -> Ref:
        size = weight(value)
        self.charge(size * self.costs.put_byte)
        return Ref(value, self.monotonic(), size, self._here)

    def get(self, ref: Ref) -> Any:
        with self._unpaid():
            arrives = self._fetched(ref, self._here, self.monotonic())
            self.sleep(max(0.0, arrives - self.monotonic()))
        self.charge(ref.size * self.costs.get_byte)
        return ref.value

    def wait(self, refs: Sequence[Ref], num_returns: int = 1, timeout: float = 0.0) -> tuple[list[Ref], list[Ref]]:
        self.charge(len(refs) * self.costs.wait)
        with self._unpaid():
            until = self.now + timeout
            for ref in sorted((r for r in refs if HOME not in r.there and r.ready <= until), key=lambda r: r.ready):
                self._fetched(ref, HOME, ref.ready)  # what has come is pulled while the driver waits
            times = {ref: ref.there.get(HOME, float("inf")) for ref in refs}
            first = sorted(times.values())[num_returns - 1]
            self.now = max(self.now, min(until, first))
            ready = [ref for ref in refs if times[ref] <= self.now][:num_returns]
            chosen = set(map(id, ready))
            return ready, [ref for ref in refs if id(ref) not in chosen]

    def remote(self, kind: type) -> Any:
        def hire(*args: Any) -> Actor:
            used = [actor.node for actor in self.actors]
            node = next(name for name, places in self.places.items() if used.count(name) < places)
            actor = Actor(kind(*args), node, self.now + self.costs.start)
            self.actors.append(actor)
            return actor

        return types.SimpleNamespace(options=lambda **more: types.SimpleNamespace(remote=hire))

    def module(self) -> types.ModuleType:
        """Return what is imported as ``ray``."""
        made = types.ModuleType("ray")
        about = [
            {"NodeID": name, "Alive": True, "Resources": {"CPU": float(n), "object_store_memory": self.memory}}
            for name, n in self.places.items()
        ]
        context = types.SimpleNamespace(
            gcs_address="nowhere", get_job_id=lambda: "job", get_node_id=lambda: self._here
        )  # fmt: skip
        known: Mapping[str, Any] = {
            "put": self.put, "get": self.get, "wait": self.wait, "remote": self.remote, "kill": lambda actor: None,
            "nodes": lambda: about, "is_initialized": lambda: True, "get_runtime_context": lambda: context,
            "exceptions": types.SimpleNamespace(RayError=type("RayError", (Exception,), {})),
            "util": types.SimpleNamespace(get_node_ip_address=lambda: self._here),
        }  # fmt: skip
        for name, value in known.items():
            setattr(made, name, value)
        return made


def weight(value: Any) -> int:
    """Return the bytes of a message's arrays."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Ref):
        return 0
    if isinstance(value, Mapping):
        return sum(map(weight, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(weight, value))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(weight(getattr(value, f.name)) for f in fields(value))
    return 0


@contextmanager
def running(cluster: Cluster, *packages: str) -> Iterator[None]:
    """Let all see the cluster in place of ``ray``, and the modules of these packages its clock in place of ``time``."""
    modules: list[Any] = [m for name, m in sys.modules.items() if name.startswith(packages) and hasattr(m, "time")]
    before, real = [module.time for module in modules], sys.modules.get("ray")
    CLUSTER.append(cluster)
    sys.modules["ray"] = cluster.module()
    for module in modules:
        module.time = cluster
    try:
        yield
    finally:
        for module, clock in zip(modules, before, strict=True):
            module.time = clock
        CLUSTER.pop()
        del sys.modules["ray"]
        if real is not None:
            sys.modules["ray"] = real
