"""A session: a study's store and executor, open. It is the only caller of the executor and the only writer of the store.

"Arm 7 after round 150" has one answer, so continuing a study is playing its schedule again with the answers that are
there. ``play`` is the whole driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fedtuner import tables
from fedtuner.core.executor import Advance, Executor, OpenExecutor, Progress, Stop
from fedtuner.core.federation import Federation
from fedtuner.core.memory import blobs_of
from fedtuner.core.method import defaults
from fedtuner.core.records import Arm, Key, Record, State
from fedtuner.core.round import Round
from fedtuner.core.sampler import Past
from fedtuner.core.schedule import Evidence, Play, Schedule, Score, Scoring, Start, Step, outline
from fedtuner.core.setup import Setup
from fedtuner.core.store import Begun, Done, Eliminated, Evaluated, Evaluation, Event, Joined, Started, Store, Won
from fedtuner.errors import Interrupted, StoreError
from fedtuner.rng import stream
from fedtuner.run.executors import processes
from fedtuner.run.journal import FORMAT, Journal, read
from fedtuner.run.store import Folder, InMemory
from fedtuner.run.store.folder import START
from fedtuner.run.versions import versions

_UNREAD = np.zeros(0, np.float32)  # in place of a model that nobody needs
_SAVE = 2.0  # seconds between two saves of an arm that is on its way
Watch = Callable[[Event], None]


@dataclass(frozen=True)
class Where:
    """Where a study runs. Its results do not depend on it."""

    store: Store
    workers: int | None = None  # None: one per core
    executor: OpenExecutor | None = None  # None: worker processes
    watch: Watch | None = None  # is told every event

    @property
    def path(self) -> Path | None:
        """The study's folder; None if it has none."""
        return self.store.path if isinstance(self.store, Folder) else None

    @staticmethod
    def at(store: str | Path | None, **more: Any) -> Where:
        """Return a place to run: in a folder, or in this process's memory."""
        return Where(InMemory() if store is None else Folder(store), **more)


