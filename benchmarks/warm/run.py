"""Warm starts, measured once: half of the digits' writers are public, the other half is what the model is for.

python benchmarks/warm/run.py --budgets 50 100 200 --seeds 0-4

Each way has ``budget`` rounds with the clients of the second half; rounds with the public half cost these nothing.

    untuned     FedAvg's default with all rounds
    cold        tune(problem, budget=...)
    warm        tune(problem, budget=..., start_from=tune(the public half, budget=500))
    proxy       tune(problem, budget=..., proxy=the public half)
"""

from __future__ import annotations

import argparse
from statistics import fmean

import fedtuner as ft
from fedtuner.problems import digits


def halves() -> tuple[ft.Simulation, ft.Simulation]:
    """The digits' clients, every second one public."""
    whole = digits.problem()
    return tuple(ft.Simulation(whole.model, whole.clients[n::2], name) for n, name in enumerate(("public", "own")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budgets", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    first, last = map(int, arguments.seeds.split("-"))
    seeds = range(first, last + 1)
    sources = {seed: ft.tune(halves()[0], budget=500, seed=seed, workers=arguments.workers) for seed in seeds}
    print("| rounds | way | global | personalized |\n| --- | --- | --- | --- |")
    for budget in arguments.budgets:
        found: dict[str, list[dict[str, float]]] = {}
        for seed, source in sources.items():
            for name, study in ways(budget, seed, source, arguments.workers).items():
                assert study.rounds_used == budget
                found.setdefault(name, []).append(study.evaluate("test"))
        for name, errors in found.items():
            means = (f"{100 * fmean(e[side] for e in errors):.1f} %" for side in ("global", "personalized"))
            print(f"| {budget} | {name} | {' | '.join(means)} |", flush=True)


def ways(budget: int, seed: int, source: ft.Study, workers: int) -> dict[str, ft.Study]:
    """The study of each way."""
    public, own = halves()
    same = {"budget": budget, "seed": seed, "workers": workers, "progress": False}
    cold = ft.tune(own, **same)
    return {
        "untuned": ft.untuned(cold, progress=False), "cold": cold, "warm": ft.tune(own, start_from=source, **same),
        "proxy": ft.tune(own, proxy=public, **same),
    }  # fmt: skip


if __name__ == "__main__":
    main()
