"""The folder of a study: one writer, whole files, the same bits back, and clear errors."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner import fedex, store
from fedtuner.arm import State
from fedtuner.errors import StoreError
from fedtuner.store import Store, differences, pack, plain, replace_file, unpack

FOLDER = Path("memory")
SPEC = {"seed": 0, "client": {"lr": 0.1}}


@pytest.fixture(autouse=True)
def _unflushed(monkeypatch):
    """Only a power cut could tell whether data was flushed to the disk, and flushing is what takes the time here."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def state(**changed):
    rng = np.random.default_rng(0)
    belief = fedex.exponentiate(fedex.uniform(3), [0, 1], [0.5, 0.25], [3, 4], gamma=0.3)
    usual = State(
        round=7,
        w=rng.normal(size=11).astype(np.float32),
        belief=belief,
        slots={"momentum": rng.normal(size=5).astype(np.float32), "a.dotted.name": np.arange(3.0)},
        memory={12: {"last": rng.normal(size=4).astype(np.float32), "n.1": np.ones(1)}, 3: {"last": np.zeros(2)}},
        diverged=False,
    )
    return replace(usual, **changed)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    "kept",
    [
        state(),
        state(diverged=True, w=np.array([np.nan, np.inf, -0.0], np.float32)),
        state(slots={}, memory={}),
        state(slots={"scalar": np.array(2.5, np.float32), "empty": np.zeros(0, np.float32)}),
        state(belief=fedex.uniform(1), round=0),
        state(w=np.arange(10, dtype=np.float32)[::2]),
    ],
    ids=["all", "diverged", "bare", "shapes", "begin", "strided"],
)
def test_pack_and_unpack_keep_every_bit(kept):
    back = unpack(pack(kept), FOLDER)
    assert (back.round, back.diverged) == (kept.round, kept.diverged)
    assert same(back.w, kept.w)
    assert same(back.belief.log_theta, kept.belief.log_theta)
    remembered = [(b.past, b.mass, b.log_squares) for b in (back.belief, kept.belief)]
    assert remembered[0] == remembered[1]
    assert back.slots.keys() == kept.slots.keys()
    assert all(same(back.slots[name], kept.slots[name]) for name in kept.slots)
    assert back.memory.keys() == kept.memory.keys()
    for client, vectors in kept.memory.items():
        assert back.memory[client].keys() == vectors.keys()
        assert all(same(back.memory[client][name], vectors[name]) for name in vectors)
    assert pack(back) == pack(kept)


def test_the_bytes_of_a_state_do_not_depend_on_the_order_of_its_parts():
    kept = state()
    turned = state(slots=dict(reversed(kept.slots.items())), memory=dict(reversed(kept.memory.items())))
    assert list(turned.memory) != list(kept.memory)
    assert pack(turned) == pack(kept)


def test_unpacked_arrays_can_be_written_to():
    back = unpack(pack(state()), FOLDER)
    arrays = [back.w, back.belief.log_theta, *back.slots.values(), *back.memory[12].values()]
    assert all(a.flags.writeable for a in arrays)


def test_plain_values_are_strict_json():
    value = {1: (np.float32(0.5), np.int64(3), np.bool_(True)), "a": np.array([1.0, np.nan, -np.inf]), "b": math.inf}
    text = json.dumps(plain(value), allow_nan=False)
    assert json.loads(text) == {"1": [0.5, 3, True], "a": [1.0, "nan", "-inf"], "b": "inf"}


def test_records_come_back_from_the_journal(tmp_path):
    study = toys.tune(space=toys.DIVERGING, store=tmp_path / "s")  # infinite numbers among them
    _, states, records, result = store.read(tmp_path / "s")
    assert records == study.records
    assert any(math.isinf(r.error) for r in study.history)
    assert states.keys() == study.states.keys()
    assert result == plain(study.result())


# One writer


