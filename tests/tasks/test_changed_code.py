"""A study continues only with the loss, the error and the model that it began with, as far as they can be seen."""

from __future__ import annotations

import copy
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedtuner as ft
import toys
from fedtuner.errors import StoreError
from fedtuner.problems import models
from fedtuner.pytorch import Task

X, Y = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32), np.arange(12) % 3


def tune(path, build=lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()), *more, **named):
    clients = [ft.Client("a", (X, Y), (X, Y))]
    problem = ft.Simulation(Task(build, *more, **named), clients)
    return ft.tune(problem, fedex=None, schedule=ft.random_search(1, 1), cohort=1, workers=1, store=path)


def sequential(activation):
    return nn.Sequential(nn.Linear(4, 3), activation)


class Net(nn.Module):
    def __init__(self, activation=F.relu, slope=0.1):
        super().__init__()
        self.inner, self.activation, self.slope = nn.Linear(4, 3), activation, slope

    def forward(self, x):
        return self.activation(self.inner(x)) + self.slope


class Other(Net):
    def forward(self, x):
        return self.activation(self.inner(x)) - self.slope


class Loss:
    def __init__(self, smoothing):
        self.smoothing, self.calls = smoothing, 0

    def __call__(self, output, y):
        self.calls += 1
        return F.cross_entropy(output, y, label_smoothing=self.smoothing)

    def method(self, output, y):
        return self(output, y)


def weighted(weight):
    return lambda output, y: F.cross_entropy(output, y, weight=weight)


def wrong(output, y):
    return (output.argmax(1) != y).float()


def right(output, y):
    return (output.argmax(1) == y).float()


@torch.no_grad()
def decorated(output, y):
    return wrong(output, y)


@torch.no_grad()
def decorated_otherwise(output, y):
    return right(output, y)


MODEL = nn.Sequential(nn.Linear(4, 3), nn.Tanh())

SMOOTH = F.cross_entropy

# What is given when the study begins, the same made once more, and another.
LOSSES = {
    "functions of torch": (lambda: F.cross_entropy, lambda: F.multi_margin_loss),
    "modules": (lambda: nn.CrossEntropyLoss(), lambda: nn.CrossEntropyLoss(label_smoothing=0.1)),
    "weights of classes": (lambda: nn.CrossEntropyLoss(torch.ones(3)), lambda: nn.CrossEntropyLoss(2 * torch.ones(3))),
    "partials": (lambda: partial(SMOOTH, label_smoothing=0.1), lambda: partial(SMOOTH, label_smoothing=0.2)),
    "closures": (lambda: weighted(torch.ones(3)), lambda: weighted(torch.tensor([1.0, 1.0, 2.0]))),
    "objects": (lambda: Loss(0.1), lambda: Loss(0.2)),
    "bound methods": (lambda: Loss(0.1).method, lambda: Loss(0.2).method),
    "lambdas": (lambda: lambda o, y: F.cross_entropy(o, y), lambda: lambda o, y: F.cross_entropy(o, y) * 2),
}  # fmt: skip
ERRORS = {
    "functions": (lambda: wrong, lambda: right),
    "decorated": (lambda: decorated, lambda: decorated_otherwise),
    "none": (lambda: None, lambda: wrong),
}
BUILDS = {
    "activations": (lambda: partial(sequential, nn.ReLU()), lambda: partial(sequential, nn.Tanh())),
    "slopes": (lambda: partial(sequential, nn.LeakyReLU(0.1)), lambda: partial(sequential, nn.LeakyReLU(0.2))),
    "functions within": (lambda: Net, lambda: partial(Net, F.gelu)),
    "numbers within": (lambda: Net, lambda: partial(Net, slope=0.2)),
    "forward": (lambda: Net, lambda: Other),
    "lambdas": (lambda: lambda: sequential(nn.ReLU()), lambda: lambda: sequential(nn.ELU())),
    "copies": (lambda: lambda: copy.deepcopy(MODEL), lambda: lambda: nn.Sequential(*copy.deepcopy(MODEL)[:1])),
    "ours": (lambda: partial(models.mlp, 4, 8, 3, 0.2), lambda: partial(models.mlp, 4, 8, 3, 0.3)),
}
CASES = [
    *(("loss", name, *pair) for name, pair in LOSSES.items()),
    *(("error", name, *pair) for name, pair in ERRORS.items()),
    *(("build", name, *pair) for name, pair in BUILDS.items()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "name", "usual", "other"), CASES, ids=[f"{part} {name}" for part, name, *_ in CASES])
def test_a_study_continues_with_the_same_code_alone(tmp_path, part, name, usual, other):
    tune(tmp_path / "s", **{part: usual()})
    before = toys.files(tmp_path / "s")
    tune(tmp_path / "s", **{part: usual()})
    assert toys.files(tmp_path / "s") == before
    with pytest.raises(StoreError, match=rf"holds another study .*\b{part}: its code, or what it holds, has changed"):
        tune(tmp_path / "s", **{part: other()})
    assert toys.files(tmp_path / "s") == before


def test_weights_that_are_drawn_anew_are_no_change(tmp_path):
    """The usual way to tune from a model of one's own."""
    for _ in range(2):
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        tune(tmp_path / "s", lambda model=model: copy.deepcopy(model))


class Noisy(Net):
    def __init__(self):
        super().__init__()
        self.noise, self.shifts = np.random.default_rng().normal(size=3), [float(np.random.default_rng().normal())]


def test_modules_that_hold_random_numbers_are_no_change(tmp_path):
    for _ in range(2):
        tune(tmp_path / "s", Noisy)


def test_the_same_objects_go_on_after_they_have_run(tmp_path):
    loss, seen = Loss(0.1), []

    def error(output, y):
        seen.append(len(y))
        return wrong(output, y)

    for _ in range(2):
        study = tune(tmp_path / "s", loss=loss, error=error)
        study.evaluate("valid")
    assert loss.calls
    assert seen


def test_a_model_of_ones_own_is_known_by_its_class(tmp_path):
    class Changed(toys.Softmax):
        def probabilities(self, w, x):
            return super().probabilities(w, x) ** 2

    toys.tune(store=tmp_path / "s")
    with pytest.raises(StoreError, match=r"model: its code, or what it holds, has changed"):
        toys.tune(store=tmp_path / "s", problem=ft.Simulation(Changed(), toys.clients(), "toy"))


@pytest.mark.slow  # torch is imported twice more
def test_it_is_the_same_in_every_process():
    code = (
        "import test_changed_code as t\n"
        "print([t.Task(**{'build': t.Net, part: usual()}).code for part, _, usual, _ in t.CASES])"
    )
    path = ":".join([str(toys.TESTS / "tasks"), toys.environment()["PYTHONPATH"]])
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env=toys.environment(PYTHONPATH=path, PYTHONHASHSEED=seed),
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1
