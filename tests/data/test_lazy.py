"""Lazy splits: loaded when visited, one client at a time, and the same study as with arrays. And what check finds."""

import numpy as np
import pytest

import fedtuner as ft
from fedtuner import data
from fedtuner.data.lazy import Split, Table
from fedtuner.errors import SpecError, TaskError
from fedtuner.federations import Lazy

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


def build():
    return nn.Linear(4, 3)


def made(n=6, cache=None):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n * 20, 4)).astype(np.float32), rng.integers(0, 3, n * 20)
    return data.from_arrays(x, y, np.repeat(np.arange(n), 20), cache=cache)


def simulation(clients):
    return ft.Simulation(ft.pytorch.Task(build), clients)


class Counted(Split):
    loads = 0

    def load(self):
        type(self).loads += 1
        return super().load()


def test_a_study_is_the_same_with_arrays_and_with_a_cache(tmp_path):
    def study(clients):
        return ft.tune(
            simulation(clients), fedex=ft.FedEx(k=3), schedule=ft.random_search(4, 2), cohort=3, workers=1
        )  # fmt: skip

    eager, lazy = study(made()), study(made(cache=tmp_path / "c"))
    assert repr(eager.history) == repr(lazy.history)
    assert eager.evaluate("test") == lazy.evaluate("test")


def test_only_the_visited_client_is_held():
    table = Table(np.zeros((60, 4), np.float32), np.zeros(60, np.int64))
    clients = data.Clients(
        ft.Client(i, *(Counted(table, range(20 * i + a, 20 * i + b)) for a, b in ((0, 16), (16, 18), (18, 20))))
        for i in range(3)
    )
    problem = simulation(clients)
    problem.fingerprint()
    assert Counted.loads == 0
    problem.check()
    assert Counted.loads == 1  # the model is tried on the first client
    for _ in range(2):
        for split in ("train", "valid", "valid"):
            problem.data(1, split)
    assert Counted.loads == 3
    problem.data(2, "train")
    problem.data(1, "train")
    assert Counted.loads == 5
    assert len(problem._visit) == 1
    assert not problem._prepared


def test_the_fingerprint_sees_rows_and_values(tmp_path):
    usual = simulation(made(cache=tmp_path / "a")).fingerprint()
    assert simulation(made(cache=tmp_path / "b")).fingerprint() == usual
    assert simulation(data.from_examples([], seed=1, cache=tmp_path / "a")).fingerprint() != usual
    x, y = np.ones((120, 4), np.float32), np.zeros(120, np.int64)
    other = data.from_arrays(x, y, np.repeat(np.arange(6), 20), cache=tmp_path / "c")
    assert simulation(other).fingerprint() != usual


def test_a_mistake_in_a_lazy_split_names_the_client_when_it_is_visited():
    table = Table(np.full((20, 4), np.nan, np.float32), np.zeros(20, np.int64))
    problem = simulation([ft.Client("nan", Split(table, range(16)), Split(table, range(16, 20)))])
    with pytest.raises(TaskError, match="client 'nan', train data: x has values that are NaN"):
        problem.data(0, "train")
    with pytest.raises(TaskError, match="client 'nan', train data: x has values that are NaN"):
        problem.check()


def test_those_left_out_are_on_the_problem():
    x, y = np.zeros((42, 4), np.float32), np.zeros(42, np.int64)
    clients = data.from_arrays(x, y, np.array([*["a"] * 40, "b", "b"]))
    assert simulation(clients).left_out == ["b"]
    assert simulation(list(clients)).left_out == []


def test_lazy_is_known_by_what_it_has():
    assert isinstance(Split(Table(np.zeros(3), np.zeros(3)), range(3)), Lazy)
    for other in ((np.zeros(3), np.zeros(3)), [], None, torch.utils.data.TensorDataset(torch.zeros(3))):
        assert not isinstance(other, Lazy)


def good(n=8, width=4):
    return np.zeros((n, width), np.float32), np.arange(n) % 3


WRONG = {
    "shape": ((np.zeros((8, 5), np.float32), np.zeros(8, int)), r"client 'odd', train data, example 0: .*\(1, 5\)"),
    "label": ((good()[0], np.array([0, 1, 2, 0, 9, 1, 2, 0])), "client 'odd', train data, example 4: .*9"),
    "negative label": ((good()[0], np.array([0, 1, -2, 0, 1, 1, 2, 0])), "client 'odd', train data, example 2: .*-2"),
    "nan": ((np.full((8, 4), np.nan), np.zeros(8, int)), "client 'odd', train data: x has values that are NaN"),
    "lengths": ((good()[0], np.zeros(7, int)), "client 'odd', train data: x has 8 examples, y has 7"),
}


@pytest.mark.parametrize(("split", "words"), WRONG.values(), ids=WRONG)
def test_check_names_the_client_before_any_work(split, words):
    clients = [ft.Client("fine", good(), good(), good()), ft.Client("odd", split, good(), good())]
    with pytest.raises(ft.FedtunerError, match=words):
        simulation(clients).check()


def test_one_empty_split_is_ordinary_but_nothing_at_all_is_a_mistake():
    fine = ft.Client("fine", good(), good(), good())
    simulation([fine, ft.Client("no validation", good(), good(0)), ft.Client("no training", good(0), good())]).check()
    with pytest.raises(SpecError, match="client 'odd' has no examples at all"):
        simulation([fine, ft.Client("odd", good(0), good(0), good(0))]).check()


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (WRONG["shape"][0], r"client 'odd', train data: examples have shape \(5,\), but must have \(4,\)"),
        (WRONG["label"][0], "client 'odd', train data: the label of example 4 is 9"),
        (WRONG["nan"][0], "client 'odd', train data: x of example 0"),
        (good(0), "client 'odd', train data: no examples"),
        ([(np.zeros(4), 0), (np.zeros(3), 0)], "client 'odd', train data: not a pair"),
    ],
)
def test_data_check_finds_the_same_without_a_model(split, words):
    clients = [ft.Client("fine", good(), good()), ft.Client("odd", split, good())]
    with pytest.raises(SpecError, match=words):
        data.check(clients, classes=3)


def test_data_check_passes_what_is_right(tmp_path):
    data.check(made(), shape=(4,), classes=3)
    data.check(made(cache=tmp_path / "c"), classes=3)
    data.check([ft.Client("a", [(np.zeros(2), 1)], None)])
    with pytest.raises(SpecError, match="two clients have the id 'a'"):
        data.check([ft.Client("a", good(), good()), ft.Client("a", good(), good())])


def test_labels_of_any_split():
    assert data.labels(good()).tolist() == good()[1].tolist()
    assert data.labels([(0, 5), (0, 6)]).tolist() == [5, 6]
    assert len(data.labels(None)) == 0


def test_clients_of_other_shapes_are_fine_if_the_model_takes_them():
    def pooled():
        return nn.Sequential(nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(4, 3))

    def one(width):
        return np.zeros((8, 1, width), np.float32), np.arange(8) % 3

    ft.Simulation(ft.pytorch.Task(pooled), [ft.Client(w, one(w), one(w)) for w in (4, 7, 9)]).check()
