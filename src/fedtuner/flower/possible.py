"""Whether a secure sum can be one of honest clients. Single contributions are not seen, so this is all that can be.

Every number of a contribution has a range, and so has their sum. A sum outside of it is left out, as no part of it can
be trusted. A lie that stays within the ranges of the whole cohort is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from fedtuner.core.model import Metrics
from fedtuner.core.records import Tally, Tried
from fedtuner.core.tuner import Floats, Tuner
from fedtuner.flower.secure import TOTALS, Scale

_ROUNDING = 2.0**-20  # of an entry of one client's contribution, as a part of its range: twice what SecAgg+ rounds by


@dataclass(frozen=True)
class Limits:
    """What the numbers of a study can be: the lowest and the highest."""

    loss: tuple[float, float]
    error: tuple[float, float]
    value: tuple[float, float]  # of the tuner

    @staticmethod
    def of(scale: Scale, worst: float, least_loss: float, tuner: Tuner) -> Limits:
        """Return the limits of a study; ``worst`` is the worst error, ``least_loss`` the smallest loss."""
        loss = (max(least_loss, -scale.loss), scale.loss)
        error = (0.0 if math.isfinite(worst) else max(least_loss, -scale.error), scale.error)
        corners = [Metrics(a, b, 1) for a in loss for b in error]
        values = [tuner.value(Tried(0, before, after)) for before, after in product(corners, corners)]
        return Limits(loss, error, (max(min(values), -scale.value), min(max(values), scale.value)))


def impossible(mean: Sequence[Floats], clients: int, scale: Scale, limits: Limits, some: bool = False) -> str:
    """Return why a mean of contributions cannot be one of so many honest clients; empty if it can be.

    ``some``: clients for whom the metric is not defined say nothing of their label.
    """
    change, numbers, *asked = (clients * np.asarray(part, np.float64) for part in mean)
    if not all(np.isfinite(part).all() for part in (change, numbers, *asked)):
        return "a number is not finite, but must be"
    slack = clients * _ROUNDING
    for name, entries in (("the update", change), *(("what is asked for besides", part) for part in asked)):
        furthest = float(np.abs(entries).max(initial=0.0)) / scale.clip
        if furthest > clients + slack:
            return f"an entry of {name} is {furthest:.3g} clips, but must be at most {clients}"
    parts = numbers / scale.clip
    for name, found, low, high in _ranges(parts, clients, scale, limits):
        if not low - slack <= found <= high + slack:
            return f"{name} = {found:.3g}, but must be from {low:.3g} to {high:.3g}"
    k = (parts.size - TOTALS) // 2
    valid, labels = float(parts[1]), float(parts[TOTALS + k :].sum())
    if (labels - valid if some else abs(valid - labels)) > (k + 1) * slack:
        most = scale.examples
        return f"|V| of all labels = {labels * most:.3g}, but must be |V| = {valid * most:.3g}"
    return ""


def _ranges(parts: Floats, clients: int, scale: Scale, limits: Limits) -> Iterator[tuple[str, float, float, float]]:
    """Yield the name of every number, its sum, and the lowest and highest that it can be: parts of the largest."""
    valid, k = max(float(parts[1]), 0.0), (parts.size - TOTALS) // 2
    for n, name in ((0, "|T|"), (1, "|V|"), (6, "broken updates"), (7, "updates cut")):
        yield name, float(parts[n]), 0.0, clients
    for n, name, (low, high), top in (
        (2, "|V| times the loss before", limits.loss, scale.loss),
        (3, "|V| times the error before", limits.error, scale.error),
        (4, "|V| times the loss after", limits.loss, scale.loss),
        (5, "|V| times the error after", limits.error, scale.error),
    ):
        yield name, float(parts[n]), valid * low / top, valid * high / top
    low, high = limits.value
    for j in range(k):
        weight = float(parts[TOTALS + k + j])
        yield f"|V| of label {j}", weight, 0.0, valid
        weight = max(weight, 0.0)
        yield f"value of label {j}", float(parts[TOTALS + j]), weight * low / scale.value, weight * high / scale.value


def within(tally: Tally, limits: Limits) -> Tally:
    """Return a tally whose means are within the limits: rounding may have moved them a little beyond."""
    return replace(tally, before=_within(tally.before, limits), after=_within(tally.after, limits))


def _within(metrics: Metrics, limits: Limits) -> Metrics:
    loss, error = (
        min(max(found, low), high)
        for found, (low, high) in ((metrics.loss, limits.loss), (metrics.error, limits.error))
    )
    return replace(metrics, loss=loss, error=error) if metrics.count else metrics
