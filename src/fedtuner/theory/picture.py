"""The picture of `fedtuner theory`: regret against the number of tasks, for each V, and against V."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtuner.experiments import pictures
from fedtuner.experiments.statistics import summary
from fedtuner.theory.experiment import TUNERS, rate, straightness
from fedtuner.theory.theorem import Floats

Record = Mapping[str, Any]  # what `report.record` returns, or one of its runs


def picture(result: Record) -> dict[str, bytes]:
    """Return the picture as {"png": ..., "svg": ...}; empty where matplotlib is not installed."""
    similarities = result["settings"]["setting"]["similarities"]
    rows = math.ceil((len(similarities) + 2) / 3)

    def draw(canvas: Any) -> None:
        panels = canvas.subplots(rows, 3, squeeze=False).ravel()
        for axes, similarity in zip(panels, similarities, strict=False):
            _draw_regret(axes, [run for run in result["runs"] if run["similarity"] == similarity])
        _draw_excess(panels[len(similarities)], result)
        _draw_similarity(panels[len(similarities) + 1], result)
        for axes in panels[len(similarities) + 2 :]:
            axes.remove()
        handles, labels = panels[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)

    try:
        return pictures.picture(draw, (11, 3.1 * rows), font=8, dpi=130)
    except ImportError:
        return {}


def _curves(runs: Sequence[Record], name: str) -> tuple[list[int], Floats, Floats]:
    wholes = [summary(run["regret"][name]) for run in runs]
    return [run["tau"] for run in runs], np.array([w.mean for w in wholes]), np.array([w.half for w in wholes])


_COLOURS = {
    "best": "black", "known": "tab:brown", "full": "tab:purple", "full_same": "tab:pink", "fedex": "tab:red",
    "uniform": "tab:blue", "naive": "tab:gray",
}  # fmt: skip


def _draw_regret(axes: Any, runs: Sequence[Record]) -> None:
    for name, colour in _COLOURS.items():
        tau, mean, half = _curves(runs, name)
        axes.plot(tau, mean, color=colour, marker=".", lw=2 if name == "fedex" else 1, label=TUNERS[name])
        axes.fill_between(tau, np.maximum(mean - half, 1e-9), mean + half, color=colour, alpha=0.2, lw=0)
    limits = {name: [run["bound"][name] for run in runs] for name in runs[0]["bound"]}
    axes.plot(tau, limits["total"], "k--", lw=1, label="bound")
    axes.plot(tau, limits["feedback"], "k:", lw=1, label="its feedback term")
    axes.plot(tau, np.maximum(limits["start"], 1e-9), "k-.", lw=0.7, label="its start term")
    axes.plot(tau, np.maximum(limits["similarity"], 1e-9), color="tab:green", ls="--", lw=1, label="its V-term")
    axes.set(xscale="log", yscale="log", ylim=(2e-3, 2), title=f"V = {runs[0]['similarity']:g} D", xlabel="tasks")
    axes.set_ylabel("regret / (D G sqrt m)")


def _draw_excess(axes: Any, result: Record) -> None:
    lowest = math.inf
    for similarity in result["settings"]["setting"]["similarities"]:
        runs = [run for run in result["runs"] if run["similarity"] == similarity]
        tau, mean, _ = _curves(runs, "fedex")
        excess = np.array([np.subtract(run["regret"]["fedex"], run["regret"]["best"]) for run in runs])
        label = f"V = {similarity:g} D: {rate(tau, excess).mean():.2f} ± {straightness(tau, excess):.2f}"
        above = mean - _curves(runs, "best")[1]
        lowest = min([lowest, *above[above > 0]])
        axes.plot(tau, above, marker=".", label=label)
    x = np.array([result["runs"][0]["tau"], result["settings"]["tau"]], dtype=float)
    axes.plot(x, 0.3 * (x / x[0]) ** (-1 / 3), "k--", lw=1, label="slope -1/3")
    axes.set(
        xscale="log", yscale="log", title="FedEx above the best fixed step; exponents ± the line's fit", xlabel="tasks"
    )
    axes.set_ylim(bottom=lowest / 7 if math.isfinite(lowest) else None)  # the legend has room below the curves
    axes.legend(frameon=False, loc="lower left")


def _draw_similarity(axes: Any, result: Record) -> None:
    last = [run for run in result["runs"] if run["tau"] == result["settings"]["tau"]]
    v = [run["v"] for run in last]
    for name in ("best", "fedex", "uniform", "naive"):
        wholes = [summary(run["regret"][name]) for run in last]
        mean, half = [w.mean for w in wholes], [w.half for w in wholes]
        axes.errorbar(v, mean, half, color=_COLOURS[name], marker=".")
    axes.plot(v, [run["bound"]["similarity"] for run in last], color="tab:green", ls="--", lw=1)
    axes.plot(v, [run["bound"]["total"] for run in last], "k--", lw=1)
    axes.set(title=f"after {result['settings']['tau']:,} tasks, by V", xlabel="V / D", ylim=(0, None))
    axes.locator_params(axis="x", nbins=5)
