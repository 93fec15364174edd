"""The driver: ask the schedule, advance the arms, tell the scores.

"Arm 7 up to round 150" has one answer, so continuing a study is running it again with the answers that are there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fedtuner import memory
from fedtuner.arm import Record, State
from fedtuner.errors import Interrupted
from fedtuner.executors import Executor, open_executor
from fedtuner.legs import Leg, Progress
from fedtuner.memory import memory_of
from fedtuner.progress import Show, Status, showing, stoppable
from fedtuner.schedules import Score
from fedtuner.store import Store
from fedtuner.study import Study

_SAVE = 2.0  # seconds between two saves of an arm that is on its way


def run(study: Study, progress: bool | Show | None = None, label: str = "tuning") -> None:
    """Run a study to its end, from wherever its store has it."""
    store = None
    if study.path is not None:
        room = 3 * 4 * study.problem.task.size * study.schedule.arms
        store = Store(study.path, study.describe(), room)
        study.states, study.records = store.states, store.records
        study.arms |= store.proposals
    # Where rounds are dear, each is on disk as soon as it is done, and whoever runs us (Flower) has its own way to end.
    dear = study.problem.dear
    shown = True if progress is None and dear else progress
    try:
        with showing(shown, label) as show, stoppable(not dear) as stop, opened(study) as executor:
            Driver(study, store, executor, show, stop).run()
        if store is not None:
            store.finish(study.result())
    finally:
        if store is not None:
            store.close()


class Driver:
    """One run of a study: the only writer of its store."""

    def __init__(self, study: Study, store: Store | None, executor: Any, show: Show, stop: Any) -> None:
        self._study, self._store, self._executor, self._show, self._stop = study, store, executor, show, stop
        self._began, self._before = time.monotonic(), study.rounds_used
        self._pending: dict[int, list[Record]] = {}  # rounds whose state is not here yet, or not yet saved
        self._unsaved: dict[int, State] = {}
        self._saved: dict[int, float] = {}
        self._alive: Sequence[int] = ()
        self._until = 0
        self._short: dict[int, int] = {}  # rounds that diverged arms will not use

    def run(self) -> None:
        """Follow the schedule to its end and name the winner."""
        steps = self._study.schedule.steps()
        scores: Mapping[int, Score] | None = None
        while True:
            try:
                step = next(steps) if scores is None else steps.send(scores)
            except StopIteration as stop:
                self._study.winner = stop.value
                self._retire(arm for arm in self._study.states if arm != stop.value)
                self._sweep(stop.value)  # a kill may have come between its last save and the sweep
                return
            self._retire(step.out)
            self._alive = step.arms
            self.propose(step.arms)
            self.advance(step.arms, step.until)
            scores = {arm: self._study.score(arm, step.until) for arm in step.arms}

    def propose(self, arms: Sequence[int]) -> None:
        """Write down what a sampler that learns has proposed: another version of it might propose something else."""
        if self._store is not None and self._study.sampler.learns:
            self._store.propose([self._study.arm(arm) for arm in arms])

    def advance(self, arms: Sequence[int], until: int) -> None:
        """Bring arms to a round, saving what comes; raise ``Interrupted`` if they were stopped before."""
        states, self._until = self._study.states, until
        self._short |= {arm: until - states[arm].round for arm in arms if arm in states and states[arm].diverged}
        legs = [
            Leg(self._study.arm(arm), states.get(arm), until) for arm in arms if _unfinished(states.get(arm), until)
        ]
        try:
            if legs:
                for progress in self._executor().advance(legs, self._stop):
                    self._take(progress)
                    self._report()
            elif self._short:  # all that are alive have diverged
                self._report()
        finally:
            for arm in list(self._unsaved):
                self._save(arm)
        if self._stop() and any(_unfinished(states.get(arm), until) for arm in arms):
            kept = f"Everything is kept in {self._study.path}: run the same command again to continue."
            lost = "There is no store, so nothing is kept: give store= to be able to continue."
            used, planned = self._study.rounds_used, self._study.schedule.cost
            raise Interrupted(f"stopped after {used} of {planned} rounds. {kept if self._store else lost}")

    def _take(self, progress: Progress) -> None:
        """Accept rounds; they count once their state is here. A redone leg repeats rounds: these are known already."""
        arm = progress.arm
        pending = self._pending.setdefault(arm, [])
        done = self._study.records.setdefault(arm, [])
        for record in progress.records:
            if record.round == len(done) + 1:
                done.append(record)
                pending.append(record)
        if progress.state is not None:
            self._study.states[arm] = self._unsaved[arm] = progress.state
            if progress.state.diverged:
                self._short[arm] = self._until - progress.state.round
            waited = time.monotonic() - self._saved.setdefault(arm, time.monotonic()) > _SAVE
            if waited or self._study.problem.dear or not _unfinished(progress.state, self._until):
                self._save(arm)

    def _save(self, arm: int) -> None:
        state = self._unsaved.pop(arm)
        pending = self._pending.get(arm, [])
        ready = [r for r in pending if r.round <= state.round]
        self._pending[arm] = [r for r in pending if r.round > state.round]
        self._saved[arm] = time.monotonic()
        if self._store is not None:
            self._store.keep(arm, state, ready)
        self._sweep(arm)

    def _sweep(self, arm: int) -> None:
        state = self._study.states[arm]
        memory.sweep(memory_of(self._study.folder, arm), state.memory, state.round)

    def _retire(self, arms: Iterable[int]) -> None:
        """Let go of what the clients remember of arms that are out."""
        for arm in list(arms):
            if self._study.states[arm].memory:
                self._study.states[arm] = self._unsaved[arm] = replace(self._study.states[arm], memory={})
                self._save(arm)
            memory.drop(memory_of(self._study.folder, arm))

    def _report(self) -> None:
        study = self._study
        used, planned = study.rounds_used, study.schedule.cost - sum(self._short.values())
        scores = [study.score(arm, study.schedule.longest)[0] for arm in self._alive if study.records.get(arm)]
        done, seconds = used - self._before, time.monotonic() - self._began
        left = seconds / done * (planned - used) if done else None
        self._show(Status(used, planned, len(self._alive), study.schedule.arms, min(scores, default=None), left))


def _unfinished(state: State | None, until: int) -> bool:
    return state is None or (state.round < until and not state.diverged)


@contextmanager
def opened(study: Study) -> Iterator[Any]:
    """Yield a function that gives the executor, opened when first needed: a finished study needs none."""
    opened: list[Executor] = []

    def get() -> Executor:
        if not opened:
            opened.append(open_executor(study.setting, study.problem, study.folder, study.workers))
        return opened[0]

    try:
        yield get
    finally:
        for executor in opened:
            executor.close()
