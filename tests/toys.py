"""Tiny problems that need no torch: a study of them takes milliseconds. Also the helpers that several tests share.

Environment variables slow the work down or tell who does it, without changing a bit of the result:
``TOY_NAP`` seconds of sleep per client, ``TOY_PIDS`` a folder in which each process that works leaves its id.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedtuner as ft
from fedtuner.core.model import NOTHING, Hyper, Metrics, ModelDefaults, NumPySteps, Part
from fedtuner.methods import Job, Local, Plan, Update

TESTS = Path(__file__).parent
FEDTUNER = Path(sys.executable).with_name("fedtuner")

PICKY = 0.2  # the highest learning rate that ``Picky`` can train with
BAD = 1e6  # a client whose first example begins with this is in trouble


@dataclass(frozen=True)
class Data:
    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


class Softmax(ModelDefaults):
    """Softmax regression, and one statistic (the number of batches seen) at the end of w."""

    def __init__(self, features: int = 3, classes: int = 3, hyperparameters: Mapping[str, Hyper] | None = None) -> None:
        self.features, self.classes = features, classes
        self.trainable = (features + 1) * classes
        self.size = self.trainable + 1
        self.hyperparameters = hyperparameters or {}

    def layout(self) -> list[Part]:
        return [Part("weight", (self.features, self.classes)), Part("bias", (self.classes,)), Part("batches", (1,))]

    def initial(self, seed: int) -> np.ndarray:
        w = np.random.default_rng(seed).normal(0.0, 0.1, self.size).astype(np.float32)
        w[-1] = 0.0
        return w

    def prepare(self, split: Any) -> Data:
        x, y = (np.zeros((0, self.features)), np.zeros(0)) if split is None else split
        return Data(np.asarray(x, np.float32), np.asarray(y, np.int64))

    @contextmanager
    def training(self, data: Data, config: Any, seed: int) -> Iterator[Any]:
        nap()
        yield _Trainer(self, data)

    def evaluate(self, w: np.ndarray, data: Data, config: Any = None) -> Metrics:
        if not len(data):
            return NOTHING
        p = self.probabilities(w, data.x)
        right = p[np.arange(len(data)), data.y]
        wrong = p.argmax(1) != data.y
        return Metrics(float(-np.log(np.maximum(right, 1e-12)).mean()), float(wrong.mean()), len(data))

    def probabilities(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        split = self.features * self.classes
        z = x @ w[:split].reshape(self.features, self.classes) + w[split : self.trainable]
        z = np.exp(z - z.max(1, keepdims=True))
        return z / z.sum(1, keepdims=True)

    def trouble(self, data: Data) -> None:
        """Do what a bad client does; nothing here."""


class _Trainer(NumPySteps):
    def __init__(self, task: Softmax, data: Data) -> None:
        self._task, self._data = task, data

    def gradient(self, w: np.ndarray, rows: np.ndarray, key: int | None = None) -> np.ndarray:
        if len(self._data) and self._data.x[0, 0] == BAD:
            self._task.trouble(self._data)
        x, y = self._data.x[rows], self._data.y[rows]
        gap = self._task.probabilities(w, x)
        gap[np.arange(len(y)), y] -= 1.0
        w[-1] += 1.0
        return np.concatenate([(x.T @ gap).ravel(), gap.sum(0)]).astype(np.float32) / np.float32(len(y))


class Raising(Softmax):
    def trouble(self, data: Data) -> None:
        raise RuntimeError("the disk of this phone is broken")


class Picky(Softmax):
    """Its training fails with some configurations."""

    @contextmanager
    def training(self, data: Data, config: Any, seed: int) -> Iterator[Any]:
        if config["lr"] > PICKY:
            raise RuntimeError(f"out of memory with lr {config['lr']:.3f}")
        with super().training(data, config, seed) as trainer:
            yield trainer


class Deadly(Softmax):
    def trouble(self, data: Data) -> None:
        os._exit(9)


def nap() -> None:
    if folder := os.environ.get("TOY_PIDS"):
        (Path(folder) / str(os.getpid())).touch()
    if seconds := os.environ.get("TOY_NAP"):
        time.sleep(float(seconds))


def clients(n: int = 6, bad: int | None = None) -> list[ft.Client]:
    """Three blobs; each client sees them turned by its own angle, and has its own number of examples."""
    made = []
    for i in range(n):
        rng = np.random.default_rng(100 + i)
        count = 24 + 4 * i
        y = rng.integers(0, 3, count)
        angle = 2 * np.pi * y / 3 + 0.2 * i
        x = np.stack([np.cos(angle), np.sin(angle), np.ones(count)], axis=1) + rng.normal(0, 0.7, (count, 3))
        if i == bad:
            x[0, 0] = BAD
        a, b = count // 2, 3 * count // 4
        made.append(ft.Client(f"phone{i}", (x[:a], y[:a]), (x[a:b], y[a:b]), (x[b:], y[b:])))
    return made


def lazy_clients(n: int = 6) -> ft.LazyClients:
    """The same clients, known by ids and sizes."""
    listed = {client.id: client for client in clients(n)}
    sizes = [[len(getattr(client, split)[1]) for client in listed.values()] for split in ("train", "valid", "test")]
    return ft.LazyClients(list(listed), sizes, lambda id, split: getattr(listed[id], split))


def problem() -> ft.Simulation:
    return ft.Simulation(Softmax(), clients(), "toy")


def many() -> ft.Simulation:
    """Sixty clients, known by ids and sizes."""
    return ft.Simulation(Softmax(), lazy_clients(60), "many")


def untested() -> ft.Simulation:
    """Clients without test examples."""
    return ft.Simulation(Softmax(), [replace(client, test=None) for client in clients()], "untested")


def raising() -> ft.Simulation:
    return ft.Simulation(Raising(), clients(bad=4), "raising")


def picky() -> ft.Simulation:
    return ft.Simulation(Picky(), clients(), "picky")


def deadly() -> ft.Simulation:
    return ft.Simulation(Deadly(), clients(bad=4), "deadly")


NOT_A_FUNCTION = problem()
not_a_problem = dict


def _remember(client: Local, plan: Plan, job: Job) -> Update:
    """SGD that is pulled toward where the client ended last time, and along the server's momentum."""
    w, n = plan.w.copy(), client.trainable
    pull = job.remembered.get("last", w[:n]) + np.float32(0.1) * plan.slots.get("momentum", np.float32(0))
    for rows in client.batches(int(job.config["epochs"]), int(job.config["batch"])):
        w[:n] -= np.float32(job.config["lr"]) * (client.gradient(w, rows) + np.float32(0.05) * (w[:n] - pull))
    visits = job.remembered.get("visits", np.zeros(1, np.float32)) + np.float32(1)
    return Update(w, memory={"last": w[:n].copy(), "visits": visits})


