"""Print the numbers in the text of docs/results.md that are not in its tables:

python benchmarks/paper/readings.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, median

from fedtuner.experiments.results import read
from fedtuner.experiments.statistics import Paired, paired

HERE = Path(__file__).parent / "results"


def errors(suite: str) -> dict[tuple[str, ...], dict[int, float]]:
    """Return the target's test errors of a suite, by labels and seed."""
    found: dict[tuple[str, ...], dict[int, float]] = {}
    for kept in read(HERE / f"{suite}.jsonl").studies:
        found.setdefault(tuple(kept["labels"].values()), {})[kept["seed"]] = kept["test"][kept["target"]]
    return found


def on_average(suite: str, change: Callable[[tuple[str, ...]], tuple[str, ...] | None]) -> Paired:
    """Return the paired difference, over seeds, of the mean error before and after a change of labels.

    The mean is over the settings that ``change`` gives other labels; for the rest it gives None.
    """
    found = errors(suite)
    pairs = [(found[labels], found[other]) for labels in found if (other := change(labels)) is not None]
    seeds = sorted(pairs[0][0])
    before, after = ([fmean(pair[side][seed] for pair in pairs) for seed in seeds] for side in (0, 1))
    return paired(before, after)


def say(what: str, d: Paired) -> None:
    print(f"{what}: {100 * d.mean:+.2f} points, better on {d.better} of {d.n}, p = {d.wilcoxon:.3f} by signed ranks")


def main() -> None:
    longer = on_average("elimination", lambda x: (x[0], "0.4", x[2]) if x[1] == "0.1" else None)
    say("elimination, 40 % of the budget for the longest arm against 10 %, over its 8 settings", longer)
    fedex = on_average("elimination", lambda x: ("+ FedEx", *x[1:]) if x[0] == "plain" else None)
    say("elimination, + FedEx against plain, over its 16 settings", fedex)
    tuners = errors("tuners")
    for tuning in ("plain", "+ FedEx"):
        for tuner in ("TPE, 25 arms", "GP, 25 arms"):
            first, second = (tuners[(tuning, name)] for name in ("RS, 25 arms", tuner))
            say(f"tuners, {tuning}: {tuner} against RS, 25 arms", paired(list(first.values()), list(second.values())))
    balls: Mapping[str, list[list[float]]] = {}
    for kept in read(HERE / "ball.jsonl").studies:
        tested = [row[-1] for row in kept["tested"]]  # personalized errors of all 27
        balls = {**balls, kept["labels"]["eps"]: [*balls.get(kept["labels"]["eps"], []), tested]}
    for eps, centres in balls.items():
        spread = median(max(tested) - min(tested) for tested in centres)
        good = sum(min(tested) < 0.1 for tested in centres)
        print(f"ball, eps = {eps}: median range {100 * spread:.0f} points; best below 10 % around {good} centres")
    modes: dict[str, list[float]] = {}
    for kept in read(HERE / "steps.jsonl").studies:
        modes.setdefault(kept["labels"]["step"], []).extend(mode for round, _, mode in kept["theta"] if round == 5)
    for step, after in modes.items():
        print(f"steps, {step}: theta's mode has {100 * fmean(after):.0f} % after five rounds of the winner")


if __name__ == "__main__":
    main()
