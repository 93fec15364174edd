"""Federated architecture search against every fixed architecture: test error, mean over seeds with a 90 % interval.

    python benchmarks/architecture.py --seeds 10 --workers 1

The problem is that of examples/architecture.py: the digits, eight architectures that share one vector of weights. Every
row is a study of its own with the same budget and the same training hyperparameters to tune. Each study is kept under
runs/architecture, so a second run only prints; the numbers go to benchmarks/results/architecture.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch

import fedtuner as ft
from fedtuner.experiments.statistics import paired, summary
from fedtuner.run.executors import cores
from fedtuner.tables import plain

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))

from architecture import CHOICES, problem, space  # noqa: E402

SEARCHES = {"searched": 1, "searched, 4 tries": 4}  # how many candidates a client tries in a round
FIXED = {
    f"{activation}, {width} units, {'two layers' if deep else 'one layer'}": (activation, width, deep)
    for activation, width, deep in itertools.product(*CHOICES.values())
}


def main() -> None:
    arguments = parser().parse_args()
    made = problem()
    runs: dict[str, list[dict[str, Any]]] = {}
    for seed in range(arguments.seeds):
        for name in (*SEARCHES, *FIXED):
            runs.setdefault(name, []).append(run(made, name, seed, arguments))
        print(f"seed {seed}:", {name: kept[-1]["personalized"] for name, kept in runs.items()}, file=sys.stderr)
    runs["best fixed"] = [best_fixed(runs, seed) for seed in range(arguments.seeds)]
    write(arguments, runs)
    print(table(runs))


def run(made: ft.Simulation, name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one study, or read what it gave."""
    fixed = dict(zip(CHOICES, FIXED[name], strict=True)) if name in FIXED else {}
    study = ft.tune(
        made,
        space(**fixed),
        fedex=ft.FedEx(k=16, eps=1.0, tries=SEARCHES.get(name, 1)),
        schedule=ft.halving(arguments.budget, arguments.longest, eta=3, eliminations=2),
        seed=seed,
        store=Path(arguments.store) / f"{name.replace(', ', '-').replace(' ', '-')}-seed{seed}",
        workers=arguments.workers,
    )
    return {
        "seed": seed,
        **study.evaluate("test"),
        "validation": study.best.score,
        "rounds": study.rounds_used,
        "local_work": study.local_work,
        "architecture": [study.best.client[choice] for choice in CHOICES],
    }


def best_fixed(runs: dict[str, list[dict[str, Any]]], seed: int) -> dict[str, Any]:
    """Return the fixed architecture whose study had the best validation score, at the cost of all of them."""
    tried = [runs[name][seed] for name in FIXED]
    best = min(tried, key=lambda one: one["validation"])
    return {**best, **{cost: sum(one[cost] for one in tried) for cost in ("rounds", "local_work")}}


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    rows = [
        "| architecture | global | personalized | personalized, less searched | rounds | local trainings |",
        "|---" * 6 + "|",
    ]
    for name, kept in runs.items():
        cells = [percent([one[side] for one in kept]) for side in ("global", "personalized")]
        gap = [100 * (a["personalized"] - b["personalized"]) for a, b in zip(kept, runs["searched"], strict=True)]
        cells.append("" if name == "searched" else interval(gap))
        cells += [f"{sum(one[cost] for one in kept) / len(kept):.0f}" for cost in ("rounds", "local_work")]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    found = Counter(str(tuple(one["architecture"])) for one in runs["searched"])
    return "\n".join([*rows, "", "Found: " + "; ".join(f"{what} {n} times" for what, n in found.most_common())])


def percent(values: list[float]) -> str:
    return interval([100 * value for value in values])


def interval(values: list[float]) -> str:
    mean_of = summary(values)
    return f"{mean_of.mean:.1f} ± {mean_of.half:.1f}" if len(values) > 1 else f"{mean_of.mean:.1f}"


def write(arguments: argparse.Namespace, runs: dict[str, list[dict[str, Any]]]) -> None:
    others = [name for name in runs if name != "searched"]
    against = {
        name: asdict(paired([r["personalized"] for r in runs["searched"]], [r["personalized"] for r in runs[name]]))
        for name in others
    }
    record = {
        "command": f"python benchmarks/architecture.py --seeds {arguments.seeds} --budget {arguments.budget} "
        f"--longest {arguments.longest} --workers {arguments.workers}",
        "machine": f"{platform.machine()}, {cores()} cores",
        "versions": {"fedtuner": ft.__version__, "numpy": numpy.__version__, "torch": torch.__version__},
        "results": runs,
        "personalized, less searched": against,
    }
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "architecture.json").write_text(json.dumps(plain(record), indent=2) + "\n")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seeds", type=int, default=10)
    made.add_argument("--budget", type=int, default=300)
    made.add_argument("--longest", type=int, default=60)
    made.add_argument("--workers", type=int, default=1)
    made.add_argument("--store", default="runs/architecture")
    return made


if __name__ == "__main__":
    main()
