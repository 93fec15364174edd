"""Intervals and tests against SciPy's, and against counting by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedtuner.errors import SpecError
from fedtuner.experiments.statistics import holm, paired, quantile, signed_ranks, student, summary

scipy = pytest.importorskip("scipy.stats", reason="SciPy comes with scikit-learn")


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 29, 200])
def test_student_is_as_scipy_has_it(freedom):
    for t in (-3.0, -0.2, 0.0, 0.5, 1.0, 2.5, 12.0):
        assert student(t, freedom) == pytest.approx(scipy.t.cdf(t, freedom), abs=1e-12)
    for p in (0.05, 0.5, 0.9, 0.95, 0.995):
        assert quantile(p, freedom) == pytest.approx(scipy.t.ppf(p, freedom), abs=1e-9)


def test_the_interval_is_the_papers():
    """Five values with the standard deviation 9.13 have the half-width 8.70: Shakespeare i.i.d., RS + FedEx, global."""
    values = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    values = 53.94 + 9.13 * values / values.std(ddof=1)
    made = summary(values.tolist())
    assert (round(made.mean, 2), round(made.std, 2), round(made.half, 2)) == (53.94, 9.13, 8.70)


def test_one_value_has_no_interval():
    made = summary([0.3])
    assert made.mean == 0.3
    assert math.isnan(made.std)
    assert math.isnan(made.half)
    with pytest.raises(SpecError, match="no values"):
        summary([])


def test_a_value_that_is_not_finite_has_no_interval():
    made = summary([0.3, math.inf])
    assert made.mean == math.inf
    assert math.isnan(made.half)


@pytest.mark.parametrize("n", [2, 3, 5, 10, 25])
def test_pairs_are_tested_as_by_scipy(n):
    a, b = np.random.default_rng(n).normal(size=(2, n))
    made = paired(a.tolist(), b.tolist())
    assert made.mean == pytest.approx((b - a).mean())
    assert made.t == pytest.approx(scipy.ttest_rel(a, b).pvalue)
    assert made.wilcoxon == pytest.approx(scipy.wilcoxon(a, b, method="exact").pvalue)


@pytest.mark.parametrize(
    "differences", [[1, 1, -1, 2], [0.5, 0.5, 0.5], [3, -1, -1, -1, 2, 2], [1, -1], [-4, -3, -2, -1, 1]]
)
def test_signed_ranks_with_ties_count_all_signs(differences):
    """By hand: of all 2^n signs, the share whose positive ranks sum as far from the middle as these."""
    ranks = scipy.rankdata(np.abs(differences))

    def positive(signs):
        return sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign > 0)

    middle, seen = ranks.sum() / 2, positive(np.sign(differences))
    sums = [positive(signs) for signs in itertools.product((1, -1), repeat=len(ranks))]
    share = np.mean([abs(s - middle) >= abs(seen - middle) - 1e-9 for s in sums])
    assert signed_ranks(differences) == pytest.approx(share)


def test_equal_pairs_say_nothing():
    made = paired([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    assert (made.mean, made.t) == (0.0, 1.0)
    assert math.isnan(made.wilcoxon)
    assert signed_ranks([0.0, 1.0, 0.0]) == signed_ranks([1.0])


def test_the_least_p_is_that_of_pairs_that_all_agree():
    for n in range(1, 9):
        made = paired([0.0] * n, [float(i + 1) for i in range(n)])
        assert made.wilcoxon == made.least
        with_equals = paired([0.0] * n + [7.0, 7.0], [*(float(i + 1) for i in range(n)), 7.0, 7.0])
        assert (with_equals.n, with_equals.unequal) == (n + 2, n)
        assert with_equals.wilcoxon == with_equals.least == made.least  # pairs that are equal do not count
    assert paired([0.5], [0.5]).least == 1


def test_shares_of_a_few_test_examples_tie_whatever_their_rounding():
    """Errors are k / 168 there: the same as with the whole numbers k, though differences of floats differ in bits."""
    rng = np.random.default_rng(0)
    rounded = 0
    for _ in range(50):
        a, b = rng.integers(0, 12, (2, 10)).tolist()
        shares = [[k / 168 for k in a], [sum([1 / 168] * k) for k in b]]  # summed: equal numbers with other last bits
        made, whole = paired(*shares), paired(a, b)
        assert (made.wilcoxon, made.better, made.unequal) == (whole.wilcoxon, whole.better, whole.unequal)
        rounded += signed_ranks([y - x for x, y in zip(*shares, strict=True)]) != whole.wilcoxon
    assert rounded > 10  # without rounding it would have been another p


def test_holm_is_what_it_says():
    """Step down: 4 * 0.005, 3 * 0.01, 2 * 0.03, 1 * 0.04 made not to fall."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([math.nan, 0.04])[1] == 0.04
    assert holm([]) == []
