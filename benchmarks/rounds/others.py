"""``auto`` beside your own settings on further problems, with other methods, cohorts and defaults: FedAvg is not all.

python benchmarks/rounds/others.py --budgets 100 200 --seeds 0-2
python benchmarks/rounds/others.py --show

A line has the test errors of both, of a study and of its ``untuned`` with the same rounds. Cases that have a line
already are not run again.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from further import FURTHER

import fedtuner as ft
import run
from fedtuner import Simulation
from problems import PROBLEMS

BY = 0.005  # what counts as worse
KEYS = ("case", "budget", "seed")


@dataclass(frozen=True)
class Case:
    """A problem, and settings that are given beside the budget."""

    problem: Callable[[], Simulation]
    settings: Mapping[str, Any] = field(default_factory=dict)


def _own(**client: Any) -> dict[str, Any]:
    """Return the settings of somebody who trains with these hyperparameters today."""
    return {"include": [{"client": client}]}


SETTINGS: dict[str, Mapping[str, Any]] = {
    **{name: {"method": name} for name in ft.methods.ALL if name != "fedavg"},
    "cohorts of 3": {"cohort": 3},
    "cohorts of 30": {"cohort": 30},
    "own lr 0.01": _own(lr=0.01),
    "own lr 1": _own(lr=1.0),
    "own momentum 0.9": _own(momentum=0.9),
    "own Adam, lr 0.001": _own(optimiser="adam", lr=0.001),
}
CASES: dict[str, Case] = {
    **{name: Case(problem) for name, problem in FURTHER.items()},
    **{
        f"{problem}: {name}": Case(PROBLEMS[problem], settings)
        for problem in ("digits", "writers100")
        for name, settings in SETTINGS.items()
    },
    **{f"towns: {name}": Case(FURTHER["towns"], SETTINGS[name]) for name in ("cohorts of 3", "own Adam, lr 0.001")},
}


def line(case: str, budget: int, seed: int) -> dict[str, Any]:
    """Run a study and its baseline, and return their line."""
    problem = CASES[case].problem()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a default lies outside of the ranges, that clients are few
        study = ft.tune(
            problem, budget=budget, seed=seed, workers=1, progress=False, **CASES[case].settings
        )  # fmt: skip
        baseline = ft.untuned(study, progress=False)
        errors = {"auto": dict(study.evaluate("test")), "untuned": dict(baseline.evaluate("test"))}
    rounds = {"auto": study.rounds_used, "untuned": baseline.rounds_used}
    return {"case": case, "budget": budget, "seed": seed, **errors, "rounds": rounds}


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return mean errors in percent (worst seed) by case and budget, and in the last row the means of the ratios."""
    rows = ["| case | rounds | seeds | untuned, personalized | auto | ratio | untuned, global | auto | ratio |"]
    rows.append("|---" * 9 + "|")
    ratios: dict[str, list[float]] = {"personalized": [], "global": []}
    worse = dict.fromkeys(ratios, 0)
    for name, budget in sorted({(r["case"], r["budget"]) for r in lines}, key=_order):
        of = [r for r in lines if (r["case"], r["budget"]) == (name, budget)]
        cells = [name, str(budget), str(len(of))]
        for metric, found in ratios.items():
            default, mine = ([r[way][metric] for r in of] for way in ("untuned", "auto"))
            found.append(statistics.mean(mine) / statistics.mean(default))
            worse[metric] += sum(m > d + BY for d, m in zip(default, mine, strict=True))
            cells += [_percent(default), _percent(mine), f"{found[-1]:.2f}"]
        rows.append("| " + " | ".join(cells) + " |")
    last = [f"{n} of {len(lines)} worse | *{statistics.mean(ratios[m]):.2f}*" for m, n in worse.items() if ratios[m]]
    return "\n".join([*rows, "| *mean* | | | | " + " | | ".join(last) + " |"])


def _order(cell: tuple[str, int]) -> tuple[int, int]:
    return list(CASES).index(cell[0]), cell[1]


def _percent(errors: Sequence[float]) -> str:
    return f"{100 * statistics.mean(errors):.1f} ({100 * max(errors):.1f})"


def main() -> None:
    """Run what is asked for and show it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--budgets", nargs="+", type=int, default=[100])
    run.common(parser, run.HERE / "results" / "others.jsonl")
    asked = parser.parse_args()
    todo = [(case, budget, seed) for seed in asked.seeds for budget in asked.budgets for case in asked.cases]
    run.add(asked, partial(run.one, line), [[key] for key in todo], KEYS)
    print(table(run.read(asked.out)))


if __name__ == "__main__":
    main()
