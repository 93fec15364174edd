"""An app that keeps its own training code: every drawn value reaches it, and what it says is collected."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
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


class Older(NumPyClient):
    """The same client as it was written before there were messages."""

    def __init__(self, app: ClientApp, context: Context) -> None:
        self.app, self.context = app, context

    def call(self, kind: str, arrays: Any, config: Any) -> Any:
        content = RecordDict({"arrays": ArrayRecord(arrays), "config": ConfigRecord(config)})
        return self.app(Message(content, 7, kind), self.context).content

    def fit(self, parameters: Any, config: Any) -> Any:
        reply = self.call("train", parameters, config)
        return reply["arrays"].to_numpy_ndarrays(), reply["metrics"]["num-examples"], {"note": "done"}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        found = self.call("evaluate", parameters, config)["metrics"]
        return found["eval_loss"], found["num-examples"], {"accuracy": found["eval_acc"], "note": "done"}


@pytest.mark.slow
@pytest.mark.parametrize("converted", [True, False])
def test_an_app_of_the_older_kind_gives_the_same_bits(converted):
    """The names of its arrays are those of the server's."""
    first = {"weight": FIRST[0], "bias": FIRST[1]}
    seen: Seen = []
    older: Seen = []
    app = plain_app(older, split=True)

    def client_fn(context: Context) -> Any:
        client = Older(app, context)
        return client.to_client() if converted else client

    there = tune(grid_of(ft.flower.tuned(plain_app(seen, split=True), splits=("test",))), FIRST)
    here = tune(grid_of(ft.flower.tuned(ClientApp(client_fn), splits=("test",))), first)
    assert repr(here.history) == repr(there.history)
    assert here.best.model.tobytes() == there.best.model.tobytes()
    assert here.evaluate("test") == there.evaluate("test")
    assert older == seen
    assert list(here.problem.record(here.best.model)) == ["weight", "bias"]


