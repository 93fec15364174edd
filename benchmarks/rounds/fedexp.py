"""FedExP as the server's optimiser, untuned, against the plain mean and against the paper's formula without our bounds.

    python benchmarks/rounds/fedexp.py --rounds 100 200 --seeds 100 101 102 103 104 105

Needs MNIST by writer (docs/data.md). The default configuration of FedAvg is trained on the digits, on a hundred writers
of MNIST (14 x 14 pixels), and on these with inputs 20 times as large, for which the default's step is far too large.
A line per problem, number of rounds and server: the test error of the global and of the fine-tuned models in percent,
mean over seeds and the worst. Numbers by seed go to benchmarks/results/fedexp.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import fedtuner as ft
from fedtuner.core.method import Method, Optimiser
from fedtuner.data import mnist_writers
from fedtuner.methods.fedexp import SQUARE, extra, square
from fedtuner.methods.momentum import HYPERS, sgd
from fedtuner.problems.digits import problem as digits


def plain_step(eps: float, server: Any, change: Any, tally: Any, b: Any) -> Any:
    """Step by the paper's formula."""
    eta = max(1.0, float(tally.extra[SQUARE][0]) / (2 * (square(tally.change) + eps) + 1e-30))
    return sgd.step(server, np.float32(eta) * change, tally, b)


def plain(eps: float) -> Method:
    """Return FedAvg with the paper's FedExP."""
    return ft.methods.fedavg.with_optimiser(Optimiser("plain", "", partial(plain_step, eps), HYPERS, extra))


SERVERS: dict[str, Callable[[], Method]] = {
    "mean": lambda: ft.methods.fedavg,
    "paper, eps 1e-3": lambda: plain(1e-3),
    "paper, eps 0": lambda: plain(0.0),
    "fedexp": lambda: ft.methods.fedavg.with_defaults(server={"optimiser": "fedexp"}),
}


def writers(scale: float) -> ft.Simulation:
    """Return a hundred writers with a perceptron of one hidden layer; inputs are 0 to ``scale``."""

    def small(split: Any) -> Any:
        x = np.asarray(split[0], np.float32).reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196)
        return np.float32(scale) * x / 255, split[1]

    chosen = mnist_writers.clients("train", limit=100)
    clients = [ft.Client(c.id, small(c.train), small(c.valid), small(c.test)) for c in chosen]
    return ft.Simulation(ft.pytorch.Task(perceptron), clients)


def perceptron() -> nn.Module:
    """Return the network of the writers."""
    return nn.Sequential(nn.Linear(196, 32), nn.ReLU(), nn.Linear(32, 10))


PROBLEMS: dict[str, Callable[[], ft.Simulation]] = {
    "digits": digits,
    "writers": partial(writers, 1.0),
    "writers x 20": partial(writers, 20.0),
}


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, nargs="+", default=[100])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(100, 106)))
    parser.add_argument("--cooling", type=float, default=0.0)
    given = parser.parse_args()
    results: dict[str, list[dict[str, float]]] = {}
    for name, make in PROBLEMS.items():
        problem = make()
        for rounds in given.rounds:
            for server, method in SERVERS.items():
                errors = results[f"{name}, {rounds} rounds, {server}"] = [
                    ft.tune(
                        problem, ft.Space(), method=method(), fedex=None, schedule=ft.random_search(rounds, rounds),
                        seed=seed, workers=1, cooling=given.cooling, progress=False,
                    ).evaluate("test")
                    for seed in given.seeds
                ]  # fmt: skip
                sides = [np.array([100 * e[side] for e in errors]) for side in ("global", "personalized")]
                shown = "  ".join(f"{side.mean():5.1f} ({side.max():5.1f})" for side in sides)
                print(f"{name:14} {rounds:4}  {server:16} {shown}", flush=True)
    file = Path(__file__).parents[1] / "results" / "fedexp.json"
    measured = {"seeds": given.seeds, "cooling": given.cooling, "results": results}
    file.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
