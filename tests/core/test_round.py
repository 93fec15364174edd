"""plan, work, tally, settle: one round of the paper's algorithms, and what happens when things go wrong."""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest

import toys
from fedtuner import Client, FedEx, Simulation, Space, methods, random_search, tune
from fedtuner.core.cooling import progress
from fedtuner.core.memory import fetch
from fedtuner.core.method import Method, defaults
from fedtuner.core.metric import mean_metrics
from fedtuner.core.model import Hyper, Metric, Metrics
from fedtuner.core.records import Blob, Choice, Job, State, Tried
from fedtuner.core.survey import survey
from fedtuner.errors import ClientError, SpecError
from fedtuner.rng import stream
from fedtuner.space import Float
from fedtuner.testing.rounds import a_round, advance, an_arm, bits, history, reported, settle
from fedtuner.testing.toys import quadratics
from fedtuner.tuners import fedex

BASE = defaults(methods.fedavg.client)


def a_study(problem=None, tuner=None, **settings):
    """The rounds of FedAvg on quadratics, and an arm of its default configuration."""
    more = {} if tuner is None else {"tuner": tuner}
    return a_round(methods.fedavg, problem or quadratics(), **more, **settings), an_arm(methods.fedavg)


def with_candidates(state, candidates, gamma=0.0, log_theta=None):
    """A state whose belief has these candidates: instead of those drawn around the arm's configuration."""
    theta = fedex.uniform(len(candidates)) if log_theta is None else fedex.Theta(np.log(log_theta))
    return replace(state, belief=fedex.Belief(tuple(candidates), gamma, theta))


def labels(plan):
    return [job.choices[0].label for job in plan.jobs]


# The algorithm


@pytest.mark.parametrize("k", [2, 7])
def test_identical_candidates_are_a_plain_arm_to_the_bit(k):
    plain, arm = a_study()
    many, _ = a_study(tuner=FedEx(k=k, eps=0.0))
    alike = advance(many, arm, 8)
    assert np.array_equal(alike.w, advance(plain, arm, 8).w)
    assert not np.allclose(alike.belief.theta.p, 1 / k)


def test_a_round_by_hand():
    """Two clients, one example each, a = 1: L = 1/2 (w - x)^2 at x = 1 and x = 3, w = 0, lr 0.1 and 0.2, one step.

    w_1 = 0.1 * 1 = 0.1 and w_2 = 0.2 * 3 = 0.6; both have |T| = 1, so w' = 0.35. Validation at the same points:
    before 0.5 and 4.5; after (1 - 0.1)^2 / 2 = 0.405 and (3 - 0.6)^2 / 2 = 2.88; |V| = 1 and 3.
    score (loss) = (0.405 + 3 * 2.88) / 4 = 2.26125 personalized, (0.5 + 3 * 4.5) / 4 = 3.5 global.
    """

    def client(id, x, copies):
        at = np.full((1, 1), x, np.float32)
        return Client(id, (at, np.ones(1)), (np.repeat(at, copies, 0), np.ones(1)))

    problem = Simulation(quadratics(size=1).model, [client("a", 1.0, 1), client("b", 3.0, 3)])
    candidates = [BASE | {"lr": 0.1}, BASE | {"lr": 0.2}]
    for target, loss in (("personalized", 2.26125), ("global", 3.5)):
        round, arm = a_study(problem, FedEx(k=2), cohort=2, target=target)
        state = with_candidates(replace(round.begin(arm), w=np.zeros(1, np.float32)), candidates)
        plan = round.plan(arm, state, problem.present())
        jobs = [replace(j, choices=(Choice(j.client, candidates[j.client]),)) for j in plan.jobs]
        plan = replace(plan, jobs=tuple(jobs))
        tally = round.tally(plan, [round.work(plan, job) for job in plan.jobs])
        following, record = round.settle(arm, state, tally)
        np.testing.assert_allclose(following.w, [0.35], rtol=1e-6)
        assert record.loss == pytest.approx(loss)
        assert (record.loss_before, record.loss_after) == (pytest.approx(3.5), pytest.approx(2.26125))
        # theta: errors are loss / (1 + loss); gradient_j = |V_j| e_j / (theta_j 4), step sqrt(2 log 2) / max.
        errors = [0.405 / 1.405, 2.88 / 3.88]
        g = np.array([1 * errors[0], 3 * errors[1]]) / (0.5 * 4)
        raw = 0.5 * np.exp(-math.sqrt(2 * math.log(2)) * g / g.max())
        np.testing.assert_allclose(following.belief.theta.p, raw / raw.sum(), rtol=1e-6)
        assert (record.examples, record.validated, record.clients, record.trainings) == (2, 4, 2, 2)
        rows = {row.client: row for row in record.rows}
        assert (rows["a"].label, rows["b"].label, rows["a"].validated, rows["b"].validated) == (0, 1, 1, 3)
        assert rows["b"].loss_before == pytest.approx(4.5)
        assert rows["b"].loss_after == pytest.approx(2.88)


