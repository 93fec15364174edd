"""Figures of a suite's results: each as PNG, as SVG, and its numbers as CSV.

The suite's ``[[figures]]`` say what to draw:

    kind     online: test error of the incumbent against rounds used;  sweep: final test error against an axis;
             theta: entropy of theta and probability of its mode over the winner's rounds;
             ranges: the test errors of all arms that reached the end, seed by seed (needs every_arm)
    x        sweep, ranges: the suite's axis on the horizontal axis
    line     the suite's axis with a line for each value (online and theta: by default the suite's ``along``)
    panel    the suite's axis with a panel for each value, side by side
    only     such as { target = "global" }: only the studies with these values
    name     name of the files; by default the kind
    log      "x" or "y": the scale that is logarithmic; if x has a 0, it is linear from 0 to the next value

Means over seeds are shown with their 90 % interval, clipped to the values that an error, a probability or an entropy
can have. One seed has no interval; the legend then says n = 1.
"""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtuner.errors import SpecError, suggest
from fedtuner.experiments import pictures, results
from fedtuner.experiments.pictures import COLOURS
from fedtuner.experiments.results import Result
from fedtuner.experiments.statistics import summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

KINDS = ("online", "sweep", "theta", "ranges")
_KNOWN = ("kind", "x", "line", "panel", "only", "name", "log")


@dataclass(frozen=True)
class Point:
    """A mean over seeds at one x of a line; in ``ranges``, the error of one arm of the study with this seed."""

    panel: str
    line: str
    x: float | str
    n: int
    mean: float
    half: float
    seed: int | None = None


@dataclass(frozen=True)
class Figure:
    """The numbers and the words of a figure."""

    name: str
    kind: str
    x: str  # label of the horizontal axis
    y: str
    points: tuple[Point, ...]
    log: str = ""

    @property
    def panels(self) -> list[str]:
        return list(dict.fromkeys(point.panel for point in self.points))


def draw(path: Path, to: Path, suite: Mapping[str, Any] | None = None) -> list[Path]:
    """Draw the figures of a file of results and return their files; ``suite`` replaces what the file says of it."""
    kept = results.read(path)
    suite = suite or kept.suite
    if not kept.studies:
        raise SpecError(f"no results in {path}: 'fedtuner bench' makes them")
    if not suite.get("figures"):
        raise SpecError(f"the suite of {path} names no [[figures]]: add one, such as kind = 'online'")
    pictures.needed("figures")
    files = []
    for wanted in suite["figures"]:
        made = figure(kept.studies, wanted, suite.get("along", ""))
        parts = {"csv": table(made).encode(), **paint(made, suite.get("title", ""))}
        files += pictures.write(to, {f"{made.name}.{suffix}": data for suffix, data in parts.items()})
    return files


