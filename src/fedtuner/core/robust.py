"""Robust aggregation: the coordinate-wise median or trimmed mean of updates in place of the mean by |T|.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018. All updates have the
same weight, whatever number of examples their clients report; metrics keep their mean by |V|. Both need every single
update, so they do not work with secure aggregation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtuner import checks
from fedtuner.core.model import Vector
from fedtuner.core.records import Plan, Tally
from fedtuner.core.stages import Reports
from fedtuner.core.tally import Mean, mean

_BLOCK = 1 << 15  # entries that are sorted at once
Middle = Callable[[NDArray[np.float32]], Vector]  # [clients, entries] -> entries


@dataclass(frozen=True)
class Median:
    """The median of each coordinate."""

    kind: ClassVar[str] = "median"
    each = True

    def __call__(self, plan: Plan, reports: Reports) -> Tally:
        return _tally(plan, reports, lambda rows: np.asarray(np.median(rows, axis=0), np.float32))


@dataclass(frozen=True)
class Trimmed:
    """The mean of each coordinate without its largest and smallest values."""

    kind: ClassVar[str] = "trimmed"
    share: float = 0.1  # of the values, left out at either end
    each = True

    def __post_init__(self) -> None:
        checks.settle(self, share=checks.number("combine.share", self.share, 0, 0.49))

    def __call__(self, plan: Plan, reports: Reports) -> Tally:
        return _tally(plan, reports, self._trim)

    def _trim(self, rows: NDArray[np.float32]) -> Vector:
        cut = int(self.share * len(rows))
        return np.asarray(np.sort(rows, axis=0)[cut : len(rows) - cut].mean(axis=0), np.float32)


def _tally(plan: Plan, reports: Reports, middle: Middle) -> Tally:
    trained = [r for r in reports if r is not None and r.finite and r.examples]
    tally = mean(plan, reports)
    if not trained:
        return tally
    extra = {name: _by_block([r.extra[name] for r in trained], middle) for name in trained[0].extra}
    return replace(tally, change=_by_block([r.change for r in trained], middle), extra=extra)


def _by_block(vectors: Sequence[Vector], middle: Middle) -> Vector:
    size = vectors[0].size
    parts = [middle(np.stack([v[n : n + _BLOCK] for v in vectors])) for n in range(0, size, _BLOCK)]
    return np.concatenate(parts) if parts else vectors[0]


COMBINES = {"mean": Mean, "median": Median, "trimmed": Trimmed}