def test_cohorts_are_distinct_clients_and_all_are_met():
    round, arm = a_study(cohort=5)
    state, met = round.begin(arm), set()
    for t in range(20):
        cohort = [job.client for job in round.plan(arm, replace(state, round=t), range(8)).jobs]
        assert len(set(cohort)) == 5
        met |= set(cohort)
    assert met == set(range(8))


@pytest.mark.parametrize(("cohorts", "same"), [("shared", True), ("independent", False)])
def test_shared_cohorts_are_the_same_for_all_arms(cohorts, same):
    round, arm = a_study(quadratics(clients=40), cohorts=cohorts)
    per_arm = []
    for id in range(3):
        state = round.begin(replace(arm, id=id))
        plans = [round.plan(replace(arm, id=id), replace(state, round=t), range(40)) for t in range(4)]
        per_arm.append([[job.client for job in plan.jobs] for plan in plans])
    assert (per_arm[0] == per_arm[1] == per_arm[2]) is same
    assert per_arm[0][0] != per_arm[0][1]


def test_the_cohort_of_all_is_the_draw_that_it_was():
    """The numbers of stores and documents from before there were other federations."""
    for cohorts, who in (("independent", ("arm", 0)), ("shared", ("shared",))):
        round, arm = a_study(toys.problem(), cohorts=cohorts)
        plan = round.plan(arm, replace(round.begin(arm), round=7), range(6))
        assert [job.client for job in plan.jobs] == stream(0, "cohort", *who, 7).choice(6, 4, replace=False).tolist()


def test_a_cohort_may_be_a_part_of_those_who_are_present():
    round, arm = a_study(toys.problem(), cohort=0.5)
    state = round.begin(arm)
    assert [len(round.plan(arm, state, range(n)).jobs) for n in (1, 2, 3, 6)] == [1, 1, 2, 3]
    everyone, arm = a_study(toys.problem(), cohort=1.0)
    assert len(everyone.plan(arm, state, range(6)).jobs) == 6


@pytest.mark.parametrize(("cohort", "clients", "same"), [(2, 39, True), (2, 40, False), (0.1, 40, True)])
def test_few_clients_are_shared_where_it_is_left_open(cohort, clients, same):
    round, arm = a_study(quadratics(clients=40), cohort=cohort, cohorts="auto")
    state = round.begin(arm)
    draws = [
        [[job.client for job in round.plan(replace(arm, id=id), replace(state, round=t), range(clients)).jobs]
         for t in range(4)]
        for id in (0, 1)
    ]  # fmt: skip
    assert (draws[0] == draws[1]) == same


def test_a_cohort_is_drawn_from_those_who_are_present():
    round, arm = a_study(toys.problem(), FedEx(k=3), cohort=2)
    state, there = round.begin(arm), (5, 1, 4)
    cohorts = [[j.client for j in round.plan(arm, replace(state, round=t), there).jobs] for t in range(30)]
    assert {i for cohort in cohorts for i in cohort} == {5, 1, 4}
    assert all(len(set(cohort)) == 2 for cohort in cohorts)
    round, _ = a_study(toys.problem(), FedEx(k=3), cohort=4)
    plan = round.plan(arm, state, there)
    assert sorted(job.client for job in plan.jobs) == [1, 4, 5]  # four were asked for
    following, record = round.settle(arm, state, round.tally(plan, [round.work(plan, job) for job in plan.jobs]))
    assert (record.clients, record.dropped, following.round) == (3, 0, 1)