def test_another_process_is_refused(tmp_path):
    code = f"from fedtuner.store import Store; s = Store({str(tmp_path)!r}, {{}}); print('mine', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"mine\n"
        before = toys.files(tmp_path)
        with pytest.raises(StoreError, match="in use by another running study"):
            Store(tmp_path, {})
        assert toys.files(tmp_path) == before
        holder.kill()  # the lock goes with its owner, however it ends
    Store(tmp_path, {}).close()


def _another_process_gets(path: Path) -> bool:
    code = f"from fedtuner.store import Store; Store({str(path)!r}, {SPEC!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "in use by another running study" in done.stderr, done.stderr
    return done.returncode == 0


def test_the_same_process_is_refused_and_the_lock_holds_on(tmp_path):
    first = Store(tmp_path / "s", SPEC)
    with pytest.raises(StoreError, match="in use"):
        Store(tmp_path / "s", SPEC)
    assert not _another_process_gets(tmp_path / "s")  # the refusal must not have let go of the lock
    first.close()
    assert _another_process_gets(tmp_path / "s")


def test_the_same_folder_by_another_name_is_refused(tmp_path, monkeypatch):
    first = Store(tmp_path / "s", SPEC)
    (tmp_path / "link").symlink_to(tmp_path / "s")
    monkeypatch.chdir(tmp_path)
    for name in (tmp_path / "link", Path("s"), tmp_path / "s" / ".." / "s"):
        with pytest.raises(StoreError, match="in use"):
            Store(name, SPEC)
    first.close()
    Store(tmp_path / "link", SPEC).close()


def test_a_store_that_is_refused_is_free_again(tmp_path):
    Store(tmp_path, SPEC).close()
    with pytest.raises(StoreError, match="another study"):
        Store(tmp_path, {"seed": 1})
    Store(tmp_path, SPEC).close()


def test_tune_refuses_a_store_in_use_and_leaves_it_alone(tmp_path):
    held = Store(tmp_path, SPEC)
    before = toys.files(tmp_path)
    with pytest.raises(StoreError, match="in use"):
        toys.tune(store=tmp_path)
    assert toys.files(tmp_path) == before
    held.close()


