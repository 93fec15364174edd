"""How a problem and its code come to the workers."""

from __future__ import annotations

import importlib
import sys
import threading

import pytest
import ray

import fedtuner as ft
import toys
from crashes import assert_same
from fedtuner.errors import ClusterError, SpecError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "problem", ["toys:problem", pytest.param(toys.problem, marks=pytest.mark.faults)], ids=["by name", "by a function"]
)
def test_a_problem_that_is_made_where_the_workers_are(cluster, tmp_path, problem):
    executor = ft.ray(cluster.address, problem=problem)
    toys.tune(store=tmp_path / "made", problem=_named("toy"), executor=executor, workers=None)
    toys.tune(store=tmp_path / "alone")
    assert_same(tmp_path / "made", tmp_path / "alone")


def _named(name):
    made = toys.problem()
    assert made.name == name
    return made


def test_another_problem_is_refused(cluster):
    with pytest.raises(ClusterError, match=r"cannot load the study \(the problem that is made there is another"):
        toys.tune(executor=ft.ray(cluster.address, problem="toys:untested"), workers=None)


@pytest.mark.faults
def test_code_that_is_sent(cluster, tmp_path, monkeypatch):
    """A module that only this process has: its folder is on no path."""
    (tmp_path / "sent_model.py").write_text("import toys\n\n\nclass Mine(toys.Softmax):\n    pass\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        mine = importlib.import_module("sent_model").Mine()
    problem = ft.Simulation(mine, toys.clients(), "mine")
    with pytest.raises(ClusterError, match=r"No module named 'sent_model'.*: install it there, or send it: code ="):
        toys.tune(problem=problem, executor=ft.ray(cluster.address), workers=None)
    executor = ft.ray(cluster.address, code=[str(tmp_path / "sent_model.py")])
    with pytest.raises(ClusterError, match=r"modules are sent when this process connects .*: ray.shutdown\(\) first"):
        toys.tune(problem=problem, executor=executor, workers=None)
    ray.shutdown()
    toys.tune(problem=problem, store=tmp_path / "there", executor=executor, workers=None)
    toys.tune(problem=problem, store=tmp_path / "alone")
    assert_same(tmp_path / "there", tmp_path / "alone")
    del sys.modules["sent_model"]
    ray.shutdown()


def test_a_problem_that_cannot_be_sent(cluster):
    problem = toys.problem()
    problem.held = threading.Lock()
    with pytest.raises(SpecError, match=r"cannot be sent to a cluster .*: give what makes it there, ray\(problem="):
        toys.tune(problem=problem, executor=ft.ray(cluster.address), workers=None)


def test_workers_that_fit_nowhere(cluster):
    with pytest.raises(
        ClusterError, match="no node of the cluster has room for a worker of 100 CPU: all nodes together"
    ):
        toys.tune(executor=ft.ray(cluster.address, num_cpus=100), workers=None)
