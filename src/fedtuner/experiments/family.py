"""Studies that share their arms: "arm 7 up to round 150" has one answer, whoever asks.

Studies that differ only in schedule and target have the same arms (the same numbers give the same hyperparameters,
cohorts and seeds), and a round's record has the errors before and after local training. So a family is several plays
over one session: random search and halving read the same arms, the global target and the personalized one the same
rounds. The session advances an arm to the largest round that any play wants, and keeps the states that one of them may
still want to evaluate.

The rounds of a study are counted in the order of Algorithm 1, arm after arm within a rung, so its curve does not depend
on what ran beside what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

from fedtuner.core.federation import described
from fedtuner.core.records import Arm, Key, Record
from fedtuner.core.schedule import Play, Schedule, Score, Start, best, outline
from fedtuner.core.tuner import Floats
from fedtuner.experiments.suite import Entry
from fedtuner.run.session import Session
from fedtuner.run.store.files import check_room
from fedtuner.space import Config
from fedtuner.tables import Table


@dataclass(frozen=True)
class Point:
    """An arm on the test data: the incumbent (the best latest score of arms that are not out), or one at its end."""

    used: int  # rounds that the study has used
    arm: int
    round: int  # rounds that the arm has had
    score: float
    errors: Mapping[str, float]  # on the test data: global and personalized


@dataclass(frozen=True)
class Outcome:
    """A finished study."""

    entry: Entry
    problem: Table
    records: Mapping[int, Sequence[Record]]  # by arm
    ended: Mapping[int, str]  # why arms got no more rounds
    winner: Point
    arm: Arm  # the winner
    client: Config  # what its tuner would use now
    theta: Floats
    curve: tuple[Point, ...]  # with ``online``: whenever the incumbent is another, or has had more rounds
    ends: tuple[Point, ...]  # with ``every_arm``: each arm that was trained to its end


def marks(schedule: Schedule, online: int) -> dict[int, list[int]]:
    """Return the rounds after which a study may evaluate each arm.

    It is the last round at which the arm is compared. With ``online`` it is every round at which some arm is compared,
    and every n-th.
    """
    rungs = outline(schedule).rungs
    if not online:
        return {arm: [own[-1]] for arm, own in rungs.items()}
    every = sorted({*chain(*rungs.values()), *range(online, schedule.longest + 1, online)})
    return {arm: [mark for mark in every if mark <= own[-1]] for arm, own in rungs.items()}


class Member:
    """One study of a family: its play, and what is known of it so far."""

    def __init__(self, entry: Entry) -> None:
        self.entry, self.play = entry, Play(entry.spec.schedule)
        self.marks = marks(entry.spec.schedule, entry.online)
        self.at: dict[int, int] = {}  # the round up to which it has read each arm
        self.latest: dict[int, Score] = {}  # of the arms that are not out
        self.out: set[int] = set()
        self.used = 0
        self.curve: list[Point] = []
        self.ends: list[Point] = []
        self.ended = False

    def wanted(self) -> set[Key]:
        """Return the states that it may still want to evaluate."""
        if self.ended:
            return set()
        at = set(self.at.items()) if self.entry.online else set()  # an incumbent stays where it was compared last
        to_come = {(arm, t) for arm, own in self.marks.items() for t in own if t >= self.at.get(arm, 0)}
        kept = self.play.step.keep if self.play.step else ()
        return {(arm, t) for arm, t in at | to_come if arm not in self.out} | set(kept)

    def score(self, records: Sequence[Record]) -> Score:
        """Return an arm's score after these rounds."""
        return self.entry.spec.schedule.scoring.score(records, self.entry.spec.target)