def test_candidates_are_drawn_from_theta():
    round, arm = a_study(quadratics(clients=300), FedEx(k=3), cohort=300)
    candidates = [BASE | {"epochs": e} for e in (1, 2, 3)]
    state = with_candidates(round.begin(arm), candidates, log_theta=[0.7, 0.3 - 1e-9, 1e-9])
    drawn = [j for t in range(10) for j in labels(round.plan(arm, replace(state, round=t), range(300)))]
    assert abs(np.mean(np.array(drawn) == 0) - 0.7) < 0.03
    assert 2 not in drawn


def test_below_the_cutoff_theta_stays_and_the_mode_is_used():
    for cutoff, moves in ((0.0, True), (2.0, False)):
        round, arm = a_study(tuner=FedEx(k=3, cutoff=cutoff))
        candidates = [BASE | {"lr": lr} for lr in (0.3, 0.1, 0.01)]
        state = with_candidates(round.begin(arm), candidates, log_theta=[0.2, 0.5, 0.3])
        plan, reports = reported(round, arm, state)
        following, _ = settle(round, arm, state, *reports)
        assert (not np.allclose(following.belief.theta.p, state.belief.theta.p)) is moves
        assert (set(labels(plan)) == {1}) is not moves


@pytest.mark.parametrize("metric", ["error", "loss"])
@pytest.mark.parametrize("signal", ["absolute", "improvement"])
def test_theta_moves_by_the_chosen_metric_and_signal(metric, signal):
    round, arm = a_study(tuner=FedEx(k=3, metric=metric, signal=signal, step="adaptive"))
    state = with_candidates(round.begin(arm), [BASE | {"lr": lr} for lr in (0.3, 0.1, 0.01)], gamma=0.5)
    plan, reports = reported(round, arm, state)
    values = [getattr(r.after, metric) - (getattr(r.before, metric) if signal == "improvement" else 0) for r in reports]
    weights = [r.after.count for r in reports]
    expected = fedex.exponentiate(state.belief.theta, labels(plan), values, weights, "adaptive", 0.5)
    assert np.array_equal(settle(round, arm, state, *reports)[0].belief.theta.p, expected.p)


def test_fedex_finds_the_good_candidate():
    """One candidate trains, the others hardly move: theta ends on the one that trains."""
    round, arm = a_study(quadratics(spread=1.0), FedEx(k=4))
    start = with_candidates(round.begin(arm), [BASE | {"lr": lr} for lr in (1e-5, 0.5, 1e-5, 1e-5)], gamma=0.5)
    theta = advance(round, arm, 40, start).belief.theta
    assert theta.mode == 1
    assert theta.p[1] > 0.9


# The four stages are pure


