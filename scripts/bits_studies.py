"""The studies of bits.py, by the public interface of fedtuner alone, and the lines that stand for what they give."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtuner as ft

FIELDS = (
    "arm", "round", "clients", "dropped", "broken", "examples", "validated", "loss_before", "loss_after",
    "error_before", "error_after", "loss", "error", "entropy", "mode", "confidence", "diverged",
)  # fmt: skip


# Data and models


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's digits in a fixed order that is not theirs."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    return (bunch.data[order] / 16).astype(np.float32), bunch.target[order].astype(np.int64)


def clients(count: int = 20, least: int = 20, images: bool = False) -> list[ft.Client]:
    """Return clients of ``least`` digits and up to 36 more: three fifths to train, a fifth to validate, one to test."""
    x, y = digits()
    x = x.reshape(-1, 1, 8, 8) if images else x
    made, start = [], 0
    for i in range(count):
        size = least + (7 * i % 37 if least > 10 else 0)
        a, b, end = start + 3 * size // 5, start + 4 * size // 5, start + size
        splits = [(x[rows], y[rows]) for rows in (slice(start, a), slice(a, b), slice(b, end))]
        made.append(ft.Client(f"client{i}", *splits))
        start = end
    assert start <= len(y), "more clients than digits"
    return made


def perceptron(hidden: int = 32) -> nn.Module:
    """Return a perceptron with one hidden layer."""
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def smooth() -> nn.Module:
    """Return a perceptron without kinks: what differs by a rounding at the start does so at the end."""
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def dropping() -> nn.Module:
    """Return a perceptron with dropout."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))


def convolution() -> nn.Module:
    """Return a small convolutional network with batch-norm."""
    norm = (nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(nn.Conv2d(1, 4, 3), *norm, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))


class Shaped(nn.Module):
    """A perceptron whose activation, width and depth can be set."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)
        self.activation, self.width, self.deep = "relu", 32, False

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        act, n = getattr(torch, self.activation), self.width
        h = act(F.linear(x, self.first.weight[:n], self.first.bias[:n]))
        if self.deep:
            h = act(F.linear(h, self.second.weight[:n, :n], self.second.bias[:n]))
        return F.linear(h, self.last.weight[:, :n], self.last.bias)


CHOICES = {"activation": ["relu", "tanh"], "width": [32, 8], "deep": [False, True]}


def configure(net: Any, chosen: Mapping[str, Any]) -> None:
    """Give a network its shape."""
    net.activation, net.width, net.deep = chosen["activation"], chosen["width"], chosen["deep"]


# Problems: functions, as every study makes its own and none depends on what ran before


def plain() -> ft.Simulation:
    """Return 20 clients and a perceptron."""
    return ft.Simulation(ft.pytorch.Task(perceptron), clients())


def with_dropout() -> ft.Simulation:
    """Return the same with dropout."""
    return ft.Simulation(ft.pytorch.Task(dropping), clients())


def images() -> ft.Simulation:
    """Return images and a network with batch-norm."""
    return ft.Simulation(ft.pytorch.Task(convolution), clients(images=True))


def shapes() -> ft.Simulation:
    """Return a network with architectural choices."""
    return ft.Simulation(ft.pytorch.Task(Shaped, choices=CHOICES, configure=configure), clients())


def regression() -> ft.Simulation:
    """Return a model with a loss and an error of its own: the digit as a number."""

    def of(split: Any) -> Any:
        return split[0], split[1].astype(np.float32)[:, None]

    def error(output: Tensor, y: Tensor) -> Tensor:
        return (output - y).abs()

    task = ft.pytorch.Task(functools.partial(nn.Linear, 64, 1), F.mse_loss, error)
    return ft.Simulation(task, [ft.Client(c.id, of(c.train), of(c.valid), of(c.test)) for c in clients()])


def gaps() -> ft.Simulation:
    """Return clients of which some lack a split."""
    made = clients(6)
    x, y = made[0].train
    none = x[:0], y[:0]
    made[1] = ft.Client("no train", None, made[1].valid, made[1].test)
    made[2] = ft.Client("empty train", none, made[2].valid, made[2].test)
    made[3] = ft.Client("no valid", made[3].train, None, made[3].test)
    made[4] = ft.Client("empty valid, no test", made[4].train, none)
    return ft.Simulation(ft.pytorch.Task(perceptron), made)


def crowd() -> ft.Simulation:
    """Return 200 clients of 22,510 parameters: their vectors, 17.2 MiB for an arm, are kept in files."""
    return ft.Simulation(ft.pytorch.Task(functools.partial(perceptron, 300)), clients(200, 8))


def fleet(model: Callable[[], nn.Module] = perceptron, secure: Any = None) -> Any:
    """Return six clients behind a Flower grid, which is in this process."""
    from grid import MemoryGrid

    made, task = MemoryGrid(), ft.pytorch.Task(model)
    for i, client in enumerate(clients(6)):
        secrets = {"secure": True, "secret": "hush"} if secure else {}
        made.add(ft.flower.client_app(task, lambda context, c=client: c, **secrets), i)
    return ft.flower.Fleet(made, ft.pytorch.Task(model), secure=secure)


def on_the_fleet() -> ft.Simulation:
    """Return the fleet's clients as a simulation."""
    return ft.Simulation(ft.pytorch.Task(perceptron), clients(6))


