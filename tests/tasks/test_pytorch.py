"""The PyTorch task: equal to torch's own training step by step, and every sampled value arrives."""

import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from arms import begun, plan_for, planned, report_of  # noqa: E402
from torch import nn  # noqa: E402

from fedtuner import Client, Simulation, Space, methods, random_search, tune  # noqa: E402
from fedtuner.core.method import Local, defaults  # noqa: E402
from fedtuner.core.model import Metric, Rates, named  # noqa: E402
from fedtuner.errors import ClientError, SpecError, TaskError  # noqa: E402
from fedtuner.methods.local import descend  # noqa: E402
from fedtuner.pytorch import Task  # noqa: E402
from fedtuner.rng import number, stream  # noqa: E402
from fedtuner.testing import TaskLaws  # noqa: E402
from fedtuner.testing.rounds import advance  # noqa: E402


def net(dropout=0.0):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))


def normed():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def arrays(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 1)


def clients(count=6, n=20):
    return [Client(i, arrays(n, 3 * i), arrays(6, 3 * i + 1), arrays(6, 3 * i + 2)) for i in range(count)]


def problem(build=net, **more):
    return Simulation(Task(build, **more), clients())


class TestTaskLaws(TaskLaws):
    def task(self):
        return Task(net)

    def split(self):
        return arrays(10)


class TestTaskLawsOfRegression(TestTaskLaws):
    def task(self):
        return Task(
            lambda: nn.Linear(4, 1), lambda out, y: F.mse_loss(out[:, 0], y), lambda out, y: (out[:, 0] - y) ** 2
        )

    def split(self):
        return arrays(10)[0], arrays(10)[0][:, 0]


class TestTaskLawsOfConvolutions(TestTaskLaws):
    def task(self):
        return Task(
            lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(4, 3))
        )


class TestTaskLawsOfRecurrence(TestTaskLaws):
    def task(self):
        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.cells, self.head = nn.LSTM(1, 5), nn.Linear(5, 3)

            def forward(self, x):
                return self.head(self.cells(x.T[:, :, None])[0][-1])

        return Task(Recurrent)


class TestTaskLawsOfEmbeddings(TestTaskLaws):
    """Inputs that are whole numbers."""

    def task(self):
        return Task(lambda: nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 3)))

    def split(self):
        return np.random.default_rng(0).integers(5, size=(10, 4)), arrays(10)[1]


def one_client(build=net, n=20, c=None, **more):
    """Return what local training gives, and the pieces to do the same by hand."""
    made = Simulation(Task(build, **more), [Client("a", arrays(n), arrays(6, 1))])
    plan = plan_for(made, c)
    return made, plan, plan.w + report_of(made, plan).change


def by_hand(made, plan, optimiser, penalty=None):
    """Train with torch.optim on the same batches, with the same dropout draws."""
    (job,) = plan.jobs
    module = made.task.module(plan.w).train()
    for layer in module.modules():
        if isinstance(layer, nn.Dropout) and "dropout" in job.config:
            layer.p = job.config["dropout"]
    name = ("work", "valid", 0, 0, "a")
    rng = stream(0, *name)
    x, y = (torch.from_numpy(part) for part in made.clients[0].train)
    step = optimiser(module.parameters())
    start = [p.detach().clone() for p in module.parameters()]
    with torch.random.fork_rng():
        torch.manual_seed(number(0, *name))
        for _ in range(job.config["epochs"]):
            order = torch.from_numpy(rng.permutation(len(x)))
            for rows in order.split(job.config["batch"]):
                step.zero_grad()
                loss = F.cross_entropy(module(x[rows]), y[rows])
                if penalty:
                    loss = loss + penalty / 2 * sum(
                        ((p - s) ** 2).sum() for p, s in zip(module.parameters(), start, strict=True)
                    )
                loss.backward()
                step.step()
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize(
    "c",
    [
        {"lr": 0.3, "epochs": 3, "batch": 8},
        {"lr": 0.3, "epochs": 3, "batch": 8, "momentum": 0.9},
        {"lr": 0.3, "epochs": 2, "batch": 7, "momentum": 0.5, "weight_decay": 0.05},
        {"lr": 0.1, "epochs": 4, "batch": 64, "weight_decay": 0.1, "dropout": 0.4},
        {"lr": 0.2, "epochs": 2, "batch": 5, "momentum": 0.8, "weight_decay": 0.01, "dropout": 0.25},
    ],
)
def test_local_training_is_torch_sgd_step_by_step(c):
    made, plan, w = one_client(c=c)
    expected = by_hand(
        made,
        plan,
        lambda p: torch.optim.SGD(p, c["lr"], c.get("momentum", 0.0), weight_decay=c.get("weight_decay", 0.0)),
    )
    np.testing.assert_allclose(w, expected, rtol=1e-4, atol=1e-6)
    assert np.abs(w - plan.w).max() > 0.01