remembering = replace(
    ft.methods.fedavg,
    name="remembering",
    local=_remember,
    sends=("momentum",),
    memory={"last": "trainable", "visits": (1,)},
    plain=False,
)

SPACE = ft.Space(
    client={"lr": ft.Float(1e-3, 1.0, log=True), "batch": ft.PowerOfTwo(2, 8)},
    server={"lr": ft.Float(0.5, 1.5), "momentum": ft.Float(0.1, 0.9)},
)
MIXED = ft.Space(
    client={
        "lr": ft.Float(1e-3, 1.0, log=True),
        "batch": ft.PowerOfTwo(2, 8),
        "epochs": ft.Int(1, 3),
        "optimiser": ["sgd", "adam"],
        "weight_decay": 0.001,
    },
    server={"lr": ft.Float(0.5, 1.5), "gamma": ft.OneMinus(ft.Float(1e-4, 1e-2, log=True))},
)
DIVERGING = ft.Space(client={"lr": 0.5}, server={"lr": [3e38, 2.9e38]})
SCHEDULE = ft.halving(budget=30, longest=10, eta=2, eliminations=2)  # 4 arms to round 5, 2 of them to round 10


def settings(**changed: Any) -> dict[str, Any]:
    """Arguments of ``tune`` for a study of 30 rounds with memory and slots; those named are replaced."""
    usual = {
        "problem": changed["problem"] if "problem" in changed else problem(),
        "space": SPACE,
        "method": remembering,
        "fedex": ft.FedEx(k=3, eps=0.3),
        "schedule": SCHEDULE,
        "cohort": 3,
        "workers": 1,
        "progress": False,
    }
    return usual | changed


def tune(**changed: Any) -> ft.Study:
    return ft.tune(**settings(**changed))


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its bytes."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


STUDY = """
problem = "toys:problem"
cohort = 3
[schedule]
budget = 30
longest = 10
eta = 2
eliminations = 2
[fedex]
k = 3
eps = 0.3
"""


def write_study(folder: Path, text: str = STUDY) -> Path:
    file = folder / "study.toml"
    file.write_text(text)
    return file


def environment(**extra: str) -> dict[str, str]:
    """The environment of a subprocess that can import this module."""
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **extra}


def forked(work: Callable[[], object]) -> int:
    """Run a function in a fork of this process and return how it ended: 0, an exit code, or minus a signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait for a condition and return its value; fail after a time that is far longer than it needs."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.01)
    return value


def running(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
