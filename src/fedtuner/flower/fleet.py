"""A fleet of devices behind a Flower grid, as the federation of a study: who is there, and what goes wrong.

Nodes come and go, and a device that restarts is a new node; a *client* is known by the id that its own side reports
when it is greeted (``hello``), so it stays the same client, with the same data, memory and random numbers. Cohorts are
drawn from those who are there, in the natural order of their ids: with everybody there they are the cohorts of a
``Simulation`` whose clients stand in that order.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedtuner.arm import Setting
from fedtuner.errors import FleetError, SpecError
from fedtuner.executors import Executor
from fedtuner.fedex import FedEx
from fedtuner.flower import hello
from fedtuner.flower.dispatch import Dispatch
from fedtuner.flower.hello import Terms, client_number, natural
from fedtuner.flower.messages import HELLO, Flat, MalformedError, Wire
from fedtuner.flower.model import Arrays
from fedtuner.flower.post import Letter, Post
from fedtuner.flower.secure import SecAgg, check
from fedtuner.flower.secure_rounds import SecureRounds
from fedtuner.methods.base import Method
from fedtuner.store import replace_file
from fedtuner.task import Task, Vector

log = logging.getLogger("flwr")  # what is said here shows where Flower's own log does

_LOOK = 1.0  # seconds between two looks at who is online
_GREETING = 60.0  # seconds that a node has for its answer to the first greeting
_AGAIN = 30.0  # seconds until a node that did not answer, or not well, is greeted again
_SAY = 15.0  # seconds between two lines about waiting
_REST = (0.005, 1.0)  # shortest and longest nap between two looks for answers
_SHOWN = 5  # faults of a kind that are logged one by one


@dataclass(frozen=True)
class _Hello:
    node: int


class Fleet:
    """Devices behind a Flower grid.

    ``model`` is the task that the clients have too (``client_app``), or the initial arrays of an app that trains by its
    own code (``tuned``): an ArrayRecord, a state_dict, or a list of arrays.

    A round begins when ``least`` clients are there (by default the study's cohort) and ends after ``deadline`` seconds
    at the latest, counted from sending: who has not answered by then is dropped. A node does one job at a time and all
    arms of a rung send at once, so give time for as many jobs as there are arms. With fewer than ``least`` clients it
    is waited for up to ``wait`` seconds. Who was dropped gets no more work before its answer, or until its message has
    run out: rounds begin without it. ``most_examples`` bounds the weight of one client in a round, |T| and |V| each; by
    default it is ten times the median of the round's. ``worst_error`` is for models given as arrays: infinity where the
    app's error is no rate. ``secure`` sends updates and losses through secure aggregation.
    """

    dear = True

    def __init__(
        self,
        grid: Grid,
        model: Task | ArrayRecord | Mapping[str, Any] | Sequence[Any],
        *,
        least: int | None = None,
        wait: float = 300.0,
        deadline: float = 600.0,
        most_examples: int | None = None,
        worst_error: float = 1.0,
        secure: SecAgg | None = None,
        name: str = "flower",
    ) -> None:
        for what, value, low in (("least", least, 1), ("most_examples", most_examples, 1)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
                raise SpecError(f"{what} = {value!r}, but must be a whole number >= {low}")
        for what, seconds in (("wait", wait), ("deadline", deadline)):
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
                raise SpecError(f"{what} = {seconds!r}, but must be a number of seconds > 0")
        arrays = Arrays(model, worst_error) if isinstance(model, (Mapping, Sequence)) else None
        self.own_code = arrays is not None
        if self.own_code and secure is not None:
            raise SpecError("secure aggregation needs a task: give one, and make the clients by client_app")
        self.task: Task = arrays or cast(Task, model)
        self.wire: Wire = arrays or Flat(self.task.size)
        self.name, self.least, self.wait, self.deadline = name, least, float(wait), float(deadline)
        self.most_examples, self.secure = most_examples, secure
        self.faults: Counter[str] = Counter()  # what went wrong, by kind
        self.grid = grid
        self._terms = Terms(self.task.size, self.own_code, secure is not None)
        # Longer than the deadline: a device's clock may be wrong, and what comes late should be counted as such.
        self.post = Post(grid, 2 * deadline + 60)
        self._cohort: int | None = None
        self._book: Path | None = None
        self._roll: Path | None = None  # where the ids of all that were ever met are kept
        self._kept = 0  # how many of them are
        self._online: set[int] = set()
        self._members: dict[int, int] = {}  # node -> client, in the order in which they said hello
        self._ids: dict[int, str | int] = {}  # client -> its id, of all that were ever met
        self._where: dict[int, int] = {}  # client -> its node, of those who are there, in the order of their ids
        self._greeted: dict[int, float] = {}  # node -> when it was greeted
        self._refused: dict[int, tuple[float, str]] = {}  # node -> when to greet it again, and why
        self._settled: float | None = None  # until when the first greetings may be answered
        self._looked = self._said = -math.inf
        self._waiting: float | None = None
        self._nap = _REST[0]

    @property
    def population(self) -> int:
        """How many clients the study has met, in this run and those that it continues."""
        return len(self._ids)

    def available(self) -> Sequence[int]:
        """Return the clients whose nodes are online and not behind, in the natural order of their ids.

        A node is behind while it has work that was given up: more of it would only make it later.
        """
        behind = {node for key, node in self.post.owed() if not isinstance(key, _Hello)}
        return [client for client, node in self._where.items() if node not in behind]

    def gather(self) -> Sequence[int]:
        """Look who is there, wait until it is enough, and return all of them."""
        while True:
            self.turn()
            if self.enough():
                return list(self._where)
            self.rest()

    def id_of(self, client: int) -> str | int:
        """Return the id that a client reported."""
        return self._ids[client]

    def node_of(self, client: int) -> int | None:
        """Return the client's node; of several that say they are it, the one that said so last."""
        return self._where.get(client)

    def check(self, cohort: int | None = None, method: Method | None = None, fedex: FedEx | None = None) -> None:
        """Remember how many clients a round asks for; who is there is seen when it begins."""
        self._cohort = cohort
        if self.secure is not None and method is not None and fedex is not None:
            check(method, fedex, cohort)

    def fingerprint(self) -> str:
        """Return a hash of the model's shape: clients may come and go."""
        return hashlib.blake2b(repr(self.task.layout()).encode(), digest_size=12).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return the name and the fingerprint; how many clients there are is seen as they come."""
        return {"name": self.name, "clients": "a fleet of", "fingerprint": self.fingerprint()}

    def executor(self, setting: Setting, folder: Path) -> Executor:
        """Return what advances arms on the devices; faults are written to ``folder`` if it is a study's store."""
        self._cohort = setting.cohort
        self._book = folder / "fleet.jsonl" if folder.is_dir() else None
        self._roll, self._kept = (folder / "clients.json" if folder.is_dir() else None), 0
        if self._roll is not None:
            self._ids |= {client_number(id): id for id in hello.known(self._roll)}
            self._start_from(folder / "initial.npy")
        return Dispatch(self, setting, folder) if self.secure is None else SecureRounds(self, setting)

    def record(self, w: Vector) -> ArrayRecord:
        """Return a model, such as ``study.best.model``, as arrays: those of the app, or the one vector of a task."""
        return self.wire.record(w)

    def turn(self) -> list[tuple[Hashable, Message]]:
        """Look who is there, greet whom we do not know, and return the answers to letters that have come."""
        self._look()
        answers, late = self.post.collect()
        for key, message in answers + late:
            if isinstance(key, _Hello):  # these are never too late
                self._hear(key.node, message)
        for key, _ in late:
            if not isinstance(key, _Hello):
                self.fault("late", f"an answer came after its round: {key}")
        if self._roll is not None and len(self._ids) != self._kept:
            hello.keep(self._roll, self._ids.values())
            self._kept = len(self._ids)
        return [(key, message) for key, message in answers if not isinstance(key, _Hello)]

    def rest(self, busy: bool = False) -> None:
        """Wait a moment, longer while nothing happens."""
        self._nap = _REST[0] if busy else min(2 * self._nap, _REST[1], self.deadline / 10)
        if not busy:
            time.sleep(self._nap)

    def enough(self) -> bool:
        """Return whether a round may begin; raise if it has been waited for too long."""
        now, there = time.monotonic(), len(self._where)
        least = self.least or self._cohort or 1
        settled = self._settled is not None and (now > self._settled or not self._greeted)
        if settled and there >= least and self.available():
            self._waiting, self._settled = None, -math.inf  # whoever joins later is not waited for
            return True
        if self._waiting is None:
            self._waiting = self._said = now
        if now - self._said > _SAY:
            self._said = now
            log.info(
                "fedtuner: waiting for clients: %d of %d are there, %d nodes online", there, least, len(self._online)
            )
        if now - self._waiting > self.wait and there >= least and not self.available():
            raise FleetError(
                f"all {there} clients are busy with rounds that have ended, after {self.wait:g} s: raise deadline="
            )
        if now - self._waiting > self.wait:
            why = next((f"; node {n} was refused: {why}" for n, (_, why) in self._refused.items()), "")
            raise FleetError(
                f"{there} of the {least} clients that a round needs are there after {self.wait:g} s "
                f"({len(self._online)} nodes online{why}): start more SuperNodes, lower least= or raise wait="
            )
        return False

    def fault(self, kind: str, text: str, **details: Any) -> None:
        """Count, log and write down something that went wrong."""
        self.faults[kind] += 1
        if self.faults[kind] <= _SHOWN:
            more = f" (more of these are counted in silence{' in fleet.jsonl' if self._book else ''})"
            log.warning("fedtuner: %s: %s%s", kind, text, more if self.faults[kind] == _SHOWN else "")
        if self._book is not None:
            line = json.dumps({"time": round(time.time(), 3), "kind": kind, "what": text, **details})
            with suppress(OSError), self._book.open("a") as file:  # a full disk shows where the study is saved
                file.write(line + "\n")

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK and self._online:
            return
        self._looked, online = now, self.post.nodes()
        for node in self._online - online:
            if node in self._members:
                id = self._ids[self._members[node]]
                self.fault("left", f"client {id!r} has left (node {node})", client=id, node=node)
        self._online = online
        for known in (self._members, self._refused):  # who comes back is greeted again
            for node in [n for n in known if n not in online]:
                del known[node]
        self._place()
        patience = min(self.deadline, _GREETING)
        for node in [n for n, since in self._greeted.items() if now - since > patience]:
            self._refuse(node, "no answer to a greeting")
        strangers = [
            n for n in sorted(online)
            if n not in self._members and n not in self._greeted and now >= self._refused.get(n, (0.0, ""))[0]
        ]  # fmt: skip
        if strangers:
            self._settled = now + patience if self._settled is None else self._settled
            self._greeted |= dict.fromkeys(strangers, now)
            for letter in self.post.send([Letter(_Hello(n), n, HELLO, hello.hello()) for n in strangers]):
                self._refuse(letter.node, "the grid did not take a greeting")

    def _hear(self, node: int, message: Message) -> None:
        """Take a node's answer to a greeting."""
        self._greeted.pop(node, None)
        if node in self._members:
            return
        try:
            self._join(node, hello.id_in(message, self._terms))
        except MalformedError as error:
            self._refuse(node, str(error))

    def _join(self, node: int, id: str | int) -> None:
        client = client_number(id)
        before = self.node_of(client)
        if before is not None:
            text = f"client {id!r} is now at node {node}, before at {before} (restarted, or two with one id?)"
            self.fault("moved", text, client=id, node=node)
        self._refused.pop(node, None)
        self._members[node] = client
        self._ids[client] = id
        self._place()

    def _place(self) -> None:
        where = {client: node for node, client in self._members.items() if node in self._online}
        self._where = {client: where[client] for client in sorted(where, key=lambda c: natural(self._ids[c]))}

    def _refuse(self, node: int, why: str) -> None:
        self._greeted.pop(node, None)
        self.post.give_up([_Hello(node)])
        if node not in self._refused or self._refused[node][1] != why:
            self.fault("refused", f"node {node} cannot take part: {why}", node=node)
        self._refused[node] = (time.monotonic() + _AGAIN, why)

    def _start_from(self, file: Path) -> None:
        """Keep the arrays that the arms start from: a run that is continued starts its other arms from the same."""
        if not isinstance(self.task, Arrays):
            return
        if file.exists():
            self.task.first = np.load(file)
        else:
            buffer = io.BytesIO()
            np.save(buffer, self.task.first)
            replace_file(file, buffer.getvalue())
