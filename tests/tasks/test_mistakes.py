"""Mistakes that users make in their own code: one line that says what to change, before any long work."""

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import fedtuner as ft  # noqa: E402
from fedtuner.errors import FedtunerError, SpecError, TaskError  # noqa: E402
from fedtuner.run import spec  # noqa: E402


def arrays(n=6):
    x = np.random.default_rng(0).standard_normal((n, 3)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def linear():
    return nn.Linear(3, 2)


def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def problem(build=linear, **more):
    return ft.Simulation(ft.pytorch.Task(build, **more), [ft.Client(i, arrays(), arrays(), arrays()) for i in range(3)])


def study(made, **more):
    return ft.tune(made, **{"schedule": ft.random_search(1, 1), "cohort": 2, "workers": 1, **more})


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda: study(problem(), space={"client": {"lr": 0.1}}), "space = .*fedtuner.Space"),
        (lambda: study(problem(), fedex=9), "fedex = 9, .*fedtuner.FedEx"),
        (lambda: study(problem(), schedule={"budget": 3}), "schedule = .*such as fedtuner.halving"),
        (lambda: ft.pytorch.Task(nn.Linear(3, 2)), "build is Linear, but must be a function"),
        (lambda: ft.pytorch.Task(linear, device="gpu0"), "device = 'gpu0'"),
        (lambda: study(problem(error=lambda out, y: torch.tensor(float("nan")))), "error of the untrained model .*NaN"),
        (lambda: study(problem(error=lambda out, y: "bad")), "the error function failed"),
        (lambda: study(problem(error=lambda out, y: 1 / 0)), "the error function failed.*ZeroDivision"),
        (lambda: study(problem(normed), space=ft.Space({"batch": 1})), "client.batch = 1, .*batch-norm"),
    ],
)
def test_wrong_things_in_python(what, words):
    with pytest.raises(FedtunerError, match=words):
        what()


def test_lists_are_arrays_too():
    x, y = arrays()
    task = ft.pytorch.Task(linear)
    w = task.initial(0)
    assert task.evaluate(w, task.prepare((x.tolist(), y.tolist())), {}) == task.evaluate(w, task.prepare((x, y)), {})


MODULES = {
    "boom": ("def problem():\n    raise ValueError('no data')\n", r"failed: ValueError: no data \(boom.py, line 2\)"),
    "needy": ("def problem(folder):\n    pass\n", "failed: TypeError: .*'folder'"),
    "crooked": ("def (\n", "cannot be imported: SyntaxError"),
    "missing": ("import no_such_library\n", "no module 'no_such_library'"),
    "early": ("1 / 0\n", r"cannot be imported: ZeroDivisionError: .* \(early.py, line 1\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_problem_that_fails_is_named_with_the_place(name, tmp_path, monkeypatch):
    text, words = MODULES[name]
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError, match=words) as caught:
        spec.load_problem(f"{name}:problem")
    assert f"{name}:problem" in str(caught.value)
    sys.modules.pop(name, None)


def test_an_error_of_our_own_in_a_problem_is_told_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "absent_device.py").write_text(
        "import fedtuner as ft, torch\n\ndef problem():\n    return ft.pytorch.Task(torch.nn.Identity, device='gpu0')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TaskError, match="device = 'gpu0'"):
        spec.load_problem("absent_device:problem")


def test_a_range_of_whole_ends_is_real_where_the_hyperparameter_is():
    parsed = spec.parse(
        {"problem": "digits", "client": {"lr": {"low": 0, "high": 1}, "epochs": {"low": 1, "high": 4}},
         "server": {"momentum": {"low": 0, "high": 1}}}
    )  # fmt: skip
    space = parsed.space(ft.methods.fedavg, problem().model)
    assert space.client["lr"] == ft.Float(0.0, 1.0)
    assert space.client["epochs"] == ft.Int(1, 4)
    assert space.server["momentum"] == ft.Float(0.0, 1.0)
