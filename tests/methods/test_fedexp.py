"""FedExP: its factor by hand, its bounds, and that it stays the mean where extrapolation cannot help."""

import math
from dataclasses import replace

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner import methods
from fedtuner.core.method import Server, default_space, defaults
from fedtuner.core.model import Metrics
from fedtuner.core.records import Tally
from fedtuner.errors import SpecError
from fedtuner.methods.fedexp import OVERSHOOT, SQUARE, factor, fedexp, overshoot, square
from fedtuner.run import spec
from fedtuner.testing.rounds import a_round, advance, an_arm, reported, settle
from fedtuner.testing.toys import quadratics

USUAL = defaults(methods.fedavg.with_defaults(server={"optimiser": "fedexp"}).server)


def vector(*values):
    return np.array(values, np.float32)


def tally(*changes, shares=None, before=1.0, after=0.5):
    """What the server makes of clients with these changes."""
    shares = shares or [1 / len(changes)] * len(changes)
    mean = sum(np.float32(p) * d for p, d in zip(shares, changes, strict=True))
    squares = sum(p * square(d) for p, d in zip(shares, changes, strict=True))
    return Tally(
        trained=len(changes), change=mean, extra={SQUARE: vector(squares)}, before=Metrics(before, 0.5, 9),
        after=Metrics(after, 0.5, 9),
    )  # fmt: skip


def step(given, b=None, slots=None, change=None):
    server = Server(vector(1, 1), slots or {}, 0, 4, fedexp)
    w, slots = fedexp.step(server, given.change if change is None else change, given, USUAL | (b or {}))
    return w, slots


def test_the_factor_by_hand():
    """Changes (4, 0) of share 3/4, (0, 4) of share 1/4: mean (3, 1) of square 10, mean of squares 16, eta 16 / 20 < 1.

    Four clients with equal shares and changes (4, 0), (0, 4), (0, 0), (0, 0): mean (1, 1) of square 2, mean of squares
    8, eta 8 / 4 = 2.
    """
    w, _ = step(tally(vector(4, 0), vector(0, 4), shares=[0.75, 0.25]))
    assert w.tolist() == [4, 2]
    w, _ = step(tally(vector(4, 0), vector(0, 4), vector(0, 0), vector(0, 0)))
    assert w.tolist() == [3, 3]


def test_the_servers_rates_apply_to_the_longer_step():
    apart = tally(vector(4, 0), vector(0, 4), vector(0, 0), vector(0, 0))
    w, _ = step(apart, {"lr": 0.5})
    assert w.tolist() == [2, 2]
    _, slots = step(apart, {"momentum": 0.5})
    assert slots["momentum"].tolist() == [2, 2]
    w, slots = step(apart, {"momentum": 0.5}, slots)
    assert slots["momentum"].tolist() == [3, 3]
    assert w.tolist() == [4, 4]


def test_the_factor_is_the_clients_whatever_the_step_is_along():
    w, _ = step(tally(vector(4, 0), vector(0, 4), vector(0, 0), vector(0, 0)), change=vector(1, 0))
    assert w.tolist() == [3, 1]


def test_it_is_at_least_one_and_at_most_half_the_clients():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 10):
        for size in (1e-6, 1.0, 1e6):
            changes = [np.float32(size) * rng.standard_normal(5).astype(np.float32) for _ in range(n)]
            changes = [d - np.float32(0.9) * sum(changes) / n for d in changes]  # their mean is nearly nothing
            given = tally(*changes)
            eta = factor(float(given.extra[SQUARE][0]), square(given.change), n)
            assert 1 <= eta <= max(1, n / 2)
            assert n < 3 or eta > 1
    assert factor(0.0, 0.0, 10) == 1.0  # nobody moved


def test_one_client_is_the_mean_to_the_bit():
    """A cohort of one, and a cohort of which one reported."""
    by_mean, by_factor = (
        advance(a_round(methods.fedavg, quadratics(), cohort=1), an_arm(methods.fedavg, server=server), 5).w
        for server in ({}, {"optimiser": "fedexp"})
    )
    assert np.array_equal(by_mean, by_factor)
    moved = []
    for server in ({}, {"optimiser": "fedexp"}):
        round, arm = a_round(methods.fedavg, quadratics()), an_arm(methods.fedavg, server=server)
        state = round.begin(arm)
        _, (first, *others) = reported(round, arm, state)
        moved.append(settle(round, arm, state, first, *[None] * len(others))[0].w)
    assert np.array_equal(*moved)


