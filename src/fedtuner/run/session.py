"""A session is an open study. It alone calls the executor and writes to the store; ``play`` is the driver.

The state of "arm 7 after round 150" depends on the setup and the federation alone. So a study is continued by running
its schedule again from the start, with states and records from the store where they exist.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType

import numpy as np

from fedtuner.core.executor import Advance, Executor, Progress, Stop
from fedtuner.core.federation import Federation
from fedtuner.core.memory import blobs_of
from fedtuner.core.method import defaults
from fedtuner.core.model import Vector
from fedtuner.core.records import Arm, Key, State
from fedtuner.core.round import Round
from fedtuner.core.schedule import Evidence, Play, Schedule, Scoring, Start, Step, best, outline
from fedtuner.core.setup import Setup
from fedtuner.core.store import LATE, Eliminated, Evaluated, Evaluation, Event, Failed, Joined, Late, Note, Started, Won
from fedtuner.errors import ClientError, Interrupted, StoreError
from fedtuner.rng import stream
from fedtuner.run.evaluating import Evaluate, Tell, evaluate
from fedtuner.run.executors import open_executor
from fedtuner.run.journal import Journal
from fedtuner.run.opening import extensions, first_event, refuse_another, warn_of_versions, with_versions
from fedtuner.run.reading import fold
from fedtuner.run.saving import Saver
from fedtuner.run.scores import Scores
from fedtuner.run.store.folder import START
from fedtuner.run.where import Where

_UNREAD = np.zeros(0, np.float32)  # in place of a model that need not be loaded


class Session:
    """An open study: a context manager."""

    def __init__(self, setup: Setup, federation: Federation, where: Where, stop: Stop = lambda: False) -> None:
        self.setup, self.federation, self.where = setup, federation, where
        self.round = Round(setup, federation)
        self.journal = Journal()
        self.alive: tuple[int, ...] = ()  # arms of the current step
        self.until: Mapping[int, int] = {}  # arm -> the round that it is trained up to
        self.short: dict[int, int] = {}  # arm that has ended -> rounds that it leaves unused
        self.on_progress: Callable[[], None] = lambda: None
        self._store, self._stop = where.store, stop
        self._saver, self._scores = Saver(self.round, self._store, self.journal), Scores(self.journal)
        self._release: Callable[[], object] = lambda: None
        self._executor: Executor | None = None
        self._trained: set[int] = set()  # arms that this session has trained

    # Open and close

    def open(self) -> Session:
        """Lock the store and read its journal; begin the study, or check that the store holds the same one."""
        self._store.open(3 * 4 * self.federation.model.size * outline(self.setup.schedule).arms)
        self._release = weakref.finalize(self, self._store.close)  # also when a session is garbage-collected
        try:
            fold(self._store.events(), self._name, self.journal)
            self._saver.start = self._begun()
            self.federation.recall(self.journal.clients, self.journal.codes)
            self.where.watch.on_open(self.journal)
        except BaseException:
            self._release()
            raise
        return self

    def close(self) -> None:
        """End the workers and release the store."""
        executor, self._executor = self._executor, None
        try:
            if executor is not None:
                executor.close()
                self._note_clients_and_faults()  # also after a failure
        finally:
            self._release()

    def __enter__(self) -> Session:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def _name(self) -> str:
        """The name of the store in messages."""
        return str(self.where.path or "the store")

    def _begun(self) -> Vector | None:
        """Begin the study unless it has begun; return the weights that all arms begin from, if the model gives them."""
        start, begun = self.federation.model.start, self.journal.begun
        now = first_event(self.setup, self.federation)
        if begun is not None:
            refuse_another(self._name, begun, now)
            longer, new = extensions(self._name, self.setup.schedule, self.journal.extended)
            self.setup = replace(self.setup, schedule=longer)
            self._append(new)
            if self.journal.won is None:
                warn_of_versions(self._name, begun.versions)
            return self._store.load(START, begun.start)[0].w if begun.start else start
        if start is not None:
            now = replace(now, start=self._store.save(START, State(0, start, None), {}))
        if self.where.path is not None:
            now = with_versions(now)
        self._append([now])
        return start

    # Follow a schedule

    def take(self, step: Step) -> None:
        """Eliminate the arms that a step eliminates, and start those that it starts."""
        done = step.start.keys() <= self.journal.arms.keys() and not self._left(step.until)
        released = {arm for arm, _ in set(self.keep) - set(step.keep)}
        self.keep = step.keep
        out = self._eliminate(step.out)
        self.start(step.start)
        if not done:  # a step that is only repeated has deleted its states before, and later steps may need others
            self._delete_states({*out, *released})  # after the start, as new arms may continue these states
        self.alive = tuple(step.until)

    @property
    def keep(self) -> Iterable[Key]:
        """States that are kept beside the arms' latest."""
        return self._saver.keep

    @keep.setter
    def keep(self, keys: Iterable[Key]) -> None:
        self._saver.keep = frozenset(keys)

    def sweep(self) -> None:
        """Delete states that are neither their arm's latest nor in ``keep``, and the blobs that only they use."""
        self._saver.drop_old(self.journal.arms)
        for arm in self.journal.arms:
            self._saver.sweep(arm)

    def start(self, arms: Mapping[int, Start]) -> None:
        """Start arms: proposed together, knowing all scores so far. Arms in the journal stay as they are."""
        self._scores.start(arms)
        known = dict(self.journal.arms)
        for id, start in arms.items():
            if id not in known:
                known[id] = self._arm(id, start, known)  # the sampler may use it for the next one
        self._append([self._started(known[id]) for id in arms if id not in self.journal.arms])

    def _arm(self, id: int, start: Start, known: Mapping[int, Arm]) -> Arm:
        setup, horizon = self.setup, start.horizon if self.setup.cooling else None
        if start.parent is not None:
            parent = known[start.parent[0]]
            model = parent if start.like is None else known[start.like]
            client, server = model.client, model.server
            if start.change is not None:
                client, server = start.change(setup.space, model, stream(setup.seed, "arm", id, "change"))
            # If the parent ended before that round, the child continues its last state.
            at = min(start.parent[1], self.journal.round_of(parent.id))
            return Arm(id, client, server, (parent.id, at), horizon)
        past = self._scores.past(id, known) if setup.sampler.learns else ()
        drawn = setup.sampler.propose(setup.space, setup.seed, id, self._scores.first(id), past)
        client, server = (
            {**defaults(hypers), **config}
            for hypers, config in zip((setup.method.client, setup.method.server), drawn, strict=True)
        )
        return Arm(id, client, server, None, horizon)

    def _started(self, arm: Arm) -> Started:
        state, saved = self._saver.begin(arm)
        return Started(arm, self.setup.tuner.offers(state.belief)[0], saved)

    def advance(self, until: Mapping[int, int]) -> None:
        """Train arms up to a round each, from their latest states; raise ``Interrupted`` if stopped before."""
        self.until = until
        self.short |= {arm: t - self.journal.round_of(arm) for arm, t in until.items() if arm in self.journal.ended}
        work = self._left(until)
        executor = self.executor() if work else None
        if work or self.short:  # after the executor forked its workers, as a progress bar has a thread
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
        self._note_clients_and_faults()
        failed = [arm for arm, t in until.items() if arm in self.journal.failed and self.journal.round_of(arm) < t]
        if failed and len(failed) == len(until) and not self._goes_on_without(failed):
            raise ClientError(f"every arm has failed; the first: {self.journal.failed[min(until)]}")
        if self._stop() and any(not self.work(arm, t).done for arm, t in until.items()):
            kept = f"Everything is kept in {self.where.path}: run the same command again to continue."
            lost = "There is no store, so nothing is kept: give store= to be able to continue."
            used, planned = self.journal.rounds_used, outline(self.setup.schedule).cost
            raise Interrupted(f"stopped after {used} of {planned} rounds. {kept if self.where.path else lost}")

    def _goes_on_without(self, failed: Sequence[int]) -> bool:
        """Return whether there is a sound model beside those of arms: one that is kept, or another arm's.

        Rounds that are done stay done, so the answer is the same when the schedule is run again.
        """
        journal = self.journal
        kept = [journal.records(arm, t) for arm, t in self.keep if arm in journal.arms and t <= journal.round_of(arm)]
        others = [own[:1] for arm, own in journal.own_records.items() if arm not in failed]
        return any(records and not records[-1].diverged for records in (*kept, *others))

    def _left(self, until: Mapping[int, int]) -> list[Advance]:
        """Return what is left to do of arms; files that cannot be read are named together."""
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
        left = [one for one in left if not one.done]
        fresh = [one.state.memory for one in left if one.arm.id not in self._trained]
        self._store.blobs.check(blob for memory in fresh for blob in blobs_of(memory))
        self._trained |= {one.arm.id for one in left}
        return left

    def work(self, arm: int, until: int) -> Advance:
        """Return the work that is left of an arm up to a round; the state is loaded only if there is some."""
        known, reached, ended = self.journal.arms[arm], self._saver.reached(arm), self.journal.ended.get(arm, "")
        if reached >= until or ended:
            return Advance(known, State(reached, _UNREAD, None, ended=ended), until)
        return Advance(known, self.latest(arm), until)

    def accept(self, progress: Progress, save: bool = False) -> None:
        """Take rounds that were done. They are saved with their state: now and then, at the last round, or if ``save``.

        Work that was repeated brings rounds a second time; they are ignored.
        """
        self._note_clients_and_faults()  # first, as the round's clients may be new
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
            if due or finished or save or progress.error or self.federation.save_every_round:
                self._flush(arm)
        if progress.error and arm not in self.journal.failed:
            self._append([Failed(arm, self.journal.round_of(arm), progress.error)])
            self.short[arm] = self.until.get(arm, 0) - self.journal.round_of(arm)

    def _note_clients_and_faults(self) -> None:
        """Write new clients and late replies to the journal, and faults to the log."""
        new, notes = self.federation.met()[len(self.journal.clients) :], self.federation.notes()
        codes = tuple(self.federation.codes.get(id, "") for id in new)
        joined = [Joined(tuple(new), codes if any(codes) else ())] if new else []
        self._append([*joined, *(late for note in notes if (late := _late(note)) is not None)], notes)

    def evidence(self, until: Mapping[int, int], scoring: Scoring, target: str) -> Evidence:
        """Return arms' scores and records up to a round each, for a schedule of this scoring and target."""
        return self._scores.evidence(until, scoring, target)

    def best(self) -> tuple[float, int] | None:
        """Return the lowest score so far at which arms were compared, and whose it is; before that, of any arm."""
        until = {arm: self.until.get(arm, math.inf) for arm in self.alive}
        return self._scores.lowest(until, self.setup.schedule.scoring, self.setup.target)

    def _eliminate(self, arms: Iterable[int]) -> list[int]:
        """Write to the journal that arms are eliminated; return those that were not so before."""
        new = [arm for arm in arms if arm not in self.journal.eliminated]
        self._append([Eliminated(arm, self.journal.round_of(arm), self._scores.last(arm)) for arm in new])
        self.federation.retire(new)
        return new

    def _delete_states(self, arms: Iterable[int]) -> None:
        """Delete arms' old states, and the client memory that no state needs any more."""
        self._saver.drop_old(arms)
        for arm in arms:
            if arm in self.journal.eliminated:
                self._saver.forget(arm)
            self._saver.sweep(arm)

    def finish(self, winner: Key) -> None:
        """Write the winner to the journal and eliminate the other arms."""
        arm, round = winner[0], min(winner[1], self.journal.round_of(winner[0]))
        self.keep = [*self.keep, (arm, round)]
        self._eliminate(other for other in self.journal.arms if other != arm)
        if self.journal.won is None:
            self._delete_states(self.journal.arms)  # of all arms: a crash may have left some
            score = self.setup.schedule.scoring.score(self.journal.records(arm, round), self.setup.target)
            self._append([Won(arm, round, score)])

    def conclude(self) -> bool:
        """End the study now, with the best of the arms that are alive; return whether any of them has a score."""
        scoring, kept = (
            self.setup.schedule.scoring,
            {a: self.journal.saved_round(a) for a in self.alive if a not in self.journal.failed},
        )
        at = {arm: round for arm, round in kept.items() if round and self.journal.records(arm, round)}
        scores = {arm: scoring.score(self.journal.records(arm, t), self.setup.target) for arm, t in at.items()}
        for arm in best(scores, 1):
            self.finish((arm, at[arm]))
        return bool(scores)

    # Models

    def latest(self, arm: int) -> State:
        """Return an arm's latest state, or its first one if none is saved."""
        return self._saver.latest(arm)

    def state(self, key: Key) -> State:
        return self._saver.state(key)

    def evaluate(
        self, key: Key, split: str, config: str = "mode", sample: int | None = None,
        tell: Tell = lambda done, of: None,
    ) -> Evaluation:  # fmt: skip
        """Return the evaluation of a state on all clients, or on a sample; it is repeated only if some were missing.

        ``tell`` is called with the number of clients that are done, where they are many.
        """
        kept = self.journal.evaluation(key, split, config, sample)
        if kept is None:
            asked = Evaluate(self.journal.arms[key[0]], self.state(key), split, config, sample)
            kept = evaluate(self.round, self.executor(), asked, tell)
            self._note_clients_and_faults()
            self._append([Evaluated(*key, split, config, kept)])
        return kept

    def executor(self) -> Executor:
        """Return the executor, opened on first use: a finished study needs none."""
        if self._executor is None:
            opener = self.federation.executor or self.where.executor or open_executor
            self._executor = opener(self.round, self._store.blobs, self.where.workers)
        return self._executor

    # Write

    def _flush(self, *arms: int) -> None:
        for arm in arms:
            self._notify(self._saver.flush(arm))

    def _append(self, events: Sequence[Event], notes: Sequence[Note] = ()) -> None:
        if events or notes:
            self._store.append(events, notes)
        for event in events:
            self.journal.add(event)
        self._notify(events)

    def _notify(self, events: Sequence[Event]) -> None:
        for event in events:
            self.where.watch(event)


def _late(note: Note) -> Late | None:
    """Return the event of a note that a round's reply came late; None for other notes."""
    if note.kind != LATE or note.arm is None or note.round is None or note.client is None:
        return None
    return Late(note.arm, note.round, note.client)


def play(schedule: Schedule, session: Session) -> None:
    """Run a schedule to its end and write down the winner."""
    if session.journal.won is not None:  # it is finished, perhaps before the schedule's end
        return
    course = Play(schedule)
    while course.step is not None:
        step = course.step
        session.take(step)
        session.advance(step.until)
        course.tell(session.evidence(step.until, schedule.scoring, session.setup.target))
    assert course.winner is not None
    session.finish(course.winner)


def complete(session: Session) -> bool:
    """Return whether a finished study has played its schedule to the end: a timeout may have ended it before."""
    schedule = session.setup.schedule
    course = Play(schedule)
    while course.step is not None:
        until = course.step.until
        if not until.keys() <= session.journal.arms.keys() or not all(session.work(*arm).done for arm in until.items()):
            return False
        course.tell(session.evidence(until, schedule.scoring, session.setup.target))
    return True


__all__ = ["Session", "Where", "complete", "play"]
