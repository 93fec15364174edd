"""The executor over a fleet: all arms of a rung advance at once, each as fast as its own clients reply.

The requests of a round are sent in one batch with those of all other arms that are ready. A round ends when every
client of its cohort has replied, or at its deadline; then its reports are aggregated and the arm's next round is sent.
An arm is paused by sending it no requests.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flwr.app import Message

from fedtuner.core.executor import Advance, Progress, Stop
from fedtuner.core.records import Job, Plan, Report, Tally
from fedtuner.core.round import Round
from fedtuner.core.screens import differences
from fedtuner.core.store import Blobs
from fedtuner.core.survey import measured
from fedtuner.core.tally import combine, screen
from fedtuner.errors import FleetError
from fedtuner.flower.exchange import Request
from fedtuner.flower.messages import WORK, Lineage, Records, job_content, plan_records, reason_of
from fedtuner.flower.reads import Unread
from fedtuner.flower.replies import Expected, expected
from fedtuner.flower.wire import MalformedError
from fedtuner.run.executors.serial import fetched, settled

if TYPE_CHECKING:
    from fedtuner.flower.fleet import Fleet

_REMEDIES = {  # where what a client says is true, although it is far from what the others say
    "screened": "; losses below 0: Fleet(least_loss=), errors above 1: Fleet(worst_error=)",
    "capped": ": if they are true, set most_examples=",
}
_TRIES = 3  # a round without any report is sent again; after so many tries the study stops with the last reason


@dataclass(eq=False)
class _RoundInFlight:
    """A round whose requests have been sent, and the reports that have arrived."""

    name: str
    plan: Plan
    shared: Records  # what all its clients are sent
    expected: Expected
    deadline: float
    trains: bool  # else it evaluates
    reports: dict[int, Report] = field(default_factory=dict)  # by the place of their job
    pending: dict[int, int] = field(default_factory=dict)  # place of a job without a reply -> the node that has it
    unusable: set[int] = field(default_factory=set)  # clients that replied what cannot be used
    unread: list[set[str]] = field(default_factory=list)  # of each report, the names that the app's code did not read
    last_fault: str = "the deadline passed"

    def over(self, now: float) -> bool:
        return not self.pending or now > self.deadline


@dataclass(frozen=True)
class RequestKey:
    """One client's request in a round: what the reply is known by."""

    round: _RoundInFlight
    place: int  # in the plan's jobs
    client: str | int

    @property
    def job(self) -> Job:
        return self.round.plan.jobs[self.place]

    @property
    def about(self) -> dict[str, Any]:
        """What a note about it says: its client and, of a round of training, the arm and the round."""
        plan = self.round.plan
        return {"client": self.client, **({"arm": plan.arm, "round": plan.round + 1} if self.round.trains else {})}

    def __str__(self) -> str:
        return f"{self.round.name}, client {self.client!r}"


@dataclass
class _ArmInFlight:
    """An arm that is being advanced."""

    work: Advance
    round: _RoundInFlight | None = None
    empty_tries: int = 0  # of its current round


