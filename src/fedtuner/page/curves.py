"""An arm's errors and losses over its rounds: as the journal has them, as means of some rounds, how sure these are.

A round's value is the mean over a cohort, often over some thirty validation examples. So the line that is drawn is the
mean of the last ``window`` rounds by |V|, and its band the 90 % interval of that mean, from the spread of the clients'
values. Where single clients are not known, the band is that of a rate; other errors and losses then have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtuner.core.records import Record
from fedtuner.core.tuner import Floats

VALUES = ("error_before", "error_after", "loss_before", "loss_after")
_COLUMNS = ("loss_before", "loss_after", "error_before", "error_after")  # as in a Row, from its fourth entry
NORMAL = 1.645  # 90 %


@dataclass(frozen=True)
class Curve:
    """One value of an arm after each of its rounds."""

    raw: list[float]
    mean: list[float]  # of the last rounds
    half: list[float]  # half the width of the mean's interval


def window_of(longest: int) -> int:
    """Return over how many rounds values are averaged, in a study whose longest arm has this many.

    >>> window_of(1), window_of(100), window_of(4000)
    (1, 5, 20)
    """
    return max(1, min(20, longest // 20))


def curves(records: Sequence[Record], window: int, own: int) -> dict[str, Curve]:
    """Return the curves of an arm's last ``own`` records; the ones before are its ancestors'."""
    sums = _sums(records)
    made = {}
    for name in VALUES:
        weight, first, squares, cross, second = (_last(s, window) for s in sums[name])
        with np.errstate(all="ignore"):
            mean = first / weight
            spread = np.maximum(second - 2 * mean * cross + mean**2 * squares, 0)
            half = NORMAL * np.sqrt(spread) / weight
        raw = [math.inf if r.diverged else float(getattr(r, name)) for r in records]
        bad = _last(np.array([float(not math.isfinite(x) and not math.isnan(x)) for x in raw]), window) > 0
        mean, half = np.where(bad, np.inf, mean), np.where(bad, np.nan, half)
        start = len(records) - own
        made[name] = Curve(raw[start:], mean[start:].tolist(), half[start:].tolist())
    return made


def _sums(records: Sequence[Record]) -> dict[str, tuple[Floats, Floats, Floats, Floats, Floats]]:
    """Return of each round the sums of v, v x, v^2, v^2 x and v^2 x^2 over its clients, by name."""
    counts = np.array([len(r.rows) for r in records])
    rows = np.array([row[3:] for r in records for row in r.rows], float).reshape(-1, 5)
    at = np.repeat(np.arange(len(records)), counts)
    made = {}
    for name in VALUES:
        v, x = rows[:, 0], rows[:, 1 + _COLUMNS.index(name)]
        known = np.isfinite(x) & (v > 0)
        v, x, where = v[known], x[known], at[known]
        found = [np.bincount(where, terms, len(records)) for terms in (v, v * x, v**2, v**2 * x, v**2 * x**2)]
        for n, record in enumerate(records):
            mean = float(getattr(record, name))
            if not record.rows and record.validated and math.isfinite(mean):  # the server sees only sums
                n_v = record.validated
                spread = mean * (1 - mean) if name.startswith("error") and 0 <= mean <= 1 else math.nan
                # As many examples that each count once: their spread about the mean is that of a rate.
                for sum_, term in zip(found, (n_v, n_v * mean, n_v, n_v * mean, n_v * (mean**2 + spread)), strict=True):
                    sum_[n] = term
        made[name] = tuple(found)
    return made  # type: ignore[return-value]


def _last(values: Floats, window: int) -> Floats:
    """Return sums over the last ``window`` entries."""
    total = np.concatenate([np.zeros(1), np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    return np.asarray(total[ends] - total[np.maximum(ends - window, 0)])


def short(values: Iterable[Any], digits: int = 5) -> list[float | None]:
    """Return numbers with a few digits for JSON; those that are not finite are None."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in values]
