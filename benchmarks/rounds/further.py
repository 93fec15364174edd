"""Further problems: small tables, regressions, other networks, other ways in which clients differ.

All are made of scikit-learn's data or generators, or of the digits and writers of problems.py. Test splits have two
fifths of the examples, validation splits three twentieths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from fedtuner import Client, Simulation
from fedtuner.data import partition
from fedtuner.problems import digits
from fedtuner.problems.models import mlp
from fedtuner.pytorch import Task
from fedtuner.rng import stream
from problems import SHALLOW, digits_dealt, digits_times, splits, writers100

TEST, VALID = 0.4, 0.15  # parts of a client's examples
FEWEST = 10  # examples of a client


def dealt(x: Any, y: Any, parts: Iterable[Any]) -> list[Client]:
    """Return clients with some rows each of the whole data."""
    rng, clients = stream(0, "further"), []
    for i, rows in enumerate(parts):
        if len(rows) < FEWEST:
            continue
        rows = rng.permutation(rows)
        test, valid = int(TEST * len(rows)), int((TEST + VALID) * len(rows))
        clients.append(Client(i, *((x[of], y[of]) for of in (rows[valid:], rows[test:valid], rows[:test]))))
    return clients


def standard(x: Any) -> Any:
    """Return columns of mean 0 and standard deviation 1."""
    return ((x - x.mean(0)) / (x.std(0) + 1e-6)).astype(np.float32)


def table(name: str, devices: int, alpha: float | None = None, scale: float = 0.0) -> Simulation:
    """Return one of scikit-learn's small tables of classes, standardised or only scaled, and a perceptron."""
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    x, y = found.data, found.target.astype(np.int64)
    x = (x * scale).astype(np.float32) if scale else standard(x)
    parts = partition.iid(len(y), devices) if alpha is None else partition.dirichlet(y, devices, alpha)
    return Simulation(Task(partial(mlp, x.shape[1], 32, int(y.max()) + 1)), dealt(x, y, parts), name)


def classes(
    n_classes: int = 10, features: int = 40, informative: int = 15, alpha: float | None = 0.3, sep: float = 1.0,
    wrong: float = 0.02,
) -> Simulation:  # fmt: skip
    """Return scikit-learn's made classes, dealt to fifty clients."""
    from sklearn.datasets import make_classification

    x, y = make_classification(
        6000, features, n_informative=informative, n_redundant=5, n_classes=n_classes, n_clusters_per_class=1,
        class_sep=sep, flip_y=wrong, random_state=1,
    )  # fmt: skip
    y = y.astype(np.int64)
    parts = partition.iid(len(y), 50) if alpha is None else partition.dirichlet(y, 50, alpha)
    return Simulation(Task(partial(mlp, features, 64, n_classes)), dealt(standard(x), y, parts), "classes")


def regression(name: str, devices: int, activation: type[nn.Module]) -> Simulation:
    """Return a regression: its error is the mean squared error as a part of the target's variance."""
    from sklearn import datasets

    if name == "diabetes":
        found = datasets.load_diabetes()
        x, y = standard(found.data), standard(found.target[:, None])
    else:
        x, y = map(standard, datasets.make_friedman1(3000, 10, noise=0.5, random_state=0))
        y = y[:, None]

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 32), activation(), nn.Linear(32, 1))

    task = Task(build, loss=F.mse_loss, error="loss")
    return Simulation(task, dealt(x, y, partition.iid(len(y), devices)), name)


def towns() -> Simulation:
    """Return a regression over thirty towns of different sizes, each with slopes and an offset of its own."""
    rng, clients, slopes = stream(0, "towns"), [], stream(0, "slopes").normal(size=12)
    sizes = np.exp(rng.normal(3.9, 0.8, 30)).astype(int) + 15
    x = [rng.normal(size=(n, 12)) + 0.5 * rng.normal(size=12) for n in sizes]
    y = [3 * np.sin(of @ (slopes + 0.3 * rng.normal(size=12)) / 2) + of[:, 0] * of[:, 1] + rng.normal() for of in x]
    spread = np.concatenate(y).std()
    for of, values in zip(x, y, strict=True):
        noisy = (values + 0.3 * rng.normal(size=len(values)))[:, None] / spread
        clients += dealt(of.astype(np.float32), noisy.astype(np.float32), [np.arange(len(of))])
    clients = [Client(f"town {i}", c.train, c.valid, c.test) for i, c in enumerate(clients)]

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1))

    return Simulation(Task(build, loss=F.mse_loss, error="loss"), clients, "towns")