class Family:
    """Studies with the same arms, played side by side over one session."""

    def __init__(self, session: Session, entries: Sequence[Entry], asked: Sequence[Entry]) -> None:
        self._session = session
        self._members = [Member(entry) for entry in entries]
        self._asked = [member for member in self._members if member.entry in asked]  # another may be wanted later
        self._before = session.journal.rounds_used
        # A state has a model and about as much of the server's and the clients' vectors.
        if isinstance(session.where.path, Path):
            check_room(session.where.path, 2 * 4 * session.federation.model.size * len(self._wanted()))

    @property
    def computed(self) -> int:
        """Rounds that were computed since the session was opened."""
        return self._session.journal.rounds_used - self._before

    def outcomes(self) -> Iterator[Outcome]:
        """Play the studies that are asked for, from wherever the session's store has them; yield each as it ends."""
        while playing := [member for member in self._asked if not member.ended]:
            self._advance(playing)
            for member in playing:
                self._tell(member)
                if member.play.winner is not None:
                    yield self._outcome(member, member.play.winner)
                    member.ended = True  # not before its result is kept
            if self.computed:  # else all steps so far are of the past: later ones may want other states
                self._session.keep = self._wanted()
                self._session.sweep()

    def _wanted(self) -> set[Key]:
        return set[Key]().union(*(member.wanted() for member in self._members))

    def _advance(self, playing: Sequence[Member]) -> None:
        """Bring each arm to the round that is wanted of it, by way of the rounds whose states are to be kept."""
        start: dict[int, Start] = {}
        until: dict[int, int] = {}
        for step in (member.play.step for member in playing if member.play.step):
            start |= step.start
            until |= {arm: max(t, until.get(arm, 0)) for arm, t in step.until.items()}
        self._session.keep = keep = self._wanted()
        self._session.start(start)
        for mark in sorted({*until.values(), *(t for arm, t in keep if t < until.get(arm, 0))}):
            self._session.advance({arm: mark for arm, t in until.items() if t >= mark})

    def _tell(self, member: Member) -> None:
        """Let a study read the rounds that it waits for, and go on to its next step or to its end."""
        step, entry = member.play.step, member.entry
        assert step is not None
        member.out |= set(step.out)
        member.latest = {arm: score for arm, score in member.latest.items() if arm not in member.out}
        member.at |= {arm: start.parent[1] if start.parent else 0 for arm, start in step.start.items()}
        for arm, until in step.until.items():
            between = [mark for mark in member.marks.get(arm, ()) if member.at[arm] < mark < until]
            for start, end in pairwise([member.at[arm], *between, until]):
                self._read(member, arm, start, end)
        if entry.every_arm:
            ends = {arm: own[-1] for arm, own in member.marks.items()}
            member.ends += [self._point(member, arm, t) for arm, t in step.until.items() if t == ends.get(arm)]
        member.play.tell(self._session.evidence(step.until, entry.spec.schedule.scoring, entry.spec.target))

    def _read(self, member: Member, arm: int, start: int, end: int) -> None:
        """Let a study read some rounds of an arm; with ``online`` the incumbent is evaluated after them."""
        records = self._session.journal.records(arm, end)
        spent = sum(record.round > start for record in records)
        member.used += spent
        member.at[arm], member.latest[arm] = end, member.score(records)
        if spent and member.entry.online:
            incumbent = best(member.latest, 1)[0]
            point = self._point(member, incumbent, member.at[incumbent])
            if not member.curve or (point.arm, point.round) != (member.curve[-1].arm, member.curve[-1].round):
                member.curve.append(point)

    def _point(self, member: Member, arm: int, until: int) -> Point:
        records = self._session.journal.records(arm, until)
        round = records[-1].round  # earlier than it was to go if it diverged
        errors = self._session.evaluate((arm, round), "test").mean("error")
        return Point(member.used, arm, round, member.score(records)[0], errors)

    def _outcome(self, member: Member, winner: Key) -> Outcome:
        session, point = self._session, self._point(member, *winner)
        journal, tuner = session.journal, session.setup.tuner
        belief = session.state((point.arm, point.round)).belief
        records = {arm: [r for r in journal.own_records[arm] if r.round <= at] for arm, at in member.at.items()}
        ended = {arm: why for arm, why in journal.ended.items() if member.at.get(arm, 0) >= journal.round_of(arm)}
        return Outcome(
            member.entry, described(session.federation), records, ended, point, journal.arms[point.arm],
            client=tuner.best(belief), theta=tuner.offers(belief)[1], curve=tuple(member.curve),
            ends=tuple(member.ends),
        )  # fmt: skip
