"""A fleet of devices behind a Flower grid, as the federation of a study.

Nodes come and go, and a device that restarts is a new node. A *client* is known by the id that its own side reports in
the handshake, so a restarted device is the same client, with the same data, memory and random numbers. Cohorts are
drawn from the roster, the clients that are online, in the natural order of their ids: with all clients online they are
the cohorts of a ``Simulation`` whose clients are listed in that order.
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
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedtuner.arm import Setting
from fedtuner.errors import FleetError, SpecError
from fedtuner.executors import Executor
from fedtuner.fedex import FedEx
from fedtuner.flower import handshake
from fedtuner.flower.clock import Clock, RealClock
from fedtuner.flower.dispatch import Dispatch
from fedtuner.flower.exchange import Requests
from fedtuner.flower.handshake import Requirements, client_number
from fedtuner.flower.messages import Flat, Wire
from fedtuner.flower.model import Arrays
from fedtuner.flower.roster import HandshakeKey, Roster
from fedtuner.flower.secure import SecAgg, check
from fedtuner.flower.secure_rounds import SecureRounds
from fedtuner.methods.base import Method
from fedtuner.store import replace_file
from fedtuner.task import Task, Vector

log = logging.getLogger("flwr")  # so that these lines appear in Flower's own log

_LOG = 15.0  # seconds between two lines in the log about waiting
_PAUSE = (0.005, 1.0)  # shortest and longest seconds between two polls
_SHOWN = 5  # faults of a kind that are logged one by one


class Fleet:
    """Devices behind a Flower grid.

    ``model`` is the task that the clients have too (``client_app``), or the initial arrays of an app that trains by its
    own code (``tuned``): an ArrayRecord, a state_dict, or a list of arrays.

    A round begins when ``least`` clients are online (by default the study's cohort); the fleet waits up to ``wait``
    seconds for them. It ends ``deadline`` seconds after its requests were sent, or earlier if all clients have replied:
    a client that has not replied by then is dropped from it. A node does one job at a time and all arms of a rung send
    at once, so the deadline must leave time for as many jobs as there are arms. A client that was dropped gets no more
    work before it has replied, or its request has expired: rounds begin without it. ``most_examples`` bounds the weight
    of one client in a round, |T| and |V| each; by default the bound is ten times the median of the round.
    ``worst_error`` is for models given as arrays: infinity where the app's error is no rate. ``secure`` sends updates
    and losses through secure aggregation. ``clock`` is for tests.
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
        clock: Clock | None = None,
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
        self.grid, self.clock = grid, clock or RealClock()
        # Longer than the deadline: a device's clock may be wrong, and a reply after the deadline is to be counted as
        # late.
        self.requests = Requests(grid, 2 * deadline + 60, self.clock)
        required = Requirements(self.task.size, self.own_code, secure is not None)
        self.roster = Roster(self.requests, required, deadline, self.clock, self.fault)
        self._cohort: int | None = None
        self._fault_file: Path | None = None
        self._ids_file: Path | None = None  # of all clients that the study has met
        self._ids_saved = 0
        self._waiting_since: float | None = None
        self._logged = -math.inf
        self._pause = _PAUSE[0]

    @property
    def population(self) -> int:
        """How many clients the study has met, in this run and those that it continues."""
        return len(self.roster.ids)

    def available(self) -> Sequence[int]:
        """Return the clients online that are not behind with their work, in the natural order of their ids.

        A client is behind while its node has a request that was abandoned: another would be finished even later.
        """
        behind = {node for key, node in self.requests.abandoned() if not isinstance(key, HandshakeKey)}
        return [client for client, node in self.roster.nodes.items() if node not in behind]

    def gather(self) -> Sequence[int]:
        """Wait until enough clients are online for a round, and return all that are."""
        while True:
            self.poll()
            if self.enough():
                return list(self.roster.nodes)
            self.pause()

    def id_of(self, client: int) -> str | int:
        """Return the id that a client reported."""
        return self.roster.ids[client]

    def node_of(self, client: int) -> int | None:
        """Return the client's node; of several nodes that report one id, the last to do so."""
        return self.roster.nodes.get(client)

    def check(self, cohort: int | None = None, method: Method | None = None, fedex: FedEx | None = None) -> None:
        """Remember how many clients a round asks for; how many are online is seen when it begins."""
        self._cohort = cohort
        if self.secure is not None and method is not None and fedex is not None:
            check(method, fedex, cohort)

    def fingerprint(self) -> str:
        """Return a hash of the model's shape: clients may come and go."""
        return hashlib.blake2b(repr(self.task.layout()).encode(), digest_size=12).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return the name and the fingerprint; the number of clients is not known before they come."""
        return {"name": self.name, "clients": "a fleet of", "fingerprint": self.fingerprint()}

    def executor(self, setting: Setting, folder: Path) -> Executor:
        """Return what advances arms on the devices; faults are written to ``folder`` if it is a study's store."""
        self._cohort = setting.cohort
        stored = folder.is_dir()
        self._fault_file = folder / "fleet.jsonl" if stored else None
        self._ids_file, self._ids_saved = (folder / "clients.json" if stored else None), 0
        if self._ids_file is not None:
            self.roster.ids |= {client_number(id): id for id in handshake.read_ids(self._ids_file)}
            self._start_from(folder / "initial.npy")
        return Dispatch(self, setting, folder) if self.secure is None else SecureRounds(self, setting)

    def record(self, w: Vector) -> ArrayRecord:
        """Return a model, such as ``study.best.model``, as arrays: those of the app, or the one vector of a task."""
        return self.wire.record(w)

    def poll(self) -> list[tuple[Hashable, Message]]:
        """Update the roster, and return the replies to requests of work that have arrived."""
        self.roster.update()
        replies, late = self.requests.collect()
        for key, message in replies + late:
            if isinstance(key, HandshakeKey):
                self.roster.take_reply(key.node, message)
        for key, _ in late:
            if not isinstance(key, HandshakeKey):
                self.fault("late", f"an answer came after its round: {key}")
        if self._ids_file is not None and len(self.roster.ids) != self._ids_saved:
            handshake.write_ids(self._ids_file, self.roster.ids.values())
            self._ids_saved = len(self.roster.ids)
        return [(key, message) for key, message in replies if not isinstance(key, HandshakeKey)]

    def pause(self, busy: bool = False) -> None:
        """Sleep before the next poll, each time longer while nothing arrives; not at all after a ``busy`` poll."""
        self._pause = _PAUSE[0] if busy else min(2 * self._pause, _PAUSE[1], self.deadline / 10)
        if not busy:
            self.clock.sleep(self._pause)

    def enough(self) -> bool:
        """Return whether enough clients are online for a round; raise after ``wait`` seconds without."""
        now, online = self.clock.now(), len(self.roster.nodes)
        least = self.least or self._cohort or 1
        if self.roster.settled() and online >= least and self.available():
            self._waiting_since = None
            self.roster.stop_waiting()
            return True
        if self._waiting_since is None:
            self._waiting_since = self._logged = now
        nodes = len(self.roster.online)
        if now - self._logged > _LOG:
            self._logged = now
            log.info("fedtuner: waiting for clients: %d of %d are there, %d nodes online", online, least, nodes)
        if now - self._waiting_since <= self.wait:
            return False
        if online >= least and not self.available():
            raise FleetError(
                f"all {online} clients are busy with rounds that have ended, after {self.wait:g} s: raise deadline="
            )
        refusal = self.roster.refusal()
        raise FleetError(
            f"{online} of the {least} clients that a round needs are there after {self.wait:g} s "
            f"({nodes} nodes online{refusal and f'; {refusal}'}): start more SuperNodes, lower least= or raise wait="
        )

    def fault(self, kind: str, text: str, **details: Any) -> None:
        """Count, log and write down something that went wrong."""
        self.faults[kind] += 1
        if self.faults[kind] <= _SHOWN:
            more = f" (more of these are counted in silence{' in fleet.jsonl' if self._fault_file else ''})"
            log.warning("fedtuner: %s: %s%s", kind, text, more if self.faults[kind] == _SHOWN else "")
        if self._fault_file is not None:
            line = json.dumps({"time": round(time.time(), 3), "kind": kind, "what": text, **details})
            with suppress(OSError), self._fault_file.open("a") as file:  # a full disk is reported by the study's store
                file.write(line + "\n")

    def _start_from(self, file: Path) -> None:
        """Keep the arrays that arms start from in the store: a continued run starts its other arms from them."""
        if not isinstance(self.task, Arrays):
            return
        if file.exists():
            self.task.first = np.load(file)
        else:
            buffer = io.BytesIO()
            np.save(buffer, self.task.first)
            replace_file(file, buffer.getvalue())
