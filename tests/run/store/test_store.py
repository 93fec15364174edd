"""Where studies are kept: one writer, whole files, the same bits back, and clear errors."""

from __future__ import annotations

import errno
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fedtuner as ft
import toys
from crashes import assert_same
from fedtuner.cli import main
from fedtuner.core.records import Arm, Blob, Record, Row, State
from fedtuner.core.store import Begun, Done, Eliminated, Evaluated, Evaluation, Joined, Late, Note, Started, Won
from fedtuner.errors import StoreError
from fedtuner.run.reading import read
from fedtuner.run.store import Folder, InMemory
from fedtuner.run.store.files import Files, read_json, replace_file
from fedtuner.run.store.lines import FORMAT, decode, encode
from fedtuner.run.store.states import FileBlobs, checksum, pack, unpack
from fedtuner.tables import differences
from fedtuner.tuners import fedex

# Other tests may have left threads of libraries in this process; the workers do not use them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "s"
    toys.tune(store=path)
    return path


def journal_of(path):
    return read(Folder(path), str(path))


# States


TUNER = ft.FedEx(k=3)
BELIEF = fedex.Belief(
    ({}, {}, {}), 0.3, fedex.exponentiate(fedex.uniform(3), [0, 1], [0.5, 0.25], [3, 4], gamma=0.3)
)  # fmt: skip


def state(**changed):
    rng = np.random.default_rng(0)
    usual = State(
        round=7,
        w=rng.normal(size=11).astype(np.float32),
        belief=BELIEF,
        slots={"momentum": rng.normal(size=5).astype(np.float32), "a.dotted.name": np.arange(3.0)},
        memory={12: {"last": rng.normal(size=4).astype(np.float32), "n.1": np.ones(1)}, 3: {"last": np.zeros(2)}},
    )
    return replace(usual, **changed)


def packed(kept):
    return pack(kept, TUNER.pack(kept.belief))


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


STATES = {
    "all": state(),
    "diverged": state(ended="diverged", w=np.array([np.nan, np.inf, -0.0], np.float32)),
    "stalled": state(ended="stalled"),
    "bare": state(slots={}, memory={}),
    "shapes": state(slots={"scalar": np.array(2.5, np.float32), "empty": np.zeros(0, np.float32)}),
    "begin": state(belief=replace(BELIEF, theta=fedex.uniform(3)), round=0),
    "strided": state(w=np.arange(10, dtype=np.float32)[::2]),
    "blobs": state(memory={5: Blob(2, 5, 9), 17: Blob(0, 17, 1), 3: {"last": np.zeros(2)}}),
}


@pytest.mark.parametrize("name", STATES)
def test_pack_and_unpack_keep_every_bit(name):
    kept = STATES[name]
    back, arrays = unpack(packed(kept))
    assert (back.round, back.ended, back.belief) == (kept.round, kept.ended, None)
    assert same(back.w, kept.w)
    theta = TUNER.unpack(replace(BELIEF, theta=fedex.uniform(3)), arrays).theta
    assert same(theta.log_theta, kept.belief.theta.log_theta)
    remembered = [(t.past, t.mass, t.log_squares) for t in (theta, kept.belief.theta)]
    assert remembered[0] == remembered[1]
    assert back.slots.keys() == kept.slots.keys()
    assert all(same(back.slots[name], kept.slots[name]) for name in kept.slots)
    assert back.memory.keys() == kept.memory.keys()
    for client, vectors in kept.memory.items():
        if isinstance(vectors, Blob):
            assert back.memory[client] == vectors
        else:
            assert back.memory[client].keys() == vectors.keys()
            assert all(same(back.memory[client][name], vectors[name]) for name in vectors)
    assert pack(back, arrays) == packed(kept)


def test_the_bytes_of_a_state_do_not_depend_on_the_order_of_its_parts():
    kept = STATES["blobs"]
    turned = replace(kept, slots=dict(reversed(kept.slots.items())), memory=dict(reversed(kept.memory.items())))
    assert list(turned.memory) != list(kept.memory)
    assert packed(turned) == packed(kept)


def test_unpacked_arrays_can_be_written_to():
    back, belief = unpack(packed(state()))
    assert all(a.flags.writeable for a in [back.w, *belief.values(), *back.slots.values(), *back.memory[12].values()])


