"""Measure errors to compare those of the small table with, and write them to results/floors.json:

- of always answering the commonest label of the training data: that of all clients together, or each client's own;
- of the method's untuned default, after as many rounds as the table's longest arm, over the table's seeds.

python benchmarks/paper/floors.py       # about five minutes on two cores
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import fedtuner as ft
from fedtuner.data import labels
from fedtuner.experiments import suite
from fedtuner.federations import Simulation
from fedtuner.run.spec import load_problem
from fedtuner.run.versions import machine, versions
from fedtuner.tables import plain

HERE = Path(__file__).parent


def floors(problem: Simulation) -> tuple[float, float, int]:
    """Return the error of answering the commonest label of all, that of each client's own, and the test examples."""
    held = [(np.asarray(labels(c.train)), np.asarray(labels(c.test))) for c in problem.clients]
    common = np.bincount(np.concatenate([train for train, _ in held])).argmax()
    total = sum(len(test) for _, test in held)
    everybody = sum(int((test != common).sum()) for _, test in held)
    own = sum(int((test != np.bincount(train).argmax()).sum()) for train, test in held)
    return everybody / total, own / total, total


def untuned(problem: Simulation, rounds: int, cohort: int, seed: int) -> dict[str, float]:
    """Return the test errors of the method's default configuration."""
    schedule = ft.random_search(rounds, rounds)
    return ft.tune(problem, ft.Space(), fedex=None, schedule=schedule, cohort=cohort, seed=seed).evaluate("test")


def main() -> None:
    entries = suite.read(HERE / "table1-small.toml").entries
    rows: list[dict[str, Any]] = []
    for column in dict.fromkeys(entry.labels["data"] for entry in entries):
        mine = [entry for entry in entries if entry.labels["data"] == column]
        spec, seeds = mine[0].spec, sorted({entry.seed for entry in mine})
        problem = load_problem(spec.problem)
        everybody, own, total = floors(problem)
        evaluated = [untuned(problem, spec.schedule.longest, spec.cohort, seed) for seed in seeds]
        rows.append({
            "data": column, "problem": spec.problem, "test examples": total, "guessing": everybody, "guessing own": own,
            "rounds": spec.schedule.longest, "seeds": seeds,
            "untuned": {side: fmean(errors[side] for errors in evaluated) for side in evaluated[0]},
        })  # fmt: skip
        print(rows[-1], flush=True)
    kept = {"rows": rows, "versions": versions(), "machine": machine()}
    (HERE / "results" / "floors.json").write_text(json.dumps(plain(kept), indent=1) + "\n")


if __name__ == "__main__":
    main()