def test_local_adam_is_torch_adam_step_by_step():
    c = {"lr": 0.02, "epochs": 3, "batch": 8, "momentum": 0.9, "weight_decay": 0.01, "optimiser": "adam"}
    made, plan, w = one_client(c=c)
    expected = by_hand(made, plan, lambda p: torch.optim.Adam(p, 0.02, (0.9, 0.999), weight_decay=0.01))
    np.testing.assert_allclose(w, expected, rtol=1e-3, atol=1e-5)


def test_the_proximal_term_is_that_of_the_loss():
    made, plan, _ = one_client(c={"lr": 0.2, "epochs": 3, "batch": 8, "mu": 0.7})
    w = plan.w + report_of(made, plan, methods.fedprox).change
    expected = by_hand(made, plan, lambda p: torch.optim.SGD(p, 0.2), penalty=0.7)
    np.testing.assert_allclose(w, expected, rtol=1e-4, atol=1e-6)


# Every sampled value arrives: a spy, not an assumption.


class Spy(nn.Module):
    """A network that notes what it is given while it trains."""

    seen: list  # type: ignore[type-arg]

    def __init__(self):
        super().__init__()
        self.net = net(0.9)

    def forward(self, x):
        if self.training:
            rates = {layer.p for layer in self.modules() if isinstance(layer, nn.Dropout)}
            Spy.seen.append((len(x), rates))
        return self.net(x)


def test_batches_epochs_and_dropout_of_the_drawn_candidate_reach_the_model():
    Spy.seen = []
    made = Simulation(Task(Spy), clients())
    candidates = [{"epochs": e, "batch": b, "dropout": d} for e, b, d in ((1, 8, 0.1), (3, 7, 0.2), (2, 64, 0.0))]
    round, arm, state = begun(made, candidates)
    plans = [planned(round, arm, state), planned(round, arm, replace(state, round=1))]
    work = [(plan, job) for plan in plans for job in plan.jobs]
    assert len({job.choices[0].label for _, job in work}) == 3
    for plan, job in work:
        Spy.seen.clear()
        round.work(plan, job)
        c = candidates[job.choices[0].label]
        sizes = [min(c["batch"], 20 - start) for start in range(0, 20, c["batch"])] * c["epochs"]
        assert [size for size, _ in Spy.seen] == sizes
        assert all(rates == {c["dropout"]} for _, rates in Spy.seen)


def test_each_epoch_sees_every_example_once_in_a_new_order(monkeypatch):
    made, plan, _ = one_client(c={"epochs": 3, "batch": 8})
    seen = []
    real = Task._bound_loss
    monkeypatch.setattr(Task, "_bound_loss", lambda self, data, rows: seen.append(rows) or real(self, data, rows))
    report_of(made, plan)
    order = np.concatenate(seen).reshape(3, 20)
    assert all(sorted(epoch) == list(range(20)) for epoch in order.tolist())
    assert len({tuple(epoch) for epoch in order.tolist()}) == 3


def test_the_optimisers_values_reach_the_step():
    """One full-batch step from w: w - lr (g + weight_decay w); the second adds momentum times the first."""
    made, plan, w = one_client(c={"lr": 0.5, "weight_decay": 0.3, "momentum": 0.25, "batch": 64, "epochs": 2})
    data = made.data(0, "train")
    with made.task.training(data, plan.jobs[0].config, 0) as trainer:
        g = trainer.gradient(plan.w.copy(), np.arange(20)).copy()
        first = g + 0.3 * plan.w
        middle = plan.w - 0.5 * first
        second = 0.25 * first + trainer.gradient(middle.copy(), np.arange(20)) + 0.3 * middle
    np.testing.assert_allclose(w, middle - 0.5 * second, rtol=1e-4, atol=1e-6)