@pytest.mark.parametrize("make", [Folder, lambda path: InMemory()], ids=["folder", "memory"])
def test_states_are_saved_loaded_and_dropped_by_key(tmp_path, make):
    store = make(tmp_path / "s")
    store.open()
    kept = [state(), state(round=9)]
    names = [store.save((4, s.round), s, TUNER.pack(s.belief)) for s in kept]
    for s, name in zip(kept, names, strict=True):
        back, belief = store.load((4, s.round), name)
        assert same(back.w, s.w)
        assert same(belief["log_theta"], s.belief.theta.log_theta)
    store.drop([(4, 7), (5, 1)])
    with pytest.raises(StoreError):
        store.load((4, 7))
    assert store.load((4, 9))[0].round == 9
    store.close()


def test_a_state_that_is_another_is_refused(tmp_path):
    store = Folder(tmp_path / "s")
    store.open()
    name = store.save((4, 7), state(), TUNER.pack(BELIEF))
    assert name == checksum((tmp_path / "s" / "states" / "4-7.safetensors").read_bytes())
    store.save((4, 7), state(w=np.zeros(11, np.float32)), TUNER.pack(BELIEF))
    assert store.load((4, 7))[0].round == 7  # nothing is said of what it must be
    with pytest.raises(StoreError, match=r"4-7\.safetensors is missing or damaged \(its checksum is another\)"):
        store.load((4, 7), name)
    store.close()


# What clients remember


@pytest.fixture
def blobs(tmp_path):
    made = FileBlobs(tmp_path / "memory")
    for client in (0, 1, 2):
        for round in (1, 2, 3):
            made.put(Blob(7, client, round), {"last": np.full(3, 10.0 * client + round, np.float32), "n": np.ones(1)})
    return made


def left(blobs):
    return sorted(f"{f.parent.name}/{f.name}" for f in blobs.folder.rglob("*") if f.is_file())


def test_blobs_come_back(blobs):
    back = blobs.get(Blob(7, 2, 3))
    assert back["last"].tolist() == [23.0] * 3
    assert back["last"].dtype == np.float32
    back["last"] += 1  # the reader's own
    blobs.put(Blob(7, 2, 3), blobs.get(Blob(7, 2, 3)))
    assert blobs.get(Blob(7, 2, 3))["last"].tolist() == [23.0] * 3


def test_a_sweep_leaves_what_is_used_and_what_is_under_way(blobs):
    half = blobs.folder / "7" / "1-2.safetensors.99.part"
    half.write_bytes(b"half")
    later = blobs.folder / "7" / "1-3.safetensors.99.part"
    later.write_bytes(b"half")
    (blobs.folder / "7" / "notes.txt").write_text("mine")
    blobs.sweep(7, {Blob(7, 0, 1), Blob(8, 1, 1)}, until=2)
    assert left(blobs) == [
        "7/0-1.safetensors", "7/0-3.safetensors", "7/1-3.safetensors", "7/1-3.safetensors.99.part", "7/2-3.safetensors",
        "7/notes.txt",
    ]  # fmt: skip
    blobs.sweep(7, {Blob(7, 0, 1)})
    assert left(blobs) == ["7/0-1.safetensors", "7/notes.txt"]
    (blobs.folder / "7" / "notes.txt").unlink()
    blobs.sweep(7, ())
    assert not (blobs.folder / "7").exists()
    blobs.sweep(7, ())


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"half")])
def test_a_blob_that_cannot_be_read_is_a_clear_error(blobs, damage):
    damage(blobs.folder / "7" / "2-3.safetensors")
    with pytest.raises(StoreError, match=r"what clients remember is missing or damaged: 7/2-3\.safetensors \("):
        blobs.get(Blob(7, 2, 3))


def test_a_store_in_memory_leaves_no_files_behind(monkeypatch):
    store = InMemory()
    folder = store.blobs.folder
    assert not folder.exists()
    store.blobs.put(Blob(0, 1, 2), {"last": np.ones(3)})
    assert folder.exists()
    del store
    gc.collect()
    assert not folder.exists()


# Lines


