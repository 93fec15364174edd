"""What can be said of the cluster's executor without a cluster: its settings, and a driver with pretended workers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import fedtuner as ft
from fedtuner.errors import SpecError
from fedtuner.run import spec
from fedtuner.run.executors import OnThisMachine, Ray

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_cpus": -1}, r"num_cpus = -1, but must be in \[0, 1024\]"),
        ({"num_cpus": 0}, "num_cpus = 0 and num_gpus = 0, but a worker needs a part of one of them"),
        ({"every": 0}, r"every = 0, but must be >= 0.1"),
        ({"address": 6379}, "address = 6379, but must be auto, local or HOST:PORT"),
        ({"address": " "}, "address = ' ', but must be"),
        ({"code": "model.py"}, "code = 'model.py', but must be a list of folders and .py files"),
        ({"problem": 7}, "problem = 7, but must be a function, or the name of one"),
    ],
)
def test_bad_settings_are_refused(settings, said):
    with pytest.raises(SpecError, match=said):
        ft.ray(**settings)


def test_a_study_file_names_its_executor():
    file = {"problem": "digits", "executor": {"kind": "ray", "address": "auto", "num_cpus": 2, "code": ["a.py"]}}
    assert spec.parse(file).executor == ft.ray("auto", num_cpus=2, code=("a.py",))
    assert spec.parse({"problem": "digits", "executor": "ray"}).executor == ft.ray()
    assert spec.parse({"problem": "digits", "executor": "processes"}).executor == OnThisMachine()
    assert spec.parse({"problem": "digits"}).executor is None


@pytest.mark.parametrize(
    ("executor", "said"),
    [
        ("rya", r"executor.kind = 'rya', but must be one of \('processes', 'ray'\)"),
        ({"kind": "ray", "adress": "auto"}, "no setting executor.adress in ray; did you mean 'address'?"),
        ({"kind": "ray", "num_cpus": "two"}, "num_cpus = 'two', but must be"),
        (3, "executor.kind = 3"),
    ],
)
def test_bad_executors_of_a_file_are_refused(executor, said):
    with pytest.raises(SpecError, match=said):
        spec.parse({"problem": "digits", "executor": executor})


def test_an_address_is_for_a_cluster(fedtuner, tmp_path):
    code, _, said = fedtuner("run", "digits", "--executor", "processes", "--address", "auto", "--store", tmp_path)
    assert code == 2
    assert "--address auto, but processes run on this machine: give --executor ray" in said


def test_the_executor_is_no_part_of_what_a_study_is():
    problem = ft.Simulation(*_toy())
    plain, elsewhere = (ft.prepare(problem, budget=20, cohort=3, executor=executor) for executor in (None, ft.ray()))
    assert plain.describe() == elsewhere.describe()
    assert isinstance(elsewhere.where.executor, Ray)


def _toy():
    import toys

    return toys.Softmax(), toys.clients()


@pytest.fixture
def scale(monkeypatch):
    """The module of benchmarks/scale."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "scale"))
    yield importlib.import_module("run")
    for name in ("run", "pretend"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "arms", "halved", "least"),
    [
        (1, 3, True, 0.95),
        (9, 9, False, 0.95),
        (90, 9, False, 0.95),  # each client of each arm on a worker of its own
        (18, 9, False, 0.95),
        (9, 9, True, 0.7),  # 3 arms on 9 workers: of ten clients one worker has 4, which is 5/6; 1 arm on 9: 2, so 5/9
    ],
)
def test_a_driver_keeps_its_workers_busy(scale, workers, arms, halved, least):
    """On a pretended cluster, whose calls cost nothing: the study takes hardly longer than it must."""
    pytest.importorskip("ray")
    free = scale.Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    found = scale.simulate(workers, arms, 26 * 10**6, free, halved)
    assert found["rounds"] == found["planned"]
    assert least < found["efficiency"] <= 1.0001


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "arms", "mb"), [(10, 27, 100), (3, 9, 500), (40, 9, 100)])
def test_answers_without_a_state_may_overtake_those_with_one(scale, workers, arms, mb):
    """A state takes a while on the network; no round is lost, or counted twice."""
    pytest.importorskip("ray")
    found = scale.simulate(workers, arms, mb * 10**6, scale.Costs(byte=2e-8))
    assert found["rounds"] == found["planned"]
