"""The tables of ways to spend rounds: means, intervals, ranks and paired differences, as Markdown; and the picture.

python benchmarks/rounds/table.py            # prints the large table's parts
python benchmarks/rounds/table.py --write    # writes them into docs/results.md, and draws docs/rounds.svg
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ways import WAYS

from fedtuner.experiments.statistics import paired, summary

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
METRICS = ("personalized", "global")
Line = Mapping[str, Any]
Cell = tuple[str, int]  # problem, budget
BASELINES = ("untuned", "default+", "SHA + FedEx, T/10", "SHA, 0.64 T")


def cells(lines: Iterable[Line], metric: str) -> dict[Cell, dict[str, dict[int, float]]]:
    """Return errors by problem and budget, way and seed; a study counts for the target that it was tuned for."""
    found: dict[Cell, dict[str, dict[int, float]]] = {}
    for r in lines:
        if r["target"] == metric or WAYS[r["way"]].both:
            found.setdefault((r["problem"], r["budget"]), {}).setdefault(r["way"], {})[r["seed"]] = r[metric]
    return dict(sorted(found.items()))


def table(lines: Sequence[Line]) -> str:
    """Return the mean errors in percent (worst seed) by problem and budget, as Markdown."""
    ways = [way for way in WAYS if any(r["way"] == way for r in lines)]
    rows = ["| problem | rounds | seeds | error | " + " | ".join(ways) + " |", "|---" * (4 + len(ways)) + "|"]
    both = {metric: cells(lines, metric) for metric in METRICS}
    for name, budget in sorted({(r["problem"], r["budget"]) for r in lines}):
        for metric in METRICS:
            of = both[metric].get((name, budget), {})
            texts = [_mean_and_worst(of[way].values()) if way in of else "" for way in ways]
            n = max((len(values) for values in of.values()), default=0)
            rows.append(f"| {name} | {budget} | {n} | {metric} | " + " | ".join(texts) + " |")
    return "\n".join(rows)


def _mean_and_worst(errors: Iterable[float]) -> str:
    known = [100 * e for e in errors]
    return f"{statistics.mean(known):.1f} ({max(known):.1f})"


def ratios(lines: Sequence[Line], metric: str) -> dict[str, tuple[float, int]]:
    """Return the mean over problems and budgets of ``auto``'s mean error / another way's, and over how many.

    The best baseline is that of each problem and budget, of those that have all four.
    """
    known = [{way: statistics.mean(of.values()) for way, of in ways.items()} for ways in cells(lines, metric).values()]
    known = [c for c in known if "auto" in c]
    found = {way: [c["auto"] / c[way] for c in known if way in c] for way in BASELINES}
    found["the best of them"] = [
        c["auto"] / min(c[way] for way in BASELINES) for c in known if all(way in c for way in BASELINES)
    ]
    return {way: (statistics.mean(of), len(of)) for way, of in found.items() if of}


def behind(lines: Sequence[Line], way: str = "auto", by: float = 0.005) -> dict[str, tuple[int, int]]:
    """Return in how many studies a way is worse than untuned with all rounds by more than ``by``, of how many."""
    found = {}
    for metric in METRICS:
        pairs = [
            (error, ways["untuned"][seed])
            for ways in cells(lines, metric).values()
            for seed, error in ways.get(way, {}).items() if seed in ways.get("untuned", {})
        ]  # fmt: skip
        found[metric] = sum(mine > default + by for mine, default in pairs), len(pairs)
    return found


def long(lines: Sequence[Line], metric: str) -> str:
    """Return one row a way: errors of every problem and budget with their intervals, as Markdown.

    A cell has the mean and half of its 90 % interval (Student's t), then the median and the worst seed.
    """
    found = cells(lines, metric)
    rows = [
        "| way | " + " | ".join(f"{name}, {budget}" for name, budget in found) + " |",
        "|---" * (1 + len(found)) + "|",
    ]
    for way in WAYS:
        if any(way in ways for ways in found.values()):
            rows.append(f"| {way} | " + " | ".join(_long_cell(ways, way) for ways in found.values()) + " |")
    seeds = (max(len(of) for of in ways.values()) for ways in found.values())
    return "\n".join([*rows, "| *seeds* | " + " | ".join(map(str, seeds)) + " |"])


def _long_cell(ways: Mapping[str, Mapping[int, float]], way: str) -> str:
    if way not in ways:
        return ""
    errors = [100 * e for e in ways[way].values()]
    whole = summary(errors)
    half = "" if math.isnan(whole.half) else f" ± {whole.half:.1f}"
    text = f"{whole.mean:.1f}{half}"
    lowest = min(statistics.mean(of.values()) for of in ways.values())
    text = f"**{text}**" if math.isclose(statistics.mean(ways[way].values()), lowest) else text
    return f"{text} ({statistics.median(errors):.1f}, {max(errors):.1f})"


def against(lines: Sequence[Line], metric: str) -> str:
    """Return, for each way, how it stands to untuned and ``auto`` to it, over all problems and budgets that both have.

    Columns: the number of problems and budgets; the mean of error / untuned's; the mean rank among the ways of a
    problem and budget (1 is the lowest error); studies that are more than 0.5 points worse than untuned; ``auto``'s
    error / its error; and the mean of paired differences, ``auto`` minus it in points, with its 90 % interval over the
    studies.
    """
    found = cells(lines, metric)
    head = (
        "way",
        "cells",
        "error / untuned",
        "mean rank",
        "> 0.5 points worse",
        "auto's error / its",
        "auto - it, points",
    )
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    ranks = _ranks(found)
    for way in WAYS:
        of = {cell: ways for cell, ways in found.items() if way in ways and "untuned" in ways}
        if not of:
            continue
        means = [_mean(ways[way]) / _mean(ways["untuned"]) for ways in of.values()]
        worse, n = behind(lines, way)[metric]
        versus = [_mean(ways["auto"]) / _mean(ways[way]) for ways in of.values() if "auto" in ways]
        row = [
            way,
            str(len(of)),
            f"{statistics.mean(means):.2f}",
            f"{statistics.mean(ranks[way]):.1f}",
            f"{worse} of {n}",
        ]
        rows.append("| " + " | ".join([*row, *_versus(way, versus, of)]) + " |")
    return "\n".join(rows)


def _versus(way: str, ratios: Sequence[float], of: Mapping[Cell, Mapping[str, Mapping[int, float]]]) -> list[str]:
    if way == "auto" or not ratios:
        return ["", ""]
    pairs = [
        (100 * error, 100 * ways["auto"][seed])
        for ways in of.values() for seed, error in ways[way].items() if seed in ways.get("auto", {})
    ]  # fmt: skip
    difference = paired([a for a, _ in pairs], [b for _, b in pairs])
    return [f"{statistics.mean(ratios):.2f}", f"{difference.mean:+.1f} ± {difference.half:.1f}"]


def _ranks(found: Mapping[Cell, Mapping[str, Mapping[int, float]]]) -> dict[str, list[float]]:
    """Return each way's rank by mean error among the ways of every problem and budget."""
    ranks: dict[str, list[float]] = {}
    for ways in found.values():
        means = {way: round(_mean(of), 9) for way, of in ways.items()}
        for way, mean in means.items():
            below, equal = sum(m < mean for m in means.values()), sum(m == mean for m in means.values())
            ranks.setdefault(way, []).append(below + (equal + 1) / 2)
    return ranks


def _mean(of: Mapping[int, float]) -> float:
    return statistics.mean(of.values())


def picture(lines: Sequence[Line], path: Path, ways: Sequence[str]) -> None:
    """Draw error / untuned's by problem and budget, a mark a way, for both targets."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "rounds"
    found = {metric: cells(lines, metric) for metric in METRICS}
    places = [c for c, of in found["global"].items() if "untuned" in of and "auto" in of][::-1]
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 1.5 + 0.28 * len(places)), sharey=True, layout="constrained")
    for axis, metric in zip(axes, METRICS, strict=True):
        for marker, way in zip("sD^vXPo", ways, strict=True):
            errors = [(found[metric][cell].get(way), found[metric][cell]["untuned"]) for cell in places]
            at = [(y, _mean(of) / _mean(default)) for y, (of, default) in enumerate(errors) if of]
            size, order = (46, 4) if way == "auto" else (26, 3)
            axis.scatter([x for _, x in at], [y for y, _ in at], label=way, marker=marker, s=size, zorder=order)
        axis.axvline(1, color="0.4", linewidth=1)
        axis.set_xscale("log")
        axis.set_xticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1", "0.2", "0.5", "1", "2", "5"])
        axis.minorticks_off()
        axis.set_yticks(range(len(places)), [f"{name}, {budget}" for name, budget in places])
        axis.set_title(f"{metric} error / untuned's, all rounds")
        axis.grid(color="0.9")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


SHOWN = ("default+", "SHA + FedEx, T/10", "SHA, 0.64 T", "Hyperband, T/10", "BOHB, T/10", "FedPop, T/10", "auto")
PARTS = {f"{make.__name__} {metric}": (make, metric) for make in (against, long) for metric in METRICS}


def read(*names: str) -> list[Line]:
    """Return the lines of result files."""
    return [json.loads(text) for name in names for text in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def written(text: str, lines: Sequence[Line]) -> str:
    """Return a document with the tables between its marks."""
    for name, (make, metric) in PARTS.items():
        begin, end = f"<!-- rounds: {name} -->", "<!-- /rounds -->"
        before, found, rest = text.partition(begin)
        if found:
            text = f"{before}{begin}\n\n{make(lines, metric)}\n\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/results.md, with the picture docs/rounds.svg")
    lines = read("rounds", "table")
    if not parser.parse_args().write:
        for name, (make, metric) in PARTS.items():
            print(f"\n{name}\n\n{make(lines, metric)}")
        return
    page = ROOT / "docs" / "results.md"
    page.write_text(written(page.read_text(), lines))
    picture(lines, ROOT / "docs" / "rounds.svg", SHOWN)


if __name__ == "__main__":
    main()
