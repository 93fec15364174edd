"""Code of one's own that calls sys.exit is an error, wherever it runs: else a study would end with exit code 0."""

from __future__ import annotations

import sys

import pytest

import fedtuner as ft
import toys
from fedtuner.errors import ClientError, TaskError, WorkerError

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Leaving(toys.Softmax):
    def trouble(self, data):
        sys.exit(0)


class Stopped(toys.Softmax):
    def trouble(self, data):
        raise KeyboardInterrupt


def leaving():
    return ft.Simulation(Leaving(), toys.clients(bad=4), "leaving")


def stopped():
    return ft.Simulation(Stopped(), toys.clients(bad=4), "stopped")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_exits_is_a_client_that_fails(workers):
    with pytest.raises(ClientError, match=r"arm \d, round \d+, client 'phone4', configuration .*: SystemExit: 0"):
        toys.tune(problem=leaving(), workers=workers)


def test_ctrl_c_within_a_clients_work_is_still_ctrl_c():
    with pytest.raises(KeyboardInterrupt):
        toys.tune(problem=stopped(), workers=1)


def test_an_executor_of_ones_own_that_exits_in_a_worker_is_a_worker_that_fails(monkeypatch):
    from fedtuner.run.executors import worker

    monkeypatch.setattr(worker, "_do", lambda *arguments: sys.exit(0))  # as whatever else a worker may call
    with pytest.raises(WorkerError, match=r"SystemExit\(0\)"):
        toys.tune(workers=2)


class Preparing(toys.Softmax):
    def prepare(self, split):
        sys.exit(0)


class Evaluating(toys.Softmax):
    def evaluate(self, w, data, config=None):
        sys.exit("no licence")


@pytest.mark.parametrize("model", [Preparing, Evaluating])
def test_a_model_of_ones_own_that_exits_is_an_error_before_the_work(model):
    with pytest.raises(TaskError, match=r"the code of the model or the data called sys.exit\((0|'no licence')\)"):
        toys.tune(problem=ft.Simulation(model(), toys.clients(), "toy"))


def test_on_the_command_line_it_is_exit_code_1(tmp_path, monkeypatch, fedtuner):
    monkeypatch.chdir(tmp_path)
    toys.write_study(tmp_path)
    code, out, err = fedtuner("run", "study.toml", "--set", "problem=test_exits:leaving", "--workers", "2", "--quiet")
    assert (code, out) == (1, "")
    assert "client 'phone4'" in err
    assert "SystemExit: 0" in err


def test_other_code_that_exits_is_exit_code_1_too(tmp_path, monkeypatch, fedtuner):
    monkeypatch.chdir(tmp_path)
    toys.write_study(tmp_path)
    monkeypatch.setattr(ft.schedules.Halving, "steps", lambda self: sys.exit(0))
    code, out, err = fedtuner("run", "study.toml", "--quiet")
    assert (code, out) == (1, "")
    assert err == "fedtuner: code of the study's called sys.exit(0): it must return, or raise an error\n"
