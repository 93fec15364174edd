"""The page's views as figures for papers, by matplotlib: a column of a two-column paper wide, or both of them."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtuner import checks
from fedtuner.core.across import ALL, TENTH
from fedtuner.core.place import Place
from fedtuner.core.store import Store
from fedtuner.errors import SpecError, brief
from fedtuner.experiments import pictures
from fedtuner.experiments.pictures import COLOURS, FORMATS
from fedtuner.page.compare import comparison
from fedtuner.page.history import Study, of_store
from fedtuner.page.view import View, Views
from fedtuner.report.served import said

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.35, 7.0  # inches
_WINNER, _UNTUNED, _CHOSEN, _OTHERS = COLOURS[2], COLOURS[1], COLOURS[0], "#b5b5b5"
_FATES = {"helped": _WINNER, "harmed": _UNTUNED}
_FAULTS = {
    "failed": COLOURS[3], "late": _WINNER, "silent": "#777777", "broken": _UNTUNED, "bounded": _CHOSEN,
}  # fmt: skip


def write(kind: str, paths: Sequence[Place], out: Path, arm: int | None = None) -> Path:
    """Write a figure of studies to a file, whose name says how: .svg, .png or .pdf."""
    suffix = out.suffix.removeprefix(".")
    if suffix not in FORMATS:
        raise SpecError(f"--out {out}, but a figure's name must end in .svg, .png or .pdf")
    if out.is_dir():
        raise SpecError(f"--out {out}, but that is a folder: give the name of a file")
    size, draw = _drawing(kind, _shown(kind, paths), arm)
    made = pictures.picture(draw, size, font=8, dpi=300, formats=[suffix])
    return pictures.write(out.parent, {out.name: made[suffix]})[0]


def of_study(store: Store, kind: str, arm: int | None = None) -> Figure:
    """Return a figure of a study; notebooks show it, and ``savefig`` writes it."""
    checks.one_of("kind", kind, KINDS)
    if store.path is not None:
        shown = _shown(kind, [store.path])
    elif kind == "comparison":
        raise SpecError("a comparison is of studies in folders: give store=")
    else:
        shown = [Views().view(of_store(store, "the study"), "the study")]
    size, draw = _drawing(kind, shown, arm)
    made: Figure = _figure_class()(figsize=size, layout="constrained")
    draw(made)
    return made


def _figure_class() -> Any:
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that notebooks show without pyplot."""

        def _repr_png_(self) -> bytes:
            data = io.BytesIO()
            self.savefig(data, format="png", dpi=160)
            return data.getvalue()

    return Picture


def _shown(kind: str, paths: Sequence[Place]) -> Any:
    """Return what a figure shows: views of studies, or their comparison."""
    checks.one_of("kind", kind, KINDS)
    if kind == "comparison":
        return comparison(paths)
    if len(paths) > 1 and kind != "incumbent":
        raise SpecError(f"a figure of kind {kind!r} shows one study, but {len(paths)} are given; several: comparison")
    studies = [Study(path) for path in paths]
    return [Views().view(one.history, str(one.path), one.untuned) for one in studies]


def _drawing(kind: str, shown: Any, arm: int | None) -> tuple[tuple[float, float], Callable[[Figure], None]]:
    pictures.needed("figures")
    width, height, draw = KINDS[kind]
    if kind != "comparison":
        if not shown[0]["arms"]:
            raise SpecError(f"{shown[0]['name']} has no rounds yet: there is nothing to draw")
        known = [one["id"] for one in shown[0]["arms"]]
        if arm is not None and arm not in known:
            raise SpecError(f"arm = {brief(arm)}, but the study has the arms {known}")
    return (width, height), lambda canvas: draw(canvas, shown, arm)


def _ax(canvas: Figure, x: str, y: str) -> Axes:
    ax = canvas.subplots()
    pictures.plain(ax)
    ax.set(xlabel=x, ylabel=y)
    if "round" in x:  # which are whole
        from matplotlib.ticker import MaxNLocator

        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    return ax


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if v is None else v for v in values]


def _band(curve: Mapping[str, Any]) -> tuple[list[float], list[float], list[float]]:
    """Return a curve's means, and the ends of its band; of values that are never below 0, neither is the band."""
    mean, half = np.array(_numbers(curve["mean"])), np.array(_numbers(curve["half"]))
    least = -math.inf if (mean < 0).any() else 0.0
    return mean.tolist(), np.maximum(mean - half, least).tolist(), (mean + half).tolist()


def _arm(view: View, arm: int | None) -> dict[str, Any]:
    chosen = view["chosen"] if arm is None else arm
    return next(one for one in view["arms"] if one["id"] == chosen)


def _first(arm: Mapping[str, Any]) -> int:
    return arm["parent"][1] + 1 if arm["parent"] else 1