class Session:
    """A study on its way: a context manager."""

    def __init__(self, setup: Setup, federation: Federation, where: Where, stop: Stop = lambda: False) -> None:
        self.setup, self.federation, self.where = setup, federation, where
        self.round = Round(setup, federation)
        self.journal = Journal()
        self.keep: set[Key] = set()  # states that are still wanted, beside the arms' latest
        self.used = 0  # rounds
        self.alive: tuple[int, ...] = ()  # arms of the step under way
        self.until: Mapping[int, int] = {}
        self.short: dict[int, int] = {}  # rounds that arms which have ended will not use
        self.on_progress: Callable[[], None] = lambda: None
        self._store, self._stop = where.store, stop
        self._executor: Executor | None = None
        self._states: dict[int, State] = {}  # the latest of each arm, as far as they are in memory
        self._start: Any = None
        self._first: dict[int, int] = {}  # arm -> the first of those that were started with it
        self._scores: dict[int, dict[int, Score]] = {}  # arm -> round -> what the schedule was told
        self._pending: dict[int, list[Done]] = {}  # rounds whose state is not saved yet
        self._unsaved: dict[int, State] = {}
        self._saved_at: dict[int, float] = {}

    # Open and close

    def __enter__(self) -> Session:
        self._store.open(3 * 4 * self.federation.model.size * outline(self.setup.schedule).arms)
        try:
            self._adopt()
        except BaseException:
            self._store.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._executor is not None:
                self._executor.close()
                self._executor = None
        finally:
            self._store.close()

    def _adopt(self) -> None:
        """Read what is there, and refuse another study; or begin one."""
        self.journal = Journal(self._store.events())
        self.used = self.journal.rounds_used
        model = self.federation.model
        begun = self.journal.begun
        if begun is None:
            start = "" if model.start is None else self._store.save(START, State(0, model.start, None), {})
            with_versions = versions() if self.where.path else {}
            self._append([replace(self._study(), versions=with_versions, start=start)])
        else:
            _refuse(str(self.where.path or "the store"), begun, self._study())
            if begun.start:
                self._start = self._store.load(START)[0].w
        self._start = model.start if self._start is None else self._start
        self.federation.recall(self.journal.clients)

    def _study(self) -> Begun:
        layout = [asdict(part) for part in self.federation.model.layout()]
        setup, federation = self.setup.describe(), self.federation.describe()
        return Begun(FORMAT, tables.plain(setup), tables.plain(federation), tables.plain(layout), {})

    # Follow a schedule

    def take(self, step: Step) -> None:
        """Let go of the arms that a step says are out, and start those that it starts."""
        self.keep = set(step.keep)
        self.retire(step.out)
        self.start(step.start)
        self.alive = tuple(step.until)

    def start(self, arms: Mapping[int, Start]) -> None:
        """Start arms: proposed together, with all scores so far; those that the journal knows are as they were."""
        self._first |= dict.fromkeys(arms, min(arms, default=0))
        begun: list[Event] = []
        for id, start in arms.items():
            if id not in self.journal.arms:
                arm = self._arm(id, start)
                self.journal.arms[id] = arm  # the next one may be proposed knowing of it
                begun.append(self._begin(arm))
        self._append(begun)

    def _arm(self, id: int, start: Start) -> Arm:
        setup, horizon = self.setup, start.horizon if self.setup.cooling else None
        if start.parent is not None:
            parent = self.journal.arms[start.parent[0]]
            client, server = parent.client, parent.server
            if start.change is not None:
                client, server = start.change(setup.space, parent, stream(setup.seed, "arm", id, "change"))
            return Arm(id, client, server, start.parent, horizon)
        past = self._past(id) if setup.sampler.learns else ()
        drawn = setup.sampler.propose(setup.space, setup.seed, id, self._first[id], past)
        client, server = (
            {**defaults(hypers), **config}
            for hypers, config in zip((setup.method.client, setup.method.server), drawn, strict=True)
        )
        return Arm(id, client, server, None, horizon)

    def _begin(self, arm: Arm) -> Started:
        """Return the event of an arm that starts; one with a parent has its state saved, as the parent may go."""
        parent = None if arm.parent is None else self.state(arm.parent)
        state = self._states[arm.id] = self.round.begin(arm, parent, self._start)
        candidates, _ = self.setup.tuner.offers(state.belief)
        saved = self._save_state(arm.id, state) if parent is not None else ""
        return Started(arm, candidates, saved)

    def _past(self, id: int) -> list[Past]:
        """Return the arms before one, those of earlier groups with their scores.

        An arm that has ended counts as compared, with its last score, at every rung of the arms that started with it.
        """
        known = []
        for other in sorted(a for a in self.journal.arms if a < id):
            first = self._first[other]
            scores: dict[int, float] = {}
            if first != self._first[id]:
                scores = {t: score for t, (score, _) in self._scores.get(other, {}).items()}
                if other in self.journal.ended:
                    rungs = {t for a, f in self._first.items() if f == first for t in self._scores.get(a, {})}
                    scores |= {t: scores[max(scores)] for t in rungs if t not in scores}
            known.append(Past(self.journal.arms[other], first, scores))
        return known

    def advance(self, until: Mapping[int, int]) -> None:
        """Bring arms to a round each, from wherever the store has them; raise ``Interrupted`` if stopped before."""
        self.until = until
        self.short |= {arm: t - self.journal.round_of(arm) for arm, t in until.items() if arm in self.journal.ended}
        work = [one for arm, t in until.items() if not (one := self._work(arm, t)).done]
        try:
            if work:
                for progress in self.executor().advance(work, self._stop):
                    self.accept(progress)
                    self.on_progress()
            elif self.short:  # all that are alive have ended
                self.on_progress()
        finally:
            for arm in list(self._unsaved):
                self._flush(arm)
        if self._stop() and any(not self._work(arm, t).done for arm, t in until.items()):
            kept = f"Everything is kept in {self.where.path}: run the same command again to continue."
            lost = "There is no store, so nothing is kept: give store= to be able to continue."
            planned = outline(self.setup.schedule).cost
            raise Interrupted(f"stopped after {self.used} of {planned} rounds. {kept if self.where.path else lost}")

    def _work(self, arm: int, until: int) -> Advance:
        known = self.journal.arms[arm]
        if self.journal.round_of(arm) >= until or arm in self.journal.ended:  # no need to load its state
            at = State(self.journal.round_of(arm), _UNREAD, None, ended=self.journal.ended.get(arm, ""))
            return Advance(known, at, until)
        return Advance(known, self.latest(arm), until)

    def accept(self, progress: Progress) -> None:
        """Take note of rounds; they are saved once their state is here. Work done again repeats rounds: once counts."""
        arm = progress.arm
        pending = self._pending.setdefault(arm, [])
        for record in progress.records:
            if record.round == self.journal.round_of(arm) + 1:
                done = Done(record)
                self.journal.add(done)
                pending.append(done)
                self.used += 1
                self._tell(done)
        if progress.state is not None:
            self._states[arm] = self._unsaved[arm] = progress.state
            if progress.state.ended:
                self.journal.ended[arm] = progress.state.ended
                self.short[arm] = self.until.get(arm, 0) - progress.state.round
            waited = time.monotonic() - self._saved_at.setdefault(arm, time.monotonic()) > _SAVE
            finished = progress.state.ended or progress.state.round >= self.until.get(arm, 0)
            if waited or finished or self.federation.save_every_round:
                self._flush(arm)
        self._listen()

    def _listen(self) -> None:
        """Write down who came and what went wrong."""
        new = self.federation.met()[len(self.journal.clients) :]
        self._append([Joined(tuple(new))] if new else [], self.federation.notes())

    def evidence(self, until: Mapping[int, int], scoring: Scoring, target: str) -> Evidence:
        """Return what a schedule is told of arms at rounds; a target is a way to read the records."""
        records = {arm: self.journal.records(arm, t) for arm, t in until.items()}
        scores = {arm: scoring.score(rounds, target) for arm, rounds in records.items()}
        for arm, t in until.items():
            self._scores.setdefault(arm, {})[t] = scores[arm]
        ended = {arm: self.journal.ended[arm] for arm in until if arm in self.journal.ended}
        return Evidence(scores, records, ended)

    def retire(self, arms: Iterable[int]) -> None:
        """Write down that arms are out, and let go of what their clients remember."""
        out = list(arms)
        self._append([self._eliminated(arm) for arm in out if arm not in self.journal.eliminated])
        if self.setup.method.memory:
            used = set[Any]().union(*(blobs_of(state.memory) for state in self._wanted(out)))
            for arm in out:
                self._store.blobs.sweep(arm, used)

    def _wanted(self, out: Sequence[int]) -> list[State]:
        """Return the states in memory whose clients may still be asked: all but those of arms that are out."""
        gone = {*out, *self.journal.eliminated}
        return [state for arm, state in self._states.items() if arm not in gone] + [
            self.state(key) for key in self.keep if key in self.journal.saved
        ]

    def _eliminated(self, arm: int) -> Eliminated:
        scores = self._scores.get(arm, {})
        return Eliminated(arm, self.journal.round_of(arm), scores[max(scores)] if scores else (float("inf"),) * 2)

    def finish(self, winner: Key) -> None:
        """Write down the winner and let go of the others."""
        arm, round = winner[0], min(winner[1], self.journal.round_of(winner[0]))
        self.keep = {(arm, round)}
        self.retire(a for a in self.journal.arms if a != arm)
        if self.journal.won is None:
            scores = self._scores[arm]
            self._append([Won(arm, round, scores[max(t for t in scores if t <= winner[1])])])

    # Models

    def latest(self, arm: int) -> State:
        """Return an arm's latest state; an arm that has none in the store begins."""
        if arm not in self._states:
            known, round = self.journal.arms[arm], self.journal.saved_round(arm)
            if round is None:
                self._states[arm] = self.round.begin(known, None, self._start)
            else:
                self._states[arm] = self.state((arm, round))
        return self._states[arm]

    def state(self, key: Key) -> State:
        """Return an arm's state after some round."""
        arm, round = key
        if arm in self._states and self._states[arm].round == round:
            return self._states[arm]
        return load_state(self._store, self.round, self.journal, key)

    def evaluate(self, key: Key, split: str, config: str = "mode") -> Evaluation:
        """Return what all clients measure with an arm's model; measured once, unless clients were missing."""
        kept = self.journal.evaluated.get((key, split, config))
        if kept is None or kept.missing:
            clients = self.federation.everyone()
            plan = self.round.survey(self.journal.arms[key[0]], self.state(key), clients, split, config)
            tally = self.executor().evaluate(plan)
            before, after = tally.before, tally.after
            missing = self.federation.population() - tally.reported
            kept = Evaluation(
                before.loss, after.loss, before.error, after.error, after.count, tally.reported, missing
            )  # fmt: skip
            self._append([Evaluated(*key, split, config, kept)])
            self._listen()
        return kept

    def executor(self) -> Executor:
        """Return the executor, opened when first needed: a finished study needs none."""
        if self._executor is None:
            opener = self.federation.executor or self.where.executor or processes
            self._executor = opener(self.round, self._store.blobs, self.where.workers)
        return self._executor

    # Write

    def _flush(self, arm: int) -> None:
        """Save an arm's state, then the lines of its rounds up to it, then let go of older states."""
        state = self._unsaved.pop(arm)
        pending = self._pending.get(arm, [])
        ready = [done for done in pending if done.record.round <= state.round]
        self._pending[arm] = pending[len(ready) :]
        self._saved_at[arm] = time.monotonic()
        if not ready:
            return
        saved = self._save_state(arm, state)
        ready[-1] = self._last(ready[-1].record, state, saved)
        self._store.append(ready)
        self.journal.keep(ready[-1])
        old = [key for key in self.journal.saved if key[0] == arm and key[1] < state.round and key not in self.keep]
        self._store.drop(old)
        for key in old:
            del self.journal.saved[key]
        if self.setup.method.memory:
            kept = [self.state(key) for key in self.keep if key in self.journal.saved]
            used = blobs_of(state.memory).union(*(blobs_of(other.memory) for other in kept))
            self._store.blobs.sweep(arm, used, state.round)

    def _last(self, record: Record, state: State, saved: str) -> Done:
        """Return the event of a round whose state was saved."""
        candidates, theta = self.setup.tuner.offers(state.belief)
        moved = () if candidates == self.journal.candidates[record.arm] else candidates
        return Done(record, tuple(float(p) for p in theta), saved, state.ended, moved)

    def _save_state(self, arm: int, state: State) -> str:
        return self._store.save((arm, state.round), state, self.setup.tuner.pack(state.belief))

    def _append(self, events: Sequence[Event], notes: Sequence[Any] = ()) -> None:
        if events or notes:
            self._store.append(events, notes)
        for event in events:
            self.journal.add(event)
            self._tell(event)

    def _tell(self, event: Event) -> None:
        if self.where.watch is not None:
            self.where.watch(event)