def figure(found: Sequence[Result], wanted: Mapping[str, Any], along: str = "") -> Figure:
    """Return the figure of some results that a ``[[figures]]`` table asks for."""
    for key in wanted:
        if key not in _KNOWN:
            raise SpecError(f"no setting figures.{key}{suggest(key, _KNOWN)}")
    kind = wanted.get("kind")
    if kind not in KINDS:
        raise SpecError(f"figures.kind = {kind!r}, but must be one of {KINDS}{suggest(str(kind), KINDS)}")
    axes = [axis for axis in found[0]["labels"] if all(axis in kept["labels"] for kept in found)]
    x, panel = wanted.get("x", ""), wanted.get("panel", "")
    line = wanted.get("line", along if kind in ("online", "theta") else "")
    if kind in ("sweep", "ranges") and not x:
        raise SpecError(f"a figure of kind {kind!r} needs x: the axis along it, one of {axes}")
    for name, axis in (("x", x), ("line", line), ("panel", panel)):
        if axis and axis not in axes:
            raise SpecError(f"figures.{name} = {axis!r}, but must be an axis{suggest(axis, axes)}")
    if wanted.get("log", "") not in ("", "x", "y"):
        raise SpecError(f"figures.log = {wanted['log']!r}, but must be 'x' or 'y'")
    only = wanted.get("only", {})
    found = [kept for kept in found if all(kept["labels"].get(axis) == label for axis, label in only.items())]
    groups: dict[tuple[str, str], list[Result]] = {}
    for kept in found:
        groups.setdefault((kept["labels"].get(panel, ""), kept["labels"].get(line, "")), []).append(kept)
    shape: dict[str, Callable[[Sequence[Result]], Iterable[tuple[Any, ...]]]] = {
        "online": _online,
        "theta": _theta,
        "sweep": lambda some: _sweep(some, x),
        "ranges": lambda some: _ranges(some, x),
    }
    points = []
    for (which, label), some in groups.items():
        for where, *rest in shape[kind](some):
            suffix, where = where if isinstance(where, tuple) else ("", where)
            points.append(Point(", ".join(filter(None, (which, suffix))), label, where, *rest))
    if not points:
        needs = {"online": "online", "theta": "online, and FedEx", "ranges": "every_arm"}.get(kind, "")
        raise SpecError(f"the results have nothing for a figure of kind {kind!r}: it needs studies with {needs}")
    across = {"online": "communication rounds used", "theta": "round of the winner"}.get(kind, x)
    up = {"theta": ""}.get(kind, "test error")
    return Figure(str(wanted.get("name", kind)), kind, across, up, tuple(points), wanted.get("log", ""))


def _online(some: Sequence[Result]) -> Iterable[tuple[Any, ...]]:
    """Yield the mean error of the incumbents after each number of rounds at which some seed's incumbent changed."""
    curves = [kept["online"]["curve"] for kept in some if "online" in kept]
    if not curves:
        return
    sides = [results.SIDES.index(kept["target"]) - 2 for kept in some if "online" in kept]
    start, end = max(curve[0][0] for curve in curves), max(kept["rounds"] for kept in some)
    for used in sorted({row[0] for curve in curves for row in curve if row[0] >= start} | {start, end}):
        both = zip(curves, sides, strict=True)
        yield used, *_mean([float([r for r in curve if r[0] <= used][-1][side]) for curve, side in both])


def _theta(some: Sequence[Result]) -> Iterable[tuple[Any, ...]]:
    """Yield theta's mean entropy, then its mode's mean probability, at the rounds that every seed's winner has."""
    for column, name in ((1, "entropy of theta (nats)"), (2, "probability of the mode")):
        by_round: dict[int, list[float]] = {}
        for kept in some:
            for row in kept.get("theta", ()):
                by_round.setdefault(row[0], []).append(float(row[column]))
        most = max(map(len, by_round.values()), default=0)
        for round in sorted(by_round):
            if len(by_round[round]) == most:
                yield (name, round), *_mean(by_round[round])


def _sweep(some: Sequence[Result], axis: str) -> Iterable[tuple[Any, ...]]:
    groups: dict[str, list[float]] = {}
    for kept in some:
        groups.setdefault(kept["labels"][axis], []).append(float(kept["test"][kept["target"]]))
    for label, errors in groups.items():
        yield _place(label), *_mean(errors)


def _ranges(some: Sequence[Result], axis: str) -> Iterable[tuple[Any, ...]]:
    for kept in some:
        side = results.SIDES.index(kept["target"]) - 2
        for row in kept.get("tested", ()):
            yield kept["labels"][axis], 1, float(row[side]), math.nan, kept["seed"]


def _mean(values: Sequence[float]) -> tuple[int, float, float]:
    made = summary(values)
    return made.n, made.mean, made.half


def _place(label: str) -> float | str:
    try:
        return float(label)
    except ValueError:
        return label