def secure_fleet() -> Any:
    """Return the fleet with secure sums, of ranges that nothing here goes beyond."""
    return fleet(smooth, ft.flower.SecAgg(clip=1.0, most_examples=40))


def own_training() -> Any:
    """Return six clients whose apps have training code of their own: softmax regression by hand."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from grid import MemoryGrid

    made = clients(6)

    def softmax(w: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
        z = np.exp(x @ w + b)
        return z / z.sum(1, keepdims=True)

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        (w, b), config = message.content["arrays"].to_numpy_ndarrays(), message.content["config"]
        x, y = made[context.node_config["partition-id"]].train
        for _ in range(config["steps"]):
            gap = softmax(w, b, x) - np.eye(10, dtype=np.float32)[y]
            w, b = w - np.float32(config["pace"]) * (x.T @ gap) / len(y), b - np.float32(config["pace"]) * gap.mean(0)
        metrics = MetricRecord({"num-examples": len(y)})
        return Message(RecordDict({"arrays": ArrayRecord([w, b]), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        (w, b), config = message.content["arrays"].to_numpy_ndarrays(), message.content["config"]
        x, y = getattr(made[context.node_config["partition-id"]], config["split"])
        p = softmax(w, b, x)
        loss, right = -np.log(p[np.arange(len(y)), y]).mean(), (p.argmax(1) == y).mean()
        metrics = MetricRecord({"eval_loss": float(loss), "eval_acc": float(right), "num-examples": len(y)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    grid, ready = MemoryGrid(), ft.flower.tuned(app, splits=("valid", "test"))
    for i in range(len(made)):
        grid.add(ready, i)
    return ft.flower.Fleet(grid, [np.zeros((64, 10), np.float32), np.zeros(10, np.float32)])


# Studies

CLIENT = {
    "lr": ft.Float(0.02, 0.5, log=True),
    "momentum": ft.Float(0.0, 0.9),
    "weight_decay": ft.Float(1e-5, 1e-2, log=True),
    "epochs": ft.Int(1, 3),
    "batch": ft.PowerOfTwo(4, 16),
}
SERVER = {
    "lr": ft.Float(0.5, 1.5),
    "momentum": ft.Float(0.0, 0.5),
    "gamma": ft.OneMinus(ft.Float(1e-4, 1e-2, log=True)),
}
FOUR = ft.halving(budget=26, longest=10, eta=2, eliminations=2)  # 4 arms to round 4, 2 to round 8, one to round 10
NINE = ft.halving(budget=40, longest=10, eta=3, eliminations=2)  # 9 arms to round 3, 3 to round 6, one to round 10
USUAL = {
    "space": ft.Space(client=CLIENT, server=SERVER),
    "fedex": ft.FedEx(k=4, eps=0.3),
    "schedule": FOUR,
    "cohort": 5,
    "seed": 1,
    "workers": 1,
    "engine": "sequential",
    "progress": False,
}

STUDIES: dict[str, Callable[[], str]] = {}  # what they are called, and what gives the rest of their line
SETTINGS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {}  # of those that are one call of ft.tune
SAME: dict[str, str] = {}  # studies that must have the line of another


def settings(name: str) -> dict[str, Any]:
    """Return the arguments of ``ft.tune`` for a study; its problem is made anew."""
    problem, changed = SETTINGS[name]
    return {**USUAL, **changed, "problem": problem()}


def add(
    name: str,
    problem: Callable[[], Any] = plain,
    tell: Callable[[ft.Study], str] | None = None,
    same: str | None = None,
    **changed: Any,
) -> None:
    """Add a study: a problem, and what is not as usual."""
    SETTINGS[name] = problem, changed
    STUDIES[name] = lambda: (tell or hashes)(ft.tune(**settings(name)))
    if same:
        SAME[name] = same


def client_space(**changed: Any) -> ft.Space:
    """Return the usual space with other client hyperparameters."""
    return ft.Space(client={**CLIENT, **changed}, server=SERVER)


def server_space(**changed: Any) -> ft.Space:
    """Return the usual space with other server hyperparameters."""
    return ft.Space(client=CLIENT, server={**SERVER, **changed})


METHODS = ("fedavg", "fedprox", "reptile", "scaffold", "feddyn", "fedpa", "ditto", "maml")
for method in METHODS:  # in their own spaces, with all that they tune; reptile's is fedavg's but for the default step
    space = ft.Space(client=CLIENT) if method == "reptile" else None
    made = getattr(ft.methods, "paper_ranges", lambda known: known)(getattr(ft.methods, method))  # of the server's step
    add(method, with_dropout, method=made, space=space, schedule=NINE)
add("scaffold-option-1", method=ft.methods.scaffold, space=client_space(option="I"))
inner = {
    "lr": ft.Float(0.05, 0.5),
    "steps": ft.Int(1, 4),
    "batch": 8,
    "full_batch": False,
    "first_order": [True, False],
}
add("maml-minibatch", with_dropout, method=ft.methods.maml, space=ft.Space(client=inner, server={"lr": 0.02}))
adam = {"optimiser": "adam", "lr": ft.Float(1e-3, 1e-2, log=True)}
add("local-adam", with_dropout, space=client_space(**adam))
add("prox-adam", method=ft.methods.fedprox, space=client_space(**adam, mu=ft.Float(0.01, 1.0)))

for method in ("fedavg", "scaffold", "fedpa"):
    add(f"batched-{method}", with_dropout, engine="batched", method=getattr(ft.methods, method))
add("batched-maml", with_dropout, engine="batched", method=ft.methods.maml, space=None, schedule=NINE)
add("batched-tries", engine="batched", fedex=ft.FedEx(k=4, eps=0.3, tries=2))
add("batched-workers-2", with_dropout, same="batched-fedavg", engine="batched", workers=2)
add("auto", with_dropout, engine="auto")

add("halving", schedule=ft.halving(budget=40, longest=10, eta=3, eliminations=2, discount=0.5, score="loss"))
add("random-search", schedule=ft.random_search(budget=24, longest=6), fedex=None)
add("hyperband", schedule=ft.hyperband(budget=81, longest=9), fedex=ft.FedEx(k=3))
add("hyperband-tpe", schedule=ft.hyperband(budget=60, longest=9, fill=True), sampler=ft.samplers.optuna("tpe"))
for kind in ("tpe", "gp", "cmaes"):
    sampler = ft.samplers.optuna(kind, startup=3)
    add(f"random-{kind}", schedule=ft.random_search(budget=24, longest=3, together=1), sampler=sampler)
add("random-random", schedule=ft.random_search(budget=16, longest=4), sampler=ft.samplers.optuna("random"))

for name, changed in {
    "tries-all": {"tries": "all"},
    "tries-2": {"tries": 2},
    "cutoff": {"cutoff": 1.0, "tries": 2},
    "improvement": {"signal": "improvement"},
    "loss": {"metric": "loss", "gamma": 0.9},
    "adaptive": {"step": "adaptive"},
    "constant": {"step": "constant"},
    "none": {"step": "none"},
}.items():
    add(f"fedex-{name}", fedex=ft.FedEx(**{"k": 4, "eps": 0.3, **changed}))

add("cohorts-shared", cohorts="shared")
add("target-global", target="global")
for optimiser in ("adam", "yogi", "adagrad"):
    add(f"server-{optimiser}", space=server_space(optimiser=optimiser, lr=ft.Float(0.01, 0.1, log=True)))
add("architecture", shapes, space=client_space(**CHOICES), fedex=ft.FedEx(k=6, eps=1.0))
add("batch-norm", images)
add("regression", regression, space=client_space(lr=ft.Float(1e-3, 1e-2), momentum=0.0))
add("empty-clients", gaps, cohort=6)
add("empty-clients-batched", gaps, cohort=6, engine="batched")
far = {"optimiser": "adam", "momentum": 0.0, "lr": 3e38}  # the first step is beyond all numbers
add("diverging", space=server_space(**far | {"lr": [0.02, 3e38]}))
add("diverging-all", space=server_space(**far), schedule=ft.random_search(budget=8, longest=4))
add("broken-clients", space=client_space(lr=[0.1, 1e30]), fedex=ft.FedEx(k=4, eps=1.0))
own_models = {"method": ft.methods.ditto, "space": client_space(**{"lambda": ft.Float(0.05, 2.0)})}
add("workers-1", with_dropout, **own_models)
add("workers-2", with_dropout, same="workers-1", **own_models, workers=2)
add("memory-in-files", crowd, method=ft.methods.scaffold, cohort=20)
add("fleet-simulated", on_the_fleet)
# Later versions screen a fleet's reports: an honest client's longest updates are shortened.
unscreened = {"screens": ()} if find_spec("fedtuner.core") and find_spec("fedtuner.core.screens") else {}
add("fleet", fleet, same="fleet-simulated", **unscreened)
add("fleet-scaffold-tries", fleet, method=ft.methods.scaffold, fedex=ft.FedEx(k=4, eps=0.3, tries=2), **unscreened)
own = ft.Space(client={"pace": ft.Float(0.1, 2.0, log=True), "steps": ft.Int(1, 5)}, server=SERVER)
add("fleet-own-code", own_training, space=own, **unscreened)


def study(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Add a study that is more than one call."""

    def added(run: Callable[[], str]) -> Callable[[], str]:
        STUDIES[name] = run
        return run

    return added