class Dispatch:
    """Advances arms on a fleet."""

    def __init__(self, fleet: Fleet, round: Round, blobs: Blobs) -> None:
        self._fleet, self._round, self._blobs = fleet, round, blobs
        self._unread = Unread()

    def advance(self, work: Sequence[Advance], stop: Stop) -> Iterator[Progress]:
        """Advance all arms at once. On ``stop`` the rounds in flight are abandoned: a continued run repeats them."""
        arms = [_ArmInFlight(one) for one in work]
        try:
            while (arms := [arm for arm in arms if not arm.work.done]) and not stop():
                busy = self._receive()
                for arm in arms:
                    if arm.round is not None and arm.round.over(self._fleet.clock.now()):
                        progress = self._end_round(arm, arm.round)
                        if progress is not None:
                            yield progress
                        busy = True
                busy |= self._send_rounds(arms)
                self._fleet.pause(busy)
        finally:
            for arm in arms:
                if arm.round is not None:
                    self._fleet.requests.abandon(self._keys(arm.round, arm.round.pending))

    def evaluate(self, plan: Plan) -> Tally:
        """Evaluate on all clients at once; a client that does not reply has no weight."""
        round = self._begin("evaluation", plan, Lineage(out=self._fleet.out, evaluation=True))
        self._send(self._keys(round, range(len(plan.jobs))))
        while not round.over(self._fleet.clock.now()):
            self._fleet.pause(self._receive())
        self._drop_pending(round)
        round.reports = {place: measured(report) for place, report in round.reports.items()}
        tally = self._tally(round)
        if not tally.reported:
            raise FleetError(f"no client answered an evaluation: {round.last_fault}")
        return tally

    def close(self) -> None:
        """Do nothing: the fleet outlives its executors."""

    # Send

    def _begin(self, name: str, planned: Plan, lineage: Lineage) -> _RoundInFlight:
        fleet, method, plan = self._fleet, self._round.setup.method, fetched(planned, self._blobs)
        shared = plan_records(plan, method.name, fleet.wire.record(plan.w), lineage)
        reports = expected(plan, method, fleet.model, fleet.wire)
        deadline = fleet.clock.now() + fleet.deadline
        return _RoundInFlight(name, plan, shared, reports, deadline, trains=not lineage.evaluation)

    def _send_rounds(self, arms: Sequence[_ArmInFlight]) -> bool:
        """Send the next round of every arm that has none in flight, and the jobs of clients that restarted, again."""
        keys: list[RequestKey] = []
        parents = {arm.work.arm.id: arm.work.arm.parent[0] for arm in arms if arm.work.arm.parent}
        out = tuple(arm for arm in self._fleet.out if arm not in parents.values())  # devices still need theirs
        for arm in arms:
            if arm.round is not None:
                keys += self._restarted(arm.round)
            elif not arm.work.done and self._fleet.enough():
                one = arm.work
                plan = self._round.plan(one.arm, one.state, self._fleet.present())
                name = f"arm {one.arm.id}, round {one.state.round + 1}"
                arm.round = self._begin(name, plan, Lineage(parents.get(one.arm.id), out))
                keys += self._keys(arm.round, range(len(plan.jobs)))
        self._send(keys)
        return bool(keys)

    def _restarted(self, round: _RoundInFlight) -> list[RequestKey]:
        """Return the jobs whose client restarted: its node is not the one that has the job."""
        nodes = {place: self._fleet.node_of(round.plan.jobs[place].client) for place in round.pending}
        return self._keys(round, [p for p, node in nodes.items() if node not in (None, round.pending[p])])

    def _send(self, keys: Iterable[RequestKey]) -> None:
        requests = []
        for key in keys:
            round, node = key.round, self._fleet.node_of(key.job.client)
            if key.place in round.pending:
                self._fleet.requests.abandon([key])
            if node is not None:
                round.pending[key.place] = node
                group = f"{round.plan.arm}:{round.plan.round}"
                requests.append(Request(key, node, WORK, job_content(round.shared, key.job), group))
        for request in self._fleet.requests.send(requests):
            self._drop(request.key, "error", "the grid did not take the message")

    def _keys(self, round: _RoundInFlight, places: Iterable[int]) -> list[RequestKey]:
        return [RequestKey(round, place, self._fleet.id_of(round.plan.jobs[place].client)) for place in places]

    # Receive

    def _receive(self) -> bool:
        replies = self._fleet.poll()
        for key, message in replies:
            self._take_reply(key, message)
        return bool(replies)

    def _take_reply(self, key: Hashable, message: Message) -> None:
        assert isinstance(key, RequestKey)
        round = key.round
        if key.place not in round.pending:  # the client was dropped from the round
            return
        if message.has_error():
            round.unusable.add(key.job.client)
            self._drop(key, "error", reason_of(message.error.reason))
            return
        try:
            round.reports[key.place] = round.expected.read(message.content, key.job)
            round.unread.append(self._unread.passed_over(message.content, key.job.config))
            del round.pending[key.place]
        except MalformedError as error:
            round.unusable.add(key.job.client)
            self._drop(key, "malformed", str(error))

    def _drop(self, key: Hashable, kind: str, why: str) -> None:
        assert isinstance(key, RequestKey)
        key.round.pending.pop(key.place, None)
        key.round.last_fault = f"client {key.client!r}: {why}"
        self._fault(key, kind, why)

    def _fault(self, key: RequestKey, kind: str, text: str) -> None:
        self._fleet.fault(kind, f"{key}: {text}", **key.about)

    def _drop_pending(self, round: _RoundInFlight) -> None:
        """Drop the clients that have not replied."""
        pending = self._keys(round, round.pending)
        self._fleet.requests.abandon(pending)
        for key in pending:
            self._drop(key, "timeout", f"no answer in {self._fleet.deadline:g} s")

    # Settle

    def _end_round(self, arm: _ArmInFlight, round: _RoundInFlight) -> Progress | None:
        """Settle a round that is over. A round without usable reports is sent again and uses no budget."""
        self._drop_pending(round)
        if said := self._unread.warning(round.unread):
            self._fleet.fault("unread", f"{round.name}: {said}", arm=round.plan.arm, round=round.plan.round + 1)
        arm.round = None
        tally = self._tally(round)
        if not tally.reported:
            arm.empty_tries += 1
            if arm.empty_tries >= _TRIES:
                raise FleetError(f"{round.name}: no client reported in {_TRIES} tries; the last: {round.last_fault}")
            return None
        arm.empty_tries = 0
        progress = settled(self._round, self._blobs, arm.work, replace(tally, usable=_usable(round)))
        assert progress.state is not None
        arm.work = replace(arm.work, state=progress.state)
        self._fleet.name_failing(round.name, progress.state, round.unusable)
        return progress

    def _tally(self, round: _RoundInFlight) -> Tally:
        """Return the tally of a round's reports; what its screens did to them is noted."""
        reports = [round.reports.get(place) for place in range(len(round.plan.jobs))]
        setup, federation = self._round.setup, self._round.federation
        screened = screen(setup, federation, round.plan, reports)
        tally = combine(setup, federation, round.plan, reports, screened)
        if setup.privacy is None:  # else single clients' values stay out of the log
            round.unusable |= _at_fault(reports, screened)
            for key in self._keys(round, sorted(round.reports)):
                for kind, what in differences(round.reports[key.place], screened[key.place]).items():
                    text = what + _REMEDIES.get(kind, "")
                    self._fault(key, kind, text)
                    round.last_fault = f"client {key.client!r}: {text}"
        return tally


def _at_fault(reports: Sequence[Report | None], screened: Sequence[Report | None]) -> set[int]:
    """Return the clients whose report or update a screen left out, or whose update is broken while most are not.

    Where half of the updates are broken, the cause is a configuration, not a device.
    """
    both = [(r, s) for r, s in zip(reports, screened, strict=True) if r is not None]
    dropped = {r.client for r, s in both if s is None or (r.examples and not s.examples)}
    arrived = [s for _, s in both if s is not None]
    broken = {s.client for s in arrived if not s.finite}
    return dropped | (broken if 2 * len(broken) < len(arrived) else set())


def _usable(round: _RoundInFlight) -> dict[int, bool]:
    """Return, by client, whether its reply could be used; who has not replied is not there."""
    clients = [round.plan.jobs[place].client for place in sorted(round.reports)]
    return dict.fromkeys(sorted(round.unusable), False) | {client: client not in round.unusable for client in clients}
