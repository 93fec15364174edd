"""An app that keeps its own training code: every drawn value reaches it, and what it says is collected."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from memory_grid import MemoryGrid

import fedtuner as ft
import toys
from fedtuner.core.method import Optimiser
from fedtuner.core.schedule import outline
from fedtuner.errors import FleetError, SpecError
from fedtuner.methods import fedavg
from fedtuner.methods.momentum import sgd

CLIENTS = toys.clients(6)
FIRST = [np.zeros((3, 3)), np.zeros(3)]  # weight and bias of a softmax regression
SPACE = ft.Space(
    client={
        "lr": ft.Float(1e-2, 1.0, log=True),
        "steps": ft.Int(1, 5),
        "flavour": ft.Choice(["sweet", "sour"]),
        "nesterov": ft.Choice([True, False]),
        "batch-size": 16,
    },
    server={"lr": ft.Float(0.5, 1.5), "momentum": ft.Float(0.1, 0.9)},
)
SCHEDULE = ft.halving(budget=14, longest=5, eta=2, eliminations=2)
Seen = list[tuple[str, int, dict[str, Any]]]


def probabilities(arrays: Any, x: Any) -> Any:
    z = x @ arrays[0] + arrays[1]
    z = np.exp(z - z.max(1, keepdims=True))
    return z / z.sum(1, keepdims=True)


def plain_app(seen: Seen, split: bool = False) -> ClientApp:
    """A Flower app as its users write it: nothing of fedtuner's in it."""
    app = ClientApp()

    def client(context: Context) -> ft.Client:
        return CLIENTS[int(context.node_config["partition-id"])]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays, config = message.content["arrays"].to_numpy_ndarrays(), message.content["config"]
        seen.append(("train", context.node_config["partition-id"], dict(config)))
        x, y = client(context).train
        for _ in range(config["steps"]):
            gap = (probabilities(arrays, x) - np.eye(3)[y]) / len(y)
            arrays = [arrays[0] - config["lr"] * x.T @ gap, arrays[1] - config["lr"] * gap.sum(0)]
        metrics = MetricRecord({"train_loss": 0.0, "num-examples": len(y)})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        arrays, config = message.content["arrays"].to_numpy_ndarrays(), message.content["config"]
        seen.append(("evaluate", context.node_config["partition-id"], dict(config)))
        x, y = getattr(client(context), config["split"] if split else "valid")
        p = probabilities(arrays, x)
        found = {
            "eval_loss": float(-np.log(p[np.arange(len(y)), y]).mean()),
            "eval_acc": float((p.argmax(1) == y).mean()),
        }
        return Message(RecordDict({"metrics": MetricRecord({**found, "num-examples": len(y)})}), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({"answer": ConfigRecord({"yes": True})}), reply_to=message)

    return app


def grid_of(app: ClientApp, clients: int = 6) -> MemoryGrid:
    grid = MemoryGrid()
    for i in range(clients):
        grid.add(app, partition=i)
    return grid


def tune(grid: MemoryGrid, model: Any = FIRST, **changed: Any) -> ft.Study:
    problem = ft.flower.Fleet(grid, model, least=6, deadline=20.0, clock=grid.clock)
    usual = {"problem": problem, "space": SPACE, "method": fedavg, "schedule": SCHEDULE, "fedex": ft.FedEx(k=4, eps=1)}
    return toys.tune(**(usual | changed))


def test_every_drawn_value_reaches_the_apps_own_code():
    seen: Seen = []
    grid = grid_of(ft.flower.tuned(plain_app(seen)))
    study = tune(grid)
    asked = []
    for message in grid.work_sent():
        about = message.content.config_records["fedtuner"]
        ((label, sent),) = json.loads(message.content.config_records["job"]["choices"])
        drawn = study.journal.candidates[about["arm"]][label]
        assert sent == drawn
        config = {**drawn, "split": "valid", "server-round": about["round"] + 1}
        asked += [(kind, message.metadata.dst_node_id - 1000, config) for kind in ("evaluate", "train", "evaluate")]
    assert seen == asked
    assert {type(v) for _, _, c in seen for v in c.values()} == {float, int, str, bool}
    for name in ("lr", "steps", "flavour", "nesterov"):
        assert len({c[name] for _, _, c in seen}) > 1
    assert set(study.best.client) == {*SPACE.client}


