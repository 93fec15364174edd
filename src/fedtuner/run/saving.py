"""How rounds are saved: first an arm's state, then the lines of its rounds up to it; then old states are deleted."""

from __future__ import annotations

import math
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

_SAVE = 2.0  # seconds between two saves of an arm while it advances
_QUICK = 0.2  # seconds of a save that the driver pauses ``_SAVE`` after; after others as much longer or shorter


class Saver:
    """Holds the latest states of a study's arms and writes them, with the rounds that led to them, to the store."""

    def __init__(self, round: Round, store: Store, journal: Journal) -> None:
        self.keep: frozenset[Key] = frozenset()  # states that are kept beside the arms' latest
        self.start: Vector | None = None  # the weights that all arms begin from; None: ``Model.initial`` gives them
        self._round, self._store, self._journal = round, store, journal
        self._latest: dict[int, State] = {}  # those in memory
        self._unsaved: dict[int, State] = {}
        self._pending: dict[int, list[Done]] = {}  # rounds whose state is not saved yet
        self._saved_at: dict[int, float] = {}
        self._paused = (-math.inf, 0.0)  # since when, and for how long
        self._blobs: dict[Key, set[Blob]] = {}  # blobs of the states in ``keep``

    # States

    def begin(self, arm: Arm) -> tuple[State, str]:
        """Return an arm's first state. That of a child is saved, as its parent's may be deleted: also its checksum."""
        parent = None if arm.parent is None else self.state(arm.parent)
        state = self._latest[arm.id] = self._round.begin(arm, parent, self.start)
        return state, self._save(arm.id, state) if parent is not None else ""

    def latest(self, arm: int) -> State:
        """Return an arm's latest state, or its first one if none is saved."""
        if arm not in self._latest:
            known, saved = self._journal.arms[arm], self._journal.saved_round(arm)
            self._latest[arm] = (
                self._round.begin(known, None, self.start) if saved is None else self.state((arm, saved))
            )
        return self._latest[arm]

    def state(self, key: Key) -> State:
        arm, round = key
        if arm in self._latest and self._latest[arm].round == round:
            return self._latest[arm]
        return load_state(self._store, self._round, self._journal, key)

    def reached(self, arm: int) -> int:
        """Return the round of an arm's latest state; records of later rounds may have come without one."""
        return self._latest[arm].round if arm in self._latest else self._journal.round_of(arm)

    def forget(self, arm: int) -> None:
        """Drop an arm's state from memory; the store has it."""
        self._latest.pop(arm, None)

    # Rounds

    def add(self, record: Record) -> None:
        """Take a round's record; it is written with the next state."""
        done = Done(record)
        self._journal.add(done)
        self._pending.setdefault(record.arm, []).append(done)

    def put(self, arm: int, state: State) -> bool:
        """Take an arm's latest state; return whether it is time to save it."""
        self._latest[arm] = self._unsaved[arm] = state
        now = time.monotonic()
        since, pause = self._paused
        return now - self._saved_at.setdefault(arm, now) > _SAVE and now - since > pause

    def unsaved(self) -> list[int]:
        """Return the arms whose latest state is not in the store."""
        return list(self._unsaved)

    def flush(self, arm: int) -> Sequence[Done]:
        """Save an arm's state, write the lines of its rounds up to it, delete older states; return the lines."""
        began, state, pending = time.monotonic(), self._unsaved[arm], self._pending.get(arm, [])
        ready = [done for done in pending if done.record.round <= state.round]
        if ready:
            ready[-1] = self._with_state(ready[-1].record, state, self._save(arm, state))
            self._store.append(ready)
            self._journal.keep(ready[-1])
            del pending[: len(ready)]
        del self._unsaved[arm]
        if ready:
            self.drop_old([arm])
            self.sweep(arm)
        self._saved_at[arm] = now = time.monotonic()
        self._paused = (now, _SAVE * (now - began) / _QUICK)  # a slow store gets a tenth of the driver's time
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
        """Delete arms' states, except the latest and those in ``keep``."""
        saved = [(arm, round) for arm in arms for round in self._journal.saved_rounds(arm)[:-1]]
        old = [key for key in saved if key not in self.keep]
        self._store.drop(old)
        self._journal.drop(old)

    def sweep(self, arm: int) -> None:
        """Delete an arm's blobs that no kept state of the arm or its descendants uses.

        Blobs of rounds after its latest state stay: workers are at these rounds.
        """
        if not self._round.setup.method.memory:
            return
        heirs, used = self._journal.heirs(arm), set[Blob]()
        for heir in heirs - self._journal.eliminated.keys():
            used |= blobs_of(self.latest(heir).memory)
        for key in self.keep:
            if key[0] in heirs and self._store.has(key):  # a schedule that is run again may name deleted ones
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