# Another spec


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 1}, "seed: 0 in the store, 1 now"),
        ({"cohort": 2}, "cohort: 3 in the store, 2 now"),
        ({"target": "global"}, "target: 'personalized' in the store, 'global' now"),
        ({"cohorts": "shared"}, "cohorts: 'independent' in the store, 'shared' now"),
        ({"method": ft.methods.fedavg}, "method: 'remembering' in the store, 'fedavg' now"),
        ({"fedex": ft.FedEx(k=3, eps=0.2)}, "fedex.eps: 0.3 in the store, 0.2 now"),
        ({"fedex": None}, "fedex.k: 3 in the store, 1 now"),
        ({"schedule": ft.halving(26, 10, 2, 2)}, "schedule.budget: 30 in the store, 26 now"),
        ({"schedule": ft.random_search(30, 10)}, "schedule.kind: 'halving' in the store, 'random_search' now"),
        ({"schedule": ft.halving(30, 10, 2, 2, score="loss")}, "schedule.score: 'error' in the store, 'loss' now"),
        ({"space": ft.Space(client={"lr": 0.5})}, "client.lr: "),
        ({"space": ft.Space()}, "server.momentum: "),
        ({"problem": ft.Simulation(toys.Softmax(), toys.clients(7), "toy")}, "problem.clients: 6 in the store, 7 now"),
        ({"problem": ft.Simulation(toys.Softmax(), toys.clients(bad=1), "toy")}, "problem.fingerprint: "),
        ({"method": toys.remembering.with_defaults(client={"epochs": 2})}, "defaults.client.epochs: 1 in the store"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_changed_spec_is_refused_by_name(tmp_path, changed, named, finished):
    shutil.copytree(finished, tmp_path / "s")
    before = toys.files(tmp_path / "s")
    with pytest.raises(StoreError) as error:
        toys.tune(store=tmp_path / "s", **changed)
    assert "holds another study" in str(error.value)
    assert named in str(error.value)
    assert "another --store" in str(error.value)
    assert toys.files(tmp_path / "s") == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "s"
    toys.tune(store=path)
    return path


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
    drawn = [toys.tune(space=s).arm(0).candidates for s in (space, others)]
    assert drawn[0] != drawn[1]
    with pytest.raises(StoreError, match=r"client"):
        toys.tune(store=tmp_path / "s", space=others)


def test_the_order_of_a_space_does_not_matter(tmp_path):
    names = {"lr": ft.Float(0.1, 1.0), "batch": ft.PowerOfTwo(2, 8)}
    spaces = [ft.Space(client=names), ft.Space(client=dict(reversed(names.items())))]
    first = toys.tune(store=tmp_path / "s", space=spaces[0])
    before = toys.files(tmp_path / "s")
    again = toys.tune(store=tmp_path / "s", space=spaces[1])
    assert [again.arm(i) for i in range(4)] == [first.arm(i) for i in range(4)]
    assert toys.files(tmp_path / "s") == before


def test_whole_and_real_ranges_are_different(tmp_path):
    whole, real = ({"lr": kind(1, 2)} for kind in (ft.Int, ft.Float))
    toys.tune(store=tmp_path / "s", space=ft.Space(client=whole))
    with pytest.raises(StoreError, match=r"client: .*lr"):
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


def test_many_differences_are_cut_short(tmp_path):
    Store(tmp_path, {str(i): 0 for i in range(9)}).close()
    with pytest.raises(StoreError, match=r"\.\.\.\)") as error:
        Store(tmp_path, {str(i): 1 for i in range(9)})
    assert str(error.value).count("in the store") == 5


# Whole files


def test_replacing_a_file_is_all_or_nothing(tmp_path, monkeypatch):
    file = tmp_path / "f"
    replace_file(file, b"old")

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(file, b"new and longer")
    assert file.read_bytes() == b"old"
    monkeypatch.undo()
    replace_file(file, b"new and longer")
    assert file.read_bytes() == b"new and longer"
    assert [f.name for f in tmp_path.iterdir()] == ["f"]


def test_data_is_on_disk_before_the_name_changes(tmp_path, monkeypatch):
    happened = []
    really = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (happened.append("flush"), really[0](fd))[1])
    monkeypatch.setattr(Path, "replace", lambda a, b: (happened.append("rename"), really[1](a, b))[1])
    replace_file(tmp_path / "f", b"x")
    assert happened == ["flush", "rename"]


def test_rounds_are_on_disk_before_the_state_that_has_them(tmp_path, monkeypatch):
    seen = []
    really = Path.replace

    def spy(aside, path):
        if path.suffix == ".safetensors":
            arm, at = int(path.stem), unpack(aside.read_bytes(), FOLDER).round
            lines = [json.loads(line) for line in (tmp_path / "s" / "journal.jsonl").read_text().splitlines()]
            seen.append(at)
            assert sorted(e["round"] for e in lines if e["arm"] == arm) == list(range(1, at + 1))
        return really(aside, path)

    monkeypatch.setattr(Path, "replace", spy)
    toys.tune(store=tmp_path / "s")
    assert max(seen) == 10


def test_the_folder_of_a_finished_study(finished):
    assert sorted(toys.files(finished)) == [
        *(f"arms/{arm}.safetensors" for arm in range(4)), "journal.jsonl", "lock", "result.json", "spec.json",
    ]  # fmt: skip
    lines = [json.loads(line) for line in (finished / "journal.jsonl").read_text().splitlines()]
    assert [(e["arm"], e["round"]) for e in lines] == sorted((e["arm"], e["round"]) for e in lines)
    assert len(lines) == 30


# No room, no right