@study("untuned")
def untuned() -> str:
    """Train the method's defaults for as long as a study's winner."""
    tuned = ft.tune(**settings("cohorts-shared"))
    # Later versions train it for all rounds unless they are told otherwise.
    length = {"rounds": tuned.schedule.longest} if "rounds" in inspect.signature(ft.untuned).parameters else {}
    return hashes(ft.untuned(tuned, progress=False, **length))


@study("evaluate-sample")
def evaluate_sample() -> str:
    """Evaluate with each client's own draw from theta."""
    return hashes(ft.tune(**{**settings("fedex-none"), "seed": 2}), config="sample")


SAME |= {"killed": "memory-in-files", "killed-tpe": "hyperband-tpe"}


@study("killed")
def killed() -> str:
    """Kill a study while its last two arms are at work, and continue it."""
    return resumed("memory-in-files", 21)


@study("killed-tpe")
def killed_tpe() -> str:
    """Kill a study when a sampler that learns has proposed arms, and continue it."""
    return resumed("hyperband-tpe", 50)


def resumed(name: str, rounds: int) -> str:
    """Run a study in a process of its own, which dies after so many rounds, and continue it in this one."""
    with tempfile.TemporaryDirectory() as folder:
        store, used = Path(folder) / "study", []
        command = [
            sys.executable,
            str(Path(__file__).with_name("bits.py")),
            "--until-killed",
            name,
            str(rounds),
            str(store),
        ]
        code = subprocess.run(command, check=False).returncode
        if code != -signal.SIGKILL:
            raise RuntimeError(f"the study was to be killed, but ended with code {code}")
        continued = ft.tune(**settings(name) | {"store": store, "progress": lambda status: used.append(status.used)})
        if not used or used[0] < 2:
            raise RuntimeError(f"the study did not continue, but began anew: {used[:1]}")
        return hashes(continued)


