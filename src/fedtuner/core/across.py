"""How clients' metrics become one: over all clients, over the worst tenth of them, or in the group that fares worst.

The first is what a study reports. Arms can be compared by any of the three (``Setup.across``): by the second a study is
tuned for the clients who fare worst, by the third for groups that fare alike. An evaluation has all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedtuner.core.metric import Metric, Metrics, mean_metrics
from fedtuner.core.records import Row

ALL, TENTH, GROUP, MEAN = "clients", "worst tenth", "worst group", "mean of clients"
ACROSS = (ALL, TENTH, GROUP)


def across(metrics: Sequence[Metrics], groups: Sequence[str], metric: Metric) -> dict[str, Metrics]:
    """Return metrics over clients in every way that there is, by name; those of each group as "group NAME".

    Of a pooled metric there is the mean of clients' values, too. Clients of no group ("") are in none.
    """
    made = {ALL: overall(metrics, metric), TENTH: overall(_worst_tenth(metrics), metric)}
    for name in sorted(set(groups) - {""}):
        made[f"group {name}"] = overall([m for m, g in zip(metrics, groups, strict=True) if g == name], metric)
    of_groups = [m for name, m in made.items() if name.startswith("group ") and not math.isnan(m.error)]
    if of_groups:
        made[GROUP] = max(of_groups, key=lambda m: m.error)
    if metric.pooled:
        made[MEAN] = mean_metrics(metrics)
    return {name: replace(m, count=made[ALL].count) for name, m in made.items()}


def overall(metrics: Sequence[Metrics], metric: Metric) -> Metrics:
    """Return the mean over clients by |V| or, of a pooled metric, the value of all their examples together."""
    return metric.pool(metrics, mean_metrics(metrics))


def _worst_tenth(metrics: Sequence[Metrics]) -> Sequence[Metrics]:
    """Return those of the tenth of clients, at least one, with the largest errors."""
    defined = sorted((m for m in metrics if m.count and not m.undefined), key=lambda m: m.error, reverse=True)
    return defined[: math.ceil(len(defined) / 10)]


def spread(rows: Sequence[Row], name: str) -> float:
    """Return the standard error of a mean by |V| over clients, as if they were drawn from many; NaN below two."""
    known = [(row.validated, getattr(row, name)) for row in rows if row.validated]
    known = [(n, value) for n, value in known if not math.isnan(value)]
    if len(known) < 2:
        return math.nan
    total = sum(n for n, _ in known)
    mean = sum(n * value for n, value in known) / total
    off = [n * (value - mean) for n, value in known]
    squares = sum(x * x for x in off)  # x**2 would raise an error where it overflows
    return math.sqrt(squares * len(known) / (len(known) - 1)) / total
