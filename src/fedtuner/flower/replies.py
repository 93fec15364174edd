"""What the server believes of what clients say: weights are bounded, updates that do not fit the others are left out.

A client's update itself is believed if it is finite: averaging is no defence against a client that sends a bad model
on purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fedtuner.federation import Report
from fedtuner.methods.base import Vectors

TIMES = 10  # the most that a client may weigh, in medians of its round


def agreeing(reports: Sequence[Report | None]) -> list[Report | None]:
    """Return the reports without those whose further vectors differ in name or shape from most others'."""
    kinds = [None if r is None else _kind(r.update.extra) for r in reports]
    counts = Counter(kind for kind in kinds if kind is not None)
    if len(counts) < 2:
        return list(reports)
    usual = counts.most_common(1)[0][0]
    return [r if kind == usual else None for r, kind in zip(reports, kinds, strict=True)]


def bounded(reports: Sequence[Report | None], most: int | None) -> list[Report | None]:
    """Return the reports with |T| and |V| of at most ``most``; None is ten times the median of the round's.

    Of an even number the lower of the two in the middle is the median, so that one of two cannot move it at will.
    """
    arrived = [r for r in reports if r is not None]
    train, valid = (most,) * 2 if most is not None else (
        _limit([r.examples for r in arrived]), _limit([r.before.count for r in arrived])
    )  # fmt: skip
    return [None if r is None else _cut(r, train, valid) for r in reports]


def _kind(extra: Vectors) -> tuple[tuple[str, tuple[int, ...]], ...]:
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