def test_it_goes_further_than_the_mean_where_clients_disagree():
    problem = quadratics(spread=3.0)
    round, arm = a_round(methods.fedavg, problem), an_arm(methods.fedavg, server={"optimiser": "fedexp"})
    state = round.begin(arm)
    _, reports = reported(round, arm, state)
    changes, sizes = [r.change.astype(np.float64) for r in reports], np.array([r.examples for r in reports])
    shares = sizes / sizes.sum()
    mean = sum(p * d for p, d in zip(shares, changes, strict=True))
    eta = sum(p * (d @ d) for p, d in zip(shares, changes, strict=True)) / (2 * mean @ mean)
    assert 1 < eta < len(reports) / 2
    following, _ = settle(round, arm, state, *reports)
    np.testing.assert_allclose(following.w - state.w, eta * mean, rtol=1e-4, atol=1e-6)


# Where local training overshoots


def test_no_extrapolation_while_local_training_raises_the_loss():
    apart = (vector(4, 0), vector(0, 4), vector(0, 0), vector(0, 0))
    for before, after, expected in (
        (1.0, 1.0, 3), (1.0, 1.09, 3), (1.0, 1.11, 2), (1.0, math.inf, 2), (-1.0, -0.8, 2), (-1.0, -0.95, 3),
    ):  # fmt: skip
        w, _ = step(tally(*apart, before=before, after=after))
        assert w.tolist() == [expected, expected], (before, after)


def test_past_rounds_are_remembered_and_forgotten():
    """A rise by all of the loss, then falls by a tenth: 1 of 1, 0.9 - 0.1 of 1.9, ...; in the fifth below a tenth."""
    apart, slots, moved = (vector(4, 0), vector(0, 4), vector(0, 0), vector(0, 0)), {}, []
    for after in (50.0, 0.9, 0.9, 0.9, 0.9):  # 50 counts as 2
        w, slots = step(tally(*apart, after=after), slots=slots)
        moved.append(w[0] - 1)
    rises = [1.0, 0.8, 0.62, 0.458, 0.3122]
    sizes = [1.0, 1.9, 2.71, 3.439, 4.0951]
    assert slots[OVERSHOOT].tolist() == pytest.approx([rises[-1], sizes[-1]])
    assert moved == [1 if rise > 0.1 * size else 2 for rise, size in zip(rises, sizes, strict=True)] == [1, 1, 1, 1, 2]


def test_rounds_without_validation_say_nothing():
    past, nothing = vector(0.5, 1.0), Metrics(math.nan, math.nan, 0)
    assert overshoot(past, nothing, nothing) is past
    assert overshoot(past, Metrics(math.inf, 1.0, 3), Metrics(1.0, 0.5, 3)) is past
    w, _ = step(replace(tally(vector(4, 0), vector(0, 4), vector(0, 0), vector(0, 0)), before=nothing, after=nothing))
    assert w.tolist() == [3, 3]  # the paper's, where nobody can say that it is wrong


def test_local_training_that_overshoots_is_the_mean_to_the_bit():
    """On quadratics of curvature 1 a client's step of 2.2 is too long, one of 0.5 is not."""
    for lr, same in ((2.2, True), (0.5, False)):
        by_mean, by_factor = (
            advance(
                a_round(methods.fedavg, quadratics(spread=3.0)),
                an_arm(methods.fedavg, {"lr": lr, "batch": 100, "epochs": 1}, server), 3,
            ).w
            for server in ({}, {"optimiser": "fedexp"})
        )  # fmt: skip
        assert np.array_equal(by_mean, by_factor) == same


# A server of one's own, which shows means


def shown(round, arm, *extra):
    """Return a round's model where the server has these means of its own; and where it has the reports."""
    state = round.begin(arm)
    plan, reports = reported(round, arm, state)
    tally = round.tally(plan, reports)
    means = {name: float(tally.extra[name][0]) for name in extra}  # a number is a vector of one
    given = plan.tally(tally.change, tally.examples, tally.before, tally.after, {}, extra=means or None)
    return round.settle(arm, state, given)[0].w, round.settle(arm, state, tally)[0].w


