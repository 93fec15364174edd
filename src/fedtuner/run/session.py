"""A session: a study's store and executor, open. Nobody else calls the executor or writes to the store.

"Arm 7 after round 150" has one answer, so continuing a study is playing its schedule again with the answers that are
there. ``play`` is the whole driver.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fedtuner import checks, tables
from fedtuner.core.executor import Advance, Executor, OpenExecutor, Progress, Stop
from fedtuner.core.federation import Federation
from fedtuner.core.method import defaults
from fedtuner.core.model import Vector
from fedtuner.core.records import Arm, Key, State
from fedtuner.core.round import Round
from fedtuner.core.sampler import Past
from fedtuner.core.schedule import Evidence, Play, Schedule, Score, Scoring, Start, Step, outline
from fedtuner.core.setup import Setup
from fedtuner.core.store import Begun, Eliminated, Evaluated, Evaluation, Event, Joined, Note, Started, Store, Won
from fedtuner.errors import Interrupted, StoreError
from fedtuner.rng import stream
from fedtuner.run.executors import open_executor
from fedtuner.run.journal import Journal, fold, read
from fedtuner.run.saving import Saver, load_state
from fedtuner.run.store import Folder, InMemory
from fedtuner.run.store.folder import START
from fedtuner.run.store.lines import FORMAT
from fedtuner.run.versions import versions

_UNREAD = np.zeros(0, np.float32)  # in place of a model that nobody needs
Watch = Callable[[Event], None]


@dataclass(frozen=True)
class Where:
    """Where a study runs. Its results do not depend on it."""

    store: Store
    workers: int | None = None  # None: one per core
    executor: OpenExecutor | None = None  # None: worker processes
    watch: Watch | None = None  # is told every event once it is written: the lines of the journal, in order

    def __post_init__(self) -> None:
        for name in ("executor", "watch"):
            if getattr(self, name) is not None:
                checks.function(name, getattr(self, name))

    @property
    def path(self) -> Path | None:
        """The study's folder; None if it has none."""
        return self.store.path

    @staticmethod
    def at(store: str | Path | Store | None, **more: Any) -> Where:
        """Return a place to run: in a folder, in this process's memory, or in a store of one's own."""
        if store is None:
            store = InMemory()
        elif not isinstance(store, Store) or isinstance(store, type):
            store = Folder(checks.path("store", store, "a folder"))
        return Where(store, **more)


