"""The laws that every store keeps. Subclass in your tests and return your store:

class TestMine(fedtuner.testing.StoreLaws):
    def store(self, folder): return MyStore(folder)
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np

from fedtuner.core.records import Arm, Blob, Memory, Record, Row, State
from fedtuner.core.store import (
    Begun,
    Done,
    Eliminated,
    Evaluated,
    Evaluation,
    Event,
    Failed,
    Joined,
    Late,
    Note,
    Started,
    Store,
    Won,
)
from fedtuner.errors import StoreError
from fedtuner.run.store.lines import FORMAT
from fedtuner.testing.rounds import refused

NAN, INF = math.nan, math.inf


class StoreLaws:
    """Laws of a store; override ``store``, and ``journal`` where its events are lines of a file."""

    def store(self, folder: Path) -> Store:
        """Return the store of a folder: for the same folder, one with the same events and states."""
        raise NotImplementedError("override store()")

    def journal(self, folder: Path) -> Path | None:
        """Return the file that holds a folder's events as lines; None where there is none."""
        return None

    def test_a_new_store_is_empty(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        store.open()
        assert list(store.events()) == []
        assert refused(StoreError, lambda: store.load((0, 1)))
        store.close()

    def test_events_come_back_as_they_were(self, tmp_path: Path) -> None:
        """All kinds, in order, with NaN and infinities; in this store and in one that is opened later."""
        self._filled(tmp_path)
        assert repr(list(self.store(tmp_path).events())) == repr(_events())

    def test_reading_needs_no_opening_and_changes_nothing(self, tmp_path: Path) -> None:
        """A study that is running can be looked at."""
        writer = self._filled(tmp_path, close=False)
        reader = self.store(tmp_path)
        for _ in range(2):
            assert repr(list(reader.events())) == repr(_events())
        writer.append([Joined(("late",))])
        assert list(reader.events())[-1] == Joined(("late",))
        writer.close()

    def test_a_state_comes_back_as_it_was(self, tmp_path: Path) -> None:
        """Model, slots, memory, blobs and the packed belief, to the bit; the same state has the same checksum."""
        store = self._with_blob(tmp_path)
        empty = State(0, np.zeros(2, np.float32), None)
        for state in (_state(3), _state(4, ended="diverged"), _state(9, "stalled", 10), empty):
            saved = store.save((7, state.round), state, _belief())
            assert saved == store.save((7, state.round), state, _belief())
            found, belief = store.load((7, state.round), saved)
            assert (found.round, found.ended, found.broken) == (state.round, state.ended, state.broken)
            assert found.w.tobytes() == state.w.tobytes()
            assert _bits(found.slots) == _bits(state.slots)
            assert {i: _bits(m) for i, m in found.memory.items()} == {i: _bits(m) for i, m in state.memory.items()}
            assert _bits(belief) == _bits(_belief())
        store.close()

    def test_a_state_that_is_dropped_is_gone(self, tmp_path: Path) -> None:
        """It cannot be loaded; others can, and dropping it again does nothing."""
        store = self._with_blob(tmp_path)
        for round in (1, 2, 3):
            store.save((0, round), _state(round), _belief())
        for _ in range(2):
            store.drop([(0, 1), (0, 3), (5, 5)])
        assert refused(StoreError, lambda: store.load((0, 1)))
        assert store.load((0, 2))[0].round == 2
        store.close()

    def test_a_second_opening_is_refused(self, tmp_path: Path) -> None:
        """Until the first is closed; closing twice does nothing."""
        first, second = self.store(tmp_path), self.store(tmp_path)
        first.open()
        assert refused(StoreError, second.open)
        first.append([_events()[0]])  # the first still has it
        for _ in range(2):
            first.close()
        second.open()
        assert len(list(second.events())) == 1
        second.close()

    def test_blobs_are_kept_until_they_are_swept(self, tmp_path: Path) -> None:
        """A sweep leaves those that are used, those of later rounds and those of other arms."""
        blobs = self.store(tmp_path).blobs
        known = [Blob(arm, client, round) for arm in (0, 1) for client in (2, 3) for round in (1, 2, 3)]
        for blob in known:
            blobs.put(blob, {"c": np.full(2, blob.client + 10 * blob.round, np.float32)})
        blobs.sweep(0, [Blob(0, 2, 1)], until=2)
        left = [blob for blob in known if blob.arm == 1 or blob.round == 3 or blob == Blob(0, 2, 1)]
        for blob in known:
            if blob in left:
                assert blobs.get(blob)["c"].tolist() == [blob.client + 10 * blob.round] * 2
            else:
                assert refused(StoreError, partial(blobs.get, blob))
        blobs.sweep(0, ())
        assert all(refused(StoreError, partial(blobs.get, blob)) for blob in left if blob.arm == 0)
        assert blobs.get(Blob(1, 3, 3))["c"].tolist() == [33.0, 33.0]

    def test_an_unfinished_flush_at_the_end_is_cut(self, tmp_path: Path) -> None:
        """Wherever a crash has cut the last flush short, what was there before it is read, and more can be added."""
        if self.journal(tmp_path / "0") is None:
            return
        for cut in (1, 2, 40, 200, 10**6):
            folder = tmp_path / str(cut)
            self._filled(folder)
            journal = self.journal(folder)
            assert journal is not None
            before = journal.read_bytes()
            store = self.store(folder)
            store.open()
            store.append([_done(9, ""), _done(10, "0123abcd")])
            store.close()
            whole = journal.read_bytes()
            journal.write_bytes(whole[: max(len(before), len(whole) - cut)])
            assert repr(list(self.store(folder).events())) == repr(_events())
            store = self.store(folder)
            store.open()
            assert repr(list(store.events())) == repr(_events())
            store.append([Joined(("later",))])
            store.close()
            assert repr(list(self.store(folder).events())) == repr([*_events(), Joined(("later",))])

    def test_a_damaged_line_is_an_error_with_its_number(self, tmp_path: Path) -> None:
        if self.journal(tmp_path / "0") is None:
            return
        for number in (1, 3):
            folder = tmp_path / str(number)
            self._filled(folder)
            journal = self.journal(folder)
            assert journal is not None
            lines = journal.read_bytes().splitlines(keepends=True)
            lines[number - 1] = lines[number - 1].replace(b":", b";", 1)
            journal.write_bytes(b"".join(lines))
            assert f"line {number} " in refused(StoreError, partial(list, self.store(folder).events()))
            assert f"line {number} " in refused(StoreError, self.store(folder).open)

    def _with_blob(self, folder: Path) -> Store:
        """Return a store that is open and has the blob that the states below refer to."""
        store = self.store(folder)
        store.open()
        store.blobs.put(Blob(0, 5, 2), {"c": np.ones(2, np.float32)})
        return store

    def _filled(self, folder: Path, close: bool = True) -> Store:
        store = self.store(folder)
        store.open()
        store.append(_events()[:2])
        store.append([], [Note("late", "a client came after the round", 1, 2, "phone")])
        store.append(_events()[2:])
        if close:
            store.close()
        return store


def _events() -> list[Event]:
    """Return an event of every kind, with the numbers that are hard to write down."""
    setup = {"method": "fedavg", "cohort": 3, "schedule": {"kind": "halving", "budget": 30}}
    arm = Arm(1, {"lr": 0.1, "optimiser": "sgd", "dyn": True}, {"lr": 1.0})
    child = Arm(2, arm.client, arm.server, (1, 4), 20)
    odd = Evaluation(INF, NAN, 1.0, 0.25, 7, 3, 1)
    return [
        Begun(FORMAT, setup, {"name": "toy", "clients": 6}, [{"name": "w", "shape": [2, 3]}], {"numpy": "1"}),
        Joined(("phone", 7)),
        Started(arm, (arm.client, {**arm.client, "lr": 1e-300})),
        _done(1, ""),
        _done(2, "89abcdef", "diverged"),
        Late(1, 2, "phone"),
        Started(child, (arm.client,), "01234567"),
        Failed(1, 2, "arm 1, round 3, client 'phone': RuntimeError: \u00fc\n"),
        Eliminated(1, 2, (INF, NAN)),
        Evaluated(2, 4, "test", "mode", odd),
        Won(2, 4, (0.1 + 0.2, -INF)),
    ]  # fmt: skip


def _done(round: int, state: str, ended: str = "") -> Done:
    rows = (Row("phone", 0, 12, 3, 0.1 + 0.2, INF, 1.0, NAN), Row(7, 2, 0, 0, NAN, NAN, NAN, NAN))
    record = Record(
        1, round, 10, 1, 2, 3, 400, 50, 9, 2.5, INF, 1 / 3, NAN, -INF, 5e-324, 0.0, 2, 1.0, bool(ended), rows
    )  # fmt: skip
    return Done(record, (0.25, 0.75) if state else (), state, ended)


def _state(round: int, ended: str = "", broken: int = 0) -> State:
    w = np.array([1.5, np.nan, -np.inf, 1e-45], np.float32)
    mine = {"c": w[2:].copy(), "visits": np.ones(1, np.float32)}
    memory: Memory = {3: {"c": w[:2].copy()}, 5: Blob(0, 5, 2), 4: mine}
    return State(round, w, None, {"momentum": w[::-1].copy()}, memory, ended, broken)


def _belief() -> dict[str, np.ndarray]:
    return {"log_theta": np.log(np.array([0.1, 0.9])), "memory": np.array([0.0, 1.0, -np.inf])}


def _bits(vectors: object) -> object:
    if isinstance(vectors, Blob):
        return vectors
    return {name: (v.dtype.str, v.shape, v.tobytes()) for name, v in vectors.items()}  # type: ignore[attr-defined]
