"""A fleet of devices behind a Flower grid, as the federation of a study.

Nodes come and go, and a device that restarts is a new node. A *client* is known by the id that its own side reports in
the handshake, so a restarted device is the same client, with the same data, memory and random numbers. Cohorts are
drawn from the roster, the clients that are online, in the natural order of their ids: with all clients online they are
the cohorts of a ``Simulation`` whose clients are listed in that order.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedtuner import checks
from fedtuner.core.executor import Executor
from fedtuner.core.federation import FederationDefaults
from fedtuner.core.metric import Metric
from fedtuner.core.model import Learner, Model, Task, Vector
from fedtuner.core.odds import UNUSABLE
from fedtuner.core.records import State
from fedtuner.core.round import Round
from fedtuner.core.screens import Norm, Values, Weights
from fedtuner.core.setup import Setup
from fedtuner.core.store import LATE, Blobs, Note
from fedtuner.errors import FleetError, SpecError, one_line
from fedtuner.flower.clock import Clock, RealClock
from fedtuner.flower.dispatch import Dispatch, RequestKey
from fedtuner.flower.exchange import Requests
from fedtuner.flower.handshake import Requirements
from fedtuner.flower.roster import HandshakeKey, Roster
from fedtuner.flower.secure import SecAgg, check
from fedtuner.flower.secure_rounds import SecureRounds
from fedtuner.flower.wire import Arrays, Flat, Wire

log = logging.getLogger("flwr")  # so that these lines appear in Flower's own log

_LOG = 15.0  # seconds between two lines in the log about waiting
_PAUSE = (0.005, 1.0)  # shortest and longest seconds between two polls
_SHOWN = 5  # faults of a kind that are logged one by one
_TABLE = "fedtuner."  # of a run config


def settings(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of ``tune`` that a run config has under ``fedtuner``.

    In an app's pyproject.toml they stand in ``[tool.flwr.app.config.fedtuner]``, such as ``budget = 200``; for one run
    they are changed by ``flwr run --run-config 'fedtuner.budget=500'``.

    >>> settings({'lr': 0.1, 'fedtuner.budget': 200, 'fedtuner.store': 'runs/phones'})
    {'budget': 200, 'store': 'runs/phones'}
    """
    return {name.removeprefix(_TABLE): value for name, value in run_config.items() if name.startswith(_TABLE)}