def test_dropout_is_set_on_every_kind_of_layer_and_put_back():
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Dropout(0.1), nn.Dropout1d(0.2), nn.AlphaDropout(0.3)
            self.rnn, self.single = nn.GRU(4, 4, num_layers=2, dropout=0.4), nn.GRU(4, 4)
            self.attention, self.head = nn.MultiheadAttention(4, 2, dropout=0.5), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(x)

    task = Task(Many)
    layers = task._module
    rates = lambda: [layers.a.p, layers.b.p, layers.c.p, layers.rnn.dropout, layers.attention.dropout]  # noqa: E731
    data = task.prepare(arrays(4))
    with task.training(data, {"dropout": 0.25}, 0):
        assert rates() == [0.25] * 5
        assert layers.single.dropout == 0
    with task.training(data, {}, 0):
        assert rates() == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_model_without_dropout_does_not_offer_it():
    assert "dropout" in Task(net).hyperparameters
    assert Task(normed).hyperparameters == {}
    with pytest.raises(SpecError, match="no dropout layer"):
        tune(problem(normed), Space({"dropout": 0.5}), schedule=random_search(1, 1), cohort=2, workers=1)


# Buffers, frozen and shared parameters


class TestMethodsOnBatchNorm:
    def test_running_statistics_are_averaged_not_stepped(self):
        """The server's momentum and learning rate do not touch them, and they stay between the clients' own."""
        made = problem(normed)
        round, arm, state = begun(made, [{"batch": 8}], server={"lr": 5.0, "momentum": 0.9})
        assert made.task.size == made.task.trainable + 16
        plan = planned(round, arm, state)
        tails = np.array([(plan.w + round.work(plan, job).change)[made.task.trainable :] for job in plan.jobs])
        following = advance(round, arm, 1, state)
        tail = following.w[made.task.trainable :]
        np.testing.assert_allclose(tail, tails.mean(axis=0), rtol=1e-5, atol=1e-6)
        assert np.ptp(tails, axis=0).max() > 0
        assert (advance(round, arm, 10, state).w[made.task.trainable + 8 :] > 0).all()  # variances

    def test_they_are_used_in_evaluation(self):
        made = problem(normed)
        w = made.task.initial(0)
        before = made.task.evaluate(w, made.data(0, "valid"), {})
        w[made.task.trainable :] += 1.0
        assert made.task.evaluate(w, made.data(0, "valid"), {}) != before

    def test_weight_decay_leaves_them_alone(self):
        made, plan, w = one_client(normed, n=8, c={"lr": 0.0, "weight_decay": 0.5, "batch": 8})
        module = made.task.module(plan.w).train()
        module(torch.from_numpy(made.clients[0].train[0]))
        expected = torch.cat([module[1].running_mean, module[1].running_var]).numpy()
        np.testing.assert_allclose(w[made.task.trainable :], expected, rtol=1e-4, atol=1e-6)

    def test_a_last_batch_of_one_example_is_skipped(self):
        _, plan, w = one_client(normed, n=9, c={"batch": 8})
        assert np.isfinite(w).all()
        assert not np.array_equal(w, plan.w)
        _, plan, w = one_client(normed, n=1, c={"batch": 8})
        assert np.array_equal(w, plan.w)


def test_convolutions_are_stored_channels_last_and_come_out_as_they_were(tmp_path):
    """The module that w makes, and the exported tensors, are those that were built."""

    def images():
        return nn.Sequential(nn.Conv2d(3, 5, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(45, 4))

    task = Task(images)
    w = task.initial(3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        built = images()
    made = task.module(w)
    for name, tensor in built.state_dict().items():
        assert torch.equal(made.state_dict()[name], tensor)
        assert np.array_equal(named(w, task.layout())[name], tensor.numpy())
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((6, 3, 8, 8)).astype(np.float32))
    y = torch.arange(6) % 4
    data = task.prepare((x, y))
    assert data.x.is_contiguous(memory_format=torch.channels_last)
    rows = np.array([4, 1, 2])
    with task.training(data, {}, 0) as trainer:
        gradient = trainer.gradient(w.copy(), rows)
    F.cross_entropy(built(x[rows]), y[rows]).backward()
    for name, part in named(gradient, task.layout()).items():
        np.testing.assert_allclose(part, dict(built.named_parameters())[name].grad.numpy(), rtol=1e-4, atol=1e-6)


def test_frozen_parameters_stay():
    def frozen():
        made = net()
        made[0].weight.requires_grad_(False)
        return made

    made = problem(frozen)
    round, arm, start = begun(made, cohort=4)
    state = advance(round, arm, 3, start)
    n = made.task.trainable
    assert made.task.size - n == 32
    assert np.array_equal(state.w[n:], start.w[n:])
    assert not np.array_equal(state.w[:n], start.w[:n])


def test_shared_parameters_are_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Linear(4, 4)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(torch.tanh(self.a(x)))

    task = Task(Tied)
    assert task.size == 16 + 4 + 4
    w = task.initial(0)
    made = task.module(w)
    assert made.a.weight is made.b.weight


def test_counters_start_afresh_for_every_client():
    """num_batches_tracked drives a cumulative batch-norm: a client's work must not depend on who was there before."""

    def cumulative():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3))

    made = problem(cumulative)
    one, other = (plan_for(made, {"batch": 8}, client) for client in (2, 1))
    once = report_of(made, one).change
    report_of(made, other)
    assert np.array_equal(report_of(made, one).change, once)