RECORD = Record(
    arm=3, round=1, clients=4, dropped=1, broken=1, bounded=0, examples=12, validated=5, trainings=3,
    loss_before=0.1, loss_after=math.inf, error_before=1 / 3, error_after=0.25, loss=math.nan, error=0.25, entropy=1.0,
    mode=2, confidence=0.5, diverged=False,
    rows=(Row("phone1", 2, 4, 5, 0.1, 0.2, 0.3, -0.0), Row(7, 0, 0, 0, math.nan, math.inf, -math.inf, 1e-300)),
)  # fmt: skip
ARM = Arm(3, {"lr": 0.1, "optimiser": "sgd", "epochs": 2}, {"lr": 1.0}, (1, 20), 40)
EVENTS = [
    Begun(FORMAT, {"seed": 1, "client": {"lr": [1, 2.0]}}, {"name": "toy"}, [{"name": "w", "shape": [3]}], {"os": "x"}),
    Joined(("phone1", 7)),
    Started(ARM, (ARM.client, {"lr": 0.2}), "00c0ffee"),
    Done(RECORD),
    Done(replace(RECORD, round=2), (0.25, 0.75), "01234567", "diverged", ({"lr": 0.5},)),
    Late(3, 1, "phone1"),
    Eliminated(3, 2, (math.inf, math.nan)),
    Evaluated(3, 2, "test", "mode", Evaluation(0.1, math.nan, 0.2, math.inf, 30, 4, 2)),
    Won(3, 2, (0.5, -0.0)),
]  # fmt: skip


def test_events_come_back_from_their_lines():
    data = encode(EVENTS)
    back, size = decode(data, "here")
    assert size == len(data)
    assert [type(event) for event in back] == [type(event) for event in EVENTS]
    assert list(map(repr, back)) == list(map(repr, EVENTS))  # NaN is NaN, and 0.0 is not -0.0
    assert encode(back) == data


def test_lines_are_strict_json_and_a_checksum():
    for line in encode(EVENTS).splitlines():
        assert int(line[:8], 16) >= 0
        assert json.loads(line[9:], parse_constant=pytest.fail)["event"]


def test_an_event_is_cut_anywhere_within_the_last_flush():
    """Half a line is not read, nor are rounds whose state no line names; all before them is."""
    rounds = [Done(replace(RECORD, round=t)) for t in (1, 2)]
    whole, flush = EVENTS[:3], [*rounds, Done(replace(RECORD, round=3), (1.0,), "01234567")]
    start, data = len(encode(whole)), encode([*whole, *flush])
    for cut in range(start, len(data)):
        back, size = decode(data[:cut], "here")
        assert (len(back), size) == (3, start)
    assert decode(data, "here")[1] == len(data)


def test_a_changed_byte_is_noticed_anywhere():
    data = encode(EVENTS)
    last = len(encode(EVENTS[:-1]))
    for at in range(0, len(data), 7):
        changed = bytearray(data)
        changed[at] ^= 4
        if at < last:
            with pytest.raises(StoreError, match=f"here, line {data.count(10, 0, at) + 1} is damaged"):
                decode(bytes(changed), "here")
        else:  # as if the last flush had not finished
            back, size = decode(bytes(changed), "here")
            assert (len(back), size) == (len(EVENTS) - 1, last)


def test_a_later_format_is_refused():
    later = encode([replace(EVENTS[0], format=FORMAT + 1)])
    with pytest.raises(StoreError, match=r"s/journal.jsonl is of format 3, but this version reads 2: use another"):
        decode(later, "s/journal.jsonl")


def test_a_later_format_may_have_more_fields():
    line = encode([EVENTS[0]])[9:-1].replace(b'"format":2', b'"format":9,"colour":"red"')
    with pytest.raises(StoreError, match="is of format 9"):
        decode(b"%08x %s\n" % (zlib.crc32(line), line), "here")


def test_notes_go_to_the_log(tmp_path):
    store = Folder(tmp_path / "s")
    store.open()
    store.append((), [Note("late", "too late", arm=3, round=7, client="phone1"), Note("cut", "off")])
    store.append((), [Note("lost", "no answer")])
    store.close()
    notes = [json.loads(line) for line in (tmp_path / "s" / "log.jsonl").read_text().splitlines()]
    assert [(n["kind"], n["text"], n["arm"], n["client"]) for n in notes] == [
        ("late", "too late", 3, "phone1"), ("cut", "off", None, None), ("lost", "no answer", None, None),
    ]  # fmt: skip
    assert all(n["host"] and n["time"] > 1e9 for n in notes)
    assert not store.exists()


def test_records_come_back_from_the_journal(tmp_path):
    study = toys.tune(space=toys.DIVERGING, store=tmp_path / "s")  # infinite numbers among them
    kept = journal_of(tmp_path / "s")
    assert kept.history() == study.history
    assert any(math.isinf(r.error) for r in study.history)
    assert kept.ended == study.journal.ended
    assert (kept.won.arm, kept.won.round) == study.winner
    assert kept.arms == study.journal.arms
    assert kept.candidates == study.journal.candidates


# One writer


HOLD = "from fedtuner.run.store import Folder; s = Folder({path!r}); s.open(); print('mine', flush=True); input()"


def opened(path):
    store = Folder(path)
    store.open()
    return store