def deep(value):
    """All that a record holds, as a value that can be compared: arrays as their bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: deep(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [deep(v) for v in value]
    return repr(value)


@pytest.mark.parametrize("method", methods.ALL.values(), ids=lambda m: m.name)
def test_the_stages_are_pure(method):
    """Each stage gives the same for the same arguments, and leaves them as they were."""
    round, arm = a_round(method, quadratics(), tuner=FedEx(k=3)), an_arm(method)
    state = advance(round, arm, 3)
    plan, reports = reported(round, arm, state)
    reports = [*reports[:-1], None]
    tally = round.tally(plan, reports)
    kept = [deep(asdict(x)) for x in (state, plan, tally)] + [deep([r and asdict(r) for r in reports])]
    assert deep(asdict(round.plan(arm, state, round.federation.present()))) == kept[1]
    assert deep(asdict(round.work(plan, plan.jobs[0]))) == deep(asdict(reports[0]))
    assert deep(asdict(round.tally(plan, reports))) == kept[2]
    once, again = (round.settle(arm, state, tally) for _ in range(2))
    assert deep([asdict(x) for x in once]) == deep([asdict(x) for x in again])
    assert [deep(asdict(x)) for x in (state, plan, tally)] + [deep([r and asdict(r) for r in reports])] == kept


def test_begin_is_a_function_of_arm_and_seed():
    round, arm = a_study(tuner=FedEx(k=3))
    assert bits(round, round.begin(arm)) == bits(round, round.begin(arm))
    assert not np.array_equal(round.begin(arm).w, round.begin(replace(arm, id=1)).w)
    shared, _ = a_study(weights="shared")
    assert np.array_equal(shared.begin(arm).w, shared.begin(replace(arm, id=1)).w)
    given = np.ones(6, np.float32)
    assert np.array_equal(round.begin(arm, None, given).w, given)


def test_an_arm_begins_from_its_parents_state():
    """All of it goes on: the round, the model, the server's slots and what clients remember."""
    round = a_round(methods.scaffold, quadratics())
    arm = an_arm(methods.scaffold, server={"momentum": 0.5})
    parent = advance(round, arm, 4)
    child = replace(arm, id=7, client={**arm.client, "lr": 0.05}, parent=(0, 4))
    begun = round.begin(child, replace(parent, ended="diverged"))
    assert (begun.round, begun.ended, begun.belief) == (4, "", child.client)
    assert begun.w is parent.w
    assert (begun.slots, begun.memory) == (parent.slots, parent.memory)
    same = replace(arm, parent=(0, 4))
    assert bits(round, advance(round, same, 8, round.begin(same, parent))) == bits(round, advance(round, arm, 8))


def test_the_horizon_becomes_progress():
    round, arm = a_study(cooling=0.5)
    state = State(3, np.zeros(6, np.float32), None)
    for horizon, done in ((None, 0.0), (12, 0.25), (3, 1.0), (2, 1.0)):
        assert progress(replace(arm, horizon=horizon), state) == done
        begun = replace(round.begin(arm), round=3)
        assert round.plan(replace(arm, horizon=horizon), begun, range(8)).progress == done


def test_a_childs_progress_is_that_of_its_own_rounds():
    _, arm = a_study()
    child = replace(arm, parent=(0, 4), horizon=12)
    for t, done in ((4, 0.0), (6, 0.25), (12, 1.0), (13, 1.0)):
        assert progress(child, State(t, np.zeros(6, np.float32), None)) == done
    assert progress(replace(child, horizon=4), State(4, np.zeros(6, np.float32), None)) == 1.0


def test_cooling_lowers_the_servers_step():
    """In the last half of eight rounds the step is 3/4, 1/2, 1/4 of itself; it never falls below a fiftieth."""
    usual, arm = a_study()
    cooled, ending = a_round(methods.fedavg, quadratics(), cooling=0.5), replace(arm, horizon=8)
    for t, part in ((0, 1.0), (4, 1.0), (5, 0.75), (6, 0.5), (7, 0.25), (8, 0.02)):
        state = replace(usual.begin(arm), round=t)
        moved = [advance(round, one, t + 1, state).w - state.w for round, one in ((usual, arm), (cooled, ending))]
        np.testing.assert_allclose(moved[1], part * moved[0], rtol=1e-4, atol=1e-6)
    assert np.array_equal(advance(cooled, arm, 6).w, advance(usual, arm, 6).w)  # without a horizon nothing cools


OPTIMISERS = [{"optimiser": name, "momentum": 0.5} for name in methods.fedavg.optimisers]


@pytest.mark.parametrize(
    ("method", "server"),
    [(methods.fedavg, server) for server in OPTIMISERS] + [(method, {}) for method in methods.ALL.values()],
    ids=lambda value: value.name if isinstance(value, Method) else str(value.get("optimiser", "")),
)
def test_whatever_the_method_its_step_cools(method, server):
    """The model moves by the part that is left; momentum, control variates and statistics are the whole step's."""
    problem, arm = quadratics(statistics=2), an_arm(method, server=server)
    usual, cooled = (a_round(method, problem, cooling=cooling) for cooling in (0.0, 0.5))
    state = advance(usual, arm, 6)  # with momentum, and what clients keep
    whole, part = advance(usual, arm, 7, state), advance(cooled, replace(arm, horizon=8), 7, state)
    np.testing.assert_allclose((part.w - state.w)[:-2], 0.5 * (whole.w - state.w)[:-2], rtol=1e-3, atol=1e-6)
    assert np.array_equal(part.w[-2:], whole.w[-2:])
    assert np.abs(whole.w - state.w)[:-2].max() > 1e-4
    assert part.slots.keys() == whole.slots.keys()
    assert all(np.array_equal(part.slots[name], whole.slots[name]) for name in whole.slots)
    early = advance(cooled, replace(arm, horizon=20), 7, state)
    assert bits(cooled, early) == bits(usual, whole)


