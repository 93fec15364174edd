"""The executor over a fleet: all arms of a rung advance together, each as fast as its own clients answer.

A round is one *trip*: its jobs go out in one batch with those of all other arms that are ready, the answers are filed
by arm and round, and when all have come, or the deadline has passed, the round folds and the arm's next one goes out.
An arm that is paused is an arm to whom nothing is sent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Message

from fedtuner.arm import Arm, Setting, State, aggregate, begin, finish, plan
from fedtuner.errors import FleetError
from fedtuner.federation import Report
from fedtuner.flower.messages import WORK, MalformedError, job_content, reason_of, report_of
from fedtuner.flower.post import Letter
from fedtuner.flower.replies import Fitting, bounded
from fedtuner.legs import Assessment, Leg, Progress
from fedtuner.memory import memory_of, recall
from fedtuner.methods.base import Job
from fedtuner.task import Metrics

if TYPE_CHECKING:
    from fedtuner.flower.fleet import Fleet

_EMPTY = 3  # tries of a round without a single report: then something is wrong with more than some clients


@dataclass(frozen=True)
class _Stop:
    """One client's place in a trip: what its answer is known by."""

    trip: _Trip
    place: int
    client: str | int

    def __str__(self) -> str:
        return f"{self.trip.name}, client {self.client!r}"


class _Trip:
    """One round's jobs on their way."""

    def __init__(self, name: str, jobs: Sequence[Job], deadline: float) -> None:
        self.name, self.jobs, self.deadline = name, jobs, deadline
        self.reports: list[Report | None] = [None] * len(jobs)
        self.away: dict[int, int] = {}  # place -> the node that has the job
        self.last_fault = ""

    @property
    def over(self) -> bool:
        return not self.away or time.monotonic() > self.deadline


class _Lane:
    """An arm under way."""

    def __init__(self, leg: Leg, state: State) -> None:
        self.arm: Arm = leg.arm
        self.until, self.state = leg.until, state
        self.trip: _Trip | None = None
        self.empty = 0  # tries of its round without a report

    @property
    def done(self) -> bool:
        return self.state.round >= self.until or self.state.diverged