class Fleet(FederationDefaults):
    """Devices behind a Flower grid.

    ``model`` is the task (or learner) that the clients have too (``client_app``), or the initial arrays of an app that
    trains by its own code (``tuned``): an ArrayRecord, a state_dict, or a list of arrays.

    A round begins when ``least`` clients are online (by default the study's cohort; 1 where that is a part of the
    fleet); the fleet waits up to ``wait`` seconds for them. It ends ``deadline`` seconds after its requests were sent,
    or earlier if all clients have replied: a client that has not replied by then is dropped from it. A node does one
    job at a time and all arms of a rung send at once, so the deadline must leave time for as many jobs as there are
    arms. A client that was dropped gets no more work before it has replied, or its request has expired: rounds begin
    without it.

    Unless a study says otherwise (``screens=``), reports are screened: ``Values``, ``Weights`` and ``Norm`` of
    ``fedtuner.core.screens``. ``most_examples`` bounds the weight of one client in a round, |T| and |V| each; by
    default the bound is ten times the median of the round, and a tenth of its sum or twice the mean of the others.
    ``metric`` is for models given as arrays: the name of the app's metric, whether it is a rate and higher is better;
    ``worst_error`` in its place is infinity where the app's error is no rate. ``least_loss`` is the smallest loss that
    there can be: minus infinity where losses may be negative. ``groups`` names groups of clients by their ids.
    ``secure`` sends updates and losses through secure aggregation. ``clock`` is for tests.
    """

    save_every_round = True

    def __init__(
        self,
        grid: Grid,
        model: Task | Learner | ArrayRecord | Mapping[str, Any] | Sequence[Any],
        *,
        least: int | None = None,
        wait: float = 300.0,
        deadline: float = 600.0,
        most_examples: int | None = None,
        worst_error: float = 1.0,
        metric: Metric | None = None,
        groups: Mapping[str | int, str] | None = None,
        least_loss: float = 0.0,
        secure: SecAgg | None = None,
        name: str = "flower",
        clock: Clock | None = None,
    ) -> None:
        if least is not None:
            checks.whole("least", least)
        for what, seconds in (("wait", wait), ("deadline", deadline)):
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
                raise SpecError(f"{what} = {seconds!r}, but must be a number of seconds > 0")
        self.model: Model
        self.wire: Wire
        if isinstance(model, (Mapping, Sequence)):
            self.model = self.wire = Arrays(model, metric or Metric(worst=worst_error))
        else:
            self.model, self.wire = model, Flat(model.size)
        if self.wire.own_training and secure is not None:
            raise SpecError("secure aggregation needs a task: give one, and make the clients by client_app")
        self.name, self.least, self.wait, self.deadline = name, least, float(wait), float(deadline)
        self.least_loss, self.groups = least_loss, checks.groups(groups, groups or ())
        weights = Weights() if most_examples is None else Weights(most_examples, share=1.0)
        judged = metric is not None or self.model.metric.value is not None
        values = Values(self.model.metric.worst, least_loss, undefined=judged)
        screens = (values, weights, Norm(trainable=self.model.trainable))
        self.shows, self.screens = ("reports", screens) if secure is None else ("sums", ())
        self.faults: Counter[str] = Counter()  # what went wrong, by kind
        self.out: tuple[int, ...] = ()  # arms that get no more rounds
        self.grid, self.clock = grid, clock or RealClock()
        # Longer than the deadline: a device's clock may be wrong, and a reply after the deadline is to be counted as
        # late.
        self.requests = Requests(grid, 2 * deadline + 60, self.clock, self.fault)
        required = Requirements(self.model.size, self.wire.own_training, secure is not None)
        self.roster = Roster(self.requests, required, deadline, self.clock, self.fault)
        self._secure, self._cohort = secure, 1.0
        self._notes: list[Note] = []  # faults that nobody has asked for yet
        self._waiting_since: float | None = None
        self._logged = -math.inf
        self._pause = _PAUSE[0]

    # What a study asks for

    def executor(self, round: Round, blobs: Blobs, workers: int | None) -> Executor:
        """Return what computes a study's rounds on the devices."""
        self._cohort = round.setup.cohort
        if self._secure is not None:
            return SecureRounds(self, self._secure, round, blobs)
        return Dispatch(self, round, blobs)

    def present(self) -> Sequence[int]:
        """Return the clients online that are not behind with their work, in the natural order of their ids.

        A client is behind while its node has a request that was abandoned: another would be finished even later.
        """
        behind = {node for key, node in self.requests.abandoned() if not isinstance(key, HandshakeKey)}
        return [client for client, node in self.roster.nodes.items() if node not in behind]

    def everyone(self) -> Sequence[int]:
        """Wait until enough clients are online for a round, and return all that are."""
        while True:
            self.poll()
            if self.enough():
                return list(self.roster.nodes)
            self.pause()

    def population(self) -> int:
        """Return how many clients the study has met, in this run and those that it continues."""
        return len(self.roster.ids)

    def id_of(self, client: int) -> str | int:
        return self.roster.ids[client]

    def check(self, setup: Setup) -> None:
        """Remember how many clients a round asks for; how many are online is seen when it begins."""
        self._cohort = setup.cohort
        if self._secure is not None:
            check(setup)

    def describe(self) -> dict[str, Any]:
        """Return the name and a hash of the model's shape; the number of clients is not known before they come."""
        digest = hashlib.blake2b(repr(self.model.layout()).encode(), digest_size=12)
        return {"name": self.name, "clients": "a fleet of", "fingerprint": digest.hexdigest()}

    def met(self) -> Sequence[str | int]:
        return list(self.roster.ids.values())

    def recall(self, ids: Sequence[str | int], codes: Mapping[str | int, str] = MappingProxyType({})) -> None:
        self.roster.recall(ids, codes)

    @property
    def codes(self) -> Mapping[str | int, str]:  # type: ignore[override]
        return self.roster.codes

    def retire(self, arms: Sequence[int]) -> None:
        """Take note of arms that get no more rounds: devices delete what they keep for them."""
        self.out = tuple(sorted({*self.out, *arms}))

    def notes(self) -> Sequence[Note]:
        notes, self._notes = self._notes, []
        return notes

    # What its executors ask for

    def record(self, w: Vector) -> ArrayRecord:
        """Return a model, such as ``study.best.model``, as arrays: those of the app, or the one vector of a task."""
        return self.wire.record(w)

    def node_of(self, client: int) -> int | None:
        """Return the client's node; of several nodes that report one id, the last to do so."""
        return self.roster.nodes.get(client)

    def poll(self) -> list[tuple[Hashable, Message]]:
        """Update the roster, and return the replies to requests of work that have arrived."""
        self.roster.update()
        replies, late = self.requests.collect()
        for key, message in replies + late:
            if isinstance(key, HandshakeKey):
                self.roster.take_reply(key.node, message)
        for key, _ in late:
            if isinstance(key, RequestKey):
                self.fault(LATE, f"an answer came after its round: {key}", **key.about)
        return [(key, message) for key, message in replies if not isinstance(key, HandshakeKey)]

    def pause(self, busy: bool = False) -> None:
        """Sleep before the next poll, each time longer while nothing arrives; not at all after a ``busy`` poll."""
        self._pause = _PAUSE[0] if busy else min(2 * self._pause, _PAUSE[1], self.deadline / 10)
        if not busy:
            self.clock.sleep(self._pause)

    def enough(self) -> bool:
        """Return whether enough clients are online for a round; raise after ``wait`` seconds without."""
        now, online = self.clock.now(), len(self.roster.nodes)
        least = self.least or (1 if isinstance(self._cohort, float) else self._cohort)
        if self.roster.settled() and online >= least and self.present():
            self._waiting_since = None
            self.roster.stop_waiting()
            return True
        if self._waiting_since is None:
            self._waiting_since, self._logged = now, -math.inf
        nodes, missing = len(self.roster.online), online < least
        few = f"{online} of the {least} clients that a round needs are there"
        remedy = "lower least=" if self.least else f"lower cohort= (to {max(1, online)}, or a part such as 0.5)"
        known = missing and self.roster.settled()  # else handshakes may be under way
        if now - max(self._logged, -math.inf if known else self._waiting_since) > _LOG:
            self._logged = now
            how = f"start more, or {remedy}"
            if missing and nodes >= least:  # there would be enough
                how = self.roster.refusal() or "the others answer when their app has started, which may take a while"
            log.info("fedtuner: waiting up to %g s: %s (%d nodes online): %s", self.wait, few, nodes, how)
        if now - self._waiting_since <= self.wait:
            return False
        if online >= least and not self.present():
            raise FleetError(
                f"all {online} clients are busy with rounds that have ended, after {self.wait:g} s: raise deadline="
            )
        refusal = self.roster.refusal()
        raise FleetError(
            f"{few} after {self.wait:g} s ({nodes} nodes online{refusal and f'; {refusal}'}): {remedy}, start more "
            "SuperNodes or raise wait="
        )

    def name_failing(self, name: str, state: State, clients: Iterable[int]) -> None:
        """Log the clients that are drawn less often from now on; ``name`` is that of the round that has ended."""
        for client in sorted(i for i in clients if state.unusable.get(i) == UNUSABLE):
            id = self.id_of(client)
            why = f"its last {UNUSABLE} replies could not be used: it is drawn less often until one can"
            self.fault("failing", f"{name}, client {id!r}: {why}", round=state.round, client=id)

    def fault(self, kind: str, text: str, **about: Any) -> None:
        """Count and log something that went wrong, and note it for the study's log.jsonl."""
        text = one_line(text)
        self.faults[kind] += 1
        self._notes.append(Note(kind, text, **about))
        if self.faults[kind] <= _SHOWN:
            more = " (more of these are counted in silence, and noted in the store's log.jsonl)"
            log.warning("fedtuner: %s: %s%s", kind, text, more if self.faults[kind] == _SHOWN else "")
