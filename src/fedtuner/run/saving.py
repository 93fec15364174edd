"""How rounds are saved: first an arm's state, then the lines of its rounds up to it, then old states go."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fedtuner.core.memory import blobs_of
from fedtuner.core.model import Vector
from fedtuner.core.records import Arm, Blob, Key, Record, State
from fedtuner.core.round import Round
from fedtuner.core.setup import Setup
from fedtuner.core.store import Done, Store
from fedtuner.run.journal import Journal

_SAVE = 2.0  # seconds between two saves of an arm that is on its way


class Saver:
    """The latest states of a study's arms, and their way to the store."""

    def __init__(self, round: Round, store: Store, journal: Journal, start: Vector | None) -> None:
        self.keep: frozenset[Key] = frozenset()  # states that are still wanted, beside the arms' latest
        self._round, self._store, self._journal = round, store, journal
        self._start = start  # the weights that all arms begin from; None: they come from the seed
        self._latest: dict[int, State] = {}  # as far as they are in memory
        self._unsaved: dict[int, State] = {}
        self._pending: dict[int, list[Done]] = {}  # rounds whose state is not saved yet
        self._saved_at: dict[int, float] = {}
        self._blobs: dict[Key, set[Blob]] = {}  # what the states in ``keep`` refer to

    # States

    def begin(self, arm: Arm) -> tuple[State, str]:
        """Return an arm's first state; with a parent it is saved, as the parent's may go: then also its checksum."""
        parent = None if arm.parent is None else self.state(arm.parent)
        state = self._latest[arm.id] = self._round.begin(arm, parent, self._start)
        return state, self._save(arm.id, state) if parent is not None else ""

    def latest(self, arm: int) -> State:
        """Return an arm's latest state; an arm that has none in the store begins."""
        if arm not in self._latest:
            known, saved = self._journal.arms[arm], self._journal.saved_round(arm)
            self._latest[arm] = (
                self._round.begin(known, None, self._start) if saved is None else self.state((arm, saved))
            )
        return self._latest[arm]

    def state(self, key: Key) -> State:
        """Return an arm's state after some round."""
        arm, round = key
        if arm in self._latest and self._latest[arm].round == round:
            return self._latest[arm]
        return load_state(self._store, self._round, self._journal, key)

    def reached(self, arm: int) -> int:
        """Return the round of an arm's latest state. Records of later rounds may be here already, without a state."""
        return self._latest[arm].round if arm in self._latest else self._journal.round_of(arm)

    def forget(self, arm: int) -> None:
        """Let go of an arm's state in memory; the store has it."""
        self._latest.pop(arm, None)

    # Rounds

    def add(self, record: Record) -> None:
        """Take note of a round; it is written once a state after it is here."""
        done = Done(record)
        self._journal.add(done)
        self._pending.setdefault(record.arm, []).append(done)

    def put(self, arm: int, state: State) -> bool:
        """Take an arm's latest state; return whether it is time to save it."""
        self._latest[arm] = self._unsaved[arm] = state
        return time.monotonic() - self._saved_at.setdefault(arm, time.monotonic()) > _SAVE

    def unsaved(self) -> list[int]:
        """Return the arms whose latest state is not in the store."""
        return list(self._unsaved)

    def flush(self, arm: int) -> Sequence[Done]:
        """Save an arm's state, then the lines of its rounds up to it, then let go of older states; return the lines."""
        state, pending = self._unsaved[arm], self._pending.get(arm, [])
        ready = [done for done in pending if done.record.round <= state.round]
        if ready:
            ready[-1] = self._with_state(ready[-1].record, state, self._save(arm, state))
            self._store.append(ready)
            self._journal.keep(ready[-1])
            del pending[: len(ready)]
        del self._unsaved[arm]
        self._saved_at[arm] = time.monotonic()
        if ready:
            self.drop_old([arm])
            self.sweep(arm)
        return ready

    def _with_state(self, record: Record, state: State, saved: str) -> Done:
        """Return the event of a round whose state was saved."""
        candidates, theta = self._round.setup.tuner.offers(state.belief)
        moved = () if candidates == self._journal.candidates[record.arm] else candidates
        return Done(record, tuple(float(p) for p in theta), saved, state.ended, moved)

    def _save(self, arm: int, state: State) -> str:
        return self._store.save((arm, state.round), state, self._round.setup.tuner.pack(state.belief))

    # What is no longer needed

    def drop_old(self, arms: Iterable[int]) -> None:
        """Delete the states of arms but for the latest and those to keep."""
        saved = [(arm, round) for arm in arms for round in self._journal.saved_rounds(arm)[:-1]]
        old = [key for key in saved if key not in self.keep]
        self._store.drop(old)
        self._journal.drop(old)

    def sweep(self, arm: int) -> None:
        """Delete what the clients of an arm remember, as far as no state that is wanted needs it.

        Arms that go on from this one's state may need it, too. Rounds after its latest state are under way.
        """
        if not self._round.setup.method.memory:
            return
        heirs, used = self._journal.heirs(arm), set[Blob]()
        for heir in heirs - self._journal.eliminated.keys():
            used |= blobs_of(self.latest(heir).memory)
        for key in self.keep:
            if key[0] in heirs and self._store.has(key):  # who plays a schedule again may name one that has gone since
                used |= self._kept_blobs(key)
        until = None if arm in self._journal.eliminated else self.reached(arm)
        self._store.blobs.sweep(arm, used, until)

    def _kept_blobs(self, key: Key) -> set[Blob]:
        if key not in self._blobs:
            self._blobs[key] = blobs_of(self.state(key).memory)
        return self._blobs[key]


def load_state(store: Store, round: Round, journal: Journal, key: Key) -> State:
    """Return a state from a store, with its belief."""
    state, packed = store.load(key, journal.saved.get(key, ""))
    if state.belief is not None:
        return state
    return replace(state, belief=round.setup.tuner.unpack(_begun(round.setup, journal, key[0]), packed))


def _begun(setup: Setup, journal: Journal, id: int) -> Any:
    """Return the belief that an arm began with."""
    arm = journal.arms[id]
    parent = None if arm.parent is None else _begun(setup, journal, arm.parent[0])
    return setup.tuner.begin(arm, setup.space, setup.seed, parent)
