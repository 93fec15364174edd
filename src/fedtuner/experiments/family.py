"""Studies that share their arms: "arm 7 up to round 150" has one answer, whoever asks.

Studies that differ only in schedule and target have the same arms (the same numbers give the same hyperparameters,
cohorts and seeds), and a round's record has the errors before and after local training. So one journal serves all of
them: random search and halving read the same arms, the global target and the personalized one the same rounds.

In a family's folder: what a store has, the states of arms at rounds at which a study may still want to test them
(``stops/ARM-ROUND.safetensors``), and the tests that were made (``tests.json``). Each study is replayed in the order
of Algorithm 1, arm after arm within a rung, so its curve does not depend on what ran beside what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedtuner.arm import Record, State
from fedtuner.driver import Driver, opened
from fedtuner.errors import StoreError
from fedtuner.experiments.suite import Entry
from fedtuner.federation import Simulation
from fedtuner.memory import memory_of, recall
from fedtuner.progress import Show
from fedtuner.schedules import Schedule, Score, Step, best
from fedtuner.store import Store, pack, read_json, replace_file, unpack, write_json
from fedtuner.study import Study

Errors = Mapping[str, float]  # global and personalized


@dataclass(frozen=True)
class Point:
    """The incumbent, the arm with the best latest score of those in the race, after some rounds of a study."""

    used: int  # rounds that the study has used
    arm: int
    round: int  # rounds that the arm has had
    score: float
    test: Errors


@dataclass(frozen=True)
class Outcome:
    """A finished study."""

    entry: Entry
    study: Study
    winner: Point
    curve: tuple[Point, ...]  # with ``online``: whenever the incumbent is another, or has had more rounds
    tested: tuple[Point, ...]  # with ``every_arm``: each arm that reached its bracket's last rung


def stops(schedule: Schedule, online: int) -> list[int]:
    """Return the rounds at which an arm may be tested: the ends of brackets; when watched, rungs and every n-th."""
    if not online:
        return sorted({bracket.rungs[-1] for bracket in schedule.brackets})
    rungs = {rung for bracket in schedule.brackets for rung in bracket.rungs}
    return sorted(rungs | set(range(online, schedule.longest + 1, online)))


def as_target(record: Record, target: str) -> Record:
    """Return a round's record as a study with this target has it."""
    loss, error = (
        (record.loss_before, record.error_before) if target == "global" else (record.loss_after, record.error_after)
    )
    return (
        replace(record, loss=math.inf, error=math.inf) if record.diverged else replace(record, loss=loss, error=error)
    )


@dataclass
class _Racer:
    """One study of the family on its way: where its schedule is, and what its curve has so far."""

    entry: Entry
    study: Study
    stops: list[int]
    asked: bool  # whether its result is wanted now; another may want it later
    steps: Any = None
    step: Step | None = None
    at: dict[int, int] = field(default_factory=dict)  # the round up to which each arm was compared
    latest: dict[int, Score] = field(default_factory=dict)  # of the arms in the race
    out: set[int] = field(default_factory=set)
    used: int = 0
    curve: list[Point] = field(default_factory=list)
    tested: list[Point] = field(default_factory=list)
    ended: bool = False

    def needs(self, arm: int, round: int) -> bool:
        """Whether it may still want to test an arm at a round."""
        return not self.ended and arm not in self.out and round in self.stops and round >= self.at.get(arm, 0)


