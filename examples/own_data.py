"""Your own data: arrays with a column that says whose each example is. Named in own_data.toml; or run this file.

The data is scikit-learn's wine set: 178 wines of three growers, 13 measurements each. Here ten shops hold them, each
with a mix of growers of its own. One more shop has two wines, which is too few to split: it is left out and counted.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.datasets import load_wine
from torch import nn

import fedtuner as ft
from fedtuner import data


def shops(cache: Path | None = None) -> data.Clients:
    """Return the clients; with a cache they are loaded from that file when they are visited."""
    x, y = load_wine(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    owner = np.empty(len(x), dtype="U7")
    for i, rows in enumerate(data.dirichlet(y, 10, alpha=2.0)):
        owner[rows] = f"shop-{i}"
    owner[:2] = "kiosk"
    return data.from_arrays(x, y, owner, classes=3, cache=cache)


def build() -> nn.Module:
    """Return a fresh model."""
    return nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 3))


def problem() -> ft.Simulation:
    """Return the problem: problem = "own_data:problem" in a study.toml beside this file."""
    return ft.Simulation(ft.pytorch.Task(build), shops(), name="wine")


if __name__ == "__main__":
    made = problem()
    print(f"{len(made.clients)} shops; left out, as too small to split: {made.left_out}")
    study = ft.tune(made, budget=100, cohort=5, target="global")
    print("test error", study.evaluate("test"))
    with TemporaryDirectory() as folder:  # the same from a file, for data that does not fit in memory
        lazy = shops(cache=Path(folder) / "wine.safetensors")
        print("from a file:", lazy[0].id, "trains on", len(lazy[0].train), "wines")