def table(made: Figure) -> str:
    """Return the numbers of a figure as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    seeds = any(point.seed is not None for point in made.points)
    writer.writerow(["panel", "line", made.x, *(["seed", "error"] if seeds else ["n", "mean", "half_interval"])])
    for p in made.points:
        writer.writerow([p.panel, p.line, p.x, *([p.seed, p.mean] if seeds else [p.n, p.mean, p.half])])
    return text.getvalue()


def paint(made: Figure, title: str = "") -> dict[str, bytes]:
    """Return a figure as PNG and as SVG."""
    panels = made.panels

    def draw(canvas: Canvas) -> None:
        grid = canvas.subplots(1, len(panels), squeeze=False, sharey=made.kind != "theta")
        for ax, panel in zip(grid[0], panels, strict=True):
            points = [point for point in made.points if point.panel == panel]
            (_paint_ranges if made.kind == "ranges" else _paint_lines)(ax, made, points)
            ax.set_title(panel, fontsize=9)
            ax.set_xlabel(made.x)
            pictures.plain(ax)
        grid[0][0].set_ylabel(made.y)
        if title:
            canvas.suptitle(textwrap.fill(title, 64 * len(panels)), fontsize=10)

    return pictures.picture(draw, (0.6 + 3.8 * len(panels), 3.2), font=9, dpi=160)


def _paint_lines(ax: Axes, made: Figure, points: Sequence[Point]) -> None:
    names = list(dict.fromkeys(point.x for point in points))
    words = any(isinstance(name, str) for name in names)
    lines = list(dict.fromkeys(point.line for point in points))
    for n, line in enumerate(lines):
        mine = [point for point in points if point.line == line]
        x = [float(names.index(p.x)) if words else float(p.x) for p in mine]
        y, ends = [p.mean for p in mine], band(mine)
        colour, fewest = COLOURS[n % len(COLOURS)], min(p.n for p in mine)
        label = ", ".join(filter(None, (line, "n = 1" * (fewest == 1)))) or None
        if made.kind == "sweep":
            if words:  # names have no values between them, so no line joins them
                x = [at + 0.1 * (n - (len(lines) - 1) / 2) for at in x]
                ax.set_xticks(range(len(names)), [str(name) for name in names], rotation=30, ha="right")
            pictures.intervals(ax, x, y, ends, color=colour, label=label, ls="none" if words else "-")
        else:  # an incumbent stays the same until the next point
            pictures.curve(ax, x, y, ends, steps=made.kind == "online", color=colour, label=label)
    if made.log == "x" and not words:
        above = [float(name) for name in names if float(name) > 0]
        if len(above) < len(names):
            ax.set_xscale("symlog", linthresh=min(above, default=1.0))
        else:
            ax.set_xscale("log")
    if made.log == "y":
        ax.set_yscale("log")
        ax.set_ylim(bottom=0.7 * min(point.mean for point in made.points if point.mean > 0))
    if any(point.line or point.n == 1 for point in points):
        ax.legend(frameon=False, fontsize=8)


def band(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Return the ends of the points' intervals, clipped at 0 and, if no mean is above 1, at 1; NaN without interval."""
    low, high = [p.mean - p.half for p in points], [p.mean + p.half for p in points]
    top = 1.0 if all(p.mean <= 1 for p in points) and not any("entropy" in p.panel for p in points) else math.inf
    return [v if math.isnan(v) else max(v, 0.0) for v in low], [v if math.isnan(v) else min(v, top) for v in high]


def _paint_ranges(ax: Axes, made: Figure, points: Sequence[Point]) -> None:
    """Draw the errors of each seed's arms as dots on a vertical line from the lowest to the highest."""
    names = list(dict.fromkeys(point.x for point in points))
    seeds = sorted({point.seed or 0 for point in points})
    for n, name in enumerate(names):
        for m, seed in enumerate(seeds):
            errors = [p.mean for p in points if p.x == name and (p.seed or 0) == seed and math.isfinite(p.mean)]
            if errors:
                x = n + 0.7 * ((m + 0.5) / len(seeds) - 0.5)
                ax.plot([x, x], [min(errors), max(errors)], color="#999999", lw=1, zorder=1)
                ax.scatter([x] * len(errors), errors, s=6, color=COLOURS[n % len(COLOURS)], zorder=2)
    ax.set_xticks(range(len(names)), [str(name) for name in names])
