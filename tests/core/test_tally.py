"""What the server makes of a round's reports: shares, means, screens, and what single bad reports do to them."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtuner import methods
from fedtuner.core import tally as tallying
from fedtuner.core.method import Optimiser
from fedtuner.core.metric import mean_metrics, penalised
from fedtuner.core.model import NOTHING, Metrics
from fedtuner.core.records import Plan, Report, Tally, Tried
from fedtuner.core.screens import Weights
from fedtuner.core.stages import Combine, Privacy, Screen
from fedtuner.core.tally import mean, weighted
from fedtuner.errors import SpecError
from fedtuner.methods.momentum import step
from fedtuner.testing.rounds import a_round, an_arm, reported, settle
from fedtuner.testing.toys import quadratics

PLAN = Plan(0, 0, 0, "valid", {}, 0.0, np.zeros(1, np.float32), {}, ())


def report(change=0.0, examples=1, validated=1, loss=0.0, finite=True, client=0, **more):
    """A report of a model of one entry, whose loss and error are ``loss`` before and half of it after."""
    tried = Tried(0, Metrics(loss, loss, validated), Metrics(loss / 2, loss / 2, validated))
    vectors = {"extra": more.get("extra", {}), "memory": more.get("memory", {})}
    return Report(client, np.array([change], np.float32), **vectors, examples=examples, tried=(tried,), finite=finite)


# The mean


def test_a_mean_by_hand():
    """Changes 1, 2 and 5 of |T| = 1, 1, 2: 1/4 + 2/4 + 10/4 = 3.25. Losses 1, 3, 2 of |V| = 3, 1, 0: (3 + 3) / 4."""
    reports = [report(1.0, 1, 3, 1.0), report(2.0, 1, 1, 3.0), report(5.0, 2, 0, 2.0), None]
    tally = mean(PLAN, reports)
    assert tally.change.tolist() == [3.25]
    assert (tally.asked, tally.reported, tally.broken, tally.trained) == (4, 3, 0, 3)
    assert (tally.examples, tally.trainings) == (4, 3)
    assert tally.before == Metrics(1.5, 1.5, 4)
    assert tally.after == Metrics(0.75, 0.75, 4)


def test_further_vectors_are_averaged_like_the_change():
    reports = [report(examples=n, extra={"c": np.array([x, -x], np.float32)}) for n, x in ((1, 4.0), (3, 8.0))]
    assert mean(PLAN, reports).extra["c"].tolist() == [7.0, -7.0]


def test_a_server_of_ones_own_gives_them_as_means():
    given = {"c": [7.0, -7.0], "n": np.float64(3)}
    tally = PLAN.tally(np.ones(1), 4, NOTHING, NOTHING, {}, extra=given)
    assert {name: v.tolist() for name, v in tally.extra.items()} == {"c": [7.0, -7.0], "n": [3.0]}
    assert {v.dtype for v in tally.extra.values()} == {np.dtype(np.float32)}
    assert PLAN.tally(np.ones(1), 4, NOTHING, NOTHING, {}).extra == {}


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (3.0, r"extra = 3.0, but must be vectors by name"),
        ({1: 2.0}, r"extra = \{1: 2.0\}, but must be vectors by name"),
        ({"square": "2"}, r"extra\['square'\] is of type <U1, but must be of real numbers"),
        ({"square": None}, r"extra\['square'\] is of type object, but must be of real numbers"),
    ],
)
def test_what_cannot_be_such_means_is_refused(extra, message):
    with pytest.raises(SpecError, match=message):
        PLAN.tally(np.ones(1), 4, NOTHING, NOTHING, {}, extra=extra)


def test_who_is_broken_or_has_no_examples_is_not_in_the_mean():
    """The broken client's metrics count all the same: they are the worst there are."""
    bad = report(math.nan, 50, 2, math.inf, finite=False, client=1)
    tally = mean(PLAN, [report(3.0, 2), bad, report(9.0, 0)])
    assert tally.change.tolist() == [3.0]
    assert (tally.reported, tally.broken, tally.trained, tally.examples) == (3, 1, 1, 2)
    assert tally.before.loss == math.inf


def test_where_nobody_trained_there_is_no_change():
    for reports in ([], [None, None], [report(1.0, 0)], [report(1.0, 5, finite=False)]):
        tally = mean(PLAN, reports)
        assert tally.change is None
        assert tally.extra == {}
        assert tally.examples == 0
    assert repr(mean(PLAN, [None])) == repr(Tally(asked=1))


def test_memory_is_kept_of_sound_clients_where_it_is_finite():
    def remembering(client, value, **more):
        return report(client=client, memory={"c": np.array([value], np.float32)}, **more)

    reports = [remembering(0, 1.0), remembering(1, math.inf), remembering(2, 1.0, finite=False), report(client=3)]
    assert list(mean(PLAN, reports).memory) == [0]


clients = st.lists(st.tuples(st.floats(-100, 100, width=32), st.integers(1, 1000)), min_size=1, max_size=8)


@given(clients, st.randoms(use_true_random=False), st.integers(1, 50))
def test_a_mean_is_a_mean(given_, random, factor):
    """Within the range of what was reported; its order and the unit of the weights do not matter, but for rounding."""
    found = float(mean(PLAN, [report(c, n) for c, n in given_]).change[0])
    changes = [c for c, _ in given_]
    assert min(changes) - 1e-3 <= found <= max(changes) + 1e-3
    shuffled = random.sample(given_, len(given_))
    assert float(mean(PLAN, [report(c, n) for c, n in shuffled]).change[0]) == pytest.approx(found, abs=1e-3)
    scaled = mean(PLAN, [report(c, n * factor) for c, n in given_]).change[0]
    assert float(scaled) == pytest.approx(found, abs=1e-3)


