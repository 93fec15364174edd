"""Ways to spend the same rounds, side by side: a line of results per problem, budget, way and seed.

python benchmarks/rounds/run.py --problems digits writers100 --budgets 100 200 --seeds 100-103
python benchmarks/rounds/run.py --show
python benchmarks/rounds/run.py --ways auto "auto, own cohorts" --out benchmarks/rounds/results/cohorts.jsonl

Studies that have a line already are not run again. Seeds from 100 on are for choosing constants, 0 to 99 for reporting.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fedtuner as ft
from fedtuner import Simulation, Study, methods, tuners
from fedtuner.run.auto import COOLING
from problems import PROBLEMS

HERE = Path(__file__).parent
Way = Callable[[Simulation, int, str, int], Study]


def _alone(method: Any, cooling: float, problem: Simulation, budget: int, target: str, seed: int) -> Study:
    return ft.tune(
        problem, ft.Space(), fedex=None, method=method, cooling=cooling, schedule=ft.random_search(budget, budget),
        target=target, seed=seed, workers=1, progress=False,
    )  # fmt: skip


def untuned(problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Train the default for all rounds."""
    return _alone(methods.fedavg, 0.0, problem, budget, target, seed)


def extrapolated(problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Train the default with FedExP and cooling for all rounds."""
    return _alone(methods.fedavg.stepping_by("fedexp"), COOLING, problem, budget, target, seed)


def _halving(longest: float, tuner: Any, problem: Simulation, budget: int, target: str, seed: int) -> Study:
    schedule = ft.halving(budget, int(longest * budget))
    method = methods.paper_ranges(methods.fedavg)
    return ft.tune(
        problem, method=method, tuner=tuner, schedule=schedule, target=target, seed=seed, workers=1, progress=False
    )  # fmt: skip


def sha_fedex(problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Successive halving with FedEx, the paper's share for the longest arm."""
    return _halving(0.1, ft.FedEx(), problem, budget, target, seed)


def sha_long(problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Successive halving without FedEx, most of the rounds for the winner."""
    return _halving(0.64, tuners.none, problem, budget, target, seed)


def sha_kernel(problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Successive halving with FedEx whose update knows the distance of configurations, the paper's share."""
    return _halving(0.1, tuners.Kernel(), problem, budget, target, seed)


def sha_gaussian(problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Successive halving with a Gaussian belief over the client's hyperparameters, the paper's share."""
    return _halving(0.1, tuners.Gaussian(), problem, budget, target, seed)


def extrapolating(problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Train the default with FedExP alone for all rounds."""
    return _alone(methods.fedavg.stepping_by("fedexp"), 0.0, problem, budget, target, seed)


def delta_sgd(problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Train the default of Delta-SGD, whose clients find their own step sizes, for all rounds."""
    return _alone(methods.deltasgd, 0.0, problem, budget, target, seed)


def fedhyper(problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Train the default with FedHyper's global step for all rounds."""
    return _alone(methods.fedavg.stepping_by("fedhyper"), 0.0, problem, budget, target, seed)


def auto(problem: Simulation, budget: int, target: str, seed: int, cohorts: str | None = None) -> Study:
    """What ``tune(problem, budget=...)`` does."""
    return ft.tune(
        problem, budget=budget, target=target, seed=seed, cohorts=cohorts, workers=1, progress=False
    )  # fmt: skip


WAYS: dict[str, Way] = {
    "untuned": untuned, "default+": extrapolated, "SHA + FedEx, T/10": sha_fedex, "SHA, 0.64 T": sha_long, "auto": auto,
    "auto, own cohorts": partial(auto, cohorts="independent"), "kernel FedEx": sha_kernel, "Gaussian": sha_gaussian,
    "FedExP": extrapolating, "Delta-SGD": delta_sgd, "FedHyper": fedhyper,
}  # fmt: skip
BASELINES = ("untuned", "default+", "SHA + FedEx, T/10", "SHA, 0.64 T")
UNTUNED = ("untuned", "default+", "FedExP", "Delta-SGD", "FedHyper")
BOTH = (*UNTUNED, "auto", "auto, own cohorts")  # ways whose training does not depend on the target


def line(name: str, problem: Simulation, budget: int, way: str, target: str, seed: int) -> dict[str, Any]:
    """Run a study and return its line."""
    begun = time.process_time()
    study = WAYS[way](problem, budget, target, seed)
    return {
        "problem": name, "budget": budget, "way": way, "target": target, "seed": seed, **study.evaluate("test"),
        "rounds": study.rounds_used, "examples": study.examples_processed, "cpu": round(time.process_time() - begun, 1),
        "arm": study.best.arm, "client": dict(study.best.client),
    }  # fmt: skip


def seeds(text: str) -> list[int]:
    """Return the seeds that a text such as 0-9 stands for."""
    low, _, high = text.partition("-")
    return list(range(int(low), int(high or low) + 1))


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def table(lines: list[dict[str, Any]]) -> str:
    """Return the mean errors in percent (worst seed) by problem and budget, as Markdown."""
    ways = [way for way in WAYS if any(r["way"] == way for r in lines)]
    rows = ["| problem | rounds | seeds | error | " + " | ".join(ways) + " |", "|---" * (4 + len(ways)) + "|"]
    for name, budget in sorted({(r["problem"], r["budget"]) for r in lines}):
        for metric in ("personalized", "global"):
            cells, n = [], 0
            for way in ways:
                target = "personalized" if way in BOTH else metric
                key = (name, budget, way, target)
                of = [100 * r[metric] for r in lines if (r["problem"], r["budget"], r["way"], r["target"]) == key]
                n = max(n, len(of))
                cells.append(f"{statistics.mean(of):.1f} ({max(of):.1f})" if of else "")
            rows.append(f"| {name} | {budget} | {n} | {metric} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def means(lines: list[dict[str, Any]], metric: str) -> dict[tuple[str, int], dict[str, float]]:
    """Return the mean errors by problem and budget, and by way."""
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for r in lines:
        if r["target"] == ("personalized" if r["way"] in BOTH else metric):
            found.setdefault((r["problem"], r["budget"]), {}).setdefault(r["way"], []).append(r[metric])
    return {cell: {way: statistics.mean(of) for way, of in ways.items()} for cell, ways in found.items()}


def ratios(lines: list[dict[str, Any]], metric: str) -> dict[str, tuple[float, int]]:
    """Return the mean over problems and budgets of ``auto``'s mean error / another way's, and over how many.

    The best baseline is that of each problem and budget, of those that have all four.
    """
    cells = [ways for ways in means(lines, metric).values() if "auto" in ways]
    found = {way: [c["auto"] / c[way] for c in cells if way in c] for way in BASELINES}
    found["the best of them"] = [
        c["auto"] / min(c[way] for way in BASELINES) for c in cells if all(way in c for way in BASELINES)
    ]
    return {way: (statistics.mean(of), len(of)) for way, of in found.items() if of}


def behind(lines: list[dict[str, Any]], by: float = 0.005) -> dict[str, tuple[int, int]]:
    """Return in how many studies ``auto`` is worse than untuned with all rounds by more than ``by``, of how many."""
    default = {(r["problem"], r["budget"], r["seed"]): r for r in lines if r["way"] == "untuned"}
    pairs = [(r, default[key]) for r in lines if r["way"] == "auto" and (key := _key(r)) in default]
    return {m: (sum(a[m] > u[m] + by for a, u in pairs), len(pairs)) for m in ("personalized", "global")}


def _key(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["problem"], line["budget"], line["seed"]


def main() -> None:
    """Run what is asked for and show it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=["digits"], choices=list(PROBLEMS))
    parser.add_argument("--budgets", nargs="+", type=int, default=[100])
    parser.add_argument("--ways", nargs="+", default=list(WAYS)[:5], choices=list(WAYS))
    parser.add_argument("--targets", nargs="+", default=["personalized", "global"])
    parser.add_argument("--seeds", type=seeds, default=seeds("100-102"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "rounds.jsonl")
    parser.add_argument("--show", action="store_true", help="only show what there is")
    asked = parser.parse_args()
    asked.out.parent.mkdir(exist_ok=True, parents=True)
    keys = ("problem", "budget", "way", "target", "seed")
    known = {tuple(r[k] for k in keys) for r in read(asked.out)}
    for name in [] if asked.show else asked.problems:
        problem = PROBLEMS[name]()
        for seed in asked.seeds:
            for budget in asked.budgets:
                for way in asked.ways:
                    for target in ("personalized",) if way in BOTH else asked.targets:
                        if (name, budget, way, target, seed) in known:
                            continue
                        made = line(name, problem, budget, way, target, seed)
                        with asked.out.open("a") as file:
                            file.write(json.dumps(made) + "\n")
                        print(*(made[k] for k in (*keys, "global", "personalized", "cpu")), flush=True)
    print(table(read(asked.out)))
    for metric, (worse, of) in behind(read(asked.out)).items():
        ahead = (f"{way} {ratio:.2f} ({n})" for way, (ratio, n) in ratios(read(asked.out), metric).items())
        print(f"auto's {metric} error / that of (mean over problems and budgets):", ", ".join(ahead))
        print(f"auto is more than 0.5 points worse than untuned in {worse} of {of} studies ({metric})")


if __name__ == "__main__":
    main()