def play(schedule: Schedule, session: Session) -> None:
    """Follow a schedule to its end and name the winner."""
    course = Play(schedule)
    while course.step is not None:
        step = course.step
        session.take(step)
        session.advance(step.until)
        course.tell(session.evidence(step.until, schedule.scoring, session.setup.target))
    assert course.winner is not None
    session.finish(course.winner)


def load_state(store: Store, round: Round, journal: Journal, key: Key) -> State:
    """Return a state from a store, with its belief."""
    state, packed = store.load(key)
    if state.belief is not None:
        return state
    return replace(state, belief=round.setup.tuner.unpack(_begun(round.setup, journal, key[0]), packed))


def _begun(setup: Setup, journal: Journal, id: int) -> Any:
    """Return the belief that an arm began with."""
    arm = journal.arms[id]
    parent = None if arm.parent is None else _begun(setup, journal, arm.parent[0])
    return setup.tuner.begin(arm, setup.space, setup.seed, parent)


def _refuse(name: str, old: Begun, new: Begun) -> None:
    """Raise if a store holds another study."""
    if old.format != FORMAT:
        raise StoreError(f"{name} is of format {old.format}, but this version writes {FORMAT}: use another store")
    was, now = ({**begun.setup, "problem": begun.federation, "layout": begun.layout} for begun in (old, new))
    changed = list(tables.differences(was, now))
    if changed:
        raise StoreError(
            f"{name} holds another study ({'; '.join(changed[:5])}{' ...' if len(changed) > 5 else ''}). "
            "Use another --store (store=), or run with the stored settings to continue"
        )


__all__ = ["Session", "Watch", "Where", "load_state", "play", "read"]