def _key(view: View) -> str:
    return f"{view['metric']}_{'before' if view['target'] == 'global' else 'after'}"


def _name(view: View) -> str:
    return str(view["measure"]["name"])


def _label(view: View) -> str:
    metric, when = _key(view).split("_")
    return f"{_name(view) if metric == 'error' else metric} {when} local training"


def _race(canvas: Figure, views: Sequence[View], arm: int | None) -> None:
    view = views[0]
    key, ax = _key(view), _ax(canvas, "round of the arm", _label(view))
    winner = view["winner"]["arm"] if view["winner"] else None
    longest = max(one["rounds"] for one in view["arms"])
    for one in view["arms"]:
        mean, low, high = _band(one[key])
        x = list(range(_first(one), one["rounds"] + 1))
        bold = one["id"] in (winner, arm)
        if bold:
            colour = _WINNER if one["id"] == winner else _CHOSEN
            name = f"arm {one['id']}" + (", winner" if one["id"] == winner else "")
            pictures.curve(ax, x, mean, (low, high), color=colour, label=name, zorder=4)
        else:
            ax.plot(x, mean, "o-" if len(x) == 1 else "-", color=_OTHERS, lw=0.7, ms=3, zorder=2)
        if one["out"]:
            colour = _CHOSEN if bold else "#777777"
            inside = longest == x[-1]  # at the end of the axis, where half of it would be cut off
            ax.plot(x[-1:], mean[-1:], "x", color=colour, ms=3.5, mew=0.8, zorder=3, clip_on=not inside)
    if view["untuned"]:
        mean, low, high = (part[:longest] for part in _band(view["untuned"][key]))
        x = list(range(1, len(mean) + 1))
        pictures.curve(ax, x, mean, (low, high), color=_UNTUNED, label="untuned", ls="--")
    starts = [v for one in view["arms"] if not one["parent"] for v in _numbers(one[key]["mean"][:1])]
    finite = [v for v in starts if math.isfinite(v)]
    if finite and min(v for one in view["arms"] for v in (0.0, *_numbers(one[key]["mean"])) if math.isfinite(v)) >= 0:
        ax.set_ylim(0, 1.25 * float(np.median(finite)) if view["metric"] == "loss" else None)
    ax.set_xlim(0, longest if longest > 1 else 1.2)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=7)


def _incumbent(canvas: Figure, views: Sequence[View], arm: int | None) -> None:
    ax = _ax(canvas, "communication rounds used", _label(views[0]))
    for view, colour in zip(views, (_WINNER, *COLOURS[3:], *COLOURS[:1]) * len(views), strict=False):
        found, key = view["incumbent"], _key(view)
        y = _numbers(found[key])
        name = "tuned" if len(views) == 1 else Path(view["name"]).name
        pictures.curve(ax, found["used"], y, (y, y), steps=True, color=colour, label=name)
    if len(views) == 1 and views[0]["untuned"]:
        mean, low, high = _band(views[0]["untuned"][_key(views[0])])
        pictures.curve(ax, range(1, len(mean) + 1), mean, (low, high), color=_UNTUNED, label="untuned", ls="--")
    ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
    ax.legend(frameon=False, fontsize=7)


def _part(axis: Mapping[str, Any], value: Any) -> float:
    """Return where a value lies on its axis, from 0 to 1; NaN for a hyperparameter that an arm does not have."""
    if value is None:
        return math.nan
    if axis["kind"] == "choice":
        return float(axis["choices"].index(value) / max(1, len(axis["choices"]) - 1))
    scale = math.log if axis["kind"] == "log" else float
    # What a logarithmic scale does not have is at its low end; values are rounded to a few digits, ends are not.
    low, high, at = scale(axis["low"]), scale(axis["high"]), scale(min(max(value, axis["low"]), axis["high"]))
    return (at - low) / (high - low) if high > low else 0.5


def _ends(axis: Mapping[str, Any]) -> tuple[str, str]:
    ends = (axis["choices"][0], axis["choices"][-1]) if axis["kind"] == "choice" else (axis["low"], axis["high"])
    low, high = (f"{end:.4g}" if isinstance(end, (int, float)) else str(end) for end in ends)
    return low, high


