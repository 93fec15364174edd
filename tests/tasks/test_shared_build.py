"""A build whose modules share memory is refused: w would be what the last client left there, or nobody."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedtuner.errors import TaskError
from fedtuner.pytorch import Task

MODEL = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
LAYER = nn.Linear(4, 3)
WEIGHT = torch.ones(3, 4)
MEAN = torch.arange(4.0)
ROWS = torch.arange(4)


class Scaled(nn.Module):
    def __init__(self, name, given):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer(name, given)


def view():
    made = nn.Linear(4, 3)
    made.weight = nn.Parameter(WEIGHT[:])
    return made


SHARING = {
    "one module": (lambda: MODEL, "0.weight"),
    "one layer": (lambda: nn.Sequential(nn.Linear(4, 4), LAYER), "1.weight"),
    "one tensor": (view, "weight"),
    "a buffer": (lambda: Scaled("mean", MEAN), "mean"),
    "frozen": (lambda: nn.Sequential(nn.Linear(4, 4), copy.copy(LAYER)).requires_grad_(False).append(nn.Linear(3, 2)),
               "1.weight"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARING)
def test_modules_that_share_memory_are_refused_and_stay_as_they_are(name):
    build, part = SHARING[name]
    kept = [t.detach().clone() for t in (*MODEL.parameters(), *LAYER.parameters(), WEIGHT, MEAN)]
    with pytest.raises(TaskError) as error:
        Task(build)
    rule = "but must make a new module at each call: build it inside the function, or return copy.deepcopy(model)"
    assert str(error.value) == f"build() gave two modules that share the memory of {part!r}, {rule}"
    now = (*MODEL.parameters(), *LAYER.parameters(), WEIGHT, MEAN)
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))
    LAYER.requires_grad_(True)


APART = {
    "a copy": lambda: copy.deepcopy(MODEL),
    "whole numbers, which are no part of w": lambda: Scaled("rows", ROWS),
    "a tied weight within one module": lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2),
    "nothing": lambda: nn.Sequential(nn.Linear(4, 3), Scaled("none", torch.zeros(0))),
}


@pytest.mark.parametrize("build", APART.values(), ids=APART)
def test_modules_of_their_own_are_not(build):
    task = Task(build)
    first = task.initial(1)
    with torch.no_grad():
        for parameter in task.module(first).parameters():
            parameter.zero_()
    assert np.array_equal(task.initial(1), first)
