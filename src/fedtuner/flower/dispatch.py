"""The executor over a fleet: all arms of a rung advance at once, each as fast as its own clients reply.

The requests of a round are sent in one batch with those of all other arms that are ready. A round ends when every
client of its cohort has replied, or at its deadline; then its reports are aggregated and the arm's next round is sent.
An arm is paused by sending it no requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Message

from fedtuner.arm import Arm, Setting, State, aggregate, begin, finish, plan
from fedtuner.errors import FleetError
from fedtuner.federation import Report
from fedtuner.flower.exchange import Request
from fedtuner.flower.messages import WORK, MalformedError, job_content, reason_of, report_of
from fedtuner.flower.replies import Fitting, bounded
from fedtuner.legs import Assessment, Leg, Progress
from fedtuner.memory import memory_of, recall
from fedtuner.methods.base import Job
from fedtuner.task import Metrics

if TYPE_CHECKING:
    from fedtuner.flower.fleet import Fleet

_TRIES = 3  # a round without any report is sent again; after so many tries the study stops with the last reason


@dataclass(frozen=True)
class _RequestKey:
    """One client's request in a round: what the reply is known by."""

    round: _RoundInFlight
    place: int  # in the round's jobs
    client: str | int

    def __str__(self) -> str:
        return f"{self.round.name}, client {self.client!r}"


class _RoundInFlight:
    """A round whose requests have been sent, and the reports that have arrived."""

    def __init__(self, name: str, jobs: Sequence[Job], deadline: float) -> None:
        self.name, self.jobs, self.deadline = name, jobs, deadline
        self.reports: list[Report | None] = [None] * len(jobs)
        self.pending: dict[int, int] = {}  # place of a job without a reply -> the node that has it
        self.last_fault = ""

    def over(self, now: float) -> bool:
        return not self.pending or now > self.deadline


class _ArmInFlight:
    """An arm that is being advanced."""

    def __init__(self, leg: Leg, state: State) -> None:
        self.arm: Arm = leg.arm
        self.until, self.state = leg.until, state
        self.round: _RoundInFlight | None = None
        self.empty_tries = 0  # of its current round

    @property
    def done(self) -> bool:
        return self.state.round >= self.until or self.state.diverged


