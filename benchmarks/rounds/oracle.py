"""The limit of what tuning could give: the best, on test data, of 64 configurations that each had all T rounds.

They are dealt over ``auto``'s ranges by a Latin hypercube, and trained as ``auto`` trains its winner, with FedExP and
cooling: 64 T rounds in all. The lowest test error is picked by the test data itself, so no tuner can be expected to
reach it.

python benchmarks/rounds/oracle.py --problems digits easy shift01 --budgets 100 200 --seeds 0-4
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ways import COOLING, trained

import run
from fedtuner import Space, methods, samplers
from problems import PROBLEMS

ARMS = 64


def line(name: str, budget: int, way: str, target: str, seed: int) -> dict[str, Any]:
    """Train the configurations and return a line with their lowest test errors."""
    problem, found, examples = PROBLEMS[name](), [], 0
    space = Space({name: methods.fedavg.client[name].domain for name in ("lr", "epochs", "batch")})
    dealt = samplers.Stratified(ARMS - 1, {"lr": 0.1})
    configs = [{}, *(dealt.propose(space, seed, id, 0, ())[0] for id in range(ARMS - 1))]  # the default is one of them
    for config in configs:
        method = methods.fedavg.with_defaults(client=config).stepping_by("fedexp")
        study = trained("", method, COOLING).run(problem, budget, target, seed)
        found.append(study.evaluate("test"))
        examples += study.examples_processed
    return {
        "problem": name, "budget": budget, "way": way, "target": target, "seed": seed, "examples": examples,
        **{metric: min(errors[metric] for errors in found) for metric in ("global", "personalized")},
    }  # fmt: skip


def main() -> None:
    """Run what is asked for."""
    asked = run.parser(__doc__, ("oracle",), run.HERE / "results" / "oracle.jsonl").parse_args()
    todo = [
        (name, budget, "oracle", "personalized", seed)
        for name in asked.problems for seed in asked.seeds for budget in asked.budgets
    ]  # fmt: skip
    run.add(asked, partial(run.one, line), [[key] for key in todo], run.KEYS)


if __name__ == "__main__":
    main()
