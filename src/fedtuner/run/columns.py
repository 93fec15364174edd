"""What an evaluation keeps of each client: five numbers, 40 bytes.

Means over them are those of ``core.metric.mean_metrics`` to the bit, as they are summed in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtuner.core.federation import Federation
from fedtuner.core.records import Tally
from fedtuner.core.tuner import Floats

SIDES = ("before", "after")  # local training
Ints = NDArray[np.int64]


@dataclass
class Columns:
    """What is kept of each client: |V|, and the loss and the error before and after local training."""

    counts: Ints
    loss: dict[str, Floats]
    error: dict[str, Floats]
    groups: NDArray[np.int32]  # of each client: a place in ``names``, -1 for none
    names: list[str]
    reported: int
    sums: dict[tuple[str, str], Floats] = field(default_factory=dict)  # of pooled metrics, by side and whose they are

    @property
    def undefined(self) -> int:
        """Clients with examples for whom the error is not defined."""
        return int(((self.counts > 0) & np.isnan(self.error["after"])).sum())

    def mean(self, values: Floats, some: Ints | None = None) -> float:
        """Return the mean by |V| over the clients who have examples and a value, or over ``some`` of them, in order."""
        some = np.flatnonzero(self.counts) if some is None else some
        some = some[~np.isnan(values[some])]
        total = int(self.counts[some].sum())
        return _sum(self.counts[some] * values[some]) / total if total else math.nan

    def spread(self, values: Floats) -> float:
        """Return the standard error of that mean over clients: ``core.across.spread``."""
        some = np.flatnonzero(self.counts)
        some = some[~np.isnan(values[some])]
        if len(some) < 2:
            return math.nan
        n, total = self.counts[some], int(self.counts[some].sum())
        off = n * (values[some] - _sum(n * values[some]) / total)
        return math.sqrt(_sum(off * off) * len(some) / (len(some) - 1)) / total

    def worst_tenth(self, values: Floats) -> Ints:
        """Return the tenth of clients, at least one, with the largest errors."""
        some = np.flatnonzero((self.counts > 0) & ~np.isnan(values))
        return some[np.argsort(-values[some], kind="stable")][: math.ceil(len(some) / 10)]


def gathered(tallies: Iterable[Tally], federation: Federation) -> Columns:
    """Return the columns of an evaluation's blocks."""
    of, names = federation.groups, sorted(set(federation.groups.values()))
    places = {name: place for place, name in enumerate(names)}
    blocks: list[tuple[NDArray[np.float64], NDArray[np.int32]]] = []
    sums: dict[tuple[str, str], Floats] = {}
    reported = 0
    for tally in tallies:
        reported += tally.reported
        rows = np.array([row[3:] for row in tally.rows], np.float64).reshape(-1, 5)
        groups = [places.get(of.get(row.client, ""), -1) for row in tally.rows] if of else [-1] * len(rows)
        blocks.append((rows, np.array(groups, np.int32)))
        for name, both in tally.breakdown.items():
            for side, metrics in zip(SIDES, both, strict=True):
                if metrics.sums:
                    sums[side, name] = sums.get((side, name), 0.0) + np.array(metrics.sums)
    rows = np.concatenate([rows for rows, _ in blocks])
    counts, *values = rows.T
    loss, error = dict(zip(SIDES, values[:2], strict=True)), dict(zip(SIDES, values[2:], strict=True))
    every = np.concatenate([groups for _, groups in blocks])
    return Columns(counts.astype(np.int64), loss, error, every, names, reported, sums=sums)


def _sum(values: Floats) -> float:
    """Return the sum in order, as ``sum`` of Python's numbers adds: NumPy's own is rounded otherwise."""
    return float(sum(values.tolist()))