class Dispatch:
    """Advances arms on a fleet."""

    workers = 1

    def __init__(self, fleet: Fleet, setting: Setting, folder: Path) -> None:
        self._fleet, self._setting, self._folder = fleet, setting, folder
        self._fitting = Fitting()
        self.missing = 0  # clients without a report in the last evaluation

    def advance(self, legs: Sequence[Leg], stop: Callable[[], bool]) -> Iterator[Progress]:
        """Advance all arms at once. On ``stop`` the rounds in flight are abandoned: a continued run repeats them."""
        arms = []
        for leg in legs:
            state = begin(self._setting, self._fleet, leg.arm) if leg.state is None else leg.state
            if state.round == 0:
                yield Progress(leg.arm.id, (), state)
            arms.append(_ArmInFlight(leg, state))
        try:
            while (arms := [arm for arm in arms if not arm.done]) and not stop():
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
                    self._fleet.requests.abandon(self._pending_keys(arm.round))

    def assess(self, jobs: Sequence[Assessment]) -> list[tuple[Metrics, Metrics]]:
        """Evaluate on all clients at once; a client that does not reply has no weight."""
        todo = [replace(a.job, memory=recall(a.memory)) for a in jobs]
        round = _RoundInFlight("evaluation", todo, self._fleet.clock.now() + self._fleet.deadline)
        self._send([(round, place) for place in range(len(todo))])
        while not round.over(self._fleet.clock.now()):
            self._fleet.pause(self._receive())
        self._drop_pending(round)
        reports = self._bound(round)
        reported = sum(r is not None for r in reports)
        if not reported:
            raise FleetError(f"no client answered an evaluation: {round.last_fault or 'the deadline passed'}")
        self.missing = self._fleet.population - reported
        nothing = Metrics(math.nan, math.nan, 0)
        return [(nothing, nothing) if r is None else (r.before, r.after) for r in reports]

    def close(self) -> None:
        """Do nothing: the fleet outlives its executors."""

    def _send_rounds(self, arms: Sequence[_ArmInFlight]) -> bool:
        """Send the next round of every arm that has none in flight, and the jobs of clients that restarted, again."""
        jobs: list[tuple[_RoundInFlight, int]] = []
        for arm in arms:
            if arm.round is not None:
                jobs += [(arm.round, place) for place in self._restarted(arm.round)]
            elif not arm.done and self._fleet.enough():
                planned = plan(self._setting, self._fleet, arm.arm, arm.state)
                name = f"arm {arm.arm.id}, round {arm.state.round + 1}"
                arm.round = _RoundInFlight(name, planned, self._fleet.clock.now() + self._fleet.deadline)
                jobs += [(arm.round, place) for place in range(len(planned))]
        self._send(jobs)
        return bool(jobs)

    def _restarted(self, round: _RoundInFlight) -> list[int]:
        """Return the places of the jobs whose client restarted: its node is not the one that has the job."""
        fleet = self._fleet
        return [p for p, node in round.pending.items() if fleet.node_of(round.jobs[p].client) not in (None, node)]

    def _send(self, jobs: Sequence[tuple[_RoundInFlight, int]]) -> None:
        requests, models = [], {}
        for round, place in jobs:
            job = round.jobs[place]
            if id(job.w) not in models:  # the jobs of a round share one record: Flower transfers its arrays once
                models[id(job.w)] = self._fleet.wire.record(job.w)
            content = job_content(job, self._setting.method.name, models[id(job.w)])
            key, node = self._key(round, place), self._fleet.node_of(job.client)
            if place in round.pending:
                self._fleet.requests.abandon([key])
            if node is not None:
                round.pending[place] = node
                requests.append(Request(key, node, WORK, content, f"{job.arm}:{job.round}"))
        for request in self._fleet.requests.send(requests):
            self._drop(request.key, "error", "the grid did not take the message")

    def _receive(self) -> bool:
        replies = self._fleet.poll()
        for key, message in replies:
            self._take_reply(key, message)
        return bool(replies)

    def _take_reply(self, key: Hashable, message: Message) -> None:
        assert isinstance(key, _RequestKey)
        if key.place not in key.round.pending:  # the client was dropped from the round
            return
        if message.has_error():
            self._drop(key, "error", reason_of(message.error.reason))
            return
        job, fleet = key.round.jobs[key.place], self._fleet
        try:
            report = report_of(message.content, job, fleet.wire, fleet.task.worst_error)
        except MalformedError as error:
            self._drop(key, "malformed", str(error))
            return
        key.round.reports[key.place] = report
        del key.round.pending[key.place]

    def _drop(self, key: Hashable, kind: str, why: str) -> None:
        assert isinstance(key, _RequestKey)
        key.round.pending.pop(key.place, None)
        key.round.last_fault = f"client {key.client!r}: {why}"
        job = key.round.jobs[key.place]
        self._fleet.fault(kind, f"{key}: {why}", arm=job.arm, round=job.round + 1, client=key.client)

    def _drop_pending(self, round: _RoundInFlight) -> None:
        """Drop the clients that have not replied."""
        pending = self._pending_keys(round)
        self._fleet.requests.abandon(pending)
        for key in pending:
            self._drop(key, "timeout", f"no answer in {self._fleet.deadline:g} s")

    def _drop_unusable(self, arm: _ArmInFlight, round: _RoundInFlight) -> None:
        """Drop the reports whose vectors the method's aggregation cannot use."""

        def alone(report: Report) -> None:
            for name, v in report.update.extra.items():
                if v.shape not in ((self._fleet.task.trainable,), (self._fleet.task.size,)):
                    raise ValueError(f"{name!r} has shape {v.shape}, not the model's")
            aggregate(self._setting, self._fleet, arm.arm, arm.state, [report])

        round.reports, unusable = self._fitting(round.reports, arm.state.slots, alone)
        for place, why in unusable.items():
            self._drop(self._key(round, place), "malformed", why)

    def _bound(self, round: _RoundInFlight) -> list[Report | None]:
        """Return the round's reports with bounded weights."""
        kept = bounded(round.reports, self._fleet.most_examples)
        for place, (report, weighs) in enumerate(zip(round.reports, kept, strict=True)):
            if report is not weighs and report is not None and weighs is not None:
                sizes = f"{report.examples} and {report.before.count} examples count as {weighs.examples} and "
                sizes += f"{weighs.before.count}: if they are true, set most_examples="
                key = self._key(round, place)
                self._fleet.fault("capped", f"{key}: {sizes}", arm=round.jobs[place].arm, client=key.client)
        return kept

    def _end_round(self, arm: _ArmInFlight, round: _RoundInFlight) -> Progress | None:
        """Aggregate a round that is over. A round without reports is sent again and uses no budget."""
        self._drop_pending(round)
        self._drop_unusable(arm, round)
        reports = self._bound(round)
        arm.round = None
        if not any(reports):
            arm.empty_tries += 1
            if arm.empty_tries >= _TRIES:
                raise FleetError(f"{round.name}: no client reported in {_TRIES} tries; the last: {round.last_fault}")
            return None
        arm.empty_tries = 0
        folder = memory_of(self._folder, arm.arm.id)
        arm.state, record = finish(self._setting, self._fleet, arm.arm, arm.state, reports, folder)
        return Progress(arm.arm.id, (record,), arm.state)

    def _key(self, round: _RoundInFlight, place: int) -> _RequestKey:
        return _RequestKey(round, place, self._fleet.id_of(round.jobs[place].client))

    def _pending_keys(self, round: _RoundInFlight) -> list[_RequestKey]:
        return [self._key(round, place) for place in round.pending]