def _configurations(canvas: Figure, views: Sequence[View], arm: int | None) -> None:
    from matplotlib import colormaps

    view, ax = views[0], canvas.subplots()
    axes, rows = view["configurations"]["axes"], view["configurations"]["rows"]
    sign = 1 if view["measure"]["maximise"] else -1
    known = sorted((row for row in rows if row["error"] is not None), key=lambda row: sign * float(row["error"]))
    if not axes or not known:
        raise SpecError("nothing is tuned in this study, or no arm has a finite error: there is nothing to draw")
    errors = [row["error"] for row in known]
    last = {"name": _name(view), "kind": "linear", "low": min(0, *errors), "high": max(0, *errors)}
    winner = view["winner"]["arm"] if view["winner"] else None
    shades = colormaps["viridis"]
    for n, row in enumerate(known):
        y = [*(_part(axis, v) for axis, v in zip(axes, row["values"], strict=True)), _part(last, row["error"])]
        bold = row["arm"] in (winner, arm)
        colour = shades(0.92 * (1 - n / max(1, len(known) - 1)))
        ax.plot(y, color=colour, lw=2.2 if bold else 0.9, zorder=3 if bold else 2, alpha=1 if bold else 0.8)
    for n, axis in enumerate((*axes, last)):
        ax.axvline(n, color="#999999", lw=0.6, zorder=1)
        for end, at, side in zip(_ends(axis), (-0.03, 1.03), ("top", "bottom"), strict=True):
            ax.text(n, at, end, ha="center", va=side, fontsize=6.5)
    names = [axis["name"].replace(".", "\n") for axis in axes]
    ax.set_xticks(range(len(axes) + 1), [*names, _name(view)], fontsize=7)
    ax.xaxis.set_ticks_position("top")
    ax.tick_params(length=0, pad=12)
    ax.set(yticks=[], ylim=(-0.12, 1.02))
    ax.spines[:].set_visible(False)


def _importance(canvas: Figure, views: Sequence[View], arm: int | None) -> None:
    found = views[0]["importance"]
    if "why" in found:
        raise SpecError(found["why"])
    ax = _ax(canvas, "share of the importance (PED-ANOVA)", "")
    names, shares = zip(*reversed(found["shares"]), strict=True)
    ax.barh(names, shares, color=_WINNER, height=0.6)


def _theta(canvas: Figure, views: Sequence[View], arm: int | None) -> None:
    one = _arm(views[0], arm)
    if not one["theta"] or not one["theta"]["rounds"]:
        has = "a belief without candidates" if one["drawn"] else "one client configuration"
        raise SpecError(f"arm {one['id']} has {has}, so it has no theta: choose a study with FedEx")
    rounds, p = one["theta"]["rounds"], np.array(one["theta"]["p"]).T
    above, below = canvas.subplots(2, 1, sharex=True, height_ratios=(1, 2.4))
    entropy = _numbers(one["entropy"])
    first = _first(one)
    above.plot(range(first, first + len(entropy)), entropy, color=_CHOSEN, lw=1)
    above.set(ylabel="entropy", ylim=(0, 1.05 * math.log(len(p))))
    pictures.plain(above)
    edges = [rounds[0] - 0.5, *((a + b) / 2 for a, b in pairwise(rounds)), rounds[-1] + 0.5]
    shades = below.pcolormesh(edges, np.arange(len(p) + 1) + 0.5, p, cmap="Greens", vmin=0, rasterized=True)
    below.set(xlabel=f"round of arm {one['id']}", ylabel="candidate")
    below.invert_yaxis()
    canvas.colorbar(shades, ax=below, label="probability", pad=0.02)


def _clients(canvas: Figure, views: Sequence[View], arm: int | None) -> None:
    one = _arm(views[0], arm)
    rows = views[0]["clients"].get(str(one["id"]))
    if not rows:
        raise SpecError(f"the clients of arm {one['id']} are not known: the server saw only sums, or too many clients")
    name = _name(views[0])
    ax = _ax(canvas, f"{name} before local training", f"{name} after it")
    before, after, size = (np.array([row[n] for row in rows], float) for n in (4, 5, 1))
    lower, higher = ("harmed", "helped") if views[0]["measure"]["maximise"] else ("helped", "harmed")
    fates = {lower: (after < before, _FATES[lower]), higher: (after > before, _FATES[higher])}
    for name, (chosen, colour) in {**fates, "as before": (after == before, "#777777")}.items():
        area = 6 + 24 * size[chosen] / size.max()
        style: dict[str, Any] = {"color": colour, "alpha": 0.6, "lw": 0, "label": f"{name} ({chosen.sum()})"}
        ax.scatter(before[chosen], after[chosen], area, **style)
    ends = [min(0, before.min(), after.min()), 1.05 * max(before.max(), after.max(), 1e-9)]
    ax.plot(ends, ends, color="#999999", lw=0.6, ls="--", zorder=1)
    ax.legend(frameon=False, fontsize=7)


