"""Rows that fill up shorter batches do no harm, whatever the network would make of other rows."""

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'fedtuner[torch]'")

from torch import nn  # noqa: E402

from fedtuner import Client, Simulation, methods  # noqa: E402
from fedtuner.core.engine import sequential  # noqa: E402
from fedtuner.core.model import Rates  # noqa: E402
from fedtuner.pytorch import Task  # noqa: E402
from fedtuner.tasks import batched  # noqa: E402
from fedtuner.testing.rounds import a_round, an_arm  # noqa: E402


def net(dropout=0.0):
    """At FAR its logits of x = 0 are infinite; for x = 1 the unit in between is off, and they are the last biases."""
    layers = [nn.Linear(1, 1), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else []), nn.Linear(1, 2)]
    return nn.Sequential(*layers)


FAR = np.array([-2e30, 1e30, 1e30, -1e30, 0.5, -0.5], np.float32)  # weight, bias; weights, biases
NONE = batched._Dropout((), None)


def data(task, *x):
    return task.prepare((np.array(x, np.float32)[:, None], np.arange(len(x)) % 2))


def asked(task, *x):
    """The data of a client, and where its rows with x = 1 are."""
    return data(task, *x), np.flatnonzero(np.array(x) == 1)


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_gradients_beside_those_of_larger_batches(first):
    task = Task(net)
    clients = [asked(task, first, 1, 1, 1), asked(task, 1, 1, 1, 1)]
    asks = [
        batched._Gradient(FAR.copy(), split, rows[:size], NONE)
        for (split, rows), size in zip(clients, (3, 4), strict=True)
    ]
    found = batched._gradients(task, asks)
    for ask, ours in zip(asks, found, strict=True):
        with task.training(ask.data, {}, 0) as trainer:
            np.testing.assert_allclose(ours, trainer.gradient(ask.w.copy(), ask.rows), rtol=1e-5)


def test_descents_on_rows_other_than_the_first():
    """The client's first row is not in its batches: its infinite loss is nobody's."""
    task, rates = Task(net), Rates(0.1, 0.5, 0.0)
    clients = [(asked(task, 0, 1, 1, 1), [3, 1]), (asked(task, 1, 1, 1, 1), [4, 2, 3])]
    asks = [
        batched._Descent(FAR.copy(), split, [rows[:size] for size in sizes], NONE, rates)
        for (split, rows), sizes in clients
    ]
    expected = []
    for ask in asks:
        w = FAR.copy()
        with task.training(ask.data, {}, 0) as trainer:
            trainer.descend(w, ask.batches, rates)
        expected.append(w)
    batched._descend(task, asks)
    for ask, w in zip(asks, expected, strict=True):
        assert np.isfinite(ask.w).all()
        np.testing.assert_allclose(ask.w, w, rtol=1e-5)


def test_what_fills_up_is_dropped_as_the_row_that_it_repeats():
    x = torch.full((2, 4, 3), 1.0)
    made = batched._drop(x, [(0.5, torch.Generator().manual_seed(1)), (0.5, torch.Generator().manual_seed(2))], [2, 4])
    assert torch.equal(made[0, 2], made[0, 0])
    assert torch.equal(made[0, 3], made[0, 0])


@pytest.mark.parametrize("method", [methods.fedavg, methods.scaffold], ids=lambda m: m.name)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_round_of_unequal_clients_breaks_nobody(method, dropout):
    """None has a row of zeros, which are the only ones that the model cannot take."""
    sizes = (2, 3, 5, 7, 8)
    made = [(np.ones((n, 1), np.float32), np.arange(n) % 2) for n in sizes]
    problem = Simulation(Task(partial(net, dropout)), [Client(i, split, split) for i, split in enumerate(made)])
    round, arm = a_round(method, problem, cohort=5), an_arm(method, {"batch": 4, "epochs": 2, "lr": 0.01})
    state = round.begin(arm, start=FAR.copy())
    plan = round.plan(arm, state, problem.present())
    ours, others = (engine.work_all(round, plan) for engine in (batched.engine, sequential))
    assert [r.finite for r in ours] == [r.finite for r in others] == [True] * 5
    for one, other in zip(ours, others, strict=True):
        np.testing.assert_allclose(one.change, other.change, rtol=1e-4, atol=1e-6)
