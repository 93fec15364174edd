"""The tables of ways to spend rounds: means, intervals, ranks and paired differences, as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from goals import Cell, Errors, Line, best_shares, mean, ratio
from ways import TUNERS, WAYS

from fedtuner.experiments.statistics import paired, summary

METRICS = ("personalized", "global")
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
    known = [ways for ways in cells(lines, metric).values() if "auto" in ways]
    found = {way: [ratio(ways["auto"], ways[way]) for ways in known if way in ways] for way in BASELINES}
    found["the best of them"] = [
        max(ratio(ways["auto"], ways[way]) for way in BASELINES) for ways in known if all(w in ways for w in BASELINES)
    ]
    return {way: (statistics.mean(of), len(of)) for way, of in found.items() if of}


def behind(lines: Sequence[Line], way: str = "auto", by: float = 0.005) -> dict[str, tuple[int, int]]:
    """Return in how many studies a way is worse than untuned with all rounds by more than ``by``, of how many."""
    return {metric: _worse(cells(lines, metric), way, by) for metric in METRICS}


def _worse(found: Mapping[Cell, Errors], way: str, by: float = 0.005) -> tuple[int, int]:
    pairs = [
        (error, ways["untuned"][seed])
        for ways in found.values()
        for seed, error in ways.get(way, {}).items() if seed in ways.get("untuned", {})
    ]  # fmt: skip
    return sum(mine > default + by for mine, default in pairs), len(pairs)


def by_problem(lines: Sequence[Line]) -> str:
    """Return a table for each problem, a row a way: both errors at every budget, with their intervals, as Markdown.

    A cell has the mean and half of its 90 % interval (Student's t), then the median and the worst seed.
    """
    both = {metric: cells(lines, metric) for metric in METRICS}
    tables = []
    for problem in dict.fromkeys(name for name, _ in both[METRICS[0]]):
        columns = [(m, cell) for m, found in both.items() for cell in found if cell[0] == problem]
        head = "| way | " + " | ".join(f"{metric}, {budget}" for metric, (_, budget) in columns) + " |"
        rows = [f"#### {problem}", "", head, "|---" * (1 + len(columns)) + "|"]
        found = [both[metric][cell] for metric, cell in columns]
        for way in WAYS:
            if any(way in ways for ways in found):
                rows.append(f"| {way} | " + " | ".join(_long_cell(ways, way) for ways in found) + " |")
        seeds = (max(len(of) for of in ways.values()) for ways in found)
        tables.append("\n".join([*rows, "| *seeds, at most* | " + " | ".join(map(str, seeds)) + " |"]))
    return "\n\n".join(tables)


def _long_cell(ways: Errors, way: str) -> str:
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
    studies. "best share" is that of each problem and budget, by the test errors themselves; it has no rank.
    """
    found = cells(lines, metric)
    ranks = _ranks(found)
    found = {cell: {**ways, **best_shares(ways)} for cell, ways in found.items()}
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
    for way in [*WAYS, *(f"{tuner}, best share" for tuner in TUNERS)]:
        of = {cell: ways for cell, ways in found.items() if way in ways and "untuned" in ways}
        if not of:
            continue
        means = [ratio(ways[way], ways["untuned"]) for ways in of.values()]
        worse, n = _worse(found, way)
        versus = [ratio(ways["auto"], ways[way]) for ways in of.values() if "auto" in ways]
        row = [
            way,
            str(len(of)),
            f"{statistics.mean(means):.2f}",
            f"{statistics.mean(ranks[way]):.1f}" if way in ranks else "",
            f"{worse} of {n}",
        ]
        rows.append("| " + " | ".join([*row, *_versus(way, versus, of)]) + " |")
    return "\n".join(rows)


def _versus(way: str, ratios: Sequence[float], of: Mapping[Cell, Errors]) -> list[str]:
    if way == "auto" or not ratios:
        return ["", ""]
    pairs = [
        (100 * error, 100 * ways["auto"][seed])
        for ways in of.values() for seed, error in ways[way].items() if seed in ways.get("auto", {})
    ]  # fmt: skip
    difference = paired([a for a, _ in pairs], [b for _, b in pairs])
    return [f"{statistics.mean(ratios):.2f}", f"{difference.mean:+.1f} ± {difference.half:.1f}"]


def _ranks(found: Mapping[Cell, Errors]) -> dict[str, list[float]]:
    """Return each way's rank by mean error among the ways of every problem and budget."""
    ranks: dict[str, list[float]] = {}
    for ways in found.values():
        means = {way: round(mean(of), 9) for way, of in ways.items()}
        for way, error in means.items():
            below, equal = sum(m < error for m in means.values()), sum(m == error for m in means.values())
            ranks.setdefault(way, []).append(below + (equal + 1) / 2)
    return ranks