# Every sampled value arrives


def test_the_configuration_reaches_optimiser_batches_and_model(monkeypatch):
    """The client's own lr, momentum, decay, batch, epochs and the model's hyperparameter, and the server's b."""
    steps, trained, evaluated = [], [], []

    class Watched(toys.Softmax):
        def training(self, data, config, seed):
            trained.append(config)
            return super().training(data, config, seed)

        def evaluate(self, w, data, config=None):
            evaluated.append(config)
            return super().evaluate(w, data, config)

    def descend(self, w, batches, rates):
        steps.append((rates, [len(rows) for rows in batches]))

    monkeypatch.setattr(toys._Trainer, "descend", descend)
    hyper = {"temperature": Hyper(Float(0.5, 2.0), 1.0)}
    problem = Simulation(Watched(hyperparameters=hyper), toys.clients())
    client = {"lr": 0.3, "momentum": 0.6, "weight_decay": 0.01, "epochs": 2, "batch": 5, "temperature": 1.5}
    round = a_round(methods.fedavg, problem)
    arm = an_arm(methods.fedavg, client, {"lr": 0.7, "momentum": 0.3})
    plan = round.plan(arm, round.begin(arm), [2])
    assert plan.server == arm.server
    round.work(plan, plan.jobs[0])
    [(rates, batches)] = steps
    assert (rates.lr, rates.momentum, rates.decay) == (0.3, 0.6, 0.01)
    assert batches == [5, 5, 5, 1, 5, 5, 5, 1]  # 16 examples, twice
    assert trained == [arm.client]
    assert evaluated == [arm.client, arm.client]  # before and after


@pytest.mark.parametrize("name", sorted(methods.fedavg.server))
def test_every_hyperparameter_of_the_server_reaches_its_step(name):
    hyper = methods.fedavg.server[name]
    values = hyper.options[:2] or (0.4, 0.8)
    adaptive = {"optimiser": "adam"} if name in ("beta2", "tau") else {}
    round, _ = a_study()
    made = [advance(round, an_arm(methods.fedavg, {}, adaptive | {name: v}), 3).w for v in values]
    assert not np.array_equal(*made)


# Faults


def test_a_broken_client_counts_as_the_worst_for_theta():
    round, arm = a_study(tuner=FedEx(k=2, metric="loss"))
    state = with_candidates(round.begin(arm), [BASE, BASE | {"lr": 0.05}])
    plan, reports = reported(round, arm, state)
    nan = np.full_like(state.w, np.nan)

    def fail(report):
        tried = replace(report.tried[0], after=Metrics(math.inf, 1.0, report.after.count))
        return replace(report, change=nan, finite=False, tried=(tried,))

    drawn = labels(plan)
    broken = [fail(r) if j == 0 else r for j, r in zip(drawn, reports, strict=True)]
    assert 0 < drawn.count(0) < 4
    following, record = settle(round, arm, state, *broken)
    worst = 2 * max(r.after.loss for j, r in zip(drawn, reports, strict=True) if j == 1)  # clearly worse than these
    values = [worst if j == 0 else r.after.loss for j, r in zip(drawn, reports, strict=True)]
    expected = fedex.exponentiate(state.belief.theta, drawn, values, [r.after.count for r in reports])
    assert worst > 1
    assert np.array_equal(following.belief.theta.p, expected.p)
    assert record.broken == drawn.count(0)
    assert record.loss == math.inf
    assert np.isfinite(following.w).all()
    assert not following.ended


