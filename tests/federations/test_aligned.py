"""Results depend on what the data is, not on where it lies in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedtuner as ft
from fedtuner.federations.simulation import aligned


def shifted(array: np.ndarray, by: int) -> np.ndarray:
    """The same array, so many bytes after a multiple of 64."""
    room = np.zeros(array.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + by
    made = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


@pytest.mark.parametrize("by", [4, 8, 12, 16, 60])
def test_a_network_measures_the_same_wherever_the_data_is(by):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    clients = [
        ft.Client(i, *((rng.normal(size=(3, 64)).astype(np.float32), rng.integers(0, 10, 3)) for _ in range(3)))
        for i in range(40)
    ]
    task = ft.pytorch.Task(
        lambda: torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    )
    w = task.initial(0)
    moved = [replace(c, valid=(shifted(c.valid[0], by), c.valid[1])) for c in clients]
    here, there = ft.Simulation(task, clients), ft.Simulation(task, moved)
    for i in range(40):
        assert task.evaluate(w, here.data(i, "valid")) == task.evaluate(w, there.data(i, "valid"))


def test_what_is_aligned_is_not_copied():
    array = np.zeros((5, 16), np.float32)
    odd = shifted(array, 4)
    given = ({"a": array, "b": [array, odd]}, "text")
    made = aligned(given)
    assert made[0]["a"] is made[0]["b"][0] is array
    assert made[0]["b"][1] is not odd
    assert np.array_equal(made[0]["b"][1], odd)
    assert made[0]["b"][1].ctypes.data % 16 == 0
    assert made[1] == "text"
