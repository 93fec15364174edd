"""Your own PyTorch module, your own clients, your own space.

The data is scikit-learn's breast cancer set: 569 biopsies, 30 measurements each, benign or malignant. Here the
clients are ten hospitals that see tumours of different sizes: a cut by mean radius, so the labels are far from i.i.d.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from torch import nn

import fedtuner as ft


def build() -> nn.Module:
    """Return a fresh model: called once per arm, under a seed of its own."""
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))


def hospitals(n: int = 10) -> list[ft.Client]:
    """Return the clients: an id, and (x, y) to train on, to validate with and to test on."""
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    rng = np.random.default_rng(0)
    clients = []
    for i, rows in enumerate(np.array_split(np.argsort(x[:, 0]), n)):
        train, valid, test = np.split(rng.permutation(rows), [int(0.6 * len(rows)), int(0.8 * len(rows))])
        clients.append(ft.Client(f"hospital-{i}", (x[train], y[train]), (x[valid], y[valid]), (x[test], y[test])))
    return clients


def problem() -> ft.Simulation:
    """Return the problem; a study.toml can name it: problem = "own_model:problem"."""
    return ft.Simulation(ft.pytorch.Task(build), hospitals(), name="hospitals")


# Only ranges and lists that are named are searched; what is not named keeps the method's default.
SPACE = ft.Space(
    client={
        "lr": ft.Float(1e-3, 1.0, log=True),
        "epochs": ft.Int(1, 3),
        "batch": [4, 8, 16, 32],
        "dropout": 0.2,
    }
)


if __name__ == "__main__":
    study = ft.tune(
        problem(),
        space=SPACE,
        method=ft.methods.fedprox,
        budget=120,
        cohort=5,
        target="global",
        seed=1,
    )
    print("server", study.best.server)
    print("client", study.best.client)
    print("tuned  ", study.evaluate("test"))
    print("untuned", ft.untuned(study).evaluate("test"))
    model = study.problem.task.module(study.best.model)  # an nn.Module in evaluation mode
    print(model)