def test_shares_are_taken_first_in_float32_and_added_in_order():
    """The bits of every study depend on it."""
    rng = np.random.default_rng(0)
    sizes, changes = [3, 7, 11, 2], rng.standard_normal((4, 5)).astype(np.float32)
    total = np.zeros(5, np.float32)
    for n, change in zip(sizes, changes, strict=True):
        total = total + change * np.float32(n / 23)
    reports = [replace(report(examples=n), change=change) for n, change in zip(sizes, changes, strict=True)]
    assert mean(PLAN, reports).change.tobytes() == total.tobytes()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 20])
def test_a_sum_in_blocks_has_the_bits_of_one_in_one_piece(size, monkeypatch):
    vectors = np.random.default_rng(1).standard_normal((3, size)).astype(np.float32)
    whole = weighted([0.2, 0.3, 0.5], vectors)
    monkeypatch.setattr(tallying, "_BLOCK", 8)
    assert weighted([0.2, 0.3, 0.5], vectors).tobytes() == whole.tobytes()


def test_means_of_metrics():
    assert repr(mean_metrics([])) == repr(mean_metrics([NOTHING, NOTHING])) == repr(NOTHING)
    one, other = Metrics(2.0, 0.5, 1), Metrics(6.0, 0.1, 3)
    assert mean_metrics([one, NOTHING, other]) == Metrics(5.0, pytest.approx(0.2), 4)


@pytest.mark.parametrize("worst", [1.0, math.inf])
def test_a_loss_that_is_not_finite_has_the_worst_error(worst):
    assert penalised(Metrics(0.5, 0.1, 3), worst) == Metrics(0.5, 0.1, 3)
    for loss in (math.nan, math.inf, -math.inf):
        assert penalised(Metrics(loss, 0.1, 3), worst) == Metrics(math.inf, worst, 3)
    assert penalised(NOTHING, worst) is NOTHING


def test_an_update_whose_numbers_overflow_is_broken():
    """w_i may be finite where w_i - w is not, or what the server's optimiser adds to the report."""
    exp = Optimiser("exp", "", step, extra=lambda d: {"square": np.array([d @ d])})
    method = methods.fedavg.with_optimiser(exp)
    round, arm = a_round(method, quadratics()), an_arm(method, {"lr": 1e25})
    state = round.begin(arm)
    _, reports = reported(round, arm, state)
    assert all(np.isfinite(r.change).all() for r in reports)
    assert not any(r.finite for r in reports)
    following, record = settle(round, arm, state, *reports)
    assert np.isfinite(following.w).all()
    assert record.broken == 4


# Screens


class Suspicious:
    """A screen that drops everybody whose client number is odd."""

    def __call__(self, plan, reports):
        return [None if r is None or r.client % 2 else r for r in reports]


def test_screens_are_applied_in_order_and_their_work_is_counted():
    """What a screen drops counts as absent, and what it has changed as bounded."""
    problem = quadratics()
    first, arm = problem.clients[0].train, an_arm(methods.fedavg)
    many = tuple(np.repeat(part, 40, 0) if i == 0 else part for i, part in enumerate(first))
    problem.clients = (replace(problem.clients[0], train=many), *problem.clients[1:])
    screens = (Suspicious(), Weights(share=1.0))
    assert all(isinstance(screen, Screen) for screen in screens)
    round = a_round(methods.fedavg, problem, cohort=8, screens=screens)
    state = round.begin(arm)
    _, reports = reported(round, arm, state)
    _, record = settle(round, arm, state, *reports)
    assert (record.clients, record.dropped) == (8, 4)
    assert record.bounded == 4 + 1  # the odd ones, and client 0 with 480 examples
    assert record.examples == 120 + 3 * 12
    assert {row.client for row in record.rows} == {0, 2, 4, 6}
    untouched = a_round(methods.fedavg, problem, cohort=8)
    assert settle(untouched, arm, state, *reports)[1].bounded == 0


# Combine and privacy


@dataclass(frozen=True)
class Half:
    """A mean of half of the change: what another way to combine may be."""

    each = False

    def __call__(self, plan, reports):
        tally = mean(plan, reports)
        return tally if tally.change is None else replace(tally, change=tally.change / np.float32(2))


@dataclass(frozen=True)
class Quiet:
    """Adds one to the change, and releases nothing of single clients."""

    def over(self, rounds):
        return self

    def bound(self, plan, reports):
        return list(reports)

    def release(self, tally, key, seed):
        assert (key, seed) == ((0, 0), 0)
        return replace(tally, change=tally.change + np.float32(1), rows=(), memory={})

    def spent(self, keys):
        return float(len(keys))


def test_combine_and_privacy_are_stages_of_their_own():
    arm = an_arm(methods.ditto)
    usual = a_round(methods.ditto, quadratics())
    state = usual.begin(arm)
    _, reports = reported(usual, arm, state)
    plain, _ = settle(usual, arm, state, *reports)
    assert isinstance(Half(), Combine)
    halved, _ = settle(a_round(methods.ditto, quadratics(), combine=Half()), arm, state, *reports)
    np.testing.assert_allclose(halved.w - state.w, (plain.w - state.w) / 2, rtol=1e-4, atol=1e-6)
    assert isinstance(Quiet(), Privacy)
    noisy, record = settle(a_round(methods.ditto, quadratics(), privacy=Quiet()), arm, state, *reports)
    np.testing.assert_allclose(noisy.w, plain.w + 1, rtol=1e-5)
    assert noisy.memory == {}
    assert record.rows == ()
    assert record.validated == sum(r.after.count for r in reports)
