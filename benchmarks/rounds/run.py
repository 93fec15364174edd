"""Ways to spend the same rounds, side by side: a line of results per problem, budget, way and seed.

python benchmarks/rounds/run.py --problems digits writers100 --budgets 100 200 --seeds 100-103
python benchmarks/rounds/run.py --show

Studies that have a line already are not run again. Seeds from 100 on are for choosing constants, 0 to 99 for reporting.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedtuner as ft
from fedtuner import Simulation, Study, methods
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


def _halving(longest: float, fedex: Any, problem: Simulation, budget: int, target: str, seed: int) -> Study:
    schedule = ft.halving(budget, int(longest * budget))
    return ft.tune(
        problem, fedex=fedex, schedule=schedule, target=target, seed=seed, workers=1, progress=False
    )  # fmt: skip


def sha_fedex(problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Successive halving with FedEx, the paper's share for the longest arm."""
    return _halving(0.1, ft.FedEx(), problem, budget, target, seed)


def sha_long(problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Successive halving without FedEx, most of the rounds for the winner."""
    return _halving(0.64, None, problem, budget, target, seed)


def auto(problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """What ``tune(problem, budget=...)`` does."""
    return ft.tune(problem, budget=budget, target=target, seed=seed, workers=1, progress=False)


WAYS: dict[str, Way] = {
    "untuned": untuned, "default+": extrapolated, "SHA + FedEx, T/10": sha_fedex, "SHA, 0.64 T": sha_long, "auto": auto,
}  # fmt: skip
BOTH = ("untuned", "default+", "auto")  # ways whose training does not depend on the target


def line(name: str, problem: Simulation, budget: int, way: str, target: str, seed: int) -> dict[str, Any]:
    """Run a study and return its line."""
    begun = time.process_time()
    study = WAYS[way](problem, budget, target, seed)
    best = study.best
    return {
        "problem": name, "budget": budget, "way": way, "target": target, "seed": seed, **study.evaluate("test"),
        "rounds": study.rounds_used, "examples": worked(study), "cpu": round(time.process_time() - begun, 1),
        "arm": best.arm, "client": dict(best.client), "arms": [repr(arm) for arm in study.journal.arms.values()],
    }  # fmt: skip


def worked(study: Study) -> int:
    """Return the examples that clients processed in training: local work."""
    total = 0
    for arm, records in study.journal.own_records.items():
        epochs = study.journal.arms[arm].client.get("epochs", 1)
        candidates = study.journal.candidates[arm]
        for record in records:
            for row in record.rows:
                total += row.examples * int(candidates[row.label].get("epochs", epochs) if candidates else epochs)
    return total


def seeds(text: str) -> list[int]:
    """Return the seeds that a text such as 0-9 stands for."""
    low, _, high = text.partition("-")
    return list(range(int(low), int(high or low) + 1))


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def show(lines: list[dict[str, Any]]) -> None:
    """Print mean errors (worst seed) by problem and budget."""
    ways = list(dict.fromkeys((r["way"], r["target"]) for r in lines))
    for metric in ("global", "personalized"):
        print(f"\n{metric} test error, percent: mean (worst seed), number of seeds")
        for name, budget in dict.fromkeys((r["problem"], r["budget"]) for r in lines):
            cells = []
            for way, target in ways:
                if way not in BOTH and target != metric:
                    continue
                of = [
                    100 * r[metric] for r in lines
                    if (r["problem"], r["budget"], r["way"], r["target"]) == (name, budget, way, target)
                ]  # fmt: skip
                if of:
                    cells.append(f"{way} {statistics.mean(of):.1f} ({max(of):.1f}) n={len(of)}")
            print(f"  {name:16} T={budget:<5}", "; ".join(cells))


def main() -> None:
    """Run what is asked for and show it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=["digits"], choices=list(PROBLEMS))
    parser.add_argument("--budgets", nargs="+", type=int, default=[100])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
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
    show(read(asked.out))


if __name__ == "__main__":
    main()