def test_what_the_app_says_becomes_the_round():
    """One round by hand: fedavg's mean by |T| with the server's learning rate, scores by |V|."""
    seen: Seen = []
    grid = grid_of(ft.flower.tuned(plain_app(seen)))
    study = tune(grid, fedex=None, cohort=6, schedule=ft.random_search(budget=1, longest=1))
    arm, record = study.journal.arms[0], study.history[0]
    lr, steps = float(arm.client["lr"]), int(arm.client["steps"])
    change, total, losses, errors = 0.0, 0, [], []
    for client in CLIENTS:
        x, y = client.train
        arrays = [np.zeros((3, 3)), np.zeros(3)]
        for _ in range(steps):
            gap = (probabilities(arrays, x) - np.eye(3)[y]) / len(y)
            arrays = [arrays[0] - lr * x.T @ gap, arrays[1] - lr * gap.sum(0)]
        change, total = change + len(y) * np.concatenate([a.ravel() for a in arrays]), total + len(y)
        p, labels = probabilities(arrays, client.valid[0]), client.valid[1]
        losses.append((len(labels), -np.log(p[np.arange(len(labels)), labels]).mean()))
        errors.append((len(labels), (p.argmax(1) != labels).mean()))
    assert study.best.model == pytest.approx(float(arm.server["lr"]) * change / total, abs=1e-6)
    assert record.examples == total
    assert record.loss_before == pytest.approx(math.log(3))
    assert record.loss_after == pytest.approx(np.average([v for _, v in losses], weights=[n for n, _ in losses]))
    assert record.error_after == pytest.approx(np.average([v for _, v in errors], weights=[n for n, _ in errors]))
    weights = study.problem.record(study.best.model).to_numpy_ndarrays()
    assert [(w.shape, w.dtype) for w in weights] == [(a.shape, a.dtype) for a in FIRST]


def test_names_that_every_client_is_sent_are_refused_as_hyperparameters():
    seen: Seen = []
    tune(grid_of(ft.flower.tuned(plain_app(seen))))
    sent = set(seen[0][2]) - set(SPACE.client)
    assert sent == {"split", "server-round"}
    for name in sent:
        with pytest.raises(SpecError, match=f"client.{name}: .* are sent '{name}' besides: rename it"):
            tune(MemoryGrid(), space=ft.Space(client={**SPACE.client, name: ft.Int(1, 2)}))


def test_an_app_of_the_older_kind_is_refused_at_once():
    from flwr.client import NumPyClient

    for app in (ClientApp(lambda context: NumPyClient().to_client()), NumPyClient()):
        with pytest.raises(SpecError, match=r"Flower's Message API\), not a client_fn or a NumPyClient"):
            ft.flower.tuned(app)  # type: ignore[arg-type]


def test_full_information_is_collected_too():
    seen: Seen = []
    study = tune(grid_of(ft.flower.tuned(plain_app(seen))), fedex=ft.FedEx(k=3, eps=1, tries="all"))
    calls = [kind for kind, _, _ in seen]
    assert calls.count("train") == 3 * 3 * study.rounds_used
    assert calls.count("evaluate") == 4 * 3 * study.rounds_used


def test_it_learns_and_continues_from_a_store(tmp_path):
    """Killed in mid-run; the second run gives other initial arrays, and the first run's are used."""
    app = ft.flower.tuned(plain_app([], split=True), splits=("valid", "test"))
    whole = tune(grid_of(app))

    def run() -> None:
        grid = grid_of(app)
        grid.on_push = lambda message: toys.die() if len(grid.work_sent()) == 20 else None
        tune(grid, store=tmp_path)

    assert toys.forked(run) == -9
    study = tune(grid_of(app), [np.ones((3, 3)), np.ones(3)], store=tmp_path)
    assert repr(study.history) == repr(whole.history)
    assert study.best.model.tobytes() == whole.best.model.tobytes()
    assert study.evaluate("test") == whole.evaluate("test") != whole.evaluate("valid")
    assert study.evaluate("test")["personalized"] < 0.6


def test_test_data_is_not_made_up():
    study = tune(grid_of(ft.flower.tuned(plain_app([]))))
    with pytest.raises(
        FleetError, match=r"let evaluate read config\['split'\] and give tuned\(app, splits=\('valid', 't"
    ):
        study.evaluate("test")
    assert study.evaluate("valid")


def test_other_messages_go_to_the_app_as_ever():
    seen: Seen = []
    inner = plain_app(seen)
    app, context = ft.flower.tuned(inner), Context(1, 7, {"partition-id": 2}, RecordDict(), {})
    MemoryGrid()
    asked = Message(
        RecordDict({"arrays": ArrayRecord(FIRST), "config": ConfigRecord({"lr": 0.1, "steps": 1})}), 7, "train"
    )
    assert app(asked, context).content["metrics"]["num-examples"] == len(CLIENTS[2].train[1])
    assert seen == [("train", 2, {"lr": 0.1, "steps": 1})]
    assert app(Message(RecordDict(), 7, "query"), context).content["answer"]["yes"]
    with pytest.raises(ValueError, match="No train function registered"):
        app(Message(RecordDict(), 7, "train.other"), context)


