"""What clients remember: in the state or in files, the same to the bit, and within bounds."""

import subprocess
import sys

import numpy as np
import pytest

from fedtuner import memory, methods, tune
from fedtuner.fedex import FedEx
from fedtuner.memory import Spilled, recall, spill, sweep
from fedtuner.schedules import halving
from fedtuner.space import Float, Space
from fedtuner.testing.toys import quadratics


@pytest.fixture
def tiny_limit(monkeypatch):
    monkeypatch.setattr(memory, "LIMIT", 1)


def vectors(value):
    return {"control": np.full(3, value, np.float32)}


def test_small_memory_stays_in_the_state(tmp_path):
    kept = {1: vectors(1.0)}
    assert spill(kept, tmp_path, 1, clients=10) is kept
    assert not list(tmp_path.iterdir())


def test_large_memory_goes_to_files_and_comes_back(tmp_path, tiny_limit):
    kept = spill({1: vectors(1.0), 2: vectors(2.0)}, tmp_path, 1, clients=10)
    assert all(isinstance(m, Spilled) for m in kept.values())
    assert np.array_equal(recall(kept[2])["control"], vectors(2.0)["control"])


def test_only_files_that_no_state_needs_are_swept(tmp_path, tiny_limit):
    first = spill({1: vectors(1.0), 2: vectors(2.0)}, tmp_path, 1, 10)
    second = spill({**first, 1: vectors(3.0)}, tmp_path, 2, 10)
    third = spill({**second, 1: vectors(4.0)}, tmp_path, 3, 10)  # a worker that is ahead of what is saved
    sweep(tmp_path, second, 2)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["1-2.safetensors", "1-3.safetensors", "2-1.safetensors"]
    assert np.array_equal(recall(third[1])["control"], vectors(4.0)["control"])
    assert np.array_equal(recall(second[1])["control"], vectors(3.0)["control"])


@pytest.mark.parametrize("method", [methods.scaffold, methods.feddyn, methods.ditto], ids=lambda m: m.name)
@pytest.mark.parametrize("workers", [1, 2])
def test_studies_are_the_same_with_memory_in_files(method, workers, tmp_path, monkeypatch):
    def study(store):
        return tune(
            quadratics(), Space({"lr": Float(0.05, 0.5, log=True)}), method, FedEx(k=3), halving(30, 12, 2, 2), 4,
            store=store and tmp_path / store, workers=workers,
        )  # fmt: skip

    inside = study("inside")
    monkeypatch.setattr(memory, "LIMIT", 1)
    outside, kept_nowhere = study("outside"), study(None)
    assert repr(inside.history) == repr(outside.history) == repr(kept_nowhere.history)
    assert inside.result() == outside.result()
    assert inside.evaluate("test") == outside.evaluate("test") == kept_nowhere.evaluate("test")
    # Of the arms that are out nothing is left; of the winner exactly what its state refers to.
    best = outside.best.arm
    assert [f.name for f in (tmp_path / "outside" / "memory").iterdir()] == [str(best)]
    files = {f.name for f in (tmp_path / "outside" / "memory" / str(best)).iterdir()}
    assert files == {m.path.name for m in outside.states[best].memory.values()}
    assert files
    folder = kept_nowhere.folder
    assert folder.exists()
    del kept_nowhere
    assert not folder.exists()


def test_a_study_whose_memory_files_are_gone_computes_the_arm_again(tmp_path, tiny_limit):
    def study(store):
        return tune(quadratics(), method=methods.scaffold, fedex=None, schedule=halving(20, 14, 2, 1), cohort=4,
                    store=store, workers=1)  # fmt: skip

    whole = study(tmp_path / "a")
    broken = study(tmp_path / "b")
    next((tmp_path / "b" / "memory" / str(broken.best.arm)).iterdir()).unlink()
    again = study(tmp_path / "b")
    assert repr(again.history) == repr(whole.history)
    assert again.evaluate("test") == whole.evaluate("test")


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
                fedex=None, schedule=ft.random_search(40, 40), cohort=25, store=sys.argv[1], workers=1)
remembered = study.states[0].memory
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())  # ru_maxrss counts the parent's, too
print(len(remembered), int(peak[1]) // 1024)
"""


@pytest.mark.slow
def test_a_thousand_clients_of_a_million_parameters_fit_in_a_gigabyte(tmp_path):
    """The control variates of all clients are 4 GB, and those of the clients met here 2.5 GB."""
    done = subprocess.run([sys.executable, "-c", BIG, str(tmp_path)], capture_output=True, text=True, check=True)
    remembered, megabytes = map(int, done.stdout.split())
    assert remembered > 600  # 40 rounds of 25 of 1000 clients meet about 640 of them
    assert megabytes < 1000
