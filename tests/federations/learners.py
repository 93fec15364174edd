"""Learners for tests: softmax regression by a loop of its own, and by scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner.core.model import NOTHING, Hyper, Metrics, ModelDefaults, Part

SPACE = ft.Space(
    client={"rate": ft.Float(0.01, 1.0, log=True), "passes": ft.Int(1, 4)}, server={"lr": ft.Float(0.5, 1.5)}
)
SCHEDULE = ft.halving(budget=30, longest=10, eta=2, eliminations=2)


@dataclass(frozen=True)
class Data:
    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


class Logistic(ModelDefaults):
    """Softmax regression by a loop of its own, one example at a time; ``passes`` and ``rate`` are its own names."""

    own_training = True
    features, classes = 3, 3
    size = trainable = 12

    def __init__(self, hyperparameters: Mapping[str, Hyper] | None = None) -> None:
        self.hyperparameters = hyperparameters or {}
        self.seen: list[tuple[dict[str, object], int]] = []

    def layout(self):
        return [Part("weight", (3, 3)), Part("bias", (3,))]

    def initial(self, seed):
        return np.random.default_rng(seed).normal(0, 0.1, self.size).astype(np.float32)

    def prepare(self, split):
        x, y = (np.zeros((0, 3)), np.zeros(0)) if split is None else split
        return Data(np.asarray(x, np.float32), np.asarray(y, np.int64))

    def fit(self, w, data, config, seed):
        self.seen.append((dict(config), seed))
        rng = np.random.default_rng(seed)
        weight, bias = w[:9].reshape(3, 3), w[9:]
        for _ in range(int(config["passes"])):
            for i in rng.permutation(len(data)):
                gap = self.probabilities(w, data.x[i : i + 1])[0]
                gap[data.y[i]] -= 1
                weight -= config["rate"] * np.outer(data.x[i], gap)  # in place: w is the learner's own
                bias -= config["rate"] * gap
        return w

    def evaluate(self, w, data, config):
        if not len(data):
            return NOTHING
        p = self.probabilities(w, data.x)
        right = p[np.arange(len(data)), data.y]
        wrong = p.argmax(1) != data.y
        return Metrics(float(-np.log(np.maximum(right, 1e-12)).mean()), float(wrong.mean()), len(data))

    @staticmethod
    def probabilities(w, x):
        z = x @ w[:9].reshape(3, 3) + w[9:]
        z = np.exp(z - z.max(1, keepdims=True))
        return z / z.sum(1, keepdims=True)


class Sklearn(Logistic):
    """The same by scikit-learn: ``partial_fit`` on one's own weights. It keeps what it has fitted last."""

    def fit(self, w, data, config, seed):
        from sklearn.linear_model import SGDClassifier

        made = SGDClassifier(
            loss="log_loss", learning_rate="constant", eta0=config["rate"], alpha=1e-4, random_state=seed % 2**32
        )
        made.classes_ = np.arange(3)
        made.coef_ = np.array(w[:9].reshape(3, 3).T, np.float64, order="C")
        made.intercept_ = w[9:].astype(np.float64)
        for _ in range(int(config["passes"])):
            if len(data):
                made.partial_fit(data.x.astype(np.float64), data.y, classes=np.arange(3))
        self.last = np.concatenate([made.coef_.T.ravel(), made.intercept_])  # of 64 bits
        return self.last


def problem(learner=Logistic, *made):
    if learner is Sklearn:
        pytest.importorskip("sklearn")
    return ft.Simulation(learner(*made), toys.clients(), "learners")