def until_killed(name: str, rounds: int, store: str) -> None:
    """Run a study up to a round in which this process is killed."""

    def show(status: Any) -> None:
        if status.used >= rounds:
            os.kill(os.getpid(), signal.SIGKILL)

    ft.tune(**settings(name) | {"store": store, "progress": show})


# Lines


def hashes(study: ft.Study, config: str = "mode") -> str:
    """Return what a study came to, as hashes, and its errors on the test data."""
    best = study.best
    test = {metric: study.evaluate("test", config, metric) for metric in ("error", "loss")}
    hashed = {
        "weights": best.model,
        "theta": best.theta,
        "records": [[getattr(record, field) for field in FIELDS] for record in study.history],
        "best": [
            best.arm, best.rounds, best.score, best.server, best.client, list(best.candidates), study.rounds_used
        ],
        "test": test,
    }  # fmt: skip
    parts = [f"{name}={blake2b(canonical(value), digest_size=6).hexdigest()}" for name, value in hashed.items()]
    return " ".join([*parts, *(f"{name}:{value:.4f}" for name, value in sorted(test["error"].items()))])


def canonical(value: Any) -> bytes:
    """Return a value as bytes: every bit of its numbers, but one NaN for all of them."""
    if isinstance(value, np.ndarray):
        bits = np.where(np.isnan(value), np.array(np.nan, value.dtype), value)
        return f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(bits).tobytes()
    if isinstance(value, Mapping):
        return b"{" + b",".join(canonical(name) + canonical(value[name]) for name in sorted(value)) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(canonical, value)) + b"]"
    if isinstance(value, bool | np.bool_ | str):
        return repr(value if isinstance(value, str) else bool(value)).encode()
    if isinstance(value, numbers.Integral):
        return repr(int(value)).encode()
    return struct.pack("<d", math.nan if math.isnan(value) else float(value))