def refuse(number):
    def refused(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return refused


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "no room left on the disk"),
        (errno.EROFS, "the folder is read-only"),
        (errno.EACCES, "Permission denied"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_refuses_stops_the_study_before_any_work(tmp_path, monkeypatch, number, said):
    monkeypatch.setattr(Path, "replace", refuse(number))
    monkeypatch.setattr(toys.Softmax, "training", pytest.fail)
    with pytest.raises(StoreError) as error:
        toys.tune(store=tmp_path / "s")
    assert said in str(error.value)
    assert str(tmp_path / "s") in str(error.value)


@pytest.mark.parametrize("where", ["file", "file/below/it"])
def test_a_path_that_cannot_be_a_folder(tmp_path, where):
    (tmp_path / "file").write_text("I am a file")
    with pytest.raises(StoreError, match="cannot write to"):
        toys.tune(store=tmp_path / where)
    assert (tmp_path / "file").read_text() == "I am a file"


def test_too_little_room_is_said_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    monkeypatch.setattr(toys.Softmax, "training", pytest.fail)
    with pytest.raises(StoreError, match="has 0 MB free, but the study needs about 0 MB"):
        toys.tune(store=tmp_path / "s")
    monkeypatch.undo()
    toys.tune(store=tmp_path / "s")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_a_disk_that_fills_up_loses_nothing(tmp_path, monkeypatch, finished, after, workers):
    """Everything kept before is whole, and with room again the study ends as if nothing had been."""
    really, count = store.replace_file, 0

    def fills_up(path, data):
        nonlocal count
        if path.suffix == ".safetensors":
            count += 1
            if count > after:
                path.with_name(path.name + ".part").write_bytes(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(path, data)

    monkeypatch.setattr(store, "replace_file", fills_up)
    with pytest.raises(StoreError, match=r"no room left on the disk\. What was kept before is whole"):
        toys.tune(store=tmp_path / "s", workers=workers)
    monkeypatch.undo()
    _, states, records, result = store.read(tmp_path / "s")
    assert result is None
    assert len(states) == min(after, 4)
    assert all(len(records[arm]) == states[arm].round for arm in states)
    toys.tune(store=tmp_path / "s")
    assert toys.files(tmp_path / "s") == toys.files(finished)


def test_a_full_journal_is_an_error_and_mended(tmp_path, finished):
    """A write that is cut short in the journal, on a device that is really full."""
    folder = tmp_path / "s"
    study = Store(folder, json.loads((finished / "spec.json").read_text()))
    study._journal.close()
    study._journal = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115
    _, states, records, _ = store.read(finished)
    with pytest.raises(StoreError, match="no room left"):
        study.keep(0, states[0], records[0])
    assert not list((folder / "arms").iterdir())
    study.close()
    toys.tune(store=folder)
    assert toys.files(folder) == toys.files(finished)


def test_evaluations_that_cannot_be_written_are_an_error(tmp_path, monkeypatch):
    study = toys.tune(store=tmp_path / "s")
    monkeypatch.setattr(Path, "replace", refuse(errno.ENOSPC))
    with pytest.raises(StoreError, match="no room left"):
        study.evaluate()


# Reading


def test_reading_no_study_says_so(tmp_path):
    with pytest.raises(StoreError, match=r"no study in .*nowhere.*'fedtuner run' makes one"):
        store.read(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("file", ["spec.json", "result.json"])
def test_reading_what_is_not_json(tmp_path, finished, file):
    shutil.copytree(finished, tmp_path / "s")
    (tmp_path / "s" / file).write_text('{"half": ')
    with pytest.raises(StoreError, match=f"cannot read .*{file}"):
        store.read(tmp_path / "s")


def test_reading_changes_nothing(tmp_path, finished):
    shutil.copytree(finished, tmp_path / "s")
    journal = tmp_path / "s" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-40])  # a torn tail: a writer would mend it
    before = toys.files(tmp_path / "s")
    store.read(tmp_path / "s")
    assert toys.files(tmp_path / "s") == before