@pytest.mark.slow
def test_another_process_is_refused(tmp_path):
    code = HOLD.format(path=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"mine\n"
        before = toys.files(tmp_path)
        with pytest.raises(
            StoreError, match=r"in use by another running study \(.*, process \d+\): wait for it, stop it, or use"
        ):
            opened(tmp_path)
        assert toys.files(tmp_path) == before
        holder.kill()  # the lock goes with its owner, however it ends
    opened(tmp_path).close()


def _another_process_gets(path: Path) -> bool:
    code = HOLD.format(path=str(path)).replace("; input()", "")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "in use by another running study" in done.stderr, done.stderr
    return done.returncode == 0


@pytest.mark.slow
def test_the_same_process_is_refused_and_the_lock_holds_on(tmp_path):
    first = opened(tmp_path / "s")
    with pytest.raises(StoreError, match=r"in use by another running study, in this process: close\(\) it"):
        opened(tmp_path / "s")
    assert not _another_process_gets(tmp_path / "s")  # the refusal must not have let go of the lock
    first.close()
    assert _another_process_gets(tmp_path / "s")


def test_the_same_folder_by_another_name_is_refused(tmp_path, monkeypatch):
    first = opened(tmp_path / "s")
    (tmp_path / "link").symlink_to(tmp_path / "s")
    monkeypatch.chdir(tmp_path)
    for name in (tmp_path / "link", Path("s"), tmp_path / "s" / ".." / "s"):
        with pytest.raises(StoreError, match="in use"):
            opened(name)
    first.close()
    opened(tmp_path / "link").close()


@pytest.mark.slow
def test_a_store_that_nobody_refers_to_is_free(tmp_path):
    """Warnings are errors here: that a file was left open would be one."""
    store = opened(tmp_path / "s")
    assert not _another_process_gets(tmp_path / "s")
    del store
    assert _another_process_gets(tmp_path / "s")
    opened(tmp_path / "s").close()


def test_a_fork_does_not_believe_that_it_has_the_lock(tmp_path):
    held = opened(tmp_path / "s")
    assert toys.forked(lambda: _refused(tmp_path / "s", "wait for it")) == 0
    held.close()


def _refused(path, said):
    with pytest.raises(StoreError, match=said):
        opened(path)


def test_closing_twice_is_closing_once(tmp_path):
    first = opened(tmp_path / "s")
    first.close()
    second = opened(tmp_path / "s")
    first.close()
    with pytest.raises(StoreError, match="in use"):
        opened(tmp_path / "s")
    second.close()


def test_a_store_that_is_refused_is_free_again(tmp_path, finished):
    shutil.copytree(finished, tmp_path / "s")
    with pytest.raises(StoreError, match="another study"):
        toys.tune(store=tmp_path / "s", seed=1)
    opened(tmp_path / "s").close()


def test_tune_refuses_a_store_in_use_and_leaves_it_alone(tmp_path):
    held = opened(tmp_path)
    before = toys.files(tmp_path)
    with pytest.raises(StoreError, match="in use"):
        toys.tune(store=tmp_path)
    assert toys.files(tmp_path) == before
    held.close()


# Another study


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 1}, "seed: 0 in the store, 1 now"),
        ({"cohort": 2}, "cohort: 3 in the store, 2 now"),
        ({"target": "global"}, "target: 'personalized' in the store, 'global' now"),
        ({"cohorts": "shared"}, "cohorts: 'independent' in the store, 'shared' now"),
        ({"method": ft.methods.fedavg}, "method: 'remembering' in the store, 'fedavg' now"),
        ({"fedex": ft.FedEx(k=3, eps=0.2)}, "tuner.eps: 0.3 in the store, 0.2 now"),
        ({"fedex": None}, "tuner.kind: 'fedex' in the store, 'none' now"),
        ({"schedule": ft.halving(26, 10, 2, 2)}, "schedule.budget: 30 in the store, 26 now"),
        ({"schedule": ft.random_search(30, 10)}, "schedule.kind: 'halving' in the store, 'random_search' now"),
        ({"schedule": ft.halving(30, 10, 2, 2, score="loss")}, "schedule.score: 'error' in the store, 'loss' now"),
        ({"space": ft.Space(client={"lr": ft.Float(0.5, 0.6)})}, "client.lr"),
        ({"space": ft.Space()}, "server.momentum"),
        ({"problem": ft.Simulation(toys.Softmax(), toys.clients(7), "toy")}, "problem.clients: 6 in the store, 7 now"),
        ({"problem": ft.Simulation(toys.Softmax(), toys.clients(bad=1), "toy")}, "problem.fingerprint: "),
        ({"method": toys.remembering.with_defaults(client={"epochs": 2})}, "defaults.client.epochs: 1 in the store"),
        ({"weights": "shared"}, "weights: 'independent' in the store, 'shared' now"),
        ({"cooling": 0.5}, "cooling: 0.0 in the store, 0.5 now"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_study_is_refused_by_name(tmp_path, changed, named, finished):
    shutil.copytree(finished, tmp_path / "s")
    before = toys.files(tmp_path / "s")
    with pytest.raises(StoreError) as error:
        toys.tune(store=tmp_path / "s", **changed)
    assert "holds another study" in str(error.value)
    assert named in str(error.value)
    assert "another --store" in str(error.value)
    assert toys.files(tmp_path / "s") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [
        ft.Space(client={"lr": ft.Float(0.1, 1.0), "batch": ft.Choice([8, 2])}),
        ft.Space(client={"lr": ft.Choice([0.1, 1.0]), "batch": ft.PowerOfTwo(2, 8)}),
    ],
)
def test_spaces_that_draw_differently_are_different(tmp_path, others):
    space = ft.Space(client={"lr": ft.Float(0.1, 1.0), "batch": ft.PowerOfTwo(2, 8)})
    toys.tune(store=tmp_path / "s", space=space)
    drawn = [toys.tune(space=s).journal.candidates[0] for s in (space, others)]
    assert drawn[0] != drawn[1]
    with pytest.raises(StoreError, match=r"client"):
        toys.tune(store=tmp_path / "s", space=others)