def fixed_app(train: Any, evaluate: Any) -> ClientApp:
    """An app that returns these records."""
    app = ClientApp()

    @app.train()
    def on_train(message: Message, context: Context) -> Message:
        return Message(RecordDict(train(message)), reply_to=message)

    @app.evaluate()
    def on_evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict(evaluate(message)), reply_to=message)

    return app


def echo(message: Message) -> dict[str, Any]:
    return {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 5})}


def good(**changed: Any) -> Any:
    metrics = {"eval_loss": 0.5, "eval_acc": 0.75, "num-examples": 4} | changed
    return lambda message: {"metrics": MetricRecord({k: v for k, v in metrics.items() if v is not None})}


def no_count(message: Message) -> dict[str, Any]:
    return {"arrays": message.content["arrays"], "m": MetricRecord({"loss": 1})}


@pytest.mark.parametrize(
    ("app", "why"),
    [
        (fixed_app(lambda m: {"net": m.content["arrays"]}, good()), r"returned no arrays 'arrays', only \['net'\]"),
        (fixed_app(no_count, good()), r"train returned no metric 'num-examples', only \['loss'\]: see tuned"),
        (fixed_app(echo, good(eval_acc=None)), "evaluate returned no metric 'eval_acc'"),
        (ClientApp(), "No evaluate function registered"),
    ],
)  # fmt: skip
def test_what_an_app_lacks_is_named(app, why):
    with pytest.raises(FleetError, match=why):
        tune(grid_of(ft.flower.tuned(app)))


def test_the_names_are_the_users():
    app = fixed_app(
        lambda m: {"net": m.content["net"], "m": MetricRecord({"n": 5})},
        lambda m: {"m": MetricRecord({"nll": 0.5, "mistakes": 0.125, "n": 4})},
    )
    names = {"loss": "nll", "error": "mistakes", "examples": "n", "arrays": "net", "config": "hp"}
    study = tune(grid_of(ft.flower.tuned(app, **names)))
    assert {(r.error_after, r.loss_after) for r in study.history} == {(0.125, 0.5)}
    loss_alone = tune(grid_of(ft.flower.tuned(fixed_app(echo, good(eval_acc=None)), accuracy=None)))
    assert {r.error_after for r in loss_alone.history} == {0.5}


def test_training_that_ends_in_nan_is_broken_and_not_evaluated():
    calls = []

    def broken(message: Message) -> dict[str, Any]:
        arrays = [np.full_like(a, np.nan) for a in message.content["arrays"].to_numpy_ndarrays()]
        return {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 5})}

    def evaluate(message: Message) -> dict[str, Any]:
        calls.append(message)
        return good()(message)

    study = tune(grid_of(ft.flower.tuned(fixed_app(broken, evaluate))))
    assert {(r.broken, r.error_after, r.error_before) for r in study.history} == {(3, 1.0, 0.25)}
    assert len(calls) == 3 * study.rounds_used


def test_the_client_is_known_by_its_partition_or_as_the_user_says():
    grid = grid_of(ft.flower.tuned(plain_app([])))
    assert ids(grid) == [0, 1, 2, 3, 4, 5]
    named = ft.flower.tuned(plain_app([]), id=lambda context: f"hospital {context.node_config['partition-id']}")
    assert ids(grid_of(named))[1] == "hospital 1"
    bare = MemoryGrid()
    bare.add(ft.flower.tuned(plain_app([])))
    assert ids(bare) == [1000]  # without a partition-id it is the node


def ids(grid: MemoryGrid) -> list[str | int]:
    problem = ft.flower.Fleet(grid, FIRST, wait=10.0, clock=grid.clock)
    return [problem.id_of(i) for i in problem.everyone()]


def test_only_the_servers_part_of_a_method_is_used():
    with pytest.raises(
        SpecError, match="method = scaffold, but these clients train by code of their own: use fedavg or"
    ):
        tune(MemoryGrid(), method=ft.methods.scaffold)
    with pytest.raises(SpecError, match="give space= with the hyperparameters that it reads"):
        tune(MemoryGrid(), space=None)
    with pytest.raises(SpecError, match="no server hyperparameter 'momentun' in reptile; did you mean 'momentum'"):
        tune(MemoryGrid(), method=ft.methods.reptile, space=ft.Space(server={"momentun": 0.5}))
    assert tune(grid_of(ft.flower.tuned(plain_app([]))), method=ft.methods.reptile).winner is not None


