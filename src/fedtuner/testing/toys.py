"""A federated problem with known answers: heterogeneous quadratics, in NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtuner.core.model import NOTHING, Metrics, ModelDefaults, NumPySteps, Part, Rows, Vector
from fedtuner.federations import Client, Simulation
from fedtuner.rng import stream
from fedtuner.space import Config


@dataclass(frozen=True)
class Points:
    """Examples x with weights per coordinate: the loss of w at x is 1/2 sum curvature (w - x)^2."""

    x: NDArray[np.float32]
    curvature: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.x)


class Quadratics(ModelDefaults):
    """A task whose every client has a quadratic loss; its error is loss / (1 + loss).

    ``statistics`` entries at the end of w have no gradients: they count batches, as batch-norm does.
    """

    def __init__(self, size: int, statistics: int = 0) -> None:
        self.trainable, self.size = size, size + statistics

    def initial(self, seed: int) -> Vector:
        w = np.zeros(self.size, np.float32)
        w[: self.trainable] = 0.1 * stream(seed, "quadratics").standard_normal(self.trainable)
        return w

    def prepare(self, split: Any) -> Points:
        if split is None:
            return Points(np.zeros((0, 1), np.float32), np.ones(1, np.float32))
        return Points(np.asarray(split[0], np.float32), np.asarray(split[1], np.float32))

    @contextmanager
    def training(self, data: Points, config: Config, seed: int) -> Iterator[_Trainer]:
        yield _Trainer(data, self.trainable)

    def evaluate(self, w: Vector, data: Points, config: Config) -> Metrics:
        if not len(data):
            return NOTHING
        losses = 0.5 * (data.curvature * (w[: self.trainable] - data.x).astype(np.float64) ** 2).sum(axis=1)
        loss = float(losses.mean())
        return Metrics(loss, loss / (1 + loss) if np.isfinite(loss) else float("nan"), len(data))

    def layout(self) -> list[Part]:
        counts = [Part("batches", (self.size - self.trainable,))] if self.size > self.trainable else []
        return [Part("w", (self.trainable,)), *counts]


class _Trainer(NumPySteps):
    def __init__(self, data: Points, trainable: int) -> None:
        self._data, self._trainable = data, trainable

    def gradient(self, w: Vector, rows: Rows, key: int | None = None) -> Vector:
        w[self._trainable :] += 1
        return np.asarray(self._data.curvature * (w[: self._trainable] - self._data.x[rows].mean(axis=0)), np.float32)

    def curvature(self, w: Vector, direction: Vector, rows: Rows, key: int | None = None) -> Vector:
        return self._data.curvature * direction

    def on(self, data: Points) -> _Trainer:
        return _Trainer(data, self._trainable)


def quadratics(
    clients: int = 8, size: int = 6, examples: int = 12, spread: float = 2.0, noise: float = 0.3, seed: int = 0,
    *, statistics: int = 0,
) -> Simulation:  # fmt: skip
    """Return clients whose optima lie ``spread`` apart and whose curvatures differ, with noisy examples.

    Examples are draws of the Gaussian whose negative log-likelihood is the loss, up to ``noise``. With ``noise=0``
    every example of a client is its optimum, so its gradients are exact.
    """
    made = []
    for i in range(clients):
        rng = stream(seed, "quadratics", i)
        centre = spread * rng.standard_normal(size)
        curvature = np.exp(rng.uniform(-1.5, 0.5, size)).astype(np.float32)
        points = (centre + noise * rng.standard_normal((3, examples, size)) / np.sqrt(curvature)).astype(np.float32)
        made.append(Client(i, *((part, curvature) for part in points)))
    return Simulation(Quadratics(size, statistics), made, "quadratics")


def optimum(problem: Simulation) -> NDArray[np.float64]:
    """Return the w that minimises the |T|-weighted mean of the clients' training losses."""
    slope: Any = 0.0
    total: Any = 0.0
    for client in problem.clients:
        x, curvature = (np.asarray(part, np.float64) for part in client.train)
        slope = slope + curvature * x.sum(axis=0)
        total = total + curvature * len(x)
    return np.asarray(slope / total)