def test_the_order_of_a_space_does_not_matter(tmp_path):
    names = {"lr": ft.Float(0.1, 1.0), "batch": ft.PowerOfTwo(2, 8)}
    spaces = [ft.Space(client=names), ft.Space(client=dict(reversed(names.items())))]
    first = toys.tune(store=tmp_path / "s", space=spaces[0])
    before = toys.files(tmp_path / "s")
    again = toys.tune(store=tmp_path / "s", space=spaces[1])
    assert again.journal.candidates == first.journal.candidates
    assert toys.files(tmp_path / "s") == before


def test_whole_and_real_ranges_are_different(tmp_path):
    whole, real = ({"lr": kind(1, 2)} for kind in (ft.Int, ft.Float))
    toys.tune(store=tmp_path / "s", space=ft.Space(client=whole))
    with pytest.raises(StoreError, match=r"client\.lr"):
        toys.tune(store=tmp_path / "s", space=ft.Space(client=real))


def test_zero_and_nought_point_nought_are_the_same_setting(tmp_path):
    toys.tune(store=tmp_path / "s", schedule=ft.halving(30, 10, 2, 2, discount=0.0))
    toys.tune(store=tmp_path / "s", schedule=ft.halving(30, 10, 2, 2, discount=0))


def test_differences_are_named_by_their_path():
    old = {"a": 1, "b": {"c": [1, 2], "d": 0}, "gone": None}
    new = {"a": 1, "b": {"c": [1, 3], "d": 0}, "came": "x"}
    found = list(differences(old, new))
    assert found == ["b.c: [1, 2] in the store, [1, 3] now", "came: None in the store, 'x' now"]
    assert not list(differences(old, json.loads(json.dumps(old))))


def test_many_differences_are_cut_short(tmp_path, finished):
    shutil.copytree(finished, tmp_path / "s")
    others = {
        "seed": 1,
        "cohort": 2,
        "target": "global",
        "cohorts": "shared",
        "fedex": None,
        "method": ft.methods.fedavg,
    }
    with pytest.raises(StoreError, match=r"\.\.\.\)") as error:
        toys.tune(store=tmp_path / "s", **others)
    assert str(error.value).count("in the store") == 5


def test_a_store_of_the_first_format_is_refused_in_one_line(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "spec.json").write_text("{}")
    for attempt in (lambda: toys.tune(store=tmp_path / "s"), lambda: Folder(tmp_path / "s")):
        with pytest.raises(StoreError, match=r"a study of the first format .*: use another --store") as error:
            attempt()
        assert "\n" not in str(error.value)
    assert toys.files(tmp_path / "s") == {"spec.json": b"{}"}


# Whole files