def moons() -> Simulation:
    """Return forty clients with two half moons each, turned by angles of their own: no model fits all of them."""
    from sklearn.datasets import make_moons

    rng, clients = stream(0, "moons"), []
    for i in range(40):
        x, y = make_moons(150, noise=0.2, random_state=i)
        sin, cos = np.sin(angle := rng.uniform(0, 2 * np.pi)), np.cos(angle)
        x = (x @ np.array([[cos, -sin], [sin, cos]])).astype(np.float32)
        clients += dealt(x, y.astype(np.int64), [np.arange(150)])
    clients = [Client(i, c.train, c.valid, c.test) for i, c in enumerate(clients)]
    return Simulation(Task(partial(mlp, 2, 32, 2)), clients, "moons")


def turned() -> Simulation:
    """Return the digits, those of every client turned by the same one of four right angles."""
    clients = [
        Client(c.id, *((np.rot90(x.reshape(-1, 8, 8), i % 4, (1, 2)).reshape(-1, 64).copy(), y) for x, y in splits(c)))
        for i, c in enumerate(digits.problem().clients)
    ]
    return Simulation(Task(SHALLOW), clients, "turned digits")


def images(parts: Callable[[int], Iterable[Any]]) -> Simulation:
    """Return the images of a hundred writers, dealt to other clients, and a perceptron with one hidden layer."""
    whole = [split for client in writers100().clients for split in splits(client)]
    x, y = (np.concatenate([split[n] for split in whole]) for n in (0, 1))
    return Simulation(Task(partial(mlp, 196, 32, 10)), dealt(x, y, parts(len(y))), "images")


def network(build: Callable[[], nn.Module]) -> Simulation:
    """Return the digits dealt to thirty clients by Dirichlet(0.5), and another network."""
    return Simulation(Task(build), digits_dealt(0.5).clients, "digits, another network")


def with_norms(norm: type[nn.Module], activation: type[nn.Module], rate: float = 0.0) -> nn.Module:
    """Return a perceptron with norms, and dropout."""
    layers = [m for _ in range(2) for m in (nn.Linear(64, 64), norm(64), activation(), nn.Dropout(rate))]
    return nn.Sequential(*[m for m in layers if rate or not isinstance(m, nn.Dropout)], nn.Linear(64, 10))


def of_tanh() -> nn.Module:
    """Return a perceptron with two hidden layers of tanh."""
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def linear() -> Simulation:
    """Return a hundred writers and a linear model."""
    return Simulation(Task(lambda: nn.Linear(196, 10)), writers100().clients, "linear")


def autoencoder() -> Simulation:
    """Return the digits, which are to be restored from sixteen numbers."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 64))

    clients = [Client(c.id, *((x, x.copy()) for x, _ in splits(c))) for c in digits.problem().clients]
    return Simulation(Task(build, loss=F.mse_loss, error="loss"), clients, "autoencoder")


class Recurrent(nn.Module):
    """A small GRU over sequences of symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru, self.out = nn.Embedding(12, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the two classes after the last symbol."""
        scores: Tensor = self.out(self.gru(self.embed(x))[0][:, -1])
        return scores


def sequences() -> Simulation:
    """Return forty clients with sequences of ten symbols: are two of the last four high?"""
    rng, clients = stream(0, "sequences"), []
    for i in range(40):
        x = rng.integers(0, 12, (120, 10))
        y = ((x[:, -4:] > 6).sum(1) >= 2).astype(np.int64)
        clients += [Client(i, c.train, c.valid, c.test) for c in dealt(x, y, [np.arange(120)])]
    return Simulation(Task(Recurrent), clients, "sequences")


FURTHER: dict[str, Callable[[], Simulation]] = {
    "breast cancer": partial(table, "breast_cancer", 20, 0.5),
    "breast cancer, raw": partial(table, "breast_cancer", 20, 0.5, 0.01),
    "wine": partial(table, "wine", 8),
    "diabetes": partial(regression, "diabetes", 15, nn.ReLU),
    "Friedman": partial(regression, "friedman", 40, nn.Tanh),
    "towns": towns,
    "ten classes": classes,
    "ten classes, i.i.d.": partial(classes, alpha=None),
    "ten classes, close": partial(classes, sep=0.5, wrong=0.1),
    "two classes": partial(classes, n_classes=2, alpha=0.5, sep=0.7, wrong=0.1),
    "forty classes": partial(classes, n_classes=40, features=60, informative=30, alpha=0.5, sep=1.5),
    "moons": moons,
    "turned digits": turned,
    "digits, one or two labels": partial(digits_dealt, 0.05),
    "digits x 0.3": partial(digits_times, 0.3),
    "digits x 10": partial(digits_times, 10.0),
    "500 clients": partial(images, partial(partition.iid, devices=500)),
    "clients of all sizes": partial(images, partial(partition.by_size, devices=60, alpha=0.4)),
    "linear": linear,
    "batch norm": partial(network, partial(with_norms, nn.BatchNorm1d, nn.ReLU)),
    "layer norm, dropout": partial(network, partial(with_norms, nn.LayerNorm, nn.GELU, 0.2)),
    "tanh": partial(network, of_tanh),
    "autoencoder": autoencoder,
    "GRU": sequences,
}