class Session:
    """An open study: a context manager."""

    def __init__(self, setup: Setup, federation: Federation, where: Where, stop: Stop = lambda: False) -> None:
        self.setup, self.federation, self.where = setup, federation, where
        self.round = Round(setup, federation)
        self.journal = Journal()
        self.alive: tuple[int, ...] = ()  # arms of the step under way
        self.until: Mapping[int, int] = {}
        self.short: dict[int, int] = {}  # rounds that arms which have ended will not use
        self.on_progress: Callable[[], None] = lambda: None
        self._store, self._stop = where.store, stop
        self._saver = Saver(self.round, self._store, self.journal, None)
        self._release: Callable[[], object] = lambda: None
        self._executor: Executor | None = None
        self._first: dict[int, int] = {}  # arm -> the first of those that were started with it
        self._scores: dict[int, dict[int, Score]] = {}  # arm -> round -> what the schedule was told

    # Open and close

    def open(self) -> Session:
        """Take the store and read what is there; refuse another study, or begin one."""
        self._store.open(3 * 4 * self.federation.model.size * outline(self.setup.schedule).arms)
        self._release = weakref.finalize(self, self._store.close)  # also where nobody refers to it any more
        try:
            self.journal = fold(self._store.events(), str(self.where.path or "the store"))
            self._saver = Saver(self.round, self._store, self.journal, self._begun())
            self.federation.recall(self.journal.clients)
        except BaseException:
            self._release()
            raise
        return self

    def close(self) -> None:
        """End the workers and let go of the store."""
        executor, self._executor = self._executor, None
        try:
            if executor is not None:
                executor.close()
                self._listen()  # also to what made the work fail
        finally:
            self._release()

    def __enter__(self) -> Session:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _begun(self) -> Vector | None:
        """Begin the study unless it has begun; return the weights that all arms begin from, if they are given."""
        start, begun = self.federation.model.start, self.journal.begun
        layout = [asdict(part) for part in self.federation.model.layout()]
        setup, federation = self.setup.describe(), self.federation.describe()
        now = Begun(FORMAT, tables.plain(setup), tables.plain(federation), tables.plain(layout), {})
        if begun is not None:
            _refuse(str(self.where.path or "the store"), begun, now)
            return self._store.load(START, begun.start)[0].w if begun.start else start
        saved = "" if start is None else self._store.save(START, State(0, start, None), {})
        self._append([replace(now, versions=versions() if self.where.path else {}, start=saved)])
        return start

    # Follow a schedule

    def take(self, step: Step) -> None:
        """Let go of the arms that a step says are out, and start those that it starts."""
        done = step.start.keys() <= self.journal.arms.keys() and not self._left(step.until)
        released = {arm for arm, _ in set(self.keep) - set(step.keep)}
        self.keep = step.keep
        out = self._eliminate(step.out)
        self.start(step.start)
        if not done:  # a step of the past let go of its states then, and later ones may keep others
            self._let_go({*out, *released})  # after the start, as arms may go on from these
        self.alive = tuple(step.until)

    @property
    def keep(self) -> Iterable[Key]:
        """States that are still wanted, beside the arms' latest."""
        return self._saver.keep

    @keep.setter
    def keep(self, keys: Iterable[Key]) -> None:
        self._saver.keep = frozenset(keys)

    def sweep(self) -> None:
        """Delete states that are neither their arm's latest nor kept, and what clients remember for them alone."""
        self._saver.drop_old(self.journal.arms)
        for arm in self.journal.arms:
            self._saver.sweep(arm)

    def start(self, arms: Mapping[int, Start]) -> None:
        """Start arms: proposed together, with all scores so far; those that the journal knows are as they were."""
        self._first |= dict.fromkeys(arms, min(arms, default=0))
        known = dict(self.journal.arms)
        for id, start in arms.items():
            if id not in known:
                known[id] = self._arm(id, start, known)  # the next one may be proposed knowing of it
        self._append([self._started(known[id]) for id in arms if id not in self.journal.arms])

    def _arm(self, id: int, start: Start, known: Mapping[int, Arm]) -> Arm:
        setup, horizon = self.setup, start.horizon if self.setup.cooling else None
        if start.parent is not None:
            parent = known[start.parent[0]]
            client, server = parent.client, parent.server
            if start.change is not None:
                client, server = start.change(setup.space, parent, stream(setup.seed, "arm", id, "change"))
            # A parent that has ended before that round goes on from its last state.
            at = min(start.parent[1], self.journal.round_of(parent.id))
            return Arm(id, client, server, (parent.id, at), horizon)
        past = self._past(id, known) if setup.sampler.learns else ()
        drawn = setup.sampler.propose(setup.space, setup.seed, id, self._first[id], past)
        client, server = (
            {**defaults(hypers), **config}
            for hypers, config in zip((setup.method.client, setup.method.server), drawn, strict=True)
        )
        return Arm(id, client, server, None, horizon)

    def _started(self, arm: Arm) -> Started:
        state, saved = self._saver.begin(arm)
        return Started(arm, self.setup.tuner.offers(state.belief)[0], saved)

    def _past(self, id: int, known: Mapping[int, Arm]) -> list[Past]:
        """Return the arms before one, those of earlier groups with their scores.

        An arm that has ended counts as compared, with its last score, at every rung of the arms that started with it.
        """
        past = []
        for other in sorted(a for a in known if a < id):
            first = self._first[other]
            scores: dict[int, float] = {}
            if first != self._first[id]:
                scores = {t: score for t, (score, _) in self._scores.get(other, {}).items()}
                if other in self.journal.ended:
                    rungs = {t for a, f in self._first.items() if f == first for t in self._scores.get(a, {})}
                    scores |= {t: scores[max(scores)] for t in rungs if t not in scores}
            past.append(Past(known[other], first, scores))
        return past

    def advance(self, until: Mapping[int, int]) -> None:
        """Bring arms to a round each, from wherever the store has them; raise ``Interrupted`` if stopped before."""
        self.until = until
        self.short |= {arm: t - self.journal.round_of(arm) for arm, t in until.items() if arm in self.journal.ended}
        work = self._left(until)
        executor = self.executor() if work else None
        if work or self.short:  # after the executor was opened: a progress bar has a thread, and workers are forked
            self.on_progress()
        try:
            if executor is not None:
                for progress in executor.advance(work, self._stop):
                    self.accept(progress)
                    self.on_progress()
        except Exception:
            self._flush(*self._saver.unsaved())
            raise
        self._flush(*self._saver.unsaved())
        if self._stop() and any(not self.work(arm, t).done for arm, t in until.items()):
            kept = f"Everything is kept in {self.where.path}: run the same command again to continue."
            lost = "There is no store, so nothing is kept: give store= to be able to continue."
            used, planned = self.journal.rounds_used, outline(self.setup.schedule).cost
            raise Interrupted(f"stopped after {used} of {planned} rounds. {kept if self.where.path else lost}")

    def _left(self, until: Mapping[int, int]) -> list[Advance]:
        """Return what is left to do of arms; those whose states cannot be read are named together."""
        left, wrong = [], dict[int, StoreError]()
        for arm, t in until.items():
            try:
                left.append(self.work(arm, t))
            except StoreError as error:
                wrong[arm] = error
        for first in wrong.values():
            if len(wrong) == 1:
                raise first
            arms = ", ".join(map(str, wrong))
            raise StoreError(f"the states of arms {arms} cannot be read; the first: {first}") from first
        return [one for one in left if not one.done]

    def work(self, arm: int, until: int) -> Advance:
        """Return what is left to do of an arm up to a round; where that is nothing, its state is not loaded."""
        known, reached, ended = self.journal.arms[arm], self._saver.reached(arm), self.journal.ended.get(arm, "")
        if reached >= until or ended:
            return Advance(known, State(reached, _UNREAD, None, ended=ended), until)
        return Advance(known, self.latest(arm), until)

    def accept(self, progress: Progress, save: bool = False) -> None:
        """Take note of rounds. They are saved once their state is here and it is time, or at once if ``save``.

        Work that was done again repeats rounds: each counts once.
        """
        self._listen()  # first: a round may count the clients that have come
        arm, state = progress.arm, progress.state
        for record in progress.records:
            if record.round == self.journal.round_of(arm) + 1:
                self._saver.add(record)
        if state is not None:
            due = self._saver.put(arm, state)
            if state.ended:
                self.journal.ended[arm] = state.ended
                self.short[arm] = self.until.get(arm, state.round) - state.round
            finished = state.ended or state.round >= self.until.get(arm, 0)
            if due or finished or save or self.federation.save_every_round:
                self._flush(arm)

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
        self._let_go(self._eliminate(arms))

    def _eliminate(self, arms: Iterable[int]) -> list[int]:
        """Write down that arms are out; return those for which it was not yet written."""
        new = [arm for arm in arms if arm not in self.journal.eliminated]
        self._append([Eliminated(arm, self.journal.round_of(arm), self._last_score(arm)) for arm in new])
        return new

    def _last_score(self, arm: int) -> Score:
        scores = self._scores.get(arm, {})
        return scores[max(scores)] if scores else (float("inf"), float("inf"))

    def _let_go(self, arms: Iterable[int]) -> None:
        """Delete old states of arms, and what their clients remember where no state needs it any more."""
        self._saver.drop_old(arms)
        for arm in arms:
            if arm in self.journal.eliminated:
                self._saver.forget(arm)
            self._saver.sweep(arm)

    def finish(self, winner: Key) -> None:
        """Write down the winner and let go of the others."""
        arm, round = winner[0], min(winner[1], self.journal.round_of(winner[0]))
        self.keep = [(arm, round)]
        self._eliminate(other for other in self.journal.arms if other != arm)
        if self.journal.won is None:
            self._let_go(self.journal.arms)  # of all: a crash may have left what was to go before
            score = self.setup.schedule.scoring.score(self.journal.records(arm, round), self.setup.target)
            self._append([Won(arm, round, score)])

    # Models

    def latest(self, arm: int) -> State:
        """Return an arm's latest state; an arm that has none in the store begins."""
        return self._saver.latest(arm)

    def state(self, key: Key) -> State:
        """Return an arm's state after some round."""
        return self._saver.state(key)

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
            self._listen()
            self._append([Evaluated(*key, split, config, kept)])
        return kept

    def executor(self) -> Executor:
        """Return the executor, opened when first needed: a finished study needs none."""
        if self._executor is None:
            opener = self.federation.executor or self.where.executor or open_executor
            self._executor = opener(self.round, self._store.blobs, self.where.workers)
        return self._executor

    # Write

    def _flush(self, *arms: int) -> None:
        for arm in arms:
            self._tell(self._saver.flush(arm))

    def _append(self, events: Sequence[Event], notes: Sequence[Note] = ()) -> None:
        if events or notes:
            self._store.append(events, notes)
        for event in events:
            self.journal.add(event)
        self._tell(events)

    def _tell(self, events: Sequence[Event]) -> None:
        if self.where.watch is not None:
            for event in events:
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


def _refuse(name: str, old: Begun, new: Begun) -> None:
    """Raise if a store holds another study."""
    was, now = ({**begun.setup, "problem": begun.federation, "layout": begun.layout} for begun in (old, new))
    # In a setting 0 is 0.0, but in a space a range of whole numbers draws differently.
    now |= {key: _as_stored(was.get(key), value) for key, value in now.items() if key not in ("client", "server")}
    changed = list(tables.differences(was, now))
    if changed:
        raise StoreError(
            f"{name} holds another study ({'; '.join(changed[:5])}{' ...' if len(changed) > 5 else ''}). "
            "Use another --store (store=), or run with the stored settings to continue"
        )


def _as_stored(old: Any, new: Any) -> Any:
    """Return a setting, with numbers written as in the store where they are equal."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {key: _as_stored(old.get(key), value) for key, value in new.items()}
    return old if old == new else new


__all__ = ["Session", "Watch", "Where", "load_state", "play", "read"]
