"""Several studies side by side: test errors with intervals, as ``fedtuner compare`` has them; untuned beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fedtuner.core.metric import Metric
from fedtuner.core.place import Place
from fedtuner.experiments import compare
from fedtuner.experiments.statistics import Summary
from fedtuner.experiments.statistics import summary as summarised
from fedtuner.report import summary
from fedtuner.report.summary import strict


def comparison(paths: Iterable[Place]) -> dict[str, Any]:
    """Return a row per study, its seeds together; studies without a test error are named in the notes."""
    finished, notes, untuned = list[Place](), list[str](), dict[str, dict[int, float]]()
    measures = set[str]()
    for path in paths:
        found = summary(path)
        errors = found["evaluations"].get("tuned", {}).get("test mode error")
        if found["result"] is None or errors is None:
            notes.append(f"{path} is not finished or not evaluated on test data, so it is not compared.")
            continue
        finished.append(path)
        measures.add(_measure(Metric.of(found["spec"]["problem"])))
        plain = found["evaluations"].get("untuned", {}).get("test mode error")
        if plain is not None:
            spec = found["spec"]
            name = f"untuned, {found['budget']} rounds: {spec['method']} on {spec['problem']['name']}"
            untuned.setdefault(name, {})[spec["seed"]] = float(plain[spec["target"]])
    if not finished:
        return {"rows": [], "rates": True, "notes": notes, "measure": "error"}
    made = compare.compare(finished)
    rows = [_row(_name(one, made), one.errors, one.summary) for one in made.studies]
    for pair in made.pairs:
        d, row = pair.difference, rows[made.studies.index(pair.second)]
        half = "" if math.isnan(d.half) else f" ± {_said(d.half, made.rates)}"
        row["difference"] = f"{_said(d.mean, made.rates)}{half}, lower on {d.better} of {d.n} seeds"
    rows += [
        {**_row(name, by_seed, summarised(list(by_seed.values()))), "untuned": True}
        for name, by_seed in untuned.items()
    ]
    measure, *others = measures
    shown = "error" if others else measure
    return strict(  # type: ignore[no-any-return]
        {"rows": rows, "rates": made.rates, "notes": [*notes, *made.notes], "measure": shown}
    )


def _measure(metric: Metric) -> str:
    """Return what is compared: an error, lower where it is better."""
    return metric.name if not metric.maximise else f"1 - {metric.name}" if metric.rate else f"-{metric.name}"


def _row(name: str, errors: Any, whole: Summary) -> dict[str, Any]:
    by_seed = {str(seed): error for seed, error in errors.items()}
    return {"name": name, "errors": by_seed, "n": whole.n, "mean": whole.mean, "half": whole.half, "untuned": False}


def _name(study: compare.Study, made: compare.Comparison) -> str:
    """Return a study's name without what all of them have in common."""
    axes = [a for a in study.labels if len({other.labels.get(a) for other in made.studies}) > 1]
    return " / ".join(study.labels[a] for a in axes) or study.name


def _said(value: float, rates: bool) -> str:
    return f"{100 * value:.1f} points" if rates else f"{value:.4g}"
