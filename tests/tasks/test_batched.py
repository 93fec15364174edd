"""The batched engine: the sequential one's results up to rounding, its own to the bit, and never an error."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("greenlet")
import torch.nn.functional as F  # noqa: E402
from arms import begun, planned  # noqa: E402
from torch import nn  # noqa: E402

from fedtuner import Client, FedEx, Simulation, halving, methods, tune  # noqa: E402
from fedtuner.core.engine import sequential  # noqa: E402
from fedtuner.errors import ClientError, SpecError, StoreError  # noqa: E402
from fedtuner.problems import models  # noqa: E402
from fedtuner.pytorch import Task  # noqa: E402
from fedtuner.tasks import batched  # noqa: E402


def arrays(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 1)


def problem(build, count=9, **more):
    sizes = [3, 40, 17, 8, 26, 1, 33, 12, 64]
    clients = [
        Client(i, arrays(sizes[i % 9], 3 * i), arrays(2 + i, 3 * i + 1), arrays(4, 3 * i + 2)) for i in range(count)
    ]
    return Simulation(Task(build, **more), clients)


def deep():
    return nn.Sequential(
        nn.Linear(4, 7, bias=False), nn.Tanh(), nn.Dropout(0.1),
        nn.Linear(7, 6), nn.GELU(), nn.Dropout(0.3), nn.Linear(6, 3),
    )  # fmt: skip


def linear():
    return nn.Sequential(nn.Linear(4, 3))


NETS = {
    "linear": linear,
    "mlp": partial(models.mlp, 4, 8, 3, 0.2),
    "deep": deep,
}
CANDIDATES = [
    {"lr": 0.3, "epochs": 1, "batch": 8},
    {"lr": 0.1, "epochs": 3, "batch": 4, "momentum": 0.9, "dropout": 0.5},
    {"lr": 0.05, "epochs": 2, "batch": 64, "weight_decay": 0.1, "dropout": 0.0},
]


def an_arm(made, method=methods.fedavg, rows=None, **more):
    """Return an arm whose candidates are these, as far as the method has the hyperparameters."""
    known = {*method.client, "dropout"}
    candidates = [{k: v for k, v in c.items() if k in known} for c in rows or CANDIDATES]
    return begun(made, candidates, method, **more)


def compare(made, method, rounds=3, rows=None):
    """Run both engines from the same state, round after round, and compare everything that comes back."""
    round, arm, state = an_arm(made, method, rows)
    for _ in range(rounds):
        plan = planned(round, arm, state)
        alone, together = (engine.work_all(round, plan) for engine in (sequential, batched.engine))
        for a, b in zip(alone, together, strict=True):
            assert (a.client, a.tried[0].label, a.examples, a.finite) == (
                b.client, b.tried[0].label, b.examples, b.finite
            )  # fmt: skip
            np.testing.assert_allclose(plan.w + b.change, plan.w + a.change, rtol=1e-3, atol=1e-5)
            assert a.extra.keys() == b.extra.keys()
            for name, vector in a.extra.items():
                np.testing.assert_allclose(b.extra[name], vector, rtol=1e-2, atol=1e-4)
            assert a.memory.keys() == b.memory.keys()
            for before, after in ((a.before, b.before), (a.after, b.after)):
                assert before.count == after.count
                assert after.loss == pytest.approx(before.loss, rel=1e-4, nan_ok=True)
        state, _ = round.settle(arm, state, round.tally(plan, together))
    return state


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
def test_it_agrees_with_the_sequential_engine(net):
    """Clients of all sizes, candidates with their own batches, epochs and dropout: the same draws, the same numbers."""
    compare(problem(NETS[net]), methods.fedavg)


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.ALL.values(), ids=lambda m: m.name)
def test_it_does_every_method_unchanged(method):
    compare(problem(NETS["mlp"]), method)


@pytest.mark.slow
def test_it_agrees_on_images_flattened_and_on_adam():
    def build():
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

    made = problem(build)
    shaped = [Client(c.id, *((x.reshape(-1, 2, 2), y) for x, y in (c.train, c.valid, c.test))) for c in made.clients]
    compare(Simulation(Task(build), shaped), methods.fedavg, rows=[{"optimiser": "adam", "lr": 0.01, "momentum": 0.9}])


@pytest.mark.slow
def test_clients_without_examples_and_clients_that_diverge():
    usual = problem(NETS["mlp"])
    bare = [Client("no training", None, arrays(3, 1)), Client("no validation", arrays(3, 2), None)]
    made = Simulation(usual.task, [*usual.clients, *bare])
    compare(made, methods.fedavg)
    round, *begun = an_arm(made, rows=[{"lr": 1e30, "epochs": 5, "batch": 2}, {"lr": 0.1}])
    plan = planned(round, *begun)
    broken = 0
    for a, b in zip(sequential.work_all(round, plan), batched.work_all(round, plan), strict=True):
        broken += not a.finite
        assert a.finite == b.finite
        assert np.isfinite(b.after.loss) or not b.finite or not b.after.count
    assert broken


def test_torchs_generator_and_threads_are_left_alone():
    made = problem(NETS["mlp"])
    round, *begun = an_arm(made, cohort=5)
    torch.manual_seed(3)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    plan = planned(round, *begun)
    first = batched.work_all(round, plan)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    torch.manual_seed(4)
    again = batched.work_all(round, plan)
    assert all(np.array_equal(a.change, b.change) for a, b in zip(first, again, strict=True))


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_workers(tmp_path):
    """The same records, the same evaluation, and the same states, to the bit."""
    made, seen = problem(NETS["mlp"]), []
    for workers in (1, 2, 4):
        folder = tmp_path / str(workers)
        study = tune(made, schedule=halving(30, 12, 2, 2), fedex=FedEx(k=4), cohort=4, workers=workers, store=folder)
        assert study.setup.engine == "batched"
        states = {f.name: f.read_bytes() for f in folder.rglob("*.safetensors")}
        assert states
        seen.append((study.history, study.evaluate("test"), states))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.slow
def test_a_study_continues_with_the_engine_that_it_began_with(tmp_path):
    def study(engine):
        return tune(problem(NETS["mlp"]), schedule=halving(30, 12, 2, 2), cohort=4, workers=1, engine=engine,
                    store=tmp_path)  # fmt: skip

    assert study("auto").setup.engine == "batched"
    study("batched")
    with pytest.raises(StoreError, match="engine: 'batched' in the store, 'sequential' now"):
        study("sequential")


@pytest.mark.parametrize(
    ("build", "more", "covered"),
    [
        (NETS["mlp"], {}, True),
        (NETS["deep"], {}, True),
        (partial(nn.Linear, 4, 3), {}, False),  # not a Sequential
        (lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), {}, False),
        (lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Flatten()), {}, False),
        (NETS["mlp"], {"loss": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1)}, False),
        (NETS["mlp"], {"error": lambda out, y: (out.argmax(1) != y).float()}, False),
    ],
)  # fmt: skip
def test_what_it_does_not_cover_is_done_sequentially(build, more, covered):
    task = Task(build, **more)
    assert batched.covers(task) is covered
    assert task.engine("batched") is task.engine("auto") is (batched.engine if covered else sequential)
    assert task.engine("sequential") is sequential


def test_large_models_are_batched_only_on_demand():
    task = Task(partial(models.mlp, 784, 200, 10))
    assert task.size > batched.SMALL
    assert task.engine("auto") is sequential
    assert task.engine("batched") is batched.engine


def test_an_unknown_engine_is_refused():
    with pytest.raises(SpecError, match=r"engine = 'batch'.*did you mean 'batched'"):
        tune(problem(NETS["mlp"]), cohort=4, engine="batch")


def test_only_the_sequential_engine_lets_a_round_be_spread_over_processes():
    """What the batched engine gives depends, to the bit, on which clients are computed together."""
    assert sequential.divisible
    assert not batched.engine.divisible
    assert (sequential.name, batched.engine.name) == ("sequential", "batched")


def test_errors_name_the_client():
    made = problem(NETS["mlp"])
    round, *begun = an_arm(made)
    plan = planned(round, *begun)
    bad = plan.jobs[4].client
    real = methods.fedavg.local

    def local(client, plan, job):
        if job.client == bad:
            raise RuntimeError("no such layer")
        return real(client, plan, job)

    failing = replace(round, setup=replace(round.setup, method=replace(methods.fedavg, local=local)))
    with pytest.raises(ClientError, match=rf"client {bad}, configuration .*no such layer"):
        batched.work_all(failing, plan)


def test_several_tries_are_done_as_one_by_one():
    """With full information, too, both engines agree up to rounding on every value that theta hears of."""
    round, *begun = an_arm(problem(NETS["mlp"]), cohort=6, tries="all")
    plan = planned(round, *begun)
    for one, other in zip(sequential.work_all(round, plan), batched.work_all(round, plan), strict=True):
        assert [t.label for t in one.tried] == [t.label for t in other.tried]
        assert len(one.tried) == 3
        for a, b in zip(one.tried, other.tried, strict=True):
            assert a.after.loss == pytest.approx(b.after.loss, rel=1e-4)
            assert a.before.loss == pytest.approx(b.before.loss, rel=1e-4)


class Doubled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    net = nn.Sequential(nn.Linear(4, 3))
    net[0].register_forward_hook(lambda module, given, output: output + 1)
    return net


def tied():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    return net


def twice():
    layer, drop = nn.Linear(4, 4), nn.Dropout(0.1)
    return nn.Sequential(layer, drop, layer, drop)


@pytest.mark.parametrize(
    "build",
    [lambda: Doubled(nn.Linear(4, 3)), hooked, tied, twice, lambda: nn.Sequential(nn.Linear(4, 4), nn.Flatten())],
    ids=["own forward", "hook", "tied weights", "a layer twice", "flattened later"],
)
def test_networks_that_are_more_than_their_layers_are_left_to_the_sequential_engine(build):
    assert not batched.covers(Task(build))


def test_dropout_of_everything_and_large_splits(monkeypatch):
    """A rate of 1 draws nothing, so that the next layer's draws are the same; evaluations go chunk by chunk."""
    monkeypatch.setattr(batched, "CHUNK", 5)
    compare(problem(deep), methods.fedavg, rows=[{"dropout": 1.0}, {"dropout": 0.4}])