def test_a_server_that_gives_the_mean_of_the_squares_has_its_step():
    round, arm = a_round(methods.fedavg, quadratics(spread=3.0)), an_arm(methods.fedavg, server={"optimiser": "fedexp"})
    one, other = shown(round, arm, SQUARE)
    assert np.array_equal(one, other)
    assert round.setup.method.optimiser(arm.server).extra(vector(3, 4)) == {SQUARE: vector(25)}


def test_a_server_that_does_not_give_it_has_the_means_step():
    round = a_round(methods.fedavg, quadratics(spread=3.0))
    one, further = shown(round, an_arm(methods.fedavg, server={"optimiser": "fedexp"}))
    mean, _ = shown(round, an_arm(methods.fedavg))
    assert np.array_equal(one, mean)
    assert not np.array_equal(one, further)


def test_a_budget_needs_nothing_but_means():
    study = ft.prepare(
        ft.Outside({"w": np.zeros(3, np.float32)}, 8), ft.Space({"lr": ft.Float(0.01, 1.0, log=True)}), budget=80,
        include=[{"client": {"lr": 0.1}}], cohort=3,
    )  # fmt: skip
    while plan := study.ask():
        loss = float(((plan.w - 1) ** 2).mean())
        before, after = Metrics(loss, loss, 30), Metrics(0.9 * loss, 0.9 * loss, 30)
        change = np.float32(plan.jobs[0].config["lr"]) * (1 - plan.w)
        study.tell(plan, plan.tally(change, 60, before, after, {0: (loss, 30.0)}))
    assert study.finished
    assert "fedexp" in {arm.server["optimiser"] for arm in study.journal.arms.values()}


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"squares": 5.0}, r"extra has 'squares'; did you mean 'square'\?"),
        ({"square": []}, r"extra\['square'\] is of shape \(0,\), but must be of \(1,\)"),
        ({"square": [1.0, 2.0]}, r"is of shape \(2,\), but must be of \(1,\)"),
    ],
)
def test_what_a_server_gives_must_be_what_the_optimiser_asks_for(extra, said):
    study = ft.prepare(
        ft.Outside({"w": np.zeros(3, np.float32)}, 8), ft.Space({"lr": 0.1}), schedule=ft.random_search(4, 4),
        method=methods.fedavg.stepping_by("fedexp"), cohort=3, fedex=None,
    )  # fmt: skip
    plan, metrics = study.ask(), Metrics(1.0, 1.0, 30)
    with pytest.raises(SpecError, match=said):
        study.tell(plan, plan.tally(1 - plan.w, 60, metrics, metrics, {0: (1.0, 30.0)}, extra=extra))
    study.tell(plan, plan.tally(1 - plan.w, 60, metrics, metrics, {0: (1.0, 30.0)}, extra={"square": 5.0}))


def test_a_square_that_is_no_number_goes_no_further():
    assert factor(math.nan, 1.0, 10) == factor(1.0, math.nan, 10) == 1.0


# How it is named


def test_it_is_named_in_a_study_and_has_nothing_to_tune():
    method = methods.fedavg.with_defaults(server={"optimiser": "fedexp"})
    assert default_space(method, {}).server == {}
    assert (USUAL["lr"], USUAL["momentum"], USUAL["gamma"]) == (1.0, 0.0, 1.0)
    read = spec.parse({"problem": "toys:problem", "cohort": 3, "server": {"optimiser": "fedexp"}})
    server = read.study(None, 1).setup.space.server
    assert set(server) == {"optimiser"}
    tuned = ft.tune(
        toys.problem(), ft.Space(server={"optimiser": ["sgd", "fedexp"]}), schedule=ft.random_search(12, 2), cohort=3,
        fedex=None, progress=False, workers=1,
    )  # fmt: skip
    assert {arm.server["optimiser"] for arm in tuned.journal.arms.values()} == {"sgd", "fedexp"}


def test_maml_has_no_changes_to_compare():
    with pytest.raises(SpecError, match=r"server.optimiser = 'fedexp', but must be one of \['sgd', 'adam', 'yogi',"):
        methods.maml.with_defaults(server={"optimiser": "fedexp"})


def test_large_vectors_are_squared_in_parts():
    large = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    assert square(large) == pytest.approx(float(large.astype(np.float64) @ large), rel=1e-12)