def test_a_client_that_diverges_is_reported_as_broken_not_raised():
    round, _ = a_study()
    arm = an_arm(methods.fedavg, {"lr": 1e30, "epochs": 5})
    state = round.begin(arm)
    _, reports = reported(round, arm, state)
    assert not any(r.finite for r in reports)
    assert all(r.after == Metrics(math.inf, 1.0, r.after.count) for r in reports)
    following, record = settle(round, arm, state, *reports)
    assert (record.broken, record.error, record.diverged) == (4, 1.0, False)
    assert np.array_equal(following.w, state.w)


def test_where_errors_are_not_rates_the_worst_is_infinite():
    """A regression's error is in the thousands: 1 would be the best."""
    round, _ = a_study()
    round.federation.model.metric = Metric("mean squared error", worst=math.inf)
    arm = an_arm(methods.fedavg, {"lr": 1e30, "epochs": 5})
    _, reports = reported(round, arm, round.begin(arm))
    assert all(r.after.error == math.inf for r in reports)


def test_a_diverged_arm_scores_infinity_and_spends_no_more_rounds():
    round, _ = a_study()
    arm = an_arm(methods.fedavg, server={"lr": 1e25})
    state, records = history(round, arm, 50)
    assert state.ended == "diverged"
    assert state.round < 50
    assert (records[-1].diverged, records[-1].error, records[-1].loss) == (True, math.inf, math.inf)
    assert bits(round, advance(round, arm, 100, state)) == bits(round, state)
    study = tune(
        quadratics(), Space(server={"lr": 1e25}), fedex=None, schedule=random_search(60, 30), cohort=4, workers=1
    )
    assert study.rounds_used < 60
    assert study.best.score == math.inf
    for arm in (0, 1):
        last = study.journal.records(arm)[-1]
        assert math.isinf(last.error)
        assert last.diverged
    assert study.journal.ended == {0: "diverged", 1: "diverged"}


def test_a_round_without_validation_has_no_score():
    usual = quadratics()
    round, arm = a_study(Simulation(usual.model, [Client(c.id, c.train, None) for c in usual.clients]), FedEx(k=2))
    state = round.begin(arm)
    following, record = settle(round, arm, state, *reported(round, arm, state)[1])
    assert math.isnan(record.error)
    assert record.validated == 0
    assert np.array_equal(following.belief.theta.p, state.belief.theta.p)
    assert not np.array_equal(following.w, state.w)


def test_clients_without_training_examples_do_not_move_the_model():
    usual = quadratics()
    round, arm = a_study(Simulation(usual.model, [Client(c.id, None, c.valid) for c in usual.clients]), FedEx(k=2))
    state = round.begin(arm)
    following, record = settle(round, arm, state, *reported(round, arm, state)[1])
    assert np.array_equal(following.w, state.w)
    assert record.examples == 0
    assert record.error_before == record.error_after
    assert following.round == 1


def test_dropouts_are_recorded_and_the_rest_counts():
    round, arm = a_study()
    state = round.begin(arm)
    _, reports = reported(round, arm, state)
    following, record = settle(round, arm, state, None, *reports[1:])
    only = state.w + np.mean([r.change for r in reports[1:]], axis=0)
    np.testing.assert_allclose(following.w, only, rtol=1e-5, atol=1e-6)
    assert (record.clients, record.dropped, record.broken, record.trainings) == (4, 1, 0, 3)
    assert record.error_after == mean_metrics([r.after for r in reports[1:]]).error
    assert len(record.rows) == 3


def test_a_round_in_which_nobody_answers_only_counts():
    round = a_round(methods.scaffold, quadratics(), tuner=FedEx(k=3))
    arm = an_arm(methods.scaffold)
    state = advance(round, arm, 3)
    following, record = settle(round, arm, state, None, None, None, None)
    assert following.round == 4
    assert bits(round, replace(following, round=3)) == bits(round, state)
    assert math.isnan(record.loss)
    assert (record.clients, record.dropped, record.examples, record.rows) == (4, 4, 0, ())


def test_a_round_in_which_nobody_is_present_has_no_jobs():
    round, arm = a_study(tuner=FedEx(k=3, tries=2))
    state = round.begin(arm)
    plan = round.plan(arm, state, [])
    assert plan.jobs == ()
    following, record = round.settle(arm, state, round.tally(plan, []))
    assert (following.round, record.clients, record.trainings) == (1, 0, 0)
    assert np.array_equal(following.w, state.w)


