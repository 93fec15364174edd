"""A comparison as text, Markdown, LaTeX or JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from fedtuner.experiments.compare import Comparison, Study, faults
from fedtuner.experiments.tables import Bold, Cell, table
from fedtuner.report import strict


def as_json(made: Comparison) -> dict[str, Any]:
    """Return a comparison as plain values."""
    studies = [
        {
            "labels": dict(s.labels), "problem": s.problem, "target": s.target, **asdict(s.summary),
            "errors": {str(seed): error for seed, error in s.errors.items()}, "rounds": s.rounds,
            "trainings": s.trainings, "arms": s.arms, "diverged": s.diverged, "broken": s.broken,
            "dropped": s.dropped, "paper": list(s.paper),
        }
        for s in made.studies
    ]  # fmt: skip
    pairs = [
        {"first": p.first.name, "second": p.second.name, "seeds": list(p.seeds), **asdict(p.difference)}
        for p in made.pairs
    ]
    return {"metric": made.metric, "studies": studies, "pairs": pairs, "notes": list(made.notes)}


def render(made: Comparison, format: str = "text", colours: bool = False) -> str:
    """Return a comparison as tables and notes in text, Markdown or LaTeX."""
    what = {"target": "the target's test error"}.get(made.metric, f"{made.metric} test error")
    unit = " in percent" if made.rates else ""
    head, rows = (_wide if made.columns else _long)(made)
    parts = [f"{what[0].upper()}{what[1:]}{unit}: mean over seeds ± half of the 90 % interval (Student's t)"]
    parts[0] += "; in brackets the standard deviation." if made.columns else "."
    if len(made.studies) > 1:
        mark = "Bold" if colours or format != "text" else "A star"
        parts[0] += f" {mark}: the lowest mean of its {'column' if made.columns else 'problem'}, sure or not."
    parts.append(table(format, head, rows, colours))
    parts += _footers(made)
    parts += [*differences(made, format, colours), *made.notes]
    if made.title:
        parts.insert(0, f"**{made.title}**" if format == "markdown" else made.title)
    if format == "latex":
        parts = [part if part.startswith("\\begin") else f"% {part}" for part in parts]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def differences(made: Comparison, format: str = "text", colours: bool = False) -> list[str]:
    """Return the paired differences alone: a sentence and a table, or nothing if there are no pairs."""
    if not made.pairs:
        return []
    axis = made.pairs[0].axis
    what = f"Differences in pairs of the same seed along {axis!r}; negative: the one named first is better."
    return [what, table(format, *_pair_rows(made), colours)]


def show(made: Comparison, format: str = "text") -> None:
    """Print a comparison in one of the formats."""
    if format == "json":
        print(json.dumps(strict(as_json(made)), indent=2))
    else:
        sys.stdout.write(render(made, format, colours=format == "text" and sys.stdout.isatty()))


def _best(studies: Sequence[Study], columns: str) -> set[int]:
    """Return the studies (by identity) with the lowest mean of their column, or of their problem."""
    if len(studies) < 2:
        return set()
    scopes: dict[str, list[Study]] = {}
    for study in studies:
        scopes.setdefault(study.labels.get(columns, "") if columns else study.problem, []).append(study)
    lowest = {scope: min(s.summary.mean for s in kept) for scope, kept in scopes.items()}
    return {id(s) for scope, kept in scopes.items() for s in kept if s.summary.mean == lowest[scope]}


def _long(made: Comparison) -> tuple[list[str], list[list[Cell]]]:
    """Return the head and the rows of a table with a line per study."""
    axes = list(dict.fromkeys(axis for study in made.studies for axis in study.labels))
    with_paper = any(study.paper for study in made.studies)
    best = _best(made.studies, "")
    rows: list[list[Cell]] = []
    for study in made.studies:
        s = study.summary
        mean = _interval(s.mean, s.half, made.rates)
        row: list[Cell] = [study.labels.get(axis, "") for axis in axes]
        row += [str(s.n), Bold(mean) if id(study) in best else mean, _number(s.std, made.rates)]
        row += [f"{study.rounds:.0f}", f"{study.trainings:.0f}", f"{study.diverged} of {study.arms}"]
        rows.append([*row, _published(study)] if with_paper else row)
    head = [*axes, "n", "error", "std", "rounds", "trainings", "diverged arms"]
    return [*head, "paper"] if with_paper else head, rows


def _wide(made: Comparison) -> tuple[list[str], list[list[Cell]]]:
    """Return the head and the rows of a table with an axis as columns, with published numbers beside them."""
    others = [a for a in dict.fromkeys(axis for s in made.studies for axis in s.labels) if a != made.columns]
    best = _best(made.studies, made.columns)
    head, cells = list(others), dict[tuple[str, ...], dict[str, Cell]]()
    sizes: dict[str, set[int]] = {}
    for study in made.studies:
        sizes.setdefault(study.labels.get(made.columns, ""), set()).add(len(study.errors))
    for study in made.studies:
        column, s = study.labels.get(made.columns, ""), study.summary
        words = f"{_interval(s.mean, s.half, made.rates)} ({_number(s.std, made.rates)})"
        words += f", n = {s.n}" if len(sizes[column]) > 1 else ""
        row = cells.setdefault(tuple(study.labels.get(axis, "") for axis in others), {})
        row[column] = Bold(words) if id(study) in best else words
        if study.paper:
            row[f"{column}: paper"] = _published(study)
    columns = list(dict.fromkeys(s.labels.get(made.columns, "") for s in made.studies))
    filled = {name for row in cells.values() for name in row}
    head += [name for column in columns for name in (column, f"{column}: paper") if name in filled]
    rows = [[*key, *(row.get(name, "-") for name in head[len(others) :])] for key, row in cells.items()]
    counts = {column: f" (n = {min(kept)})" for column, kept in sizes.items() if len(kept) == 1}
    return [name + counts.get(name, "") for name in head], rows


def _footers(made: Comparison) -> Iterable[str]:
    """Yield the cost of the studies and their failures: a line for each column."""
    scopes: dict[str, list[Study]] = {}
    for study in made.studies:
        scopes.setdefault(study.labels.get(made.columns, ""), []).append(study)
    for scope, kept in scopes.items():
        rounds, trainings = _between([s.rounds for s in kept]), _between([s.trainings for s in kept])
        found = faults(run for study in kept for run in study.runs)
        stalled = f", {found.stalled} stalled" if found.stalled else ""
        yield (
            f"{scope + ': ' if scope else ''}{rounds} rounds and {trainings} local trainings a study; "
            f"{found.diverged} of {found.arms} arms diverged{stalled}; {found.broken} updates were broken, "
            f"{found.dropped} reports dropped."
        )


def _between(values: Sequence[float]) -> str:
    low, high = f"{min(values):,.0f}", f"{max(values):,.0f}"
    return low if low == high else f"{low} to {high}"


def _pair_rows(made: Comparison) -> tuple[list[str], list[list[Cell]]]:
    axis = made.pairs[0].axis
    others = [a for a in dict.fromkeys(a for p in made.pairs for a in p.first.labels) if a != axis]
    rows: list[list[Cell]] = []
    for pair in made.pairs:
        d = pair.difference
        row: list[Cell] = [pair.first.labels.get(a, "") for a in others]
        row += [f"{pair.second.labels[axis]} against {pair.first.labels[axis]}", str(d.n)]
        row += [_interval(d.mean, d.half, made.rates, sign=True), f"{d.better} of {d.n}", _p(d.t), _p(d.wilcoxon)]
        rows.append(row)
    return [*others, axis, "n", "difference", "better on", "p (t)", "p (signed ranks)"], rows


def _interval(mean: float, half: float, rates: bool, sign: bool = False) -> str:
    return _number(mean, rates, sign) + ("" if math.isnan(half) else f" ± {_number(half, rates)}")


def _number(value: float, rates: bool, sign: bool = False) -> str:
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "infinite"
    plus = "+" if sign else ""
    return f"{100 * value:{plus}.2f}" if rates else f"{value:{plus}.4g}"


def _published(study: Study) -> str:
    return f"{study.paper[0]:.2f} ± {study.paper[2]:.2f} ({study.paper[1]:.2f})" if study.paper else "-"


def _p(value: float) -> str:
    return "-" if math.isnan(value) else ("<0.001" if value < 0.001 else f"{value:.3f}")