def test_untuned_leaves_the_app_its_own_defaults():
    def train(message: Message) -> dict[str, Any]:
        assert set(message.content["config"]) <= {"split", "server-round", "lr", *SPACE.client}
        return echo(message)

    study = tune(grid_of(ft.flower.tuned(fixed_app(train, good()))))
    assert ft.untuned(study, progress=False).best.client == {}


def test_client_app_names_a_method_that_it_does_not_have():
    grid = MemoryGrid()
    for client in CLIENTS:
        grid.add(ft.flower.client_app(toys.Softmax(), lambda context, c=client: c))
    problem = ft.flower.Fleet(grid, toys.Softmax(), least=6, clock=grid.clock)
    with pytest.raises(FleetError, match=r"no method 'remembering' here; .*give a method of your own"):
        toys.tune(problem=problem)


def test_mods_of_the_user_are_around_the_work():
    from flwr.clientapp.mod import arrays_size_mod, message_size_mod

    kinds = []

    def spy(message: Message, context: Context, call_next: Any) -> Message:
        kinds.append(message.metadata.message_type)
        return call_next(message, context)

    grid = MemoryGrid()
    for client in CLIENTS:
        app = ft.flower.client_app(
            toys.Softmax(), lambda context, c=client: c, mods=[spy, arrays_size_mod, message_size_mod]
        )
        grid.add(app)
    toys.tune(
        problem=ft.flower.Fleet(grid, toys.Softmax(), least=6, clock=grid.clock), method=fedavg, schedule=SCHEDULE
    )
    assert kinds.count("query.fedtuner") == 6
    assert kinds.count("train.fedtuner") == 3 * outline(SCHEDULE).cost


@pytest.mark.slow
def test_a_state_dict_of_torch_with_batch_norm():
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))

    def train(message: Message) -> dict[str, Any]:
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())  # strict: names, shapes
        net.train()
        with torch.no_grad():
            net(torch.ones(5, 3))
        return {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": 5})}

    first = {name: t.clone() for name, t in net.state_dict().items()}
    study = tune(grid_of(ft.flower.tuned(fixed_app(train, good()))), first, space=ft.Space(server={"lr": 0.5}))
    back = study.problem.record(study.best.model).to_torch_state_dict()
    assert back["1.num_batches_tracked"] == study.best.rounds  # averaged plainly, not by the server's lr
    assert back["1.num_batches_tracked"].dtype == torch.int64
    assert torch.equal(back["0.weight"], first["0.weight"])


class Steps(toys.Softmax):
    """A learner: its own code takes so many full-batch steps."""

    own_training = True

    def fit(self, w: Any, data: Any, config: Any, seed: int) -> Any:
        with self.training(data, config, seed) as trainer:
            for _ in range(config["steps"]):
                w[: self.trainable] -= np.float32(config["lr"]) * trainer.gradient(w, np.arange(len(data)))
        return w


def test_a_learner_is_the_clients_model_too():
    """Both sides have it: the same bits as in a Simulation, though the training code is the learner's own."""
    grid = MemoryGrid()
    for client in CLIENTS:
        grid.add(ft.flower.client_app(Steps(), lambda context, c=client: c))
    here = tune(grid, problem=ft.Simulation(Steps(), CLIENTS))
    there = tune(grid, Steps())
    assert repr(here.history) == repr(there.history)
    assert here.best.model.tobytes() == there.best.model.tobytes()
    assert here.evaluate("test") == there.evaluate("test")


def _along(server: Any, change: Any, tally: Any, b: Any) -> Any:
    """A step that is shorter where clients disagree: it needs the mean of the squared sizes of their changes."""
    scale = float(change @ change) / max(float(tally.extra["squares"][0]), 1e-12)
    return sgd.step(server, np.asarray(np.float32(scale) * change), tally, b)


def _squares(change: Any) -> Any:
    return {"squares": np.array([change @ change], np.float32)}


careful = Optimiser("careful", "ours", _along, sgd.hypers, _squares)


def test_what_the_servers_optimiser_asks_of_a_change_is_computed_where_the_change_is():
    method = fedavg.with_optimiser(careful)
    grid = MemoryGrid()
    for client in CLIENTS:
        grid.add(ft.flower.client_app(toys.Softmax(), lambda context, c=client: c, method=method))
    here = toys.tune(method=method, schedule=SCHEDULE)
    there = tune(grid, toys.Softmax(), method=method, space=toys.SPACE, fedex=ft.FedEx(k=3, eps=0.3))
    assert here.best.model.tobytes() == there.best.model.tobytes()
    usual, shorter = (tune(grid_of(ft.flower.tuned(plain_app([]))), method=m) for m in (fedavg, method))
    assert not shorter.problem.faults
    assert np.linalg.norm(shorter.best.model) < np.linalg.norm(usual.best.model)
