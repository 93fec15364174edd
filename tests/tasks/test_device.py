"""Models on another device: the plumbing, as far as a machine without one can tell.

``meta`` shows where tensors land. Telling a task on the CPU that it is not there makes it copy weights to and from its
device, as on a GPU, and compute the same.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("greenlet")
from torch import nn  # noqa: E402

from fedtuner import Client, FedEx, Simulation, cli, halving, methods, tune  # noqa: E402
from fedtuner.core.engine import sequential  # noqa: E402
from fedtuner.core.model import Rates  # noqa: E402
from fedtuner.errors import SpecError, StoreError, TaskError  # noqa: E402
from fedtuner.problems import models  # noqa: E402
from fedtuner.pytorch import Task  # noqa: E402
from fedtuner.run import spec  # noqa: E402
from fedtuner.tasks import batched  # noqa: E402
from fedtuner.testing import TaskLaws  # noqa: E402
from fedtuner.testing.toys import quadratics  # noqa: E402


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.1), nn.Linear(6, 3))


def arrays(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def problem(build, device="cpu"):
    clients = [Client(i, arrays(12 + i, 3 * i), arrays(5, 3 * i + 1), arrays(5, 3 * i + 2)) for i in range(5)]
    return Simulation(Task(build, device=device), clients)


@pytest.fixture
def away(monkeypatch):
    """Tasks that believe to be on another device than the CPU."""

    def go():
        monkeypatch.setattr(Task, "_on_cpu", property(lambda self: False))

    return go


class TestTaskLawsOnAnotherDevice(TaskLaws):
    """The laws hold where weights travel to the device and back."""

    @pytest.fixture(autouse=True)
    def _on_its_way(self, away):
        away()

    def task(self):
        return Task(lambda: models.mlp(4, 6, 3, 0.0))

    def split(self):
        return arrays(10, 0)


@pytest.mark.slow
@pytest.mark.parametrize("build", [net, lambda: models.mlp(4, 6, 3, 0.2)], ids=["sequential", "batched"])
@pytest.mark.parametrize("method", [methods.fedavg, methods.scaffold, methods.maml], ids=lambda m: m.name)
def test_weights_that_travel_to_the_device_and_back_are_the_same(build, method, away):
    def study():
        return tune(problem(build), method=method, schedule=halving(12, 6, 2, 1), fedex=FedEx(k=3), cohort=3, workers=1)

    here = study()
    tested = here.evaluate("test")
    away()
    there = study()
    assert here.setup.engine == there.setup.engine
    assert np.array_equal(here.best.model, there.best.model)
    assert here.history == there.history
    assert tested == there.evaluate("test")


def test_plain_training_moves_the_weights_once_not_at_every_step(away, monkeypatch):
    task = Task(net)
    away()
    moves = []
    real = Task._bind
    monkeypatch.setattr(Task, "_bind", lambda self, w: moves.append(1) or real(self, w))
    data, w = task.prepare(arrays(20, 0)), task.initial(0)
    with task.training(data, {}, 0) as trainer:
        trainer.descend(w, [np.arange(5)] * 30, Rates(0.1, 0.9))
    assert len(moves) == 1
    assert np.isfinite(w).all()


@pytest.mark.slow
def test_everything_of_a_task_lands_on_its_device():
    task = Task(lambda: models.mlp(4, 6, 3)).on("meta")
    data = task.prepare(arrays(8, 0))
    assert {data.x.device.type, data.y.device.type} == {"meta"}
    assert {t.device.type for t in task._module.parameters()} == {"meta"}
    assert task._bound_loss(data, np.arange(4)).device.type == "meta"
    leaves = batched._leaves(task, torch.empty(2, task.size, device="meta"))
    x, y = torch.empty(2, 4, 4, device="meta"), torch.empty(2, 4, dtype=torch.long, device="meta")
    found = batched._backward(leaves, batched._forward(task, leaves, x), y, torch.empty(2, 4, device="meta"))
    assert (found.device.type, found.shape) == ("meta", (2, task.size))


def test_another_device_is_batched_by_default_however_large_the_network():
    def build():
        return nn.Sequential(nn.Linear(4, batched.SMALL), nn.ReLU(), nn.Linear(batched.SMALL, 2))

    assert Task(build).engine("auto") is sequential
    assert Task(build, device="meta").engine("auto") is batched.engine
    assert Task(net, device="meta").engine("auto") is sequential  # batch-norm is not covered


def test_a_problem_moves_with_its_clients():
    made = problem(net)
    moved = made.on("meta")
    assert (str(made.model.device), str(moved.model.device)) == ("cpu", "meta")
    assert moved.clients == made.clients
    with pytest.raises(SpecError, match="runs only where it is"):
        quadratics(clients=3).on("cuda")


def test_one_process_uses_a_device():
    with pytest.raises(SpecError, match="workers = 2, but work on meta is done by one process"):
        tune(problem(net, "meta"), cohort=3, workers=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there_is_a_clear_error(capsys, tmp_path):
    with pytest.raises(TaskError, match="device = 'cuda' is not to be had here"):
        problem(net).on("cuda")
    assert cli.main(["run", "digits", "--device", "cuda", "--store", str(tmp_path / "s")]) == 2
    assert "device = 'cuda' is not to be had here" in capsys.readouterr().err


def test_the_device_is_part_of_the_study(tmp_path):
    assert spec.parse({"problem": "digits"}).device == "cpu"
    with pytest.raises(SpecError, match="device = 3, but must be a string"):
        spec.parse({"problem": "digits", "device": 3})
    study = tune(problem(net), schedule=halving(12, 6, 2, 1), cohort=3, workers=1, store=tmp_path)
    assert "device" not in study.describe()["problem"]
    study.problem = study.problem.on("meta")
    assert study.describe()["problem"]["device"] == "meta"
    with pytest.raises(StoreError, match=r"problem\.device: None in the store, 'meta' now"):
        study.run()