def test_memory_that_is_not_finite_is_not_kept():
    """The client's vectors of the round before stay; a client that never had any remembers nothing."""
    round, arm = a_round(methods.scaffold, quadratics()), an_arm(methods.scaffold)
    for state in (advance(round, arm, 6), round.begin(arm)):
        _, reports = reported(round, arm, state)
        bad = [replace(r, memory={"control": np.full_like(state.w, np.inf)}) for r in reports[:2]]
        following, record = settle(round, arm, state, *bad, *reports[2:])
        for r in bad:
            assert following.memory.get(r.client) is state.memory.get(r.client)
        assert all(following.memory[r.client] is r.memory for r in reports[2:])
        assert record.broken == 0


def test_an_error_in_a_clients_work_names_it():
    round, arm = a_round(methods.fedavg, toys.raising()), an_arm(methods.fedavg, {"lr": 0.25})
    plan = round.plan(arm, replace(round.begin(arm), round=6), [4])
    said = r"arm 0, round 7, client 'phone4', configuration \{'lr': 0\.25.*RuntimeError: the disk of this phone"
    with pytest.raises(ClientError, match=said):
        round.work(plan, plan.jobs[0])


def test_memory_in_the_store_must_be_fetched_before_the_work():
    job = Job(1, (Choice(0, BASE),), Blob(0, 1, 3))
    with pytest.raises(SpecError, match=r"must be fetched from the store"):
        _ = job.remembered

    class Blobs:
        def get(self, blob):
            return {"control": np.full(1, blob.round)}

    assert fetch(job, Blobs()).remembered["control"].tolist() == [3]
    assert fetch(replace(job, memory={}), Blobs()).remembered == {}


# Settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cohort": 0}, "cohort = 0"),
        ({"cohort": 2.5}, "cohort = 2.5"),
        ({"target": "personal"}, "did you mean 'personalized'"),
        ({"cohorts": "common"}, "cohorts = 'common'"),
        ({"weights": "same"}, "weights = 'same'"),
        ({"cooling": 1.5}, "cooling = 1.5"),
        ({"seed": "x"}, "seed = 'x'"),
        ({"seed": True}, "seed = True"),
    ],
)
def test_wrong_settings(settings, words):
    with pytest.raises(SpecError, match=words):
        a_study(**settings)


# Several tries


RATES = [BASE | {"lr": rate} for rate in (0.01, 0.1, 0.3, 0.5)]


@pytest.mark.parametrize("tries", [2, "all"])
def test_tries_move_theta_and_not_the_model(tries):
    """The first round's model, before theta has moved, is that of one try; theta hears of all."""
    one, arm = a_study(tuner=FedEx(k=4))
    many, _ = a_study(tuner=FedEx(k=4, tries=tries))
    start = with_candidates(one.begin(arm), RATES)
    _, plain = reported(one, arm, start)
    plan, reports = reported(many, arm, start)
    for job, report, alone in zip(plan.jobs, reports, plain, strict=True):
        assert report.change.tobytes() == alone.change.tobytes()
        assert (report.before, report.after) == (alone.before, alone.after)
        assert len({t.label for t in report.tried}) == many.setup.tuner.tried
        for tried in report.tried:  # it is what the client would have reported with this candidate
            would = one.work(plan, replace(job, choices=(Choice(tried.label, RATES[tried.label]),)))
            assert (tried.before, tried.after) == (would.before, would.after)
    after_one, record_one = settle(one, arm, start, *plain)
    after_many, record_many = settle(many, arm, start, *reports)
    assert after_one.w.tobytes() == after_many.w.tobytes()
    assert record_one.error == record_many.error
    assert (record_one.trainings, record_many.trainings) == (4, 4 * many.setup.tuner.tried)
    values = [[t.after.error for t in r.tried] for r in reports]
    choices = [[t.label for t in r.tried] for r in reports]
    expected = fedex.exponentiate(start.belief.theta, choices, values, [r.after.count for r in reports])
    assert after_many.belief.theta.p.tolist() == expected.p.tolist()
    assert after_many.belief.theta.p.tolist() != after_one.belief.theta.p.tolist()