def test_work_leaves_torchs_generator_and_threads_alone():
    made = problem()
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    report_of(made, plan_for(made, {"dropout": 0.5}))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


AFTER_THREADS = """
import numpy as np, torch
import fedtuner as ft

torch.set_num_threads(2)
torch.randn(2000, 2000) @ torch.randn(2000, 2000)  # OpenMP's threads are up
torch.randn(4_000_000).permute(0).clone().sum()
build = lambda: torch.nn.Sequential(torch.nn.Conv2d(64, 128, 5), torch.nn.Flatten(), torch.nn.Linear(128, 3))
x = np.random.default_rng(0).standard_normal((8, 64, 5, 5)).astype(np.float32)
clients = [ft.Client(i, (x, np.arange(8) % 3), (x, np.arange(8) % 3)) for i in range(4)]
study = ft.tune(ft.Simulation(ft.pytorch.Task(build), clients), fedex=None, schedule=ft.random_search(4, 1), cohort=2,
                workers=2)
print(study.rounds_used)
"""


@pytest.mark.slow
def test_a_process_that_has_used_threads_can_fork_workers():
    """GNU's OpenMP hangs in a fork that uses several threads again."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER_THREADS], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout == "4\n"


def test_the_user_gets_a_module_back():
    made = problem()
    w = made.task.initial(4)
    module = made.task.module(w)
    assert not module.training
    x, y = (torch.from_numpy(part) for part in made.clients[0].valid)
    error = float((module(x).argmax(1) != y).double().mean())
    assert error == made.task.evaluate(w, made.data(0, "valid"), {}).error


def test_a_task_survives_pickling():
    """Spawned workers get the problem this way."""
    made = Simulation(Task(net), clients())
    copy = pickle.loads(pickle.dumps(made))
    plan = plan_for(made)
    assert np.array_equal(report_of(made, plan).change, report_of(copy, plan).change)


# Data in its many forms, and what does not fit


def test_splits_may_be_arrays_tensors_or_sequences():
    x, y = arrays(5)
    task = Task(net)
    w = task.initial(0)
    forms = [
        (x, y),
        [x, y],
        (x.astype(np.float64), y.astype(np.int32)),
        (torch.from_numpy(x), torch.from_numpy(y)),
        torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
        list(zip(x, y, strict=True)),
    ]
    metrics = {task.evaluate(w, task.prepare(form), {}) for form in forms}
    assert len(metrics) == 1
    assert len(task.prepare(None)) == len(task.prepare([])) == 0


def test_regression_and_multilabel_bring_their_own_error():
    x, _ = arrays(12)
    task = Task(
        lambda: nn.Linear(4, 2), F.binary_cross_entropy_with_logits, lambda out, y: ((out > 0) != (y > 0.5)).float()
    )
    metrics = task.evaluate(task.initial(0), task.prepare((x, (x[:, :2] > 0).astype(np.float32))), {})
    assert 0 <= metrics.error <= 1
    assert task.metric == Metric(worst=np.inf)
    assert Task(net).metric == Metric(worst=1.0)


@pytest.mark.parametrize(
    ("build", "more", "split", "words"),
    [
        (lambda: nn.Linear(5, 3), {}, arrays(6), ["inputs of shape (6, 4)"]),
        (lambda: nn.Linear(4, 3), {"loss": F.mse_loss}, arrays(6), ["(6, 3)", "(6,)"]),
        (lambda: nn.Linear(4, 6), {"loss": F.mse_loss}, arrays(6), ["(6, 6)", "(6,)"]),  # this torch broadcasts
        (lambda: nn.Linear(4, 2), {}, (arrays(6)[0], np.full(6, 2)), ["(6, 2)", "loss"]),
        (lambda: nn.Linear(4, 1), {"loss": lambda o, y: (o[:, 0] - y).abs().mean(), "error": "argmax"},
         (arrays(6)[0], arrays(6)[0][:, 0]), ["error=", "(6, 1)"]),
        (net, {"loss": lambda o, y: F.cross_entropy(o, y, reduction="none")}, arrays(6), ["one number", "(6,)"]),
        (net, {}, (np.full((6, 4), np.nan, np.float32), arrays(6)[1]), ["client 'a'", "train", "NaN"]),
        (net, {}, (arrays(6)[0], arrays(5)[1]), ["client 'a'", "6 examples", "5"]),
        (net, {}, 7, ["client 'a'", "pair (x, y)"]),
        (net, {}, (np.array(["a"] * 6), arrays(6)[1]), ["client 'a'", "not an array of numbers"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_with_its_shapes(build, more, split, words):
    with pytest.raises(TaskError) as caught:
        Simulation(Task(build, **more), [Client("a", split, split)]).check()
    for word in words:
        assert word in str(caught.value)


def test_models_that_cannot_be_used():
    with pytest.raises(TaskError, match=r"must return a torch\.nn\.Module"):
        Task(lambda: 3)
    with pytest.raises(TaskError, match="no parameters"):
        Task(nn.ReLU)
    sizes = iter([2, 2, 3])
    task = Task(lambda: nn.Linear(4, next(sizes)))
    with pytest.raises(TaskError, match="same one"):
        task.initial(0)


def test_an_error_in_the_users_code_names_arm_round_client_and_configuration():
    class Moody(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x):
            if self.training and len(x) == 3:
                raise ZeroDivisionError("moody")
            return self.inner(x)

    made = Simulation(Task(Moody), [Client("calm", arrays(8), arrays(4)), Client("moody", arrays(3), arrays(4))])
    with pytest.raises(ClientError, match=r"arm 0, round 1, client 'moody', configuration .*lr.*moody"):
        tune(made, fedex=None, schedule=random_search(1, 1), cohort=2, workers=1)


def test_devices_other_than_the_cpu_are_told_to_torch():
    """The plumbing, as far as a machine without another device can tell: everything lands on the named device."""
    task = Task(net, device="meta")
    assert task._module[0].weight.device.type == "meta"
    assert task.prepare(arrays(4)).x.device.type == "meta"


def test_descend_visits_every_iterate():
    made, plan, _ = one_client(c={"epochs": 2, "batch": 8})
    (job,) = plan.jobs
    seen = []
    data = made.data(0, "train")
    name = ("work", "valid", 0, 0, "a")
    with made.task.training(data, job.config, number(0, *name)) as trainer:
        local = Local(trainer, data, data, made.task.trainable, 1, stream(0, *name))
        end = descend(local, plan.w, job.config, visit=lambda at: seen.append(at.copy()))
    assert len(seen) == 6
    assert np.array_equal(seen[-1], end)
    assert np.array_equal(end - plan.w, report_of(made, plan).change)


def test_mamls_second_order_gradient_agrees_with_finite_differences():
    """d/dw L_V(w - lr grad L_T(w)), along random directions, with dropout held fixed by its key."""
    made = Simulation(Task(lambda: net(0.3)), [Client("a", arrays(20), arrays(15, 1))])
    c = defaults(methods.maml.client) | {"lr": 0.5, "steps": 3, "weight_decay": 0.05}
    base = made.task.initial(2)

    def report(w, **changed):
        return report_of(made, plan_for(made, c | changed, method=methods.maml, w=w), methods.maml)

    def adapted_loss(w):
        w = w.astype(np.float32)
        adapted = w + report(w).change
        data = made.data(0, "valid")
        with made.task.training(made.data(0, "train"), c, number(0, "work", "valid", 0, 0, "a")):
            torch.manual_seed(number(number(0, "work", "valid", 0, 0, "a"), "draw", 3))
            with torch.no_grad():
                return float(made.task._batch_loss(adapted, data, np.arange(15)))

    meta, first = report(base).extra["meta"], report(base, first_order=True).extra["meta"]
    rng = np.random.default_rng(0)
    exact, rough = [], []
    for _ in range(4):
        d = rng.standard_normal(meta.size).astype(np.float32)
        d /= np.linalg.norm(d)
        slope = (adapted_loss(base + 0.01 * d) - adapted_loss(base - 0.01 * d)) / 0.02
        exact.append(abs(meta @ d - slope))
        rough.append(abs(first @ d - slope))
    assert max(exact) < 2e-3
    assert max(rough) > 3 * max(exact)


class Odd(nn.Module):
    """Parameters whose gradients come with gaps or without any memory of their own, and one that has none at all."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.linspace(-1, 1, 6)), nn.Parameter(torch.linspace(1, 2, 6))
        self.shift, self.unused = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(5))

    def forward(self, x):
        pairs = torch.stack([self.a, self.b], 1).reshape(4, 3)
        return x @ pairs + self.shift.sum()