def rounded(study: ft.Study) -> str:
    """Return what a study with secure sums came to, as numbers."""
    best, w = study.best, study.best.model.astype(np.float64)
    probe = np.random.default_rng(0).normal(size=w.size) / math.sqrt(w.size)
    test = {metric: study.evaluate("test", "mode", metric) for metric in ("error", "loss")}
    hashed: dict[str, Iterable[float]] = {
        "best": [best.arm, best.rounds, best.score, study.rounds_used],
        "counts": [sum(getattr(r, n) for r in study.history) for n in ("clients", "dropped", "broken", "examples")],
        "weights": [w.mean(), np.linalg.norm(w), w @ probe],
        "theta": best.theta,
        "losses": [record.loss for record in study.history],
        "errors": [record.error for record in study.history],
        "test": [value for metric in test for _, value in sorted(test[metric].items())],
    }
    texts = {name: [f"{x:.5f}" if isinstance(x, float) else str(x) for x in hashed[name]] for name in hashed}
    return "~ " + " ".join(f"{name}={','.join(values)}" for name, values in texts.items())


once = ft.random_search(budget=8, longest=4, score="loss")  # by loss: errors are equal now and then
add("secure", secure_fleet, rounded, schedule=once, fedex=ft.FedEx(k=3, eps=0.3, metric="loss"))
prox = {"method": ft.methods.fedprox, "space": client_space(mu=ft.Float(0.01, 1.0)), "target": "global"}
slow = ft.FedEx(k=3, eps=0.3, metric="loss", step="adaptive", gamma=0.5)
add("secure-prox", secure_fleet, rounded, schedule=once, fedex=slow, **prox)
