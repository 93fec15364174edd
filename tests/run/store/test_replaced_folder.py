"""A study whose folder is deleted, or deleted and made again, under it: it stops and writes nothing there."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

import toys
from fedtuner.core.records import Blob, State
from fedtuner.core.store import Done, Joined, Note
from fedtuner.errors import StoreError
from fedtuner.run.store import Folder
from fedtuner.run.store.lock import Lock

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
SAID = "was deleted or replaced under the running study: .* another --store"
VECTORS = {"last": np.ones(3, np.float32)}


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A study of someone else's, as its folder is on disk."""
    path = tmp_path_factory.mktemp("other") / "s"
    toys.tune(store=path, seed=5)
    (path / "memory" / "0").mkdir(parents=True)
    (path / "memory" / "0" / "1-1.safetensors").write_bytes(b"theirs")
    return path


def replace(path: Path, by: Path) -> dict[str, bytes]:
    shutil.rmtree(path)
    shutil.copytree(by, path)
    return toys.files(path)


WRITES = {
    "append": lambda store: store.append([Joined(("phone",))]),
    "log": lambda store: store.append((), [Note("late", "too late")]),
    "save": lambda store: store.save((3, 1), State(1, np.ones(4, np.float32), None), {}),
    "drop": lambda store: store.drop([(0, 1), (0, 10), (3, 10)]),
    "put": lambda store: store.blobs.put(Blob(0, 2, 1), VECTORS),
    "sweep": lambda store: store.blobs.sweep(0, ()),
    "put of a worker": lambda store: pickle.loads(pickle.dumps(store.blobs)).put(Blob(0, 2, 1), VECTORS),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nothing_is_written_into_a_folder_that_was_made_again(tmp_path, other, write):
    store = Folder(tmp_path / "s")
    store.open()
    write(store)  # as long as it is its own
    theirs = replace(tmp_path / "s", other)
    with pytest.raises(StoreError, match=SAID):
        write(store)
    store.close()
    assert toys.files(tmp_path / "s") == theirs


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_folder_that_was_deleted_is_not_made_again(tmp_path, write):
    store = Folder(tmp_path / "s")
    store.open()
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(StoreError, match=SAID):
        write(store)
    store.close()
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_running_study_stops_and_leaves_the_other_alone(tmp_path, other, workers):
    theirs = {}

    def watch(event):
        if isinstance(event, Done) and not theirs:
            theirs.update(replace(tmp_path / "s", other))

    with pytest.raises(StoreError, match=SAID) as error:
        toys.tune(store=tmp_path / "s", workers=workers, watch=watch)
    assert "\n" not in str(error.value)
    assert theirs
    assert toys.files(tmp_path / "s") == theirs
    toys.tune(store=tmp_path / "s", seed=5)  # the other goes on as if nothing had been


def test_a_lock_file_that_goes_while_it_is_taken_is_no_lock(tmp_path, monkeypatch):
    from fedtuner.run.store import lock

    taken = lock._try_lock
    monkeypatch.setattr(lock, "_try_lock", lambda file: [taken(file), (tmp_path / "lock").unlink()][0])
    with pytest.raises(StoreError, match=SAID):
        Lock(tmp_path)
    monkeypatch.undo()
    Lock(tmp_path).release()
