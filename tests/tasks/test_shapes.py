"""Architecture as a client hyperparameter: one w, and each client trains and validates in its own shape."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from arms import begun, planned, report_of  # noqa: E402
from torch import nn  # noqa: E402

from fedtuner import Client, FedEx, Simulation, Space, halving, random_search, tune, untuned  # noqa: E402
from fedtuner.core.model import Hyper, named  # noqa: E402
from fedtuner.errors import SpecError, TaskError  # noqa: E402
from fedtuner.pytorch import Task  # noqa: E402
from fedtuner.space import Int  # noqa: E402
from fedtuner.tasks import batched  # noqa: E402
from fedtuner.testing import TaskLaws  # noqa: E402
from fedtuner.testing.rounds import advance  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

CHOICES = {"activation": ["relu", "tanh"], "width": [6, 2], "block": [False, True]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.width, self.deep, self.activation = 6, False, torch.relu

    def forward(self, x):
        n = self.width
        h = self.activation(F.linear(x, self.first.weight[:n], self.first.bias[:n]))
        if self.deep:
            h = h + self.activation(F.linear(h, self.block.weight[:n, :n], self.block.bias[:n]))
        return F.linear(h, self.last.weight[:, :n], self.last.bias)


def configure(net, chosen):
    net.activation = {"relu": torch.relu, "tanh": torch.tanh}[chosen["activation"]]
    net.width, net.deep = chosen["width"], chosen["block"]


def task(**more):
    return Task(Net, **({"choices": CHOICES, "configure": configure} | more))


def arrays(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 1)


def problem(made=None):
    clients = [Client(i, arrays(16 + i, 3 * i), arrays(8, 3 * i + 1), arrays(6, 3 * i + 2)) for i in range(6)]
    return Simulation(made or task(), clients)


BASE = {"batch": 4}
SHAPES = [{"activation": a, "width": w, "block": b} for a in ("relu", "tanh") for w in (6, 2) for b in (False, True)]
SPACE = Space(client={"lr": [0.05, 0.2], **CHOICES})


def like(shape):
    """Return a task whose module is only ever in one shape, with the same parameters."""

    def build():
        net = Net()
        configure(net, shape)
        return net

    return Task(build)


# What a shape is


class TestTaskLawsOfAShape(TaskLaws):
    """The laws hold in a shape that is not the default."""

    config = {"activation": "tanh", "width": 2, "block": True}

    def task(self):
        return task()

    def split(self):
        return arrays(10, 0)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s.values())))
def test_a_shape_is_the_model_that_is_built_in_it(shape):
    """Work in a shape is, to the bit, the work of a task that has no other: before, training and after."""
    (here, *begun_here), (there, *begun_there) = (
        begun(made, [BASE | config], cohort=4) for made, config in ((problem(), shape), (problem(like(shape)), {}))
    )
    plan, other = planned(here, *begun_here), planned(there, *begun_there)
    assert plan.w.tobytes() == other.w.tobytes()
    for ours, theirs in zip(plan.jobs, other.jobs, strict=True):
        one, same = here.work(plan, ours), there.work(other, theirs)
        assert one.change.tobytes() == same.change.tobytes()
        assert (one.before, one.after) == (same.before, same.after)


def test_clients_of_a_round_do_not_see_each_others_shapes():
    round, *arm = begun(problem(), [BASE | shape for shape in SHAPES], tries="all")
    plan = planned(round, *arm)
    forward = [round.work(plan, job) for job in plan.jobs]
    backward = [round.work(plan, job) for job in reversed(plan.jobs)][::-1]
    for one, other in zip(forward, backward, strict=True):
        assert one.tried == other.tried
        assert one.change.tobytes() == other.change.tobytes()
    # Each try is validated before its training in its own shape, too.
    assert len({(t.before.loss) for t in forward[0].tried}) > 4


def test_what_a_shape_does_not_use_does_not_move():
    made, config = problem(), BASE | {"activation": "relu", "width": 2, "block": False}
    round, *arm = begun(made, [config], cohort=1)
    moved = report_of(made, planned(round, *arm)).change != 0
    parts = named(moved, made.task.layout())
    assert parts["first.weight"][:2].any()
    assert not parts["first.weight"][2:].any()
    assert not parts["block.weight"].any()
    assert parts["last.weight"][:, :2].any()
    assert not parts["last.weight"][:, 2:].any()


def test_without_a_configuration_it_is_the_default_shape():
    made = task()
    data, w = made.prepare(arrays(9, 0)), made.initial(0)
    default = {"activation": "relu", "width": 6, "block": False}
    other = made.evaluate(w, data, {"activation": "tanh", "width": 2, "block": True})
    assert made.evaluate(w, data, {}) == made.evaluate(w, data, default) == like(default).evaluate(w, data, {}) != other
    x = torch.from_numpy(arrays(9, 0)[0])
    for config in (default, {"activation": "tanh", "width": 2}):
        net = made.module(w, config)
        assert torch.equal(net(x), like({**default, **config}).module(w)(x))
        assert not net.training


def test_a_pickled_task_has_its_shapes():
    made = pickle.loads(pickle.dumps(task()))
    data, w = made.prepare(arrays(9, 0)), made.initial(0)
    narrow = {"activation": "tanh", "width": 2, "block": True}
    assert made.evaluate(w, data, narrow) == task().evaluate(w, data, narrow)
    assert dict(made.hyperparameters) == dict(task().hyperparameters)


# Studies


@pytest.mark.slow
@pytest.mark.parametrize("target", ["personalized", "global"])
def test_a_study_searches_architectures_on_any_number_of_workers(target):
    settings = {"fedex": FedEx(k=6, eps=1.0), "schedule": halving(6, 4, 2, 1), "cohort": 4, "target": target}
    one, two = (tune(problem(), SPACE, workers=workers, **settings) for workers in (1, 2))
    assert one.history == two.history
    assert one.best.model.tobytes() == two.best.model.tobytes()
    assert one.setup.engine == "sequential"
    shapes = {tuple(c[name] for name in CHOICES) for c in one.best.candidates}
    assert len(shapes) > 2
    assert all(one.best.client[name] in CHOICES[name] for name in CHOICES)


def test_evaluation_is_in_the_winners_shape():
    """All clients are evaluated in the shape of theta's mode: as a task that has no other would be."""
    study = tune(problem(), SPACE, fedex=FedEx(k=6, eps=1.0), schedule=random_search(4, 4), cohort=4, workers=1)
    shape = {name: study.best.client[name] for name in CHOICES}
    net = like(shape).module(study.best.model)
    clients = study.problem.clients
    wrong = sum(int((net(torch.from_numpy(c.test[0])).argmax(1).numpy() != c.test[1]).sum()) for c in clients)
    assert study.evaluate("test")["global"] == pytest.approx(wrong / sum(len(c.test[1]) for c in clients))