def test_replacing_a_file_is_all_or_nothing(tmp_path, monkeypatch):
    file = tmp_path / "f"
    replace_file(file, b"old")
    monkeypatch.setattr(os, "fsync", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        replace_file(file, b"new and longer")
    assert file.read_bytes() == b"old"
    assert [f.name for f in tmp_path.iterdir()] == ["f"]  # what was written aside takes no room
    monkeypatch.undo()
    replace_file(file, b"new and longer")
    assert file.read_bytes() == b"new and longer"
    assert [f.name for f in tmp_path.iterdir()] == ["f"]


def test_what_an_append_that_failed_left_behind_is_cut_off_by_the_next(tmp_path):
    file, files = tmp_path / "f", Files()
    files.append(file, b"one\n")
    files.append(file, b"tw")  # half
    files.append(file, b"two\n", size=4)
    files.append(file, b"three\n", size=8)
    assert file.read_bytes() == b"one\ntwo\nthree\n"


def test_a_journal_goes_on_after_an_append_that_failed(tmp_path):
    class Failing(Files):
        fails = False

        def append(self, path, data, size=None):
            if self.fails:
                super().append(path, data[: len(data) // 2], size)
                raise OSError(errno.ENOSPC, "No space left on device")
            super().append(path, data, size)

    store = Folder(tmp_path / "s", Failing())
    store.open()
    store.append(EVENTS[:2])
    store.files.fails = True
    for _ in range(2):
        with pytest.raises(StoreError, match="no room left on the disk"):
            store.append(EVENTS[2:4])
    store.files.fails = False
    store.append(EVENTS[4:])
    assert list(map(repr, store.events())) == list(map(repr, EVENTS[:2] + EVENTS[4:]))
    store.close()


def test_data_is_on_disk_before_the_name_changes(tmp_path, monkeypatch):
    happened = spy_on_disk(monkeypatch)
    replace_file(tmp_path / "f", b"x")
    assert happened == ["flush", "rename f"]


def spy_on_disk(monkeypatch):
    happened, rename = [], Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: happened.append("flush"))
    monkeypatch.setattr(Path, "replace", lambda a, b: (happened.append(f"rename {b.name}"), rename(a, b))[1])
    return happened


def test_a_state_is_on_disk_before_the_line_that_names_it(tmp_path):
    """With its name, and with what it refers to: the folder is flushed, too."""
    happened = []

    class Telling(Files):
        def replace(self, path, data):
            happened.append(f"write {path.name}")
            super().replace(path, data)

        def sync(self, folder):
            happened.append(f"flush {folder.name}")

        def append(self, path, data, size=None):
            found, _ = decode(data, "here")
            happened.extend(f"name {e.record.arm}-{e.record.round}" for e in found if isinstance(e, Done) and e.state)
            super().append(path, data, size)

        def remove(self, path):
            happened.append(f"remove {path.name}")
            super().remove(path)

    toys.tune(store=Folder(tmp_path / "s", Telling()))
    named = [n for n, what in enumerate(happened) if what.startswith("name")]
    assert len(named) == 6
    for n in named:
        key = happened[n].split()[1]
        assert happened[n - 2 : n] == [f"write {key}.safetensors", "flush states"]
    removed = [what for what in happened if what.startswith("remove")]
    assert sorted(removed) == sorted(set(removed))
    for what in removed:  # an old state goes after the line of the newer one
        arm = what.split()[1].split("-")[0]
        assert happened.index(what) > happened.index(f"name {arm}-10") > happened.index(f"name {arm}-5")


def test_large_memory_is_on_disk_before_the_state_that_refers_to_it(tmp_path):
    happened = []

    class Telling(Files):
        def replace(self, path, data):
            happened.append(f"write {path.parent.name}")

        def sync(self, folder):
            happened.append(f"flush {folder.name}")

    store = Folder(tmp_path / "s", Telling())
    store.save((2, 3), state(memory={5: Blob(2, 5, 3), 6: Blob(0, 6, 1)}), {})
    assert sorted(happened[:2]) == ["flush 0", "flush 2"]
    assert happened[2:] == ["write states", "flush states"]


def test_the_folder_of_a_finished_study(finished):
    kept = journal_of(finished)
    latest = sorted(f"states/{arm}-{kept.round_of(arm)}.safetensors" for arm in kept.arms)
    assert sorted(toys.files(finished)) == ["journal.jsonl", "lock", *latest]
    events = list(Folder(finished).events())
    assert [type(e).__name__ for e in events[:5]] == ["Begun", "Started", "Started", "Started", "Started"]
    assert isinstance(events[-1], Won)
    assert sum(isinstance(e, Done) for e in events) == 30
    assert sum(isinstance(e, Eliminated) for e in events) == 3
    assert all(e.state for e in events if isinstance(e, Done) and e.record.round in (5, 10))


def test_the_journal_is_only_ever_appended_to(tmp_path):
    class Watching(Files):
        last = b""

        def append(self, path, data, size=None):
            super().append(path, data, size)
            if path.name == "journal.jsonl":
                now = path.read_bytes()
                assert now == self.last + data
                Watching.last = now

        def cut(self, path, size):
            pytest.fail("nothing was unfinished")

    toys.tune(store=Folder(tmp_path / "s", Watching())).evaluate()
    toys.tune(store=Folder(tmp_path / "s", Watching())).evaluate("valid")
    assert (tmp_path / "s" / "journal.jsonl").read_bytes() == Watching.last


# No room, no right


def refuse(number):
    def refused(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return refused


@pytest.mark.parametrize("operation", ["append", "make_folder"])
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "no room left on the disk"),
        (errno.EROFS, "the folder is read-only"),
        (errno.EACCES, "Permission denied"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_refuses_stops_the_study_before_any_work(tmp_path, monkeypatch, number, said, operation):
    monkeypatch.setattr(Files, operation, refuse(number))
    monkeypatch.setattr(toys.Softmax, "training", pytest.fail)
    with pytest.raises(StoreError) as error:
        toys.tune(store=tmp_path / "s")
    assert said in str(error.value)
    assert str(tmp_path / "s") in str(error.value)


@pytest.mark.parametrize("where", ["file", "file/below/it"])
def test_a_path_that_cannot_be_a_folder(tmp_path, where):
    (tmp_path / "file").write_text("I am a file")
    with pytest.raises(StoreError, match=r"file is a file, but a study's store is a folder: use another --store"):
        toys.tune(store=tmp_path / where)
    assert (tmp_path / "file").read_text() == "I am a file"


def test_too_little_room_is_said_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    monkeypatch.setattr(toys.Softmax, "training", pytest.fail)
    with pytest.raises(StoreError, match="has 0 MB free, but the study needs about 0 MB"):
        toys.tune(store=tmp_path / "s")
    monkeypatch.undo()
    toys.tune(store=tmp_path / "s")


class Filling(Files):
    """A disk on which there is room for so many more writes of a kind; one that has no room is half done."""

    def __init__(self, room, of):
        self.room, self.of = room, of

    def replace(self, path, data):
        self._take("replace", path, data)
        super().replace(path, data)

    def append(self, path, data, size=None):
        self._take("append", path, data, size)
        super().append(path, data, size)

    def _take(self, what, path, data, size=None):
        if what == self.of:
            self.room -= 1
            if self.room < 0:
                if what == "append":
                    super().append(path, data[: len(data) // 2], size)
                else:
                    path.with_name(f"{path.name}.1.part").write_bytes(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("after", [0, 1, 3, 5])
@pytest.mark.parametrize("of", ["replace", "append"])
def test_a_disk_that_fills_up_loses_nothing(tmp_path, finished, after, workers, of):
    """Everything kept before is whole, and with room again the study ends as if nothing had been."""
    room = after if of == "replace" else after + 2  # the first lines say what the study is, and its arms
    with pytest.raises(StoreError, match=r"no room left on the disk\. What was kept before is whole"):
        toys.tune(store=Folder(tmp_path / "s", Filling(room, of)), workers=workers)
    kept = journal_of(tmp_path / "s")
    assert kept.won is None
    rounds = {arm: kept.round_of(arm) for arm in kept.arms if kept.own_records[arm]}
    assert len(rounds) == min(after, 4)
    assert all(kept.saved_round(arm) == round for arm, round in rounds.items())
    assert all((tmp_path / "s" / "states" / f"{arm}-{round}.safetensors").exists() for arm, round in rounds.items())
    toys.tune(store=tmp_path / "s")
    assert_same(tmp_path / "s", finished)


def test_the_same_study_can_be_run_again_with_room(tmp_path, finished):
    """The object that met a full disk, too."""
    files = Filling(3, "append")
    settings = toys.settings(store=Folder(tmp_path / "s", files))
    del settings["progress"]
    study = ft.prepare(**settings)
    with pytest.raises(StoreError, match="no room left"):
        study.run(False)
    files.room = 1000
    study.run(False)
    assert_same(tmp_path / "s", finished)


def test_a_journal_on_a_full_device_is_an_error(tmp_path):
    """A write that is refused by a device that is really full."""
    (tmp_path / "s" / "states").mkdir(parents=True)
    (tmp_path / "s" / "journal.jsonl").symlink_to("/dev/full")
    store = Folder(tmp_path / "s")
    with pytest.raises(StoreError, match="no room left"):
        store.append(EVENTS[:1])


def test_evaluations_that_cannot_be_written_are_an_error(tmp_path, monkeypatch):
    study = toys.tune(store=tmp_path / "s")
    monkeypatch.setattr(Files, "append", refuse(errno.ENOSPC))
    with pytest.raises(StoreError, match="no room left"):
        study.evaluate()
    monkeypatch.undo()
    assert study.evaluate()["global"] > 0


# Whose folder it is


@pytest.fixture(scope="module")
def study_in_memory():
    return toys.tune()


@pytest.mark.parametrize("there", ["thesis.tex", "photos/holiday.jpg", "states/ohio.txt", "journal.json"])
def test_somebody_elses_folder_is_refused_and_left_alone(tmp_path, there):
    (tmp_path / "s" / there).parent.mkdir(parents=True)
    (tmp_path / "s" / there).write_text("mine")
    (tmp_path / "s" / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match=r"s is no study's folder, but not empty either \(it has .*\): name an empty"):
        toys.tune(store=tmp_path / "s", progress=pytest.fail)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "there", ["lock", "log.jsonl", "states/-1-0.safetensors", "proxy/journal.jsonl", ".DS_Store", "tb/events"]
)
def test_a_folder_that_has_what_comes_before_a_journal_goes_on(tmp_path, there, study_in_memory):
    (tmp_path / "s" / there).parent.mkdir(parents=True)
    (tmp_path / "s" / there).touch()
    assert toys.tune(store=tmp_path / "s").history == study_in_memory.history
    (tmp_path / "s" / "notes.txt").write_text("mine")  # it is a study's folder now
    assert toys.tune(store=tmp_path / "s", progress=pytest.fail).history == study_in_memory.history


def test_states_without_a_journal_are_told_as_such_whatever_is_beside_them(tmp_path):
    toys.tune(store=tmp_path / "s")
    (tmp_path / "s" / "journal.jsonl").unlink()
    (tmp_path / "s" / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="has states of a study, but no journal that says which"):
        toys.tune(store=tmp_path / "s")


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # what it is called on Windows
    monkeypatch.chdir(tmp_path)
    study = toys.tune(store="~/runs/s")
    assert study.path == tmp_path / "runs" / "s"
    assert ft.load("~/runs/s").history == ft.load(Path("~/runs/s")).history == study.history
    assert toys.tune(store=Folder("~/runs/s"), progress=pytest.fail).history == study.history
    assert toys.tune(start_from="~/runs/s", fedex=None).journal.arms[0].client == study.best.client
    study.export(tmp_path / "out")
    assert toys.tune(start_from="~/out", fedex=None).journal.arms[0].client == study.best.client
    assert main(["show", "~/runs/s"]) == 0
    assert not (tmp_path / "~").exists()
    with pytest.raises(StoreError, match="begins with ~, but there is no such home folder: give the whole path"):
        toys.tune(store="~nobody-of-this-name/s")


# Reading


def test_reading_no_study_says_so(tmp_path):
    with pytest.raises(StoreError, match=r"no study in .*nowhere.*'fedtuner run' makes one"):
        journal_of(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_reading_what_cannot_be_read(tmp_path):
    (tmp_path / "s" / "journal.jsonl").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"cannot read .*journal.jsonl: Is a directory"):
        journal_of(tmp_path / "s")


def test_reading_changes_nothing(tmp_path, finished):
    shutil.copytree(finished, tmp_path / "s")
    journal = tmp_path / "s" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-40])  # half a line: a writer would cut it off
    (tmp_path / "s" / "states" / "7-7.safetensors").write_bytes(b"stray")
    before = toys.files(tmp_path / "s")
    assert journal_of(tmp_path / "s").won is None
    assert toys.files(tmp_path / "s") == before


def test_a_study_can_be_read_while_it_runs(tmp_path):
    seen = []

    def look(event):
        kept = journal_of(tmp_path / "s")
        seen.append(kept.rounds_used)
        for arm in kept.arms:
            round = kept.saved_round(arm)
            assert round is None or Folder(tmp_path / "s").load((arm, round), kept.saved[arm, round])[0].round == round

    toys.tune(store=tmp_path / "s", watch=look)
    assert seen[-1] == 30
    assert seen == sorted(seen)


def test_json_files(tmp_path):
    (tmp_path / "f.json").write_text('{"a": [0, 1]}')
    assert read_json(tmp_path / "f.json") == {"a": [0, 1]}
    (tmp_path / "f.json").write_text('{"half": ')
    with pytest.raises(StoreError, match=r"cannot read .*f\.json"):
        read_json(tmp_path / "f.json")
