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
from numpy.typing import NDArray

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
    start, made = len(records) - own, {}
    validated = np.array([r.validated for r in records], float)
    for name, (moments, known) in _moments(records).items():
        raw = np.array([math.inf if r.diverged else getattr(r, name) for r in records])
        weight = np.where(np.isnan(raw), 0, validated)
        squares, cross, second = (_last(terms, window) for terms in moments)
        with np.errstate(all="ignore"):
            total = _last(weight, window)
            mean = _last(np.where(np.isfinite(raw), weight * raw, 0), window) / total
            half = NORMAL * np.sqrt(np.maximum(second - 2 * mean * cross + mean**2 * squares, 0)) / total
        wild = _last(np.isinf(raw).astype(float), window) > 0
        unknown = _last(((weight > 0) & ~known).astype(float), window) > 0
        mean, half = np.where(wild, np.inf, mean), np.where(wild | unknown, np.nan, half)
        made[name] = Curve(raw[start:].tolist(), mean[start:].tolist(), half[start:].tolist())
    return made


@np.errstate(all="ignore")
def _moments(records: Sequence[Record]) -> dict[str, tuple[tuple[Floats, ...], NDArray[np.bool_]]]:
    """Return of each round the sums of v^2, v^2 x and v^2 x^2 over its clients, and whether they say how sure it is.

    They do not where a round's value is no mean over clients: of a pooled metric, or of the worst tenth of them.
    """
    rows = np.array([row[3:] for r in records for row in r.rows], float).reshape(-1, 5)
    at = np.repeat(np.arange(len(records)), [len(r.rows) for r in records])
    summed = np.array([not r.rows for r in records])  # where the server sees only sums
    examples = np.where(summed, [r.validated for r in records], 0).astype(float)
    made = {}
    for name in VALUES:
        values = np.array([getattr(r, name) for r in records], float)
        v, x = rows[:, 0], rows[:, 1 + _COLUMNS.index(name)]
        defined = np.isfinite(x) & (v > 0)
        v, x, where = v[defined], x[defined], at[defined]
        moments = [_added(where, terms, len(records)) for terms in (v**2, v**2 * x, (v * x) ** 2)]
        mean = _added(where, v * x, len(records)) / _added(where, v, len(records))
        # Of a rate, examples are right or wrong, each with the weight 1: x^2 is x.
        rates = summed & name.startswith("error") & (values >= 0) & (values <= 1)
        for terms, added in zip(moments, (examples, examples * values, examples * values), strict=True):
            terms[rates] = added[rates]
        made[name] = tuple(moments), rates | (np.abs(mean - values) < 1e-6 * (1 + np.abs(values)))
    return made


def _added(where: NDArray[np.int64], terms: Floats, n: int) -> Floats:
    return np.asarray(np.bincount(where, terms, n), float)


def _last(values: Floats, window: int) -> Floats:
    """Return sums over the last ``window`` entries."""
    total = np.concatenate([np.zeros(1), np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    return np.asarray(total[ends] - total[np.maximum(ends - window, 0)])


def short(values: Iterable[Any], digits: int = 5) -> list[float | None]:
    """Return numbers with a few digits for JSON; those that are not finite are None."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in values]