def test_the_untuned_default_has_the_default_shape():
    study = tune(problem(), SPACE, fedex=FedEx(k=2, eps=1.0), schedule=random_search(3, 3), cohort=4, workers=1)
    fixed = tune(problem(like(SHAPES[0])), Space(), fedex=None, schedule=random_search(3, 3), cohort=4, workers=1)
    assert untuned(study).best.model.tobytes() == fixed.best.model.tobytes()


@pytest.mark.slow
def test_fedex_finds_the_shape_that_can_learn():
    """Of a network that sees its input and one that ignores it, theta ends with the one that sees."""

    def switch(net, chosen):
        net.activation = torch.tanh if chosen["sees"] else torch.zeros_like

    made = problem(task(choices={"sees": [False, True]}, configure=switch))
    round, arm, state = begun(made, [BASE | {"lr": 0.3, "sees": sees} for sees in (False, True)])
    theta = advance(round, arm, 15, state).belief.theta
    assert theta.mode == 1
    assert theta.p[1] > 0.9


def test_the_batched_engine_leaves_shaped_models_alone():
    def plain():
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def swap(net, chosen):
        net[1] = {"relu": nn.ReLU, "tanh": nn.Tanh}[chosen["activation"]]()

    shaped = Task(plain, choices={"activation": ["relu", "tanh"]}, configure=swap)
    assert batched.covers(Task(plain))
    assert not batched.covers(shaped)
    data, w = shaped.prepare(arrays(9, 0)), shaped.initial(0)
    assert shaped.evaluate(w, data, {}) != shaped.evaluate(w, data, {"activation": "tanh"})


# Mistakes


def replacing(net, chosen):
    net.last = nn.Linear(6, 3)


def adding(net, chosen):
    net.extra = nn.Linear(2, 2)


def failing(net, chosen):
    raise KeyError("nope")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"configure": replacing}, r"configure\(\) changed the model's parameters for .*'relu'.*not replace"),
        ({"configure": adding}, r"configure\(\) changed the model's parameters"),
        ({"configure": failing}, r"configure\(\) failed for .*: KeyError: 'nope'"),
        ({"configure": None}, r"choices needs configure"),
        ({"choices": None}, r"configure needs choices"),
        ({"choices": {"width": 3}}, r"choices\['width'\]: give a list of values"),
    ],
)
def test_mistakes_are_told(more, message):
    with pytest.raises(TaskError, match=message):
        task(**more)


def test_a_space_is_held_to_the_choices():
    with pytest.raises(SpecError, match=r"client\.width = 7, but must be one of \[6, 2\]"):
        tune(problem(), Space(client={"width": [2, 7]}), schedule=random_search(2, 2), cohort=2)
    with pytest.raises(SpecError, match=r"both have a client hyperparameter 'lr'"):
        tune(problem(task(choices={"lr": [1, 2]}, configure=lambda net, c: None)), cohort=2)
    ranged = task(choices={"width": Hyper(Int(2, 6), 6, low=1, high=6, whole=True)}, configure=lambda net, c: None)
    with pytest.raises(SpecError, match=r"client\.width = 9, but must be <= 6"):
        tune(problem(ranged), Space(client={"width": Int(2, 9)}), schedule=random_search(2, 2), cohort=2)


@pytest.mark.slow
def test_the_example_finds_an_architecture_that_learns():
    """The example's problem, in a smaller study: eight architectures share weights, and what is found has learned."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    try:
        import architecture
    finally:
        sys.path.pop(0)
    small = {"schedule": random_search(40, 20), "fedex": FedEx(k=12, eps=1.0), "workers": 1}
    searched = tune(architecture.problem(), architecture.space(), **small)
    assert len({tuple(c[name] for name in architecture.CHOICES) for c in searched.best.candidates}) > 4
    assert searched.evaluate("test")["personalized"] < 0.3  # 0.9 is chance
    fixed = tune(architecture.problem(), architecture.space(activation="tanh", width=8, deep=True), **small)
    assert {c["width"] for c in fixed.best.candidates} == {8}