def test_full_information_finds_the_best_candidate_in_a_few_rounds():
    round, arm = a_study(tuner=FedEx(k=4, tries="all"), cohort=4)
    state = advance(round, arm, 6, with_candidates(round.begin(arm), RATES))
    errors = np.zeros(4)
    for report in reported(round, arm, state)[1]:
        for tried in report.tried:
            errors[tried.label] += tried.after.error
    assert state.belief.theta.mode == errors.argmin()
    assert state.belief.theta.p.max() > 0.5


def test_past_the_cutoff_a_client_tries_one_and_the_work_is_counted():
    round, arm = a_study(tuner=FedEx(k=4, tries=3, cutoff=1.0))
    state, counted, expected = with_candidates(round.begin(arm), RATES), 0, 0
    for _ in range(8):
        plan, (_, *reports) = reported(round, arm, state)
        expected += sum(len(r.tried) for r in reports)
        assert all(len(job.choices) == (3 if state.belief.theta.entropy >= 1.0 else 1) for job in plan.jobs)
        state, record = settle(round, arm, state, None, *reports)
        counted += record.trainings
    assert state.belief.theta.entropy < 1.0
    assert counted == expected
    assert 3 * 8 < expected < 3 * 3 * 8


def test_where_some_did_not_try_all_only_what_theta_drew_counts():
    round, arm = a_study(tuner=FedEx(k=4, tries=3))
    start = with_candidates(round.begin(arm), RATES)
    _, reports = reported(round, arm, start)
    bare = [replace(report, tried=report.tried[:1]) for report in reports]
    some = settle(round, arm, start, bare[0], *reports[1:])[0]
    assert some.belief.theta.p.tolist() == settle(round, arm, start, *bare)[0].belief.theta.p.tolist()


@pytest.mark.parametrize("tries", [2, "all"])
def test_tries_give_the_same_on_any_number_of_workers(tries):
    one, two = (
        tune(quadratics(), fedex=FedEx(k=3, tries=tries), schedule=random_search(8, 4), cohort=4, workers=workers)
        for workers in (1, 2)
    )
    assert repr(one.history) == repr(two.history)
    assert one.journal.beliefs == two.journal.beliefs
    assert one.best.model.tobytes() == two.best.model.tobytes()
    assert one.local_work == two.local_work == one.rounds_used * 4 * one.setup.tuner.tried


# Training loops outside


def test_a_report_of_ones_own_is_that_of_the_work():
    round, arm = a_study(tuner=FedEx(k=3, tries=2))
    plan, reports = reported(round, arm, round.begin(arm))
    for job, report in zip(plan.jobs, reports, strict=True):
        pairs = [(t.before, t.after) for t in report.tried]
        mine = plan.report(job, plan.w + report.change, report.examples, *pairs)
        np.testing.assert_allclose(mine.change, report.change, rtol=1e-5, atol=1e-6)
        assert replace(mine, change=report.change) == replace(report, extra={}, memory={})
    with pytest.raises(SpecError, match="1 pairs of metrics, but the job has 2 choices"):
        plan.report(plan.jobs[0], plan.w, 3, pairs[0])
    nan = plan.report(plan.jobs[0], np.full_like(plan.w, np.nan), 3, *pairs)
    assert not nan.finite
    assert isinstance(nan.tried[0], Tried)


def test_a_survey_asks_every_client_with_the_best_or_with_a_draw_of_its_own():
    round, arm = a_study(tuner=FedEx(k=4))
    state = with_candidates(round.begin(arm), RATES, log_theta=[0.1, 0.2, 0.4, 0.3])
    plan = survey(round, arm, state, range(8), "test")
    assert (plan.split, [job.client for job in plan.jobs], labels(plan)) == ("test", list(range(8)), [2] * 8)
    sampled = survey(round, arm, state, range(8), "test", "sample")
    assert len(set(labels(sampled))) > 1
    alone = survey(round, arm, state, [5], "test", "sample")
    assert alone.jobs[0] == sampled.jobs[5]  # a client's draw does not depend on who else is asked
