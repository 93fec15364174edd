"""Checks of the reports of a round: weights are bounded, and updates that cannot be aggregated are left out.

A finite update of the right shape is accepted: averaging is no defence against a client that sends a bad model on
purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from fedtuner.federation import Report
from fedtuner.methods.base import Vectors

TIMES = 10  # the largest weight of a client, in medians of its round
Kind = tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes of the vectors beside the model


class Fitting:
    """Finds the reports whose extra vectors the method's aggregation can use, and that are alike.

    Only the method's code knows which vectors it needs, so one report of each kind is aggregated by itself, once for
    each kind of slots that the server has.
    """

    def __init__(self) -> None:
        self._proven: set[tuple[Kind, Kind]] = set()

    def __call__(
        self, reports: Sequence[Report | None], slots: Vectors, aggregate: Callable[[Report], object]
    ) -> tuple[list[Report | None], dict[int, str]]:
        """Return the reports of the most frequent kind that can be aggregated, and why the others are left out."""
        kinds = [None if r is None else _kind(r.update.extra) for r in reports]
        whys: dict[Kind, str] = {}
        for report, kind in zip(reports, kinds, strict=True):
            if report is None or kind is None or kind in whys:
                continue
            if (kind, _kind(slots)) not in self._proven:
                try:
                    aggregate(replace(report, examples=1))
                    self._proven.add((kind, _kind(slots)))
                except Exception as error:  # a client must not be able to stop the study
                    whys[kind] = f"its vectors cannot be aggregated ({type(error).__name__}: {error})"
        counts = Counter(kind for kind in kinds if kind is not None and kind not in whys)
        usual = counts.most_common(1)[0][0] if counts else None
        out = {
            place: whys.get(kind, "its vectors are unlike the other clients'")
            for place, kind in enumerate(kinds)
            if kind is not None and kind != usual
        }
        return [None if place in out else r for place, r in enumerate(reports)], out


def bounded(reports: Sequence[Report | None], most: int | None) -> list[Report | None]:
    """Return the reports with |T| and |V| of at most ``most``; None is ten times the median of the round's.

    Of an even number the lower of the two in the middle is the median, so that one of two cannot move it at will.
    """
    arrived = [r for r in reports if r is not None]
    train, valid = (most,) * 2 if most is not None else (
        _limit([r.examples for r in arrived]), _limit([r.before.count for r in arrived])
    )  # fmt: skip
    return [None if r is None else _cut(r, train, valid) for r in reports]


def _kind(extra: Vectors) -> Kind:
    return tuple(sorted((name, v.shape) for name, v in extra.items()))


def _limit(counts: Sequence[int]) -> int:
    positive = sorted(n for n in counts if n)
    return TIMES * positive[(len(positive) - 1) // 2] if positive else 0


def _cut(report: Report, train: int, valid: int) -> Report:
    if report.examples <= train and report.before.count <= valid:
        return report
    count = min(report.before.count, valid)
    return replace(
        report,
        examples=min(report.examples, train),
        before=replace(report.before, count=count),
        after=replace(report.after, count=count),
    )
