"""Statistics over a few seeds: mean, standard deviation, confidence interval, and tests of paired differences.

The interval is that of the paper's appendix: Student's t, 90 %. There are two tests of paired differences: Student's t,
which assumes that they are normal, and Wilcoxon's signed ranks (Biometrics Bulletin 1945), which does not. The p-value
of the signed ranks is exact, also where differences tie: it is the share of all assignments of signs to the differences
whose sum of positive ranks is at least as far from its mean. Nothing but the standard library is needed.

Errors are often multiples of one over the number of test examples. So differences tie, and pairs are equal, up to the
rounding of floats: differences are rounded to twelve decimals before they are ranked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedtuner.errors import SpecError

LEVEL = 0.9
_DECIMALS = 12


@dataclass(frozen=True)
class Summary:
    """The mean of some values, with its interval."""

    n: int
    mean: float
    std: float  # the sample standard deviation; NaN for fewer than two values
    half: float  # half the width of the interval of the mean; NaN for fewer than two values


@dataclass(frozen=True)
class Paired:
    """The mean of paired differences, second minus first, with the two-sided p-values of both tests."""

    n: int
    mean: float
    half: float
    t: float  # p of the paired t-test; NaN for fewer than two pairs
    wilcoxon: float  # p of the signed ranks; NaN if all pairs are equal
    better: int  # pairs whose second value is lower
    unequal: int  # pairs whose values differ: the others do not count in signed ranks

    @property
    def least(self) -> float:
        """The smallest p that signed ranks can give for this number of pairs that differ."""
        return min(1.0, 2.0 ** (1 - self.unequal))


def summary(values: Sequence[float], level: float = LEVEL) -> Summary:
    """Return mean, standard deviation and half the interval of the mean.

    >>> made = summary([1.0, 2.0, 3.0])
    >>> made.mean, made.std, round(made.half, 3)
    (2.0, 1.0, 1.686)
    """
    n = len(values)
    if not n:
        raise SpecError("there are no values to summarise")
    mean = math.fsum(values) / n
    if n < 2 or not math.isfinite(mean):
        return Summary(n, mean, math.nan, math.nan)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    return Summary(n, mean, std, quantile((1 + level) / 2, n - 1) * std / math.sqrt(n))


def paired(first: Sequence[float], second: Sequence[float], level: float = LEVEL) -> Paired:
    """Return the mean of the differences ``second - first``, and both tests of whether it is 0."""
    differences = [round(b - a, _DECIMALS) for a, b in zip(first, second, strict=True)]
    whole = summary(differences, level)
    t = math.nan
    if whole.n > 1 and math.isfinite(whole.std):
        error = whole.std / math.sqrt(whole.n)
        t = 2 * (1 - student(abs(whole.mean) / error, whole.n - 1)) if error else float(whole.mean == 0)
    better, unequal = sum(d < 0 for d in differences), sum(d != 0 for d in differences)
    return Paired(whole.n, whole.mean, whole.half, t, signed_ranks(differences), better, unequal=unequal)


def signed_ranks(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Wilcoxon's test; differences of 0 are left out.

    >>> signed_ranks([1, 2, 3, 4, 5])
    0.0625
    """
    known = sorted((d for d in differences if d), key=abs)
    if not known or not all(map(math.isfinite, known)):
        return math.nan
    ranks = _doubled_ranks([abs(d) for d in known])
    ways = [1] + [0] * sum(ranks)  # ways[s]: number of assignments of signs whose positive (doubled) ranks sum to s
    for rank in ranks:
        for s in range(len(ways) - 1, rank - 1, -1):
            ways[s] += ways[s - rank]
    positive = sum(rank for rank, d in zip(ranks, known, strict=True) if d > 0)
    lower = min(positive, len(ways) - 1 - positive)
    return min(1.0, 2 * sum(ways[: lower + 1]) / 2.0 ** len(known))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm, Scandinavian Journal of Statistics 1979); NaN is not counted.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = list(values), 0.0
    known = sorted((i for i, p in enumerate(values) if not math.isnan(p)), key=lambda i: values[i])
    for rank, i in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * values[i]))
        adjusted[i] = largest
    return adjusted


def _doubled_ranks(ordered: Sequence[float]) -> list[int]:
    """Return twice the rank of each value; equal values share their mean rank, which doubled is a whole number."""
    ranks: list[int] = []
    while len(ranks) < len(ordered):
        start = len(ranks)
        end = start + sum(1 for value in ordered[start:] if value == ordered[start])
        ranks += [start + 1 + end] * (end - start)
    return ranks


def quantile(p: float, freedom: int) -> float:
    """Return the p-quantile of Student's t, by bisection.

    >>> round(quantile(0.95, 4), 3)
    2.132
    """
    if not 0 < p < 1 or freedom < 1:
        raise SpecError(f"quantile({p}, {freedom}), but p must be in (0, 1) and the degrees of freedom >= 1")
    if p < 0.5:
        return -quantile(1 - p, freedom)
    low, high = 0.0, 1.0
    while student(high, freedom) < p:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student(middle, freedom) < p else (low, middle)
    return high


def student(t: float, freedom: int) -> float:
    """Return the probability that Student's t is at most ``t``, by the sums of Abramowitz and Stegun, 26.7.3-4."""
    if t < 0:
        return 1 - student(-t, freedom)
    angle = math.atan2(t, math.sqrt(freedom))
    odd, cosine = freedom % 2, math.cos(angle)
    term = cosine if odd else 1.0
    total = 0.0
    for i in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * i / (i + 1)
    inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return (1 + inside) / 2