class Family:
    """Studies with the same arms, run side by side over one store."""

    def __init__(
        self,
        entries: Sequence[Entry],
        asked: Sequence[Entry],
        problem: Simulation,
        folder: Path,
        workers: int | None,
    ) -> None:
        self._folder, self._size = folder, problem.task.size
        self._racers = [
            _Racer(e, e.spec.study(None, workers, problem), stops(e.spec.schedule, e.online), e in asked)
            for e in entries
        ]
        most = max(entries, key=lambda entry: entry.spec.schedule.arms)
        self._carrier = most.spec.study(folder, workers, problem)  # the study that has all rounds of all arms
        self._carrier.path = None  # its tests are of many arms: they are kept here, not by the study
        self._tests: dict[str, dict[str, float]] = {}
        self._before = 0

    @property
    def computed(self) -> int:
        """Rounds that were computed since ``run`` began."""
        return self._carrier.rounds_used - self._before

    def run(self, show: Show, stop: Callable[[], bool]) -> Iterator[Outcome]:
        """Run the studies that are asked for and yield each as it ends; continues where the folder left off."""
        described = self._carrier.describe()
        shared = {key: value for key, value in described.items() if key not in ("schedule", "target")}
        kept = max(len(racer.stops) for racer in self._racers)
        room = (2 + kept) * 2 * 4 * self._size * max(r.study.schedule.arms for r in self._racers)
        store = Store(self._folder, shared, room)
        try:
            (self._folder / "stops").mkdir(exist_ok=True)
            tests = self._folder / "tests.json"
            self._tests = read_json(tests) if tests.exists() else {}
            self._carrier.states, self._carrier.records = store.states, store.records
            self._carrier.arms |= store.proposals
            self._before = self._carrier.rounds_used
            with opened(self._carrier) as executor:
                driver = Driver(self._carrier, store, executor, show, stop)
                yield from self._race(driver)
        finally:
            store.close()

    def _race(self, driver: Driver) -> Iterator[Outcome]:
        for racer in self._racers:
            if racer.asked:
                racer.steps = racer.study.schedule.steps()
                racer.step = next(racer.steps)
        while running := [racer for racer in self._racers if racer.step is not None]:
            wanted: dict[int, int] = {}
            for racer in running:
                assert racer.step is not None
                wanted |= {arm: max(racer.step.until, wanted.get(arm, 0)) for arm in racer.step.arms}
            self._advance(driver, wanted)
            for racer in running:
                outcome = self._tell(racer)
                if outcome is not None:
                    yield outcome
                    racer.ended = True  # not before its result is kept
            self._prune()

    def _advance(self, driver: Driver, wanted: Mapping[int, int]) -> None:
        """Bring each arm to the round that is wanted of it; keep its state where somebody may test it."""
        marks = {mark for racer in self._racers for mark in racer.stops}
        states = self._carrier.states
        driver.propose(list(wanted))
        for mark in sorted({*wanted.values(), *(m for m in marks if m <= max(wanted.values()))}):
            arms = [arm for arm, until in wanted.items() if until >= mark]
            driver.advance(arms, mark)
            for arm in arms:
                if states[arm].round == mark and any(racer.needs(arm, mark) for racer in self._racers):
                    self._keep(arm, states[arm])

    def _tell(self, racer: _Racer) -> Outcome | None:
        """Let a study see the rung that its arms have reached; return its outcome if that was the last."""
        step, study = racer.step, racer.study
        assert step is not None
        racer.out |= set(step.out)
        racer.latest = {arm: score for arm, score in racer.latest.items() if arm not in racer.out}
        for arm in step.arms:
            rounds = self._carrier.records[arm][: step.until]
            study.records[arm] = [as_target(record, racer.entry.spec.target) for record in rounds]
        for arm in step.arms:
            between = [s for s in racer.stops if racer.at.get(arm, 0) < s < step.until]
            for start, end in pairwise([racer.at.get(arm, 0), *between, step.until]):
                spent = len(study.records[arm][start:end])
                racer.used += spent
                racer.latest[arm], racer.at[arm] = study.score(arm, end), end
                if spent and racer.entry.online:
                    point = self._point(racer, best(racer.latest, 1)[0])
                    if not racer.curve or (point.arm, point.round) != (racer.curve[-1].arm, racer.curve[-1].round):
                        racer.curve.append(point)
        if racer.entry.every_arm and step.until == study.schedule.place(step.arms[0])[1].rungs[-1]:
            racer.tested += [self._point(racer, arm) for arm in step.arms]
        try:
            racer.step = racer.steps.send({arm: racer.latest[arm] for arm in step.arms})
            return None
        except StopIteration as end:
            racer.step = None
            winner = self._point(racer, end.value)
        study.arms = self._carrier.arms
        study.winner, study.states[winner.arm] = winner.arm, self._state(winner.arm, winner.round)
        return Outcome(racer.entry, study, winner, tuple(racer.curve), tuple(racer.tested))

    def _point(self, racer: _Racer, arm: int) -> Point:
        round = len(racer.study.records[arm][: racer.at[arm]])  # fewer than it was allowed, if it diverged
        return Point(racer.used, arm, round, racer.latest[arm][0], self._test(arm, round))

    def _test(self, arm: int, round: int) -> Errors:
        """Return an arm's errors on the test data after some round; measured once for all studies."""
        key = f"{arm}-{round}"
        if key not in self._tests:
            carrier = self._carrier
            states = carrier.states
            carrier.states, carrier.winner = {arm: self._state(arm, round)}, arm
            try:
                self._tests[key] = carrier.evaluate("test")
            finally:
                carrier.states, carrier.winner = states, None
            write_json(self._folder / "tests.json", self._tests)
        return {side: float(error) for side, error in self._tests[key].items()}

    def _file(self, arm: int, round: int) -> Path:
        return self._folder / "stops" / f"{arm}-{round}.safetensors"

    def _keep(self, arm: int, state: State) -> None:
        if self._file(arm, state.round).exists():
            return
        # What clients remember goes into the file: files of their own are swept away as the arm goes on.
        whole = replace(state, memory={client: recall(kept) for client, kept in state.memory.items()})
        try:
            replace_file(self._file(arm, state.round), pack(whole))
        except OSError as error:
            raise StoreError(f"cannot write to {self._folder}: {error.strerror}") from error

    def _state(self, arm: int, round: int) -> State:
        now = self._carrier.states[arm]
        if now.round == round:
            return now
        file = self._file(arm, round)
        if not file.exists():
            raise StoreError(
                f"{self._folder} has lost arm {arm} after round {round}: delete this folder, and it is computed again"
            )
        return unpack(file.read_bytes(), memory_of(self._folder, arm))

    def _prune(self) -> None:
        """Delete the states that no study can want any more."""
        for file in (self._folder / "stops").glob("*.safetensors"):
            arm, round = map(int, file.stem.split("-"))
            if not any(racer.needs(arm, round) for racer in self._racers):
                file.unlink()