def test_training_in_one_go_is_training_step_by_step():
    """Whatever gradients look like in memory: the fused step reads it as it lies."""
    task = Task(Odd, loss=lambda o, y: F.mse_loss(o, F.one_hot(y, 3).float()), error=lambda o, y: o.argmax(1) != y)
    rng = np.random.default_rng(0)
    data = task.prepare((rng.standard_normal((20, 4)).astype(np.float32), rng.integers(0, 3, 20)))
    batches = [rng.permutation(20)[:7] for _ in range(5)]
    whole, steps = task.initial(0), task.initial(0)
    velocity, rates = np.zeros(task.trainable, np.float32), Rates(0.1, 0.9, 0.01)
    with task.training(data, {}, 0) as trainer:
        trainer.descend(whole, batches, rates)
        for rows in batches:
            trainer.sgd(steps[: task.trainable], trainer.gradient(steps, rows), velocity, rates)
    np.testing.assert_allclose(whole, steps, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(whole, task.initial(0))


def test_a_model_that_replaces_its_buffers_is_refused():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            if self.training:
                self.seen = 0.9 * self.seen + 0.1 * x.mean(0)
            return self.layer(x - self.seen)

    task = Task(Average)
    data = task.prepare((np.ones((4, 4), np.float32), np.zeros(4, np.int64)))
    with pytest.raises(TaskError, match="change them in place"), task.training(data, {}, 0) as trainer:
        trainer.gradient(task.initial(0), np.arange(4))


def test_a_model_that_overwrites_its_inputs_is_refused():
    task = Task(lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)))
    with pytest.raises(TaskError, match="has changed its inputs"):
        task.evaluate(task.initial(0), task.prepare((-np.ones((4, 4), np.float32), np.zeros(4, np.int64))), {})


