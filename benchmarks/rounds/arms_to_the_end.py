"""Is the arm that leads after the first rung a good one? Train every arm alone, for all rounds, and compare.

python benchmarks/rounds/arms_to_the_end.py --problems digits synthetic --budgets 100 --seeds 100-102

Printed are the test errors in percent (global / personalized) of the arm that leads, of the default and of the best
arm, each trained for the whole budget with FedExP and cooling. It costs as many trainings as there are arms.
"""

from __future__ import annotations

import argparse

import fedtuner as ft
from fedtuner import Simulation, Study, methods
from fedtuner.run.auto import COOLING
from problems import PROBLEMS
from run import seeds


def leader(study: Study) -> int:
    """Return the arm that the duel was about: the default's rival, or the default itself."""
    arms = study.journal.arms
    duel = [arm.parent[0] for arm in arms.values() if arm.parent is not None]
    return duel[0] if duel else 0


def alone(problem: Simulation, config: dict[str, object], budget: int, seed: int) -> tuple[float, float]:
    """Return the test errors of a configuration that is trained for all rounds."""
    study = ft.tune(
        problem, ft.Space(), fedex=None, method=methods.fedavg.stepping_by("fedexp"), cooling=COOLING,
        include=[{"client": config}], schedule=ft.random_search(budget, budget), seed=seed, workers=1, progress=False,
    )  # fmt: skip
    found = study.evaluate("test")
    return 100 * found["global"], 100 * found["personalized"]


def main() -> None:
    """Compare what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=["digits"], choices=list(PROBLEMS))
    parser.add_argument("--budgets", nargs="+", type=int, default=[100])
    parser.add_argument("--seeds", type=seeds, default=seeds("100-102"))
    asked = parser.parse_args()
    for name in asked.problems:
        problem = PROBLEMS[name]()
        for budget in asked.budgets:
            for seed in asked.seeds:
                study = ft.tune(problem, budget=budget, seed=seed, workers=1, progress=False)
                first = [arm for arm in study.journal.arms.values() if arm.parent is None]
                ends = {arm.id: alone(problem, dict(arm.client), budget, seed) for arm in first}
                shown = {"leader": ends[leader(study)], "default": ends[0]}
                shown["best"] = tuple(min(end[i] for end in ends.values()) for i in (0, 1))
                print(name, budget, seed, *(f"{of} {g:.1f} / {p:.1f}" for of, (g, p) in shown.items()), flush=True)


if __name__ == "__main__":
    main()
