"""Screens: what is impossible is dropped, what is far from the round is cut, and honest clients are left alone."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtuner import methods, tables
from fedtuner.core import tally
from fedtuner.core.method import Optimiser
from fedtuner.core.model import NOTHING, Metrics
from fedtuner.core.records import Choice, Job, Plan, Report, Tried
from fedtuner.core.screens import Norm, Values, Weights, differences, length
from fedtuner.core.stages import Screen
from fedtuner.core.tally import mean
from fedtuner.errors import SpecError
from fedtuner.methods.momentum import step
from fedtuner.testing.rounds import a_round, an_arm, reported
from fedtuner.testing.toys import quadratics
from fedtuner.tuners.fedex import FedEx, gradient
from fedtuner.tuners.theta import Theta

PLAN = Plan(0, 0, 0, "valid", {}, 0.0, np.zeros(1, np.float32), {}, ())


def report(change=(0.0,), examples=1, validated=1, loss=0.5, error=0.25, client=0, finite=True, extra=None):
    """A report with the same loss and error before and after."""
    metrics = Metrics(loss, error, validated)
    vector = np.array(change, np.float32)
    return Report(client, vector, extra or {}, {}, examples, (Tried(0, metrics, metrics),), finite)


def planned(*rates):
    """A plan whose clients have these learning rates."""
    return replace(PLAN, jobs=tuple(Job(i, (Choice(i, {"lr": rate}),)) for i, rate in enumerate(rates)))


# Values


@pytest.mark.parametrize(
    ("loss", "error", "worst", "least"),
    [
        (-0.1, 0.2, 1.0, 0.0),
        (-1e308, 0.2, 1.0, 0.0),
        (0.5, -0.01, 1.0, 0.0),
        (0.5, 1.01, 1.0, 0.0),
        (0.5, math.nan, 1.0, 0.0),
        (0.5, -0.01, math.inf, 0.0),
        (-2.0, 0.2, 1.0, -1.0),
    ],
)
def test_a_report_of_what_cannot_be_is_dropped(loss, error, worst, least):
    bad, good = report(loss=loss, error=error), report()
    screened = Values(worst, least)(PLAN, [good, bad, None])
    assert screened == [good, None, None]
    assert screened[0] is good
    both = replace(good, tried=(*good.tried, *bad.tried))  # a false value of any try
    assert Values(worst, least)(PLAN, [both]) == [None]


@pytest.mark.parametrize(("loss", "error"), [(0.0, 0.0), (0.0, 1.0), (1e-300, 0.5), (50.0, 1.0)])
def test_what_can_be_is_left_alone(loss, error):
    reports = [report(loss=loss, error=error), report(), report(), report(validated=0, loss=math.nan, error=math.nan)]
    assert all(a is b for a, b in zip(Values()(PLAN, reports), reports, strict=True))


def test_a_loss_counts_as_at_most_a_hundred_medians():
    honest = [report(loss=x) for x in (0.1, 0.5, 0.4)]
    for lie in (1e308, math.inf, math.nan):
        *kept, cut = Values()(PLAN, [*honest, report(loss=lie, error=0.0)])
        assert all(a is b for a, b in zip(kept, honest, strict=True))
        assert cut.after.loss == pytest.approx(50.0)  # the higher of the middle values, 0.4 and 0.5, times 100
        assert cut.after.error == (0.0 if lie == 1e308 else 1.0)  # a loss that is no number has the worst error
    [*_, cut] = Values(times=2)(PLAN, [*honest, report(loss=3.0)])
    assert cut.before.loss == 1.0


def test_where_half_of_the_clients_have_no_finite_loss_the_round_has_none():
    """An arm that diverges looks as it should, whatever one client says."""
    diverged = [report(loss=math.inf, error=1.0)] * 2
    screened = Values()(PLAN, [*diverged, report(loss=1e-9, error=0.0)])
    assert [r.after.loss for r in screened] == [math.inf, math.inf, 1e-9]


def test_one_of_two_clients_cannot_make_the_others_loss_small():
    assert Values()(PLAN, [report(loss=2.0), report(loss=1e-30)])[0].after.loss == 2.0


def test_errors_that_are_no_rates_are_cut_like_losses_and_losses_may_be_negative():
    honest = [report(loss=-x, error=10 * x) for x in (1.0, 2.0, 3.0)]
    *kept, high, low = Values(math.inf, -math.inf, times=10)(
        PLAN, [*honest, report(loss=1.0, error=1e30), report(loss=-1e300, error=10.0)]
    )
    assert all(a is b for a, b in zip(kept, honest, strict=True))
    assert high.after == Metrics(1.0, 200.0, 1)
    assert low.after.loss == -20.0


def test_before_and_after_have_medians_of_their_own():
    def trained(loss, after):
        return replace(report(), tried=(Tried(0, Metrics(loss, 0.5, 1), Metrics(after, 0.5, 1)),))

    reports = [trained(10.0, 0.01), trained(10.0, 0.01), trained(10.0, 10.0)]
    assert [r.after.loss for r in Values()(PLAN, reports)] == [0.01, 0.01, 1.0]
    assert [r.before.loss for r in Values()(PLAN, reports)] == [10.0] * 3


values = st.tuples(st.floats(allow_nan=True), st.floats(allow_nan=True), st.integers(0, 3))


@given(st.lists(values, max_size=6), st.sampled_from([1.0, math.inf]), st.sampled_from([0.0, -math.inf]))
def test_whatever_is_reported_what_is_left_can_be(reports, worst, least):
    screened = Values(worst, least)(PLAN, [report(loss=x, error=y, validated=n) for x, y, n in reports])
    for made in [r.after for r in screened if r is not None and r.after.count]:
        assert made.loss >= least
        assert (0 <= made.error <= worst) if worst == 1 else made.error >= least
    again = Values(worst, least)(PLAN, screened)
    assert [r is None for r in again] == [r is None for r in screened]


# Weights


def counts(reports):
    return [(r.examples, r.before.count, r.after.count) for r in reports]


@pytest.mark.parametrize(
    ("sizes", "limit"),
    [
        ([1, 2, 3, 10_000], 20),  # ten times the lower of 2 and 3
        ([1, 10_000], 10),  # one of two clients cannot move the limit
        ([1, 2, 3, 1000, 10_000], 30),
        ([0, 0, 5, 10_000], 50),  # clients without examples do not count
        ([7, 69], 69),
    ],
)
def test_no_client_weighs_more_than_ten_medians(sizes, limit):
    screened = Weights(share=1.0)(PLAN, [report(examples=n, validated=n) for n in sizes])
    assert counts(screened) == [(min(n, limit),) * 3 for n in sizes]


def test_training_and_validation_have_limits_of_their_own():
    reports = [report(examples=5, validated=2, loss=0.5) for _ in range(3)]
    reports += [report(examples=500, validated=2), report(examples=5, validated=500, loss=0.5)]
    screened = Weights(share=1.0)(PLAN, reports)
    assert counts(screened) == [(5, 2, 2)] * 3 + [(50, 2, 2), (5, 20, 20)]
    assert [a is b for a, b in zip(screened, reports, strict=True)] == [True] * 3 + [False] * 2
    assert (screened[4].before.loss, screened[4].after.error) == (0.5, 0.25)  # only weights are cut


def test_a_given_limit_holds_for_everyone():
    screened = Weights(most=4, share=1.0)(
        PLAN, [report(examples=3, validated=9), None, report(examples=100, validated=1)]
    )
    assert screened[1] is None
    assert counts([screened[0], screened[2]]) == [(3, 4, 4), (4, 1, 1)]
    assert Weights()(PLAN, [None, report(examples=0, validated=0)])[0] is None
    for most in (0, -1, 2.5, "many", True):
        with pytest.raises(SpecError, match=r"most_examples = .*, but must be a whole number >= 1"):
            Weights(most)


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 10**12)), min_size=1, max_size=9), st.none() | st.integers(1, 10**6)
)
def test_no_client_weighs_more_than_it_may(sizes, most):
    reports = [None if n is None else report(examples=n, validated=n) for n in sizes]
    kept = Weights(most, share=1.0)(PLAN, reports)
    positive = sorted(n for n in sizes if n)
    limit = most if most is not None else 10 * positive[(len(positive) - 1) // 2] if positive else 0
    for n, before, after in zip(sizes, reports, kept, strict=True):
        assert (before is None) == (after is None)
        if after is not None:
            assert counts([after]) == [(min(n, limit),) * 3]
            assert n > limit or after is before


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=9), st.integers(10**6, 10**15))
def test_a_liar_among_honest_clients_weighs_at_most_ten_of_them(honest, lie):
    *_, liar = Weights(share=1.0)(PLAN, [report(examples=n) for n in [*honest, lie]])
    assert liar.examples <= 10 * max(honest)


def test_all_tries_of_a_client_are_cut():
    one = report(examples=1, validated=100)
    both = replace(one, tried=one.tried * 2)
    [cut] = Weights(most=10)(PLAN, [both])
    assert [(t.before.count, t.after.count) for t in cut.tried] == [(10, 10), (10, 10)]


@pytest.mark.parametrize(
    ("sizes", "limit"),
    [
        ([30, 30, 30, 100], 60),  # 2 / 5 of a round of four: twice the mean of the others
        ([10, 10, 1000], 20),  # half of a round of three: as much as both others
        ([10, 1000], 20),  # twice the other
        ([7], 7),
        ([10] * 9 + [1000], 20),  # 2 / 11 of a round of ten
        ([10] * 8 + [1000, 1000], 22),  # each of two
        ([10] * 40 + [1000], 44),  # a tenth of a round of forty-one
        ([10] * 100 + [10_000], 100),  # of a hundred and one, ten medians are less
        ([3, 4, 5, 6], 6),
    ],
)
def test_no_client_has_more_than_its_share(sizes, limit):
    assert counts(Weights()(PLAN, [report(examples=n, validated=n) for n in sizes])) == [
        (min(n, limit),) * 3 for n in sizes
    ]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=12), st.sampled_from([0.0, 0.1, 0.25, 0.5]))
def test_shares_are_bounded_whatever_is_claimed(sizes, share):
    kept = [r.examples for r in Weights(share=share)(PLAN, [report(examples=n) for n in sizes]) if r.examples]
    if kept:
        most = max(share, 2 / (len(kept) + 1))
        assert max(kept) <= most * sum(kept) + 1  # but for rounding to whole examples
        if (
            max(n for n in sizes) <= most * sum(sizes)
            and max(sizes) <= 10 * sorted(n for n in sizes if n)[(len(kept) - 1) // 2]
        ):
            assert kept == [n for n in sizes if n]


def test_who_has_no_value_does_not_count_for_the_shares_of_those_who_have():
    """Of fifty clients five have a value. The liar may weigh 2 / 6 of these, not a tenth of all fifty."""
    judged = [report(validated=20, error=error) for error in (0.1, 0.2, 0.3, 0.4)]
    others = [report(validated=20, error=math.nan) for _ in range(45)]
    liar, *kept = Weights()(PLAN, Values(undefined=True)(PLAN, [report(validated=10**9), *judged, *others]))
    assert liar.after.count == 40
    assert [a is b for a, b in zip(kept, [*judged, *others], strict=True)] == [True] * 49
    nobody = [report(validated=n, error=math.nan) for n in (20, 20, 10**9)]
    assert [r.after.count for r in Weights()(PLAN, nobody)] == [20, 20, 40]


def test_a_report_weighs_as_little_where_it_claims_the_examples_only_after_training():
    few, many = Metrics(0.5, 0.25, 20), Metrics(0.5, 0.25, 10**9)
    for tried in ((Tried(0, few, many),), (Tried(0, many, few),), (Tried(0, few, few), Tried(1, few, many))):
        *_, cut = Weights()(PLAN, [report(validated=20)] * 9 + [replace(report(), tried=tried)])
        assert {m.count for t in cut.tried for m in (t.before, t.after)} == {20, 40}


def test_who_is_not_in_the_mean_does_not_count_for_its_weights():
    broken = report(examples=10**6, finite=False)
    assert [r.examples for r in Weights(share=1.0)(PLAN, [report(examples=1), report(examples=11), broken])][:2] == [
        1,
        10,
    ]


# Norm


def test_an_update_counts_for_at_most_three_medians():
    """Lengths 1, 2 and 5: the median is 2, and an update of length 50 becomes one of length 6."""
    honest = [report((x, 0.0)) for x in (1.0, 2.0, 5.0)]
    *kept, cut, none = Norm()(PLAN, [*honest, report((0.0, -50.0)), None])
    assert all(a is b for a, b in zip(kept, honest, strict=True))
    assert none is None
    assert cut.change.tolist() == [0.0, pytest.approx(-6.0)]
    assert cut.change.dtype == np.float32
    assert mean(PLAN, [*honest, cut]).change.tolist() == [2.0, pytest.approx(-1.5)]


@pytest.mark.parametrize("lie", [61.0, 3e38])
def test_an_update_of_more_than_thirty_medians_is_left_out_and_what_it_measured_is_not(lie):
    honest = [report((x, 0.0)) for x in (1.0, 2.0, 5.0)]
    screened = Norm()(PLAN, [*honest, report((0.0, -lie), validated=3, error=0.75)])
    assert screened[3].examples == 0
    assert screened[3].finite
    assert screened[3].after == Metrics(0.5, 0.75, 3)
    assert mean(PLAN, screened).change.tolist() == pytest.approx([8 / 3, 0.0])
    assert mean(PLAN, screened).after.count == 6
    kept = Norm(most=1e39)(PLAN, [*honest, report((0.0, -lie))])[3]
    assert (kept.examples, length(kept.change)) == (1, pytest.approx(6.0))


def test_learning_rates_excuse_long_updates():
    """Lengths per unit of the rate are 1, 1, 1: nobody is a liar. The last, of the same rate as the first, is."""
    honest = [report((x, 0.0), client=i) for i, x in enumerate((0.001, 0.01, 1.0))]
    plan = planned(0.001, 0.01, 1.0, 0.001)
    assert all(a is b for a, b in zip(Norm()(plan, honest), honest, strict=True))
    *kept, cut = Norm()(plan, [*honest, report((1.0, 0.0), client=3)])
    assert all(a is b for a, b in zip(kept, honest, strict=True))
    assert (length(cut.change), cut.examples) == (pytest.approx(0.03), 0)  # the lower median of the lengths is 0.01
    for rate in (0.0, math.inf, "fast", None, True):  # no rate: 1
        assert Norm()(planned(rate, rate, rate, rate), [*honest, report((1.0, 0.0), client=3)])[3].change[0] < 1
    assert Norm(rate="pace")(plan, honest)[2].change[0] < 1.0


def test_what_is_trained_and_statistics_are_compared_apart():
    honest = [report((1.0, 100.0 * x)) for x in (1, 2, 3)]
    *_, cut = Norm(trainable=1)(PLAN, [*honest, report((20.0, 300.0))])
    assert cut.change.tolist() == [3.0, 300.0]
    *_, cut = Norm(trainable=1)(PLAN, [*honest, report((2.0, 5000.0))])
    assert cut.change.tolist() == [2.0, 600.0]
    *_, cut = Norm()(PLAN, [*honest, report((20.0, 300.0))])
    assert cut.change.tolist() == [20.0, 300.0]


def test_a_further_vector_is_shortened_whatever_its_length():
    def meta(x, of=2):
        return report((1.0, 1.0), extra={"meta": np.full(of, x, np.float32)})

    honest = [meta(1.0), meta(1.0), meta(2.0)]
    *kept, cut = Norm()(PLAN, [*honest, meta(-3e38)])
    assert all(a is b for a, b in zip(kept, honest, strict=True))
    assert cut.extra["meta"].tolist() == pytest.approx([-3.0, -3.0])
    assert cut.change.tolist() == [1.0, 1.0]
    assert cut.examples == 1
    number = [meta(1.0, 1), meta(1.0, 1), meta(3e38, 1)]  # such as a squared length
    assert all(a is b for a, b in zip(Norm()(PLAN, number), number, strict=True))


@dataclass(frozen=True)
class Lie:
    """A screen that multiplies what the last client keeps."""

    times: float

    def __call__(self, plan, reports):
        last = reports[-1]
        memory = {name: v if v.size == 1 else np.float32(self.times) * v for name, v in last.memory.items()}
        return [*reports[:-1], replace(last, memory=memory)]


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
@pytest.mark.parametrize("times", [100.0, -1e9])
def test_what_clients_keep_counts_for_at_most_three_medians_and_the_sums_still_telescope(name, times):
    method = getattr(methods, name)
    vector = next(iter(method.extra))
    round, arm = a_round(method, quadratics(), screens=(Lie(times), Norm())), an_arm(method)
    state = round.begin(arm)
    for _ in range(3):
        plan, reports = reported(round, arm, state)
        screened = tally.screen(round.setup, round.federation, plan, reports)
        lengths = sorted(length(r.memory[vector]) for r in screened)
        assert lengths[-1] <= 3 * lengths[(len(lengths) - 1) // 2] * (1 + 1e-5)
        state, record = round.settle(arm, state, round.tally(plan, reports))
        assert record.bounded
        whole = sum(m["weight"][0] for m in state.memory.values())
        mean_of_all = sum(m["weight"][0] * m[vector] for m in state.memory.values()) / whole
        met = len(state.memory) / max(len(state.memory), round.federation.population())
        assert state.slots[vector] == pytest.approx(mean_of_all * met, rel=1e-4, abs=1e-6)


def test_who_is_broken_or_did_not_train_is_not_compared():
    broken, idle = report((1e-9, 0.0), finite=False), report((1e-9, 0.0), examples=0)
    reports = [broken, idle, report((0.0, 0.0)), report((5.0, 0.0)), report((7.0, 0.0))]
    assert all(a is b for a, b in zip(Norm()(PLAN, reports), reports, strict=True))
    [evaluated] = Norm(trainable=1)(PLAN, [report(())])  # an evaluation has no updates
    assert evaluated.change.size == 0


vectors = st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=3, max_size=3)


@given(st.lists(vectors, min_size=1, max_size=7))
def test_no_update_is_much_longer_than_the_median_and_directions_stay(given_):
    reports = [report(v) for v in given_]
    screened = Norm()(PLAN, reports)
    lengths = sorted(length(r.change) for r in reports if r.change.any())
    for a, b in zip(reports, screened, strict=True):
        if lengths:
            assert length(b.change) <= 3 * lengths[(len(lengths) - 1) // 2] * (1 + 1e-5)
        assert b.finite
        assert np.isfinite(b.change).all()
        assert (np.sign(b.change) * np.sign(a.change) >= 0).all()


def test_a_minority_does_not_move_a_mean_far():
    rng = np.random.default_rng(0)
    honest = [report(rng.normal(size=8)) for _ in range(6)]
    for lie in (1e3, 1e38):
        liars = [report(np.full(8, lie)) for _ in range(3)]
        moved = mean(PLAN, Norm()(PLAN, [*honest, *liars])).change
        assert length(moved) < 10 * max(length(r.change) for r in honest)


def test_what_the_servers_optimiser_asks_of_a_change_is_that_of_the_shortened_one():
    exp = Optimiser("exp", "", step, extra=lambda d: {"square": np.array([d @ d])})
    method = methods.fedavg.with_optimiser(exp)
    round, arm = a_round(method, quadratics(), screens=(Norm(times=1),)), an_arm(method)
    state = round.begin(arm)
    plan, reports = reported(round, arm, state)
    screened = tally.screen(round.setup, round.federation, plan, reports)
    assert any(a is not b for a, b in zip(reports, screened, strict=True))
    for r in screened:
        assert r.extra["square"].tolist() == [r.change @ r.change]


# In words and in tables


def test_what_screens_did_is_said_in_words():
    usual = report(examples=3, validated=2)
    assert differences(usual, usual) == {}
    assert differences(report(loss=-1.0), None) == {
        "screened": "its report is left out: losses -1, -1 and errors 0.25, 0.25"
    }
    cut = Weights(most=2, share=1.0)(PLAN, [usual])[0]
    assert differences(usual, cut) == {"capped": "3 and 2 examples count as 2 and 2"}
    *_, big, long = [report((1.0,)), report((1.0,)), report((1.0,), loss=1e9), report((1e9,))]
    many = [report((1.0,)), report((1.0,)), big, long]
    screened = Norm()(PLAN, Values()(PLAN, many))
    assert differences(big, screened[2]) == {
        "bounded": "losses 1e+09, 1e+09 and errors 0.25, 0.25 count as losses 50, 50 and errors 0.25, 0.25"
    }
    assert differences(long, screened[3]) == {"shortened": "an update of length 1e+09 counts as 0"}
    assert differences(long, Norm(most=1e10)(PLAN, many)[3]) == {"shortened": "an update of length 1e+09 counts as 3"}
    kept = {"memory": {"control": np.array([3.0, 4.0])}, "extra": {"control": np.zeros(2)}}
    shorter = {**kept, "memory": {"control": np.array([0.6, 0.8])}}
    assert differences(replace(usual, **kept), replace(usual, **shorter)) == {
        "shortened": "control of length 5 counts as 1"
    }
    nothing = replace(usual, tried=(Tried(0, NOTHING, NOTHING),))
    assert differences(nothing, nothing) == {}


def test_screens_are_values():
    for screen in (Values(), Weights(), Norm()):
        assert isinstance(screen, Screen)
        assert tables.plain(screen)["kind"] == type(screen).__name__.lower()
        assert screen == type(screen)()
    assert tables.plain(Values(math.inf, -math.inf)) == {
        "kind": "values",
        "worst": "inf",
        "least": "-inf",
        "times": 100.0,
        "undefined": False,
    }


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Values(times=0.5), r"values.times = 0.5, but must be >= 1"),
        (lambda: Values(worst=-1.0), "no value is between"),
        (lambda: Values(least=math.nan), "no value is between"),
        (lambda: Weights(share=1.5), r"weights.share = 1.5, but must be in \[0, 1\]"),
        (lambda: Norm(times=0), "norm.times = 0, but must be >= 1"),
        (lambda: Norm(most=2), "norm.most = 2, but must be >= 3"),
    ],
)
def test_settings_of_screens_that_make_no_sense(make, why):
    with pytest.raises(SpecError, match=why):
        make()


# What one device can do to theta

anything = st.floats(allow_nan=True) | st.sampled_from([0.0, 1.0])


@given(
    st.lists(st.tuples(st.integers(1, 10**4), st.floats(0.0, 1.0), st.integers(0, 3)), min_size=2, max_size=40),
    st.tuples(st.integers(0, 10**12), anything, anything, anything, anything, st.integers(0, 3)),
    st.lists(st.floats(-6.0, 0.0), min_size=4, max_size=4),
    st.sampled_from([("absolute", 0.0, 1.0), ("improvement", -1.0, 2.0)]),
    st.data(),
)
def test_one_device_pulls_theta_by_no_more_than_its_share_of_the_metrics_range(honest, lie, log_theta, how, data):
    """Of a round of n clients it has at most 2 / (n + 1) of the weight, or a tenth, whatever it says.

    The gradient divides each client's part by its candidate's probability, which no client chooses. So it is the part
    itself, p_j times the gradient, of which a device has no more than that share times the range of the values.
    """
    signal, least, reach = how
    count, loss_before, error_before, loss_after, error_after, label = lie
    tried = Tried(label, Metrics(loss_before, error_before, count), Metrics(loss_after, error_after, count))
    others = [report(examples=n, validated=n, error=error) for n, error, _ in honest]
    others = [replace(r, tried=(replace(r.tried[0], label=j),)) for r, (_, _, j) in zip(others, honest, strict=True)]
    reports = [*others, replace(report(), tried=(tried,))]
    for screen in (Values(), Weights(), Norm()):
        reports = screen(PLAN, reports)
    baseline = data.draw(st.floats(least, 1.0))
    theta = Theta(np.array(log_theta) - np.logaddexp.reduce(log_theta), past=baseline, mass=1.0)
    told = [r.tried[0] for r in reports if r is not None]
    labels, weights = [t.label for t in told], [t.after.count for t in told]
    values = [FedEx(signal=signal).value(t) for t in told]
    found = theta.p * gradient(theta, labels, values, weights)
    if reports[-1] is None or not weights[-1]:
        return  # it has no part at all
    without = theta.p * gradient(theta, labels, [*values[:-1], baseline], weights)
    n = sum(weight > 0 for weight in weights)
    assert np.abs(found - without).max() <= max(0.1, 2 / (n + 1)) * reach + 1e-9
