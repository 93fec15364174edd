"""Tune every method on the digits and print a table: error on the test data, mean over seeds with a 90 % interval.

    python benchmarks/methods.py --seeds 5

Each study is kept under runs/methods, so a second run only prints; the numbers go to benchmarks/results/methods.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

import numpy
import torch

import fedtuner as ft
from fedtuner.experiments.statistics import summary
from fedtuner.problems.digits import problem as digits
from fedtuner.run.executors import cores


def main() -> None:
    arguments = parser().parse_args()
    problem = digits()
    schedule = ft.halving(arguments.budget, arguments.longest)
    results: dict[str, dict[str, list[float]]] = {}
    for name in arguments.methods or ft.methods.ALL:
        for seed in range(arguments.seeds):
            store = Path(arguments.store) / f"{name}-seed{seed}"
            method = ft.methods.paper_ranges(ft.methods.named(name))
            study = ft.tune(problem, method=method, schedule=schedule, seed=seed, store=store, progress=True)
            for which, errors in (("tuned", study.evaluate("test")), ("untuned", ft.untuned(study).evaluate("test"))):
                for side, error in errors.items():
                    results.setdefault(name, {}).setdefault(f"{which} {side}", []).append(error)
        print(name, {key: interval(values) for key, values in results[name].items()}, file=sys.stderr, flush=True)
    write(arguments, results)
    print(table(results))


def interval(values: list[float]) -> str:
    """Return mean and half-width of the 90 % interval, in percent."""
    found = summary([100 * value for value in values])
    return f"{found.mean:.1f} ± {found.half:.1f}" if found.n > 1 else f"{found.mean:.1f}"


def table(results: dict[str, dict[str, list[float]]]) -> str:
    columns = ["tuned global", "tuned personalized", "untuned global", "untuned personalized"]
    rows = [f"| method | {' | '.join(columns)} |", "|---" * 5 + "|"]
    rows += [f"| {name} | {' | '.join(interval(kept[c]) for c in columns)} |" for name, kept in results.items()]
    return "\n".join(rows)


def write(arguments: argparse.Namespace, results: dict[str, dict[str, list[float]]]) -> None:
    record = {
        "command": f"python benchmarks/methods.py --seeds {arguments.seeds} --budget {arguments.budget} "
        f"--longest {arguments.longest}",
        "machine": f"{platform.machine()}, {cores()} cores",
        "versions": {"fedtuner": ft.__version__, "numpy": numpy.__version__, "torch": torch.__version__},
        "results": results,
    }
    file = Path(__file__).parent / "results" / "methods.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(record, indent=2) + "\n")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--budget", type=int, default=2000)
    made.add_argument("--longest", type=int, default=200)
    made.add_argument("--store", default="runs/methods")
    made.add_argument("methods", nargs="*", help="only these methods")
    return made


if __name__ == "__main__":
    main()
