"""What few and noisy evaluations do to tuners.

After Kuo et al., "On Noisy Evaluation in Federated Hyperparameter Tuning", MLSys 2023. A round's cohort of ten trains
as ever, but only some of its clients report metrics, or all report them with noise; or only the clients with the most
data are ever there. The model that comes out is evaluated on all clients, without noise.

python benchmarks/rounds/noise.py --problems digits --budgets 200 --seeds 0-9
python benchmarks/rounds/noise.py --show
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ways import WAYS

import run
from fedtuner import Simulation
from fedtuner.core.model import Metrics
from fedtuner.core.records import Plan, Report, Tried
from fedtuner.rng import stream
from problems import PROBLEMS

COMPARED = ("untuned", "default+", "RS, T/10", "SHA, T/10", "SHA + FedEx, T/10", "Hyperband, T/10", "auto")


@dataclass(frozen=True)
class Evaluators:
    """A screen: only the first clients of a cohort report metrics, and these have noise."""

    most: int = 10
    noise: float = 0.0  # standard deviation of a factor

    def __call__(self, plan: Plan, reports: Sequence[Report | None]) -> list[Report | None]:
        """Return the reports of a round with their metrics changed; those of an evaluation as they are."""
        if plan.split != "valid":
            return list(reports)
        return [None if r is None else self._changed(plan, n, r) for n, r in enumerate(reports)]

    def _changed(self, plan: Plan, n: int, report: Report) -> Report:
        rng = stream(plan.seed, "noisy evaluation", plan.arm, plan.round, report.client)

        def seen(metrics: Metrics) -> Metrics:
            if n >= self.most:
                return Metrics(math.nan, math.nan, 0)
            loss, error = (max(0.0, 1 + self.noise * rng.normal()) for _ in range(2))
            return replace(metrics, loss=metrics.loss * loss, error=metrics.error * error)

        return replace(report, tried=tuple(Tried(t.label, seen(t.before), seen(t.after)) for t in report.tried))

    def describe(self) -> str:
        """Return its name in a journal."""
        return f"{self.most} clients evaluate, noise {self.noise:g}"


class Limited(Simulation):
    """A simulation whose rounds see less than they should."""

    def __init__(self, problem: Simulation, evaluators: Evaluators | None, there: float) -> None:
        super().__init__(problem.task, problem.clients, problem.name)
        largest = sorted(range(len(self.clients)), key=lambda i: -self.size(i, "train"))
        self._there = sorted(largest[: max(10, round(there * len(largest)))])
        self.screens = () if evaluators is None else (evaluators,)

    def present(self) -> Sequence[int]:
        """Return the clients with the most data."""
        return self._there

    def everyone(self) -> Sequence[int]:
        """Return all clients."""
        return range(len(self.clients))


CONDITIONS: dict[str, tuple[Evaluators | None, float]] = {
    "10 evaluate": (None, 1.0),
    "3 evaluate": (Evaluators(3), 1.0),
    "1 evaluates": (Evaluators(1), 1.0),
    "10 evaluate, noise": (Evaluators(10, 0.5), 1.0),
    "1 evaluates, noise": (Evaluators(1, 0.5), 1.0),
    "the largest fifth": (None, 0.2),
}


def line(name: str, budget: int, way: str, target: str, seed: int, condition: str) -> dict[str, Any]:
    """Run a study under a condition and return its line."""
    study = WAYS[way].run(Limited(PROBLEMS[name](), *CONDITIONS[condition]), budget, target, seed)
    return {
        "problem": name, "budget": budget, "way": way, "target": target, "seed": seed, "condition": condition,
        **study.evaluate("test"), "rounds": study.rounds_used,
    }  # fmt: skip


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return mean errors in percent (worst seed) by condition and way, each for the target that it was tuned for."""
    rows = ["| problem | rounds | condition | " + " | ".join(COMPARED) + " |", "|---" * (3 + len(COMPARED)) + "|"]
    for name, budget in sorted({(r["problem"], r["budget"]) for r in lines}):
        for condition in CONDITIONS:
            cells = []
            for way in COMPARED:
                key = (name, budget, way, condition)
                of = [r for r in lines if (r["problem"], r["budget"], r["way"], r["condition"]) == key]
                errors = [100 * r[r["target"]] for r in of]
                cells.append(f"{statistics.mean(errors):.1f} ({max(errors):.1f})" if errors else "")
            rows.append(f"| {name} | {budget} | {condition} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Run what is asked for and show it."""
    parser = run.parser(__doc__, COMPARED, run.HERE / "results" / "noise.jsonl")
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=list(CONDITIONS))
    asked = parser.parse_args()
    todo = [
        (name, budget, way, asked.targets[0], seed, condition)
        for name in asked.problems for seed in asked.seeds for budget in asked.budgets
        for condition in asked.conditions for way in asked.ways
    ]  # fmt: skip
    run.add(asked, partial(run.one, line), [[key] for key in todo], (*run.KEYS, "condition"))
    print(table(run.read(asked.out)))


if __name__ == "__main__":
    main()
