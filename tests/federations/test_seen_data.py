"""A study is known by its data also where they are lists, examples or data sets of one's own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import fedtuner as ft
import toys
from fedtuner.pytorch import Task

X = [[0.5, 1.5], [2.5, -1.0], [0.25, 0.0]]
Y = [0, 1, 1]


class Examples:
    """A data set of one's own, which reads its examples when it is asked for them."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return torch.tensor(self.x[i]), self.y[i]


FORMS = {
    "a pair of arrays": lambda x, y: (np.array(x), np.array(y)),
    "a pair of lists": lambda x, y: (x, y),
    "examples": lambda x, y: [(np.array(a), b) for a, b in zip(x, y, strict=True)],
    "a data set": Examples,
    "a data set of tensors": lambda x, y: torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)),
    "an array of objects": lambda x, y: (np.array(x), np.array([*y, 1], dtype=object)[:-1].astype(np.int64)),
}


def simulation(form, x=X, y=Y):
    split = FORMS[form](x, y)
    return ft.Simulation(Task(lambda: nn.Linear(2, 2)), [ft.Client("a", split, split)])


@pytest.mark.parametrize("form", FORMS)
def test_the_fingerprint_sees_every_value(form):
    usual = simulation(form).fingerprint()
    assert simulation(form).fingerprint() == usual
    assert simulation(form, x=[*X[:-1], [0.25, 1e-3]]).fingerprint() != usual
    assert simulation(form, y=[0, 1, 0]).fingerprint() != usual
    assert simulation(form, x=X[::-1], y=Y[::-1]).fingerprint() != usual


@pytest.mark.parametrize("form", FORMS)
def test_a_study_continues_on_the_same_data_alone(tmp_path, form):
    made = {"fedex": None, "schedule": ft.random_search(1, 1), "cohort": 1, "workers": 1, "store": tmp_path / "s"}
    ft.tune(simulation(form), **made)
    ft.tune(simulation(form), **made)
    with pytest.raises(ft.FedtunerError, match=r"holds another study \(problem.fingerprint: "):
        ft.tune(simulation(form, y=[1, 1, 1]), **made)


class Keeping(toys.Softmax):
    """A model that takes splits as they are: lists, tables, texts."""

    def prepare(self, split):
        return [] if split is None else split


KEPT = {
    "texts": (["one", "two"], ["one", "tow"]),
    "tables": ([{"x": 1, "y": [2.0, 3]}], [{"x": 1, "y": [2.0, 4]}]),
    "ragged": ([[1], [2, 3]], [[1], [2, 4]]),
    "grouped": ([[1], [2, 3]], [[1, 2], [3]]),
    "arrays of strings": ([np.array(["a", "b"])], [np.array(["a", "c"])]),
    "half precision": ([torch.ones(2, dtype=torch.bfloat16)], [torch.zeros(2, dtype=torch.bfloat16)]),
    "dates": ([np.array(["2021-01-01"], "M8[D]")], [np.array(["2021-01-02"], "M8[D]")]),
    "types": ([1, 2], [1.0, 2.0]),
    "nothing and text": ([None], ["None"]),
}


@pytest.mark.parametrize("kind", KEPT)
def test_data_that_a_model_takes_as_they_are(kind):
    one, other = (ft.Simulation(Keeping(), [ft.Client("a", data, data)]) for data in KEPT[kind])
    assert one.fingerprint() != other.fingerprint()


def test_objects_of_unknown_kinds_are_known_by_their_type():
    held = [object(), torch.eye(2).to_sparse()]
    one, other = (ft.Simulation(Keeping(), [ft.Client("a", data, data)]) for data in (held, [object(), held[1] * 2]))
    assert one.fingerprint() == other.fingerprint()


@pytest.mark.slow  # torch is imported once more
def test_it_is_the_same_in_another_process():
    code = "import test_seen_data as t; print(*[t.simulation(form).fingerprint() for form in t.FORMS])"
    path = ":".join([str(toys.TESTS / "federations"), toys.environment()["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=toys.environment(PYTHONPATH=path)
    )
    assert done.stdout.split() == [simulation(form).fingerprint() for form in FORMS]


def test_the_fingerprint_of_arrays_is_what_it_was():
    assert toys.problem().fingerprint() == "a4572463fac58abff9590078"