class Dispatch:
    """Advances arms on a fleet."""

    workers = 1

    def __init__(self, fleet: Fleet, setting: Setting, folder: Path) -> None:
        self._fleet, self._setting, self._folder = fleet, setting, folder
        self._fitting = Fitting()
        self.missing = 0  # clients of whom the last evaluation has nothing

    def advance(self, legs: Sequence[Leg], stop: Callable[[], bool]) -> Iterator[Progress]:
        """Do all legs at once; on ``stop`` the rounds under way are left: they are done again when it goes on."""
        lanes = []
        for leg in legs:
            state = begin(self._setting, self._fleet, leg.arm) if leg.state is None else leg.state
            if state.round == 0:
                yield Progress(leg.arm.id, (), state)
            lanes.append(_Lane(leg, state))
        try:
            while (lanes := [lane for lane in lanes if not lane.done]) and not stop():
                busy = self._receive()
                for lane in lanes:
                    if lane.trip is not None and lane.trip.over:
                        progress = self._fold(lane, lane.trip)
                        if progress is not None:
                            yield progress
                        busy = True
                busy |= self._depart(lanes)
                self._fleet.rest(busy)
        finally:
            self._fleet.post.give_up(
                _key(self._fleet, lane.trip, place) for lane in lanes if lane.trip for place in lane.trip.away
            )

    def assess(self, jobs: Sequence[Assessment]) -> list[tuple[Metrics, Metrics]]:
        """Ask all clients at once; a client that does not answer counts for nothing."""
        todo = [replace(a.job, memory=recall(a.memory)) for a in jobs]
        trip = _Trip("evaluation", todo, time.monotonic() + self._fleet.deadline)
        self._send([(trip, place) for place in range(len(todo))])
        while not trip.over:
            self._fleet.rest(self._receive())
        self._end(trip)
        reports = self._bound(trip)
        answered = sum(r is not None for r in reports)
        if not answered:
            raise FleetError(f"no client answered an evaluation: {trip.last_fault or 'the deadline passed'}")
        self.missing = self._fleet.population - answered
        nothing = Metrics(math.nan, math.nan, 0)
        return [(nothing, nothing) if r is None else (r.before, r.after) for r in reports]

    def close(self) -> None:
        """Do nothing: the fleet stays."""

    def _depart(self, lanes: Sequence[_Lane]) -> bool:
        """Send the next round of every arm that waits for one, all in one batch; and again what has lost its node."""
        going: list[tuple[_Trip, int]] = []
        for lane in lanes:
            if lane.trip is not None:
                going += [(lane.trip, place) for place in self._moved(lane.trip)]
            elif not lane.done and self._fleet.enough():
                jobs = plan(self._setting, self._fleet, lane.arm, lane.state)
                name = f"arm {lane.arm.id}, round {lane.state.round + 1}"
                lane.trip = _Trip(name, jobs, time.monotonic() + self._fleet.deadline)
                going += [(lane.trip, place) for place in range(len(jobs))]
        self._send(going)
        return bool(going)

    def _moved(self, trip: _Trip) -> list[int]:
        """Return the places whose client is now at another node than the one that has its job: it restarted."""
        fleet = self._fleet
        return [p for p, node in trip.away.items() if fleet.node_of(trip.jobs[p].client) not in (None, node)]

    def _send(self, going: Sequence[tuple[_Trip, int]]) -> None:
        letters, models = [], {}
        for trip, place in going:
            job = trip.jobs[place]
            if id(job.w) not in models:  # one record for all the jobs of a round: Flower sends its arrays once
                models[id(job.w)] = self._fleet.wire.record(job.w)
            content = job_content(job, self._setting.method.name, models[id(job.w)])
            key, node = _key(self._fleet, trip, place), self._fleet.node_of(job.client)
            if place in trip.away:
                self._fleet.post.give_up([key])
            if node is not None:
                trip.away[place] = node
                letters.append(Letter(key, node, WORK, content, f"{job.arm}:{job.round}"))
        for letter in self._fleet.post.send(letters):
            self._lose(letter.key, "error", "the grid did not take the message")

    def _receive(self) -> bool:
        answers = self._fleet.turn()
        for key, message in answers:
            self._file(key, message)
        return bool(answers)

    def _file(self, key: Hashable, message: Message) -> None:
        assert isinstance(key, _Stop)
        if key.place not in key.trip.away:  # the round is over
            return
        if message.has_error():
            self._lose(key, "error", reason_of(message.error.reason))
            return
        try:
            report = report_of(
                message.content, key.trip.jobs[key.place], self._fleet.wire, self._fleet.task.worst_error
            )
        except MalformedError as error:
            self._lose(key, "malformed", str(error))
            return
        key.trip.reports[key.place] = report
        del key.trip.away[key.place]

    def _lose(self, key: Hashable, kind: str, why: str) -> None:
        assert isinstance(key, _Stop)
        key.trip.away.pop(key.place, None)
        key.trip.last_fault = f"client {key.client!r}: {why}"
        job = key.trip.jobs[key.place]
        self._fleet.fault(kind, f"{key}: {why}", arm=job.arm, round=job.round + 1, client=key.client)

    def _end(self, trip: _Trip) -> None:
        """Wait no longer for those who have not answered."""
        late = [_key(self._fleet, trip, place) for place in trip.away]
        self._fleet.post.give_up(late)
        for key in late:
            self._lose(key, "timeout", f"no answer in {self._fleet.deadline:g} s")

    def _fit(self, lane: _Lane, trip: _Trip) -> None:
        """Leave out the reports whose vectors the aggregation cannot use."""

        def alone(report: Report) -> None:
            for name, v in report.update.extra.items():
                if v.shape not in ((self._fleet.task.trainable,), (self._fleet.task.size,)):
                    raise ValueError(f"{name!r} has shape {v.shape}, not the model's")
            aggregate(self._setting, self._fleet, lane.arm, lane.state, [report])

        trip.reports, out = self._fitting(trip.reports, lane.state.slots, alone)
        for place, why in out.items():
            self._lose(_key(self._fleet, trip, place), "malformed", why)

    def _bound(self, trip: _Trip) -> list[Report | None]:
        """Return what a trip has brought, with weights as far as they are believed."""
        kept = bounded(trip.reports, self._fleet.most_examples)
        for place, (report, weighs) in enumerate(zip(trip.reports, kept, strict=True)):
            if report is not weighs and report is not None and weighs is not None:
                sizes = f"{report.examples} and {report.before.count} examples count as {weighs.examples} and "
                sizes += f"{weighs.before.count}: if they are true, set most_examples="
                key = _key(self._fleet, trip, place)
                self._fleet.fault("capped", f"{key}: {sizes}", arm=trip.jobs[place].arm, client=key.client)
        return kept

    def _fold(self, lane: _Lane, trip: _Trip) -> Progress | None:
        """Fold the round that has come to its end; one in which nobody reported is sent again, and uses no budget."""
        self._end(trip)
        self._fit(lane, trip)
        reports = self._bound(trip)
        lane.trip = None
        if not any(reports):
            lane.empty += 1
            if lane.empty >= _EMPTY:
                raise FleetError(f"{trip.name}: no client reported in {_EMPTY} tries; the last: {trip.last_fault}")
            return None
        lane.empty = 0
        folder = memory_of(self._folder, lane.arm.id)
        lane.state, record = finish(self._setting, self._fleet, lane.arm, lane.state, reports, folder)
        return Progress(lane.arm.id, (record,), lane.state)


def _key(fleet: Fleet, trip: _Trip, place: int) -> _Stop:
    return _Stop(trip, place, fleet.id_of(trip.jobs[place].client))
