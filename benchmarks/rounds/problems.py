"""The problems on which ways to spend rounds are compared: digits, writers, CIFAR-10, Shakespeare and made ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from torch import nn

from fedtuner import Client, Simulation
from fedtuner.data import cifar10, mnist_writers, partition
from fedtuner.data.arrays import from_examples
from fedtuner.problems import cifar10 as cifar
from fedtuner.problems import digits, shakespeare
from fedtuner.problems import mnist_writers as writers
from fedtuner.problems.models import mlp, small_cnn
from fedtuner.pytorch import Task
from fedtuner.rng import stream

SHALLOW = partial(mlp, 64, 64, 10)


def digits_times(factor: float) -> Simulation:
    """Return the digits with inputs scaled, so that the default step is far off."""
    usual = digits.problem()
    return Simulation(usual.task, scaled(usual.clients, factor), f"digits x {factor:g}")


def writers100() -> Simulation:
    """Return a hundred writers, their images at half the resolution, and a perceptron with one hidden layer."""
    return Simulation(Task(partial(mlp, 196, 32, 10)), _halved(100), "writers100")


def writers100_times(factor: float) -> Simulation:
    """Return the hundred writers with inputs scaled."""
    return Simulation(Task(partial(mlp, 196, 32, 10)), scaled(_halved(100), factor), f"writers100 x {factor:g}")


def writers539_cnn() -> Simulation:
    """Return all writers of MNIST's training part and a small convolutional network."""
    return Simulation(Task(partial(small_cnn, 1, 10, 28)), mnist_writers.clients("train"), "539 writers, CNN")


def cifar_dirichlet() -> Simulation:
    """Return CIFAR-10 over a hundred clients whose labels are drawn from Dirichlet(0.3), and a small network."""
    clients = cifar10.clients(limit=100, alpha=0.3)
    return Simulation(Task(partial(small_cnn, 3, 10, 32)), clients, "CIFAR-10, Dirichlet 0.3")


def synthetic() -> Simulation:
    """Return LEAF's Synthetic(1, 1): thirty clients, each with a linear model and inputs of its own."""
    rng, fresh, made = stream(0, "synthetic"), stream(0, "synthetic", "test"), list[tuple[int, Any, Any]]()
    scales = np.diag(np.arange(1, 61) ** -1.2)
    tests = []
    for i in range(30):
        n = int(min(rng.lognormal(4, 2), 950)) + 50
        mean_w, mean_x = rng.normal(0, 1), rng.normal(rng.normal(0, 1), 1, 60)
        w, b = rng.normal(mean_w, 1, (60, 10)), rng.normal(mean_w, 1, 10)
        x = rng.multivariate_normal(mean_x, scales, n)
        made.append((i, x.astype(np.float32), np.argmax(x @ w + b, axis=1)))
        x = fresh.multivariate_normal(mean_x, scales, n)
        tests.append((x.astype(np.float32), np.argmax(x @ w + b, axis=1)))
    clients = _tested(from_examples(made, classes=10), tests)
    return Simulation(Task(partial(mlp, 60, 32, 10)), clients, "synthetic(1, 1)")


def easy() -> Simulation:
    """Return a problem on which the default is about the best: two overlapping classes, all clients alike."""
    rng, fresh, made = stream(0, "easy"), stream(0, "easy", "test"), list[tuple[int, Any, Any]]()
    direction = rng.normal(size=20) / np.sqrt(20)

    def drawn(of: np.random.Generator, n: int) -> tuple[Any, Any]:
        x = of.normal(size=(n, 20))
        return x.astype(np.float32), ((x @ direction + of.normal(0, 0.75, n)) > 0).astype(np.int64)

    for i in range(60):
        made.append((i, *drawn(rng, 60)))
    clients = _tested(from_examples(made, classes=2), [drawn(fresh, 200) for _ in made])
    return Simulation(Task(partial(mlp, 20, 32, 2)), clients, "easy")


def digits_dealt(alpha: float, wrong: float = 0.0, build: Callable[[], Any] = SHALLOW) -> Simulation:
    """Return the digits dealt to thirty clients by Dirichlet(alpha); of the labels to learn from, a part is wrong.

    Test splits have two fifths of the examples, and right labels.
    """
    whole = [splits(client) for client in digits.problem().clients]
    x, y = (np.concatenate([split[n] for client in whole for split in client]) for n in (0, 1))
    rng, clients = stream(0, "digits dealt"), []
    for i, rows in enumerate(partition.dirichlet(y, 30, alpha)):
        if len(rows) < 12:
            continue
        rows = rng.permutation(rows)
        test, valid = int(0.4 * len(rows)), int(0.55 * len(rows))
        parts = []
        for n, of in enumerate((rows[valid:], rows[test:valid], rows[:test])):
            labels, lies = y[of].copy(), rng.random(len(of)) < wrong
            if n < 2:
                labels[lies] = rng.integers(0, 10, int(lies.sum()))
            parts.append((x[of], labels))
        clients.append(Client(i, *parts))
    return Simulation(Task(build), clients, f"digits, Dirichlet {alpha:g}, {100 * wrong:g} % wrong")


def deep() -> Any:
    """Return a perceptron with three hidden layers."""
    widths = [64, 64, 64, 64]
    layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def _tested(clients: Sequence[Client], tests: Sequence[tuple[Any, Any]]) -> list[Client]:
    """Return clients with larger test splits: in a tenth of so few examples, half a point is two of them."""
    return [replace(client, test=test) for client, test in zip(clients, tests, strict=True)]


def _halved(limit: int) -> list[Client]:
    return [
        Client(c.id, *((x.reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196) / 255, y) for x, y in splits(c)))
        for c in mnist_writers.clients("train", limit=limit)
    ]


def scaled(clients: Sequence[Client], factor: float) -> list[Client]:
    """Return clients whose inputs are scaled."""
    return [Client(c.id, *((x * np.float32(factor), y) for x, y in splits(c))) for c in clients]


def splits(client: Client) -> list[tuple[Any, Any]]:
    """Return a client's arrays: train, validation, test."""
    return [(np.asarray(x, np.float32), np.asarray(y)) for x, y in (client.train, client.valid, client.test)]


PROBLEMS: dict[str, Callable[[], Simulation]] = {
    "digits": digits.problem,
    "writers100": writers100,
    "synthetic": synthetic,
    "shift01": partial(digits_times, 0.1),
    "shift20": partial(writers100_times, 20.0),
    "easy": easy,
    "few-labels": partial(digits_dealt, 0.1),
    "noisy": partial(digits_dealt, 0.5, 0.25),
    "deep": partial(digits_dealt, 0.5, 0.0, deep),
    "writers-cnn": writers.problem_small,
    "writers539-cnn": writers539_cnn,
    "writers-iid-cnn": writers.problem_iid_small,
    "cifar-dirichlet": cifar_dirichlet,
    "cifar-iid": cifar.problem_small,
    "shakespeare": shakespeare.problem_small,
}