@pytest.mark.slow
def test_an_older_app_may_measure_something_else():
    class Counting(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return parameters, 5, {}

        def evaluate(self, parameters: Any, config: Any) -> Any:
            return 0.5, 4, {"mistakes": 0.125}

    app = ClientApp(lambda context: Counting().to_client())
    assert {r.error_after for r in tune(grid_of(ft.flower.tuned(app, error="mistakes"))).history} == {0.125}
    assert {r.error_after for r in tune(grid_of(ft.flower.tuned(app, accuracy=None))).history} == {0.5}
    with pytest.raises(FleetError, match=r"evaluate returned no metric 'accuracy', only \['loss', 'mistakes', 'num_ex"):
        tune(grid_of(ft.flower.tuned(app)))


def test_only_an_app_can_be_tuned():
    with pytest.raises(SpecError, match=r"app = .*, but must be a ClientApp: ClientApp\(\), or ClientApp\(client_fn"):
        ft.flower.tuned(NumPyClient())  # type: ignore[arg-type]


def test_what_is_drawn_stands_in_the_run_config_too():
    """Apps that read their hyperparameters there need no change; values of other names, and other work, keep theirs."""
    seen = []
    app = fixed_app(echo, good())

    def remember(message: Message, context: Context, call_next: Any) -> Message:
        seen.append((dict(message.content["config"]), dict(context.run_config)))
        return call_next(message, context)

    spied = ClientApp()
    spied.train(mods=[remember])(lambda message, context: app(message, context))
    spied.evaluate(mods=[remember])(lambda message, context: app(message, context))
    grid = grid_of(ft.flower.tuned(spied))
    for context in grid.contexts.values():
        context.run_config = {"lr": 0.3, "rounds": 5}
    tune(grid)
    assert len({run["lr"] for _, run in seen}) > 1
    assert all(run == {"rounds": 5, **{k: v for k, v in sent.items() if k in SPACE.client}} for sent, run in seen)
    assert {context.run_config["lr"] for context in grid.contexts.values()} == {0.3}


@pytest.mark.filterwarnings("ignore:not searched")
def test_settings_in_the_run_config():
    run_config = {"lr": 0.1, "fedtuner.budget": 10, "fedtuner.cohort": 0.5, "fedtuner.target": "global"}
    settings = ft.flower.settings(run_config)
    assert settings == {"budget": 10, "cohort": 0.5, "target": "global"}
    grid = grid_of(ft.flower.tuned(plain_app([])))
    problem = ft.flower.Fleet(grid, FIRST, least=6, clock=grid.clock)
    study = ft.tune(problem, SPACE, include=[{"client": TODAY}], progress=False, **settings)
    assert (study.rounds_used, study.setup.target, study.history[0].clients) == (10, "global", 3)
    with pytest.raises(SpecError, match="no setting 'bugdet'; did you mean 'budget'"):
        ft.tune(problem, SPACE, **ft.flower.settings({"fedtuner.bugdet": 3}))


TODAY = {"lr": 0.1, "steps": 1, "flavour": "sweet", "nesterov": False}


def by_budget(grid: MemoryGrid, space: ft.Space, **more: Any) -> ft.Study:
    problem = ft.flower.Fleet(grid, FIRST, least=6, clock=grid.clock)
    return ft.tune(problem, space, budget=70, cohort=3, progress=False, **more)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:not searched")
def test_a_budget_needs_what_the_app_has_today():
    """An app that reads config["lr"] has no default arm otherwise."""
    grid = grid_of(ft.flower.tuned(plain_app([])))
    with pytest.raises(
        SpecError, match=r"not known: give include=\[{'client': {'lr': \.\.\., 'steps': \.\.\., 'flavour'"
    ):
        by_budget(grid, SPACE)
    decayed = ft.Space({**SPACE.client, "weight-decay": ft.Float(0, 0.1)})
    study = by_budget(grid, decayed, include=[{"client": {**TODAY, "weight-decay": 0.01}}])
    arms = study.journal.arms
    assert arms[0].client == {**TODAY, "weight-decay": 0.01, "batch-size": 16}
    assert {arm.client["weight-decay"] for arm in arms.values()} == {0.01}  # no arm differs in it, but the app reads it
    assert len({arm.client["lr"] for arm in arms.values()}) > 2
    untuned = ft.untuned(study, progress=False)
    assert untuned.best.client == arms[0].client
    assert (untuned.rounds_used, untuned.best.server["optimiser"]) == (70, "sgd")


@pytest.mark.slow
def test_an_app_with_defaults_of_its_own_says_so():
    seen = []

    def train(message: Message) -> dict[str, Any]:
        seen.append(message.content["config"].get("lr"))
        return echo(message)

    study = by_budget(grid_of(ft.flower.tuned(fixed_app(train, good()))), ft.Space(SPACE.client), include=[{}])
    assert study.journal.arms[0].client == {"batch-size": 16}
    assert None in seen


@pytest.mark.slow
def test_a_large_fleet_has_other_clients_for_each_arm():
    """Sixty devices and a cohort of 3: none of them trains for all arms of the rung."""
    devices = {}
    for n in (6, 60):
        grid = MemoryGrid()
        for _ in range(n):
            grid.add(ft.flower.tuned(fixed_app(echo, good())), partition=len(grid.apps))
        study = ft.tune(
            ft.flower.Fleet(grid, FIRST, least=n, clock=grid.clock), ft.Space(SPACE.client), include=[{}], budget=70,
            cohort=3, progress=False,
        )  # fmt: skip
        assert study.setup.cohorts == "auto"
        first = [m for m in grid.work_sent() if m.content.config_records["fedtuner"]["round"] == 0]
        devices[n] = len({m.metadata.dst_node_id for m in first})
    assert devices[6] == 3
    assert devices[60] > 6


@pytest.mark.slow
def test_full_information_is_collected_too():
    seen: Seen = []
    study = tune(grid_of(ft.flower.tuned(plain_app(seen))), fedex=ft.FedEx(k=3, eps=1, tries="all"))
    calls = [kind for kind, _, _ in seen]
    assert calls.count("train") == 3 * 3 * study.rounds_used
    assert calls.count("evaluate") == 4 * 3 * study.rounds_used


@pytest.mark.slow
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
        (fixed_app(no_count, good()), r"no metric 'num-examples', only \['loss'\].* by tuned\(app, examples="),
        (fixed_app(echo, good(eval_acc=None)), "evaluate returned no metric 'eval_acc'"),
        (ClientApp(), "No evaluate function registered"),
    ],
)  # fmt: skip
def test_what_an_app_lacks_is_named(app, why):
    with pytest.raises(FleetError, match=why):
        tune(grid_of(ft.flower.tuned(app)))


def wants_alpha(message: Message) -> dict[str, Any]:
    message.content["config"]["alpha"]
    raise AssertionError("alpha is not sent")


def two_lines(message: Message) -> dict[str, Any]:
    raise RuntimeError("shapes do not match:\n  3x3 and 4x4")


@pytest.mark.parametrize(
    ("app", "why"),
    [
        (fixed_app(wants_alpha, good()), r"train failed: KeyError: .*alpha.* \(test_client.py, line \d+\); its conf"),
        (fixed_app(echo, wants_alpha), r"evaluate failed: KeyError: .*alpha"),
        (fixed_app(two_lines, good()), r"train failed: RuntimeError: shapes do not match: 3x3 and 4x4 \(test_client"),
        (ClientApp(lambda context: Older(fixed_app(wants_alpha, good()), context)), "train failed: KeyError"),
    ],
)  # fmt: skip
def test_which_of_the_apps_functions_failed_is_said_with_its_error(app, why):
    with pytest.raises(FleetError, match=why):
        tune(grid_of(ft.flower.tuned(app)))


@pytest.mark.slow
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


@pytest.mark.slow
def test_untuned_leaves_the_app_its_own_defaults_but_for_what_the_space_fixes():
    def train(message: Message) -> dict[str, Any]:
        assert set(message.content["config"]) <= {"split", "server-round", "lr", *SPACE.client}
        return echo(message)

    study = tune(grid_of(ft.flower.tuned(fixed_app(train, good()))))
    assert ft.untuned(study, progress=False).best.client == {"batch-size": 16}


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


@pytest.mark.slow
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
