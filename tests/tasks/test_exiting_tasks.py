"""A task whose code calls sys.exit is an error before the work."""

import sys

import pytest
import torch
from torch import nn

import fedtuner as ft
from fedtuner.errors import TaskError
from fedtuner.pytorch import Task


def leave(*arguments):
    sys.exit(0)


class Forward(nn.Linear):
    def forward(self, x):
        sys.exit(0)


class Examples:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        sys.exit(0)


SPLIT = (torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))


def made(build=lambda: nn.Linear(2, 2), split=SPLIT, **more):
    ft.Simulation(Task(build, **more), [ft.Client("a", split, split)]).check()


TASKS = {
    "build": lambda: made(leave),
    "loss": lambda: made(loss=leave),
    "error": lambda: made(error=leave),
    "forward": lambda: made(lambda: Forward(2, 2)),
    "configure": lambda: made(choices={"width": [1, 2]}, configure=leave),
    "data": lambda: made(split=Examples()),
}


@pytest.mark.parametrize("work", TASKS.values(), ids=TASKS)
def test_a_task_that_exits_is_an_error_before_the_work(work):
    with pytest.raises(TaskError, match="SystemExit: 0"):
        work()
