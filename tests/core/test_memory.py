"""What clients remember: in the state or in blobs, the same to the bit, and within bounds."""

import gc
import subprocess
import sys

import numpy as np
import pytest

from crashes import assert_same
from fedtuner import methods, tune
from fedtuner.core import memory
from fedtuner.core.memory import blobs_of, fetch, spill
from fedtuner.core.records import Blob, Job
from fedtuner.errors import StoreError
from fedtuner.run.store.states import FileBlobs
from fedtuner.schedules import halving
from fedtuner.space import Float, Space
from fedtuner.testing.toys import quadratics
from fedtuner.tuners import FedEx


@pytest.fixture
def tiny_limit(monkeypatch):
    monkeypatch.setattr(memory, "LIMIT", 1)


@pytest.fixture
def blobs(tmp_path):
    return FileBlobs(tmp_path / "memory")


def vectors(value):
    return {"control": np.full(3, value, np.float32)}


def test_small_memory_stays_in_the_state(blobs):
    kept = {1: vectors(1.0)}
    assert spill(kept, 0, 1, 10, blobs) is kept
    assert not blobs.folder.exists()


def test_the_limit_is_for_all_clients_together(blobs, monkeypatch):
    """12 bytes of one client stay, and those of ten clients do not; the largest counts for all."""
    monkeypatch.setattr(memory, "LIMIT", 100)
    kept = {1: vectors(1.0), 2: {}}
    assert spill(kept, 0, 1, 8, blobs) is kept
    assert spill(kept, 0, 1, 9, blobs) == {1: Blob(0, 1, 1), 2: Blob(0, 2, 1)}


def test_large_memory_goes_to_blobs_and_comes_back(blobs, tiny_limit):
    kept = spill({1: vectors(1.0), 2: vectors(2.0)}, 5, 1, 10, blobs)
    assert kept == {1: Blob(5, 1, 1), 2: Blob(5, 2, 1)}
    assert blobs_of(kept) == {Blob(5, 1, 1), Blob(5, 2, 1)}
    assert np.array_equal(fetch(Job(2, (), kept[2]), blobs).remembered["control"], vectors(2.0)["control"])


def test_what_is_in_a_blob_stays_there(blobs, tiny_limit):
    """Only this round's vectors are written; a client that was not met keeps the blob of its last round."""
    first = spill({1: vectors(1.0), 2: vectors(2.0)}, 0, 1, 10, blobs)
    second = spill({**first, 1: vectors(3.0)}, 0, 2, 10, blobs)
    assert second == {1: Blob(0, 1, 2), 2: Blob(0, 2, 1)}
    assert np.array_equal(blobs.get(first[1])["control"], vectors(1.0)["control"])


def test_only_blobs_that_no_state_needs_are_swept(blobs, tiny_limit):
    first = spill({1: vectors(1.0), 2: vectors(2.0)}, 0, 1, 10, blobs)
    second = spill({**first, 1: vectors(3.0)}, 0, 2, 10, blobs)
    third = spill({**second, 1: vectors(4.0)}, 0, 3, 10, blobs)  # a worker that is ahead of what is saved
    blobs.sweep(0, blobs_of(second), 2)
    left = sorted(f.name for f in (blobs.folder / "0").iterdir())
    assert left == ["1-2.safetensors", "1-3.safetensors", "2-1.safetensors"]
    assert np.array_equal(blobs.get(third[1])["control"], vectors(4.0)["control"])
    assert np.array_equal(blobs.get(second[1])["control"], vectors(3.0)["control"])


@pytest.mark.slow
@pytest.mark.parametrize("method", [methods.scaffold, methods.feddyn, methods.ditto], ids=lambda m: m.name)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_studies_are_the_same_with_memory_in_blobs(method, workers, tmp_path, monkeypatch):
    def study(store):
        return tune(
            quadratics(), Space({"lr": Float(0.05, 0.5, log=True)}), method=method, fedex=FedEx(k=3),
            schedule=halving(30, 12, 2, 2), cohort=4, store=store and tmp_path / store, workers=workers,
        )  # fmt: skip

    inside = study("inside")
    monkeypatch.setattr(memory, "LIMIT", 1)
    outside, kept_nowhere = study("outside"), study(None)
    assert repr(inside.history) == repr(outside.history) == repr(kept_nowhere.history)
    assert inside.winner == outside.winner == kept_nowhere.winner
    assert inside.best.model.tobytes() == outside.best.model.tobytes()
    assert inside.evaluate("test") == outside.evaluate("test") == kept_nowhere.evaluate("test")
    # Of the arms that are out nothing is left; of the winner exactly what its state refers to.
    best = outside.best.arm
    assert [f.name for f in (tmp_path / "outside" / "memory").iterdir()] == [str(best)]
    files = {f.name for f in (tmp_path / "outside" / "memory" / str(best)).iterdir()}
    assert files == {f"{b.client}-{b.round}.safetensors" for b in blobs_of(outside.state(outside.winner).memory)}
    assert files
    folder = kept_nowhere.where.store.blobs.folder
    assert folder.exists()
    del kept_nowhere
    gc.collect()
    assert not folder.exists()


@pytest.mark.slow
def test_a_study_whose_blobs_are_gone_says_so(tmp_path, tiny_limit):
    """A state is only read with what it refers to; another store gives the same study again."""

    def study(store):
        return tune(quadratics(), method=methods.scaffold, fedex=None, schedule=halving(20, 14, 2, 1), cohort=4,
                    store=store, workers=1)  # fmt: skip

    whole, broken = study(tmp_path / "a"), study(tmp_path / "b")
    next((tmp_path / "b" / "memory" / str(broken.best.arm)).iterdir()).unlink()
    with pytest.raises(StoreError, match="what clients remember is missing or damaged: "):
        study(tmp_path / "b").evaluate("test")
    study(tmp_path / "c")
    assert_same(tmp_path / "a", tmp_path / "c")
    assert whole.evaluate("test")["global"] > 0


BIG = """
import re, sys
from pathlib import Path
import fedtuner as ft
from fedtuner.testing.toys import Quadratics
import numpy as np

one = np.ones(1, np.float32)  # broadcast: the data is small, the model is not
clients = [ft.Client(i, (np.full((2, 1), i % 7, np.float32), one), (np.full((1, 1), i % 7, np.float32), one))
           for i in range(1000)]
study = ft.tune(ft.Simulation(Quadratics(1_000_000), clients), space=ft.Space(), method=ft.methods.scaffold,
                fedex=None, schedule=ft.random_search(16, 16), cohort=25, store=sys.argv[1], workers=1)
remembered = study.state(study.winner).memory
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())  # ru_maxrss counts the parent's, too
print(len(remembered), int(peak[1]) // 1024)
"""


@pytest.mark.slow
def test_a_thousand_clients_of_a_million_parameters_fit_in_a_gigabyte(tmp_path):
    """The control variates of all clients are 4 GB, and those of the clients met here 1.3 GB."""
    done = subprocess.run([sys.executable, "-c", BIG, str(tmp_path)], capture_output=True, text=True, check=True)
    remembered, megabytes = map(int, done.stdout.split())
    assert remembered > 300  # 16 rounds of 25 of 1000 clients meet about 330 of them
    assert megabytes < 1000
