"""The whole way of a new user, in the order in which one walks it.

Own CNN, own data, FedProx, F1; a look ahead, a study that is interrupted and continued; a frame, the winner trained on
and again; an export that is loaded into one's own module; the next study, which starts from this one.
"""

import runpy
import signal

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedtuner as ft

# 1. A model and clients: any module, any arrays.


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def clients(n: int = 12) -> list[ft.Client]:
    """Each client has pictures of five of the ten digits."""
    x, y = load_digits(return_X_y=True)
    x, rng, made = (x / 16).reshape(-1, 1, 8, 8).astype(np.float32), np.random.default_rng(0), []
    for i in range(n):
        mine = rng.permutation(np.flatnonzero(np.isin(y, rng.choice(10, 5, replace=False))))[:60]
        splits = [(x[rows], y[rows]) for rows in np.split(mine, [36, 48])]
        made.append(ft.Client(f"phone-{i}", *splits))
    return made


def tune(problem: ft.Simulation, store: str, **more: object) -> ft.Study:
    return ft.tune(problem, method="fedprox", budget=80, cohort=5, target="global", store=store, workers=1, **more)


class CtrlC(ft.watchers.Watcher):
    """Stands for somebody who stops the study in its middle."""

    rounds = 0

    def on_round(self, event: object) -> None:
        self.rounds += 1
        if self.rounds == 20:
            signal.raise_signal(signal.SIGINT)


def main() -> None:
    problem = ft.Simulation(ft.pytorch.Task(build, metric=ft.metrics.f1(classes=10)), clients(), "phones")

    # 2. What it will cost, before anything runs.
    ahead = ft.prepare(problem, method="fedprox", budget=80, cohort=5).forecast()
    print(f"{ahead.arms} arms, {ahead.rounds} rounds, {ahead.bytes / 1e6:.0f} MB, {ahead.examples} examples")

    # 3. A study that is stopped, and goes on by the same call.
    try:
        tune(problem, "runs/phones", watch=CtrlC())
    except ft.Interrupted as stopped:
        print(stopped)
    print(ft.load("runs/phones"))
    study = tune(problem, "runs/phones")
    print(study)
    print(study.best)
    print("F1", study.evaluate("test"), "untuned", ft.untuned(study).evaluate("test"))

    # 4. Its arms and rounds: DataFrames where pandas is installed, else dicts.
    print(study.frame("arms"))
    print(len(study.frame()), "rounds")

    # 5. The winner trains on; its configuration trains again from new weights.
    study.resume_winner(10)
    print("trained on", study.evaluate("test"), "again", study.retrain(40).evaluate("test"))

    # 6. The model leaves: files, a loader, a model card; loaded into one's own module.
    study.export("phones", force=True)
    module = runpy.run_path("phones/load.py")["load"](build())
    x, y = load_digits(return_X_y=True)
    with torch.no_grad():
        guess = module(torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)).argmax(1).numpy()
    print(f"the exported module is right about {100 * (guess == y).mean():.1f} % of all digits")

    # 7. The next study starts from this one, also from the exported folder alone.
    print(tune(problem, "runs/next", seed=1, start_from="phones").best.client)


if __name__ == "__main__":
    main()