# What is easily mistaken


@pytest.mark.parametrize("name", ["loss", "error"])
def test_a_class_in_place_of_a_loss_is_told_to_be_one(name):
    said = rf"^{name} = CrossEntropyLoss is a class: give an object of it, CrossEntropyLoss\(\), or a function"
    with pytest.raises(TaskError, match=said):
        Task(net, **{name: nn.CrossEntropyLoss})
    assert Task(net, nn.CrossEntropyLoss()).metric.rate


@pytest.mark.parametrize("kind", ["int64", "uint8", "bool"])
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_whole_inputs_of_a_real_model_are_told_what_to_become(kind, engine):
    pairs = [(x.astype(kind), y) for x, y in (arrays(8), arrays(8), arrays(8))]
    problem = Simulation(Task(net), [Client(0, *pairs)])
    with pytest.raises(TaskError, match=rf"x is of whole numbers \({kind}\), .*: give x.astype\('float32'\)$"):
        tune(problem, Space(), schedule=random_search(1, 1), engine=engine, workers=1)


def test_whole_inputs_that_a_model_cannot_take_as_real_ones_either_get_no_such_hint():
    x, y = arrays(8)
    embedded = lambda: nn.Sequential(nn.Embedding(2, 3), nn.Flatten(), nn.Linear(12, 3))  # noqa: E731
    for build in (embedded, lambda: nn.Linear(5, 3)):
        pairs = [((9 + x).astype(np.int64), y)] * 3
        with pytest.raises(TaskError, match="the model cannot take inputs of shape") as error:
            tune(Simulation(Task(build), [Client(0, *pairs)]), Space(), schedule=random_search(1, 1), workers=1)
        assert "float32" not in str(error.value)