def _served(canvas: Figure, views: Sequence[View], arm: int | None) -> None:
    view = views[0]
    one, side = _arm(view, arm), "before" if view["target"] == "global" else "after"
    found = view["served"][str(one["id"])]
    if not found["lines"]:
        raise SpecError(f"the clients of arm {one['id']} are not known: the server saw only sums")
    ax = _ax(canvas, f"round of arm {one['id']}", f"{_name(view)} {side} local training")
    colours = iter((COLOURS * 3)[3:])
    for who, values in found["lines"][side].items():
        own = {ALL: (_WINNER, 1.4, "-"), TENTH: (_UNTUNED, 1.4, "--")}.get(who)
        colour, width, dashes = own or (next(colours), 0.9, "-")
        known = [(t, v) for t, v in zip(found["rounds"], values, strict=True) if v is not None]
        shape = "o" if len(known) == 1 else None
        x, y = zip(*known, strict=True) if known else ((), ())
        ax.plot(x, y, dashes, color=colour, lw=width, marker=shape, label=said(who))
    ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
    ax.legend(frameon=False, fontsize=7, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))  # above the curves


def _lineage(canvas: Figure, views: Sequence[View], arm: int | None) -> None:
    view = views[0]
    ax, rows = _ax(canvas, "round of the arm", ""), {one["id"]: n for n, one in enumerate(view["arms"])}
    winner = view["winner"]["arm"] if view["winner"] else None
    for one in view["arms"]:
        y, start = rows[one["id"]], _first(one) - 1
        colour = _WINNER if one["id"] == winner else "#777777"
        ax.plot([start, one["rounds"]], [y, y], color=colour, lw=2.4, solid_capstyle="butt")
        if one["parent"]:
            ax.plot([start, start], [rows[one["parent"][0]], y], color="#999999", lw=0.8, ls=":")
        words = f" {one['id']}" + (f", {one['stage']}" if one["stage"] else "")
        ax.text(one["rounds"], y, words, va="center", fontsize=6.5, color=colour)
    ax.set(yticks=[], xlim=(0, 1.12 * max(one["rounds"] for one in view["arms"])))
    ax.spines["left"].set_visible(False)
    ax.invert_yaxis()


def _health(canvas: Figure, views: Sequence[View], arm: int | None) -> None:
    found = views[0]["health"]
    ax, size = _ax(canvas, "rounds used", "part of the clients asked"), found["size"]
    bins = np.array(found["bins"], float).reshape(-1, 6)
    x, bottom = np.arange(len(bins)) * size + 1, np.zeros(len(bins))
    for n, (name, colour) in enumerate(_FAULTS.items(), 1):
        part = bins[:, n] / np.maximum(bins[:, 0], 1)
        ax.bar(x, part, size, bottom, align="edge", color=colour, label=f"{name} ({int(bins[:, n].sum())})")
        bottom += part
    ax.set_ylim(0, max(0.05, 1.1 * float(bottom.max(initial=0))))
    handles, names = ax.get_legend_handles_labels()
    some = [n for n in range(1, 6) if bins[:, n].any()]
    if not some:
        ax.set_title("all clients reported, no update was broken or bounded", fontsize=7)
        return
    ax.legend([handles[n - 1] for n in some], [names[n - 1] for n in some], frameon=False, fontsize=7)


def _comparison(canvas: Figure, shown: Mapping[str, Any], arm: int | None) -> None:
    rows = list(reversed(shown["rows"]))
    if not rows:
        raise SpecError("none of these studies is finished and evaluated on test data: there is nothing to compare")
    ax = _ax(canvas, f"test {shown['measure']}, 90 % interval", "")
    below = any(e is not None and e < 0 for row in rows for e in row["errors"].values())
    least = -math.inf if below else 0.0
    for n, row in enumerate(rows):
        colour = _UNTUNED if row["untuned"] else _WINNER
        half = 0.0 if row["half"] is None else row["half"]
        ends = [max(least, row["mean"] - half)], [row["mean"] + half]
        pictures.intervals(ax, [row["mean"]], [n], ends, across=True, color=colour)
        ax.plot(list(row["errors"].values()), [n] * row["n"], ".", color=colour, alpha=0.4, ms=4)
    ax.set_yticks(range(len(rows)), [textwrap.fill(row["name"], 22) for row in rows], fontsize=7)
    ax.ticklabel_format(axis="x", useOffset=False)
    ax.locator_params(axis="x", nbins=5)
    ax.set(xlim=(None if below else 0, None), ylim=(-0.6, len(rows) - 0.4))


KINDS: dict[str, tuple[float, float, Callable[..., None]]] = {
    "race": (COLUMN, 2.3, _race),
    "incumbent": (COLUMN, 2.0, _incumbent),
    "configurations": (PAGE, 2.6, _configurations),
    "importance": (COLUMN, 2.0, _importance),
    "theta": (COLUMN, 2.8, _theta),
    "clients": (COLUMN, 2.6, _clients),
    "served": (COLUMN, 2.3, _served),
    "lineage": (COLUMN, 2.3, _lineage),
    "health": (COLUMN, 1.8, _health),
    "comparison": (COLUMN, 2.0, _comparison),
}
