"""plan, work, fold: one round of the paper's algorithms, and what happens when things go wrong."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedtuner import Client, FedEx, Simulation, Space, fedex, methods, random_search, tune
from fedtuner.arm import Arm, Setting, begin, fold, mean, plan, trainings, work
from fedtuner.errors import SpecError
from fedtuner.methods.base import Update, defaults
from fedtuner.samplers import local
from fedtuner.space import PAPER_CLIENT, Float
from fedtuner.store import pack
from fedtuner.task import Metrics
from fedtuner.testing.methods import advance
from fedtuner.testing.toys import quadratics

BASE = defaults(methods.fedavg.client)


def an_arm(candidates=(BASE,), server=None, gamma=0.0, id=0):
    return Arm(id, defaults(methods.fedavg.server) | (server or {}), tuple(candidates), gamma)


def a_setting(k=1, **more):
    settings = {"cohort": 4} | more
    return Setting(methods.fedavg, settings.pop("fedex", FedEx(k=k)), **settings)


def a_round(setting, problem, arm, state):
    jobs = plan(setting, problem, arm, state)
    return jobs, [work(setting.method, problem, job) for job in jobs]


# The algorithm


@pytest.mark.parametrize("k", [2, 7])
def test_identical_candidates_are_a_plain_arm_to_the_bit(k):
    problem = quadratics()
    plain = advance(a_setting(1), problem, an_arm(), begin(a_setting(1), problem, an_arm()), 8)
    many = an_arm([BASE] * k)
    alike = advance(a_setting(k), problem, many, begin(a_setting(k), problem, many), 8)
    assert np.array_equal(alike.w, plain.w)
    assert not np.allclose(alike.belief.theta, 1 / k)


def test_a_round_by_hand():
    """Two clients, one example each, a = 1: L = 1/2 (w - x)^2 at x = 1 and x = 3, w = 0, lr 0.1 and 0.2, one step.

    w_1 = 0.1 * 1 = 0.1 and w_2 = 0.2 * 3 = 0.6; both have |T| = 1, so w' = 0.35. Validation at the same points:
    before 0.5 and 4.5; after (1 - 0.1)^2 / 2 = 0.405 and (3 - 0.6)^2 / 2 = 2.88; |V| = 1 and 3.
    score (loss) = (0.405 + 3 * 2.88) / 4 = 2.26125 personalized, (0.5 + 3 * 4.5) / 4 = 3.5 global.
    """

    def client(id, x, copies):
        at = np.full((1, 1), x, np.float32)
        return Client(id, (at, np.ones(1)), (np.repeat(at, copies, 0), np.ones(1)))

    problem = Simulation(quadratics(size=1).task, [client("a", 1.0, 1), client("b", 3.0, 3)])
    arm = an_arm([BASE | {"lr": 0.1}, BASE | {"lr": 0.2}])
    for target, loss in (("personalized", 2.26125), ("global", 3.5)):
        setting = a_setting(2, cohort=2, target=target)
        state = replace(begin(setting, problem, arm), w=np.zeros(1, np.float32))
        jobs = plan(setting, problem, arm, state)
        jobs = [replace(job, candidate=job.client, config=arm.candidates[job.client]) for job in jobs]
        following, record = fold(setting, problem, arm, state, [work(methods.fedavg, problem, job) for job in jobs])
        np.testing.assert_allclose(following.w, [0.35], rtol=1e-6)
        assert record.loss == pytest.approx(loss)
        assert (record.loss_before, record.loss_after) == (pytest.approx(3.5), pytest.approx(2.26125))
        # theta: errors are loss / (1 + loss); gradient_j = |V_j| e_j / (theta_j 4), step sqrt(2 log 2) / max.
        errors = [0.405 / 1.405, 2.88 / 3.88]
        g = np.array([1 * errors[0], 3 * errors[1]]) / (0.5 * 4)
        raw = 0.5 * np.exp(-math.sqrt(2 * math.log(2)) * g / g.max())
        np.testing.assert_allclose(following.belief.theta, raw / raw.sum(), rtol=1e-6)
        assert (record.examples, record.validated, record.clients) == (2, 4, 2)


def test_cohorts_are_distinct_clients_and_all_are_met():
    problem, setting, arm = quadratics(), a_setting(cohort=5), an_arm()
    state, met = begin(setting, problem, arm), set()
    for t in range(20):
        cohort = [job.client for job in plan(setting, problem, arm, replace(state, round=t))]
        assert len(set(cohort)) == 5
        met |= set(cohort)
    assert met == set(range(8))


@pytest.mark.parametrize(("cohorts", "same"), [("shared", True), ("independent", False)])
def test_shared_cohorts_are_the_same_for_all_arms(cohorts, same):
    problem, setting = quadratics(clients=40), a_setting(cohorts=cohorts)
    per_arm = []
    for id in range(3):
        arm = an_arm(id=id)
        state = begin(setting, problem, arm)
        per_arm.append([[j.client for j in plan(setting, problem, arm, replace(state, round=t))] for t in range(4)])
    assert (per_arm[0] == per_arm[1] == per_arm[2]) is same
    assert per_arm[0][0] != per_arm[0][1]


def test_candidates_are_drawn_from_theta():
    problem, setting = quadratics(clients=300), a_setting(3, cohort=300)
    arm = an_arm([BASE | {"epochs": e} for e in (1, 2, 3)])
    state = begin(setting, problem, arm)
    state = replace(state, belief=replace(state.belief, log_theta=np.log([0.7, 0.3 - 1e-9, 1e-9])))
    drawn = [job.candidate for t in range(10) for job in plan(setting, problem, arm, replace(state, round=t))]
    assert abs(np.mean(np.array(drawn) == 0) - 0.7) < 0.03
    assert 2 not in drawn


def test_below_the_cutoff_theta_stays_and_the_mode_is_used():
    problem = quadratics()
    arm = an_arm([BASE | {"lr": lr} for lr in (0.3, 0.1, 0.01)])
    for cutoff, moves in ((0.0, True), (2.0, False)):
        setting = a_setting(fedex=FedEx(k=3, cutoff=cutoff))
        state = begin(setting, problem, arm)
        state = replace(state, belief=replace(state.belief, log_theta=np.log([0.2, 0.5, 0.3])))
        jobs, reports = a_round(setting, problem, arm, state)
        following, _ = fold(setting, problem, arm, state, reports)
        assert (not np.allclose(following.belief.theta, state.belief.theta)) is moves
        assert ({job.candidate for job in jobs} == {1}) is not moves


@pytest.mark.parametrize("metric", ["error", "loss"])
@pytest.mark.parametrize("signal", ["absolute", "improvement"])
def test_theta_moves_by_the_chosen_metric_and_signal(metric, signal):
    problem = quadratics()
    arm = an_arm([BASE | {"lr": lr} for lr in (0.3, 0.1, 0.01)], gamma=0.5)
    setting = a_setting(fedex=FedEx(k=3, metric=metric, signal=signal, step="adaptive"))
    state = begin(setting, problem, arm)
    _, reports = a_round(setting, problem, arm, state)
    values = [getattr(r.after, metric) - (getattr(r.before, metric) if signal == "improvement" else 0) for r in reports]
    expected = fedex.exponentiate(
        state.belief, [r.candidate for r in reports], values, [r.after.count for r in reports], "adaptive", 0.5
    )
    assert np.array_equal(fold(setting, problem, arm, state, reports)[0].belief.theta, expected.theta)


def test_fedex_finds_the_good_candidate():
    """One candidate trains, the others hardly move: theta ends on the one that trains."""
    problem = quadratics(spread=1.0)
    arm = an_arm([BASE | {"lr": lr} for lr in (1e-5, 0.5, 1e-5, 1e-5)], gamma=0.5)
    setting = a_setting(4)
    state = advance(setting, problem, arm, begin(setting, problem, arm), 40)
    assert state.belief.mode == 1
    assert state.belief.theta[1] > 0.9


# Faults


def test_a_broken_client_counts_as_the_worst_for_theta():
    problem, setting = quadratics(), a_setting(2, fedex=FedEx(k=2, metric="loss"))
    arm = an_arm([BASE, BASE | {"lr": 0.05}])
    state = begin(setting, problem, arm)
    _, reports = a_round(setting, problem, arm, state)
    nan = Update(np.full_like(state.w, np.nan))
    broken = [
        replace(r, update=nan, finite=False, after=Metrics(math.inf, 1.0, r.after.count)) if r.candidate == 0 else r
        for r in reports
    ]
    assert 0 < sum(r.candidate == 0 for r in reports) < 4
    following, record = fold(setting, problem, arm, state, broken)
    worst = max(r.after.loss for r in reports if r.candidate == 1)
    values = [worst if r.candidate == 0 else r.after.loss for r in reports]
    weights = [r.after.count for r in reports]
    expected = fedex.exponentiate(state.belief, [r.candidate for r in reports], values, weights)
    assert worst > 1
    assert np.array_equal(following.belief.theta, expected.theta)
    assert record.broken == sum(r.candidate == 0 for r in reports)
    assert record.loss == math.inf
    assert np.isfinite(following.w).all()
    assert not following.diverged


def test_a_client_that_diverges_is_reported_as_broken_not_raised():
    problem, setting, arm = quadratics(), a_setting(), an_arm([BASE | {"lr": 1e30, "epochs": 5}])
    state = begin(setting, problem, arm)
    _, reports = a_round(setting, problem, arm, state)
    assert not any(r.finite for r in reports)
    assert all(r.after == Metrics(math.inf, 1.0, r.after.count) for r in reports)
    following, record = fold(setting, problem, arm, state, reports)
    assert (record.broken, record.error, record.diverged) == (4, 1.0, False)
    assert np.array_equal(following.w, state.w)


def test_where_errors_are_not_rates_the_worst_is_infinite():
    """A regression's error is in the thousands: 1 would be the best."""
    problem, setting, arm = quadratics(), a_setting(), an_arm([BASE | {"lr": 1e30, "epochs": 5}])
    problem.task.worst_error = math.inf
    _, reports = a_round(setting, problem, arm, begin(setting, problem, arm))
    assert all(r.after.error == math.inf for r in reports)


def test_a_diverged_arm_scores_infinity_and_spends_no_more_rounds():
    problem, setting = quadratics(), a_setting()
    arm = an_arm(server={"lr": 1e25})
    state = advance(setting, problem, arm, begin(setting, problem, arm), 50)
    assert state.diverged
    assert state.round < 50
    assert pack(advance(setting, problem, arm, state, 100)) == pack(state)
    study = tune(problem, Space(server={"lr": 1e25}), fedex=None, schedule=random_search(60, 30), cohort=4, workers=1)
    assert study.rounds_used < 60
    assert study.best.score == math.inf
    assert all(math.isinf(study.records[a][-1].error) and study.records[a][-1].diverged for a in (0, 1))
    assert study.result()["diverged"] == [0, 1]


def test_a_round_without_validation_has_no_score():
    usual = quadratics()
    problem = Simulation(usual.task, [Client(c.id, c.train, None) for c in usual.clients])
    setting, arm = a_setting(2), an_arm([BASE, BASE])
    state = begin(setting, problem, arm)
    _, reports = a_round(setting, problem, arm, state)
    following, record = fold(setting, problem, arm, state, reports)
    assert math.isnan(record.error)
    assert record.validated == 0
    assert np.array_equal(following.belief.theta, state.belief.theta)
    assert not np.array_equal(following.w, state.w)


def test_clients_without_training_examples_do_not_move_the_model():
    usual = quadratics()
    problem = Simulation(usual.task, [Client(c.id, None, c.valid) for c in usual.clients])
    setting, arm = a_setting(2), an_arm([BASE, BASE])
    state = begin(setting, problem, arm)
    _, reports = a_round(setting, problem, arm, state)
    following, record = fold(setting, problem, arm, state, reports)
    assert np.array_equal(following.w, state.w)
    assert record.examples == 0
    assert record.error_before == record.error_after
    assert following.round == 1


def test_dropouts_are_recorded_and_the_rest_counts():
    problem, setting, arm = quadratics(), a_setting(), an_arm()
    state = begin(setting, problem, arm)
    _, reports = a_round(setting, problem, arm, state)
    following, record = fold(setting, problem, arm, state, [None, *reports[1:]])
    only = np.mean([r.update.w for r in reports[1:]], axis=0)
    np.testing.assert_allclose(following.w, only, rtol=1e-5, atol=1e-6)
    assert (record.clients, record.dropped, record.broken) == (4, 1, 0)
    assert record.error_after == mean([r.after for r in reports[1:]]).error


# Sampling


def test_arms_are_the_papers_local_perturbation():
    space = Space(PAPER_CLIENT, {"lr": Float(0.1, 10, log=True)})
    sample = local(space, methods.fedavg, FedEx(k=27, eps=0.1), seed=3)
    arm = sample(5)
    assert len(arm.candidates) == 27
    first, *others = arm.candidates
    assert all(abs(math.log10(c["lr"]) - math.log10(first["lr"])) <= 0.4 + 1e-9 for c in others)
    assert all(abs(c["dropout"] - first["dropout"]) <= 0.05 + 1e-9 for c in others)
    assert len({c["lr"] for c in arm.candidates}) == 27
    assert 0 <= arm.gamma <= 1


def test_an_arm_is_known_by_its_number_and_shares_its_centre_with_plain_arms():
    space = Space(PAPER_CLIENT, {"lr": Float(0.1, 10, log=True)})
    many, plain = (local(space, methods.fedavg, FedEx(k=k), seed=3) for k in (9, 1))
    assert many(7) == many(7) != many(8)
    assert plain(7).candidates == many(7).candidates[:1]
    assert plain(7).server == many(7).server
    assert local(space, methods.fedavg, FedEx(k=9, eps=0.0), 3)(7).candidates == many(7).candidates[:1] * 9
    assert local(space, methods.fedavg, FedEx(k=9, gamma=0.25), 3)(7).gamma == 0.25


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cohort": 0}, "cohort = 0"),
        ({"cohort": 2.5}, "cohort = 2.5"),
        ({"target": "personal"}, "did you mean 'personalized'"),
        ({"cohorts": "common"}, "cohorts = 'common'"),
        ({"seed": "x"}, "seed = 'x'"),
    ],
)
def test_wrong_settings(settings, words):
    with pytest.raises(SpecError, match=words):
        a_setting(**settings)


# Several tries


RATES = [BASE | {"lr": rate} for rate in (0.01, 0.1, 0.3, 0.5)]


@pytest.mark.parametrize("tries", [2, "all"])
def test_tries_move_theta_and_not_the_model(tries):
    """The first round's model, before theta has moved, is that of one try; theta hears of all."""
    problem, arm = quadratics(), an_arm(RATES)
    one, many = a_setting(fedex=FedEx(k=4)), a_setting(fedex=FedEx(k=4, tries=tries))
    start = begin(one, problem, arm)
    _, plain = a_round(one, problem, arm, start)
    jobs, reports = a_round(many, problem, arm, start)
    count = many.fedex.tried
    for job, report, alone in zip(jobs, reports, plain, strict=True):
        assert report.update.w.tobytes() == alone.update.w.tobytes()
        assert (report.before, report.after) == (alone.before, alone.after)
        assert len({report.candidate, *(t.candidate for t in report.tried)}) == count
        for tried in report.tried:  # it is what the client would have reported with this candidate
            candidate = tried.candidate
            would = work(one.method, problem, replace(job, candidate=candidate, config=RATES[candidate], others=()))
            assert (tried.before, tried.after) == (would.before, would.after)
    after_one, record_one = fold(one, problem, arm, start, plain)
    after_many, record_many = fold(many, problem, arm, start, reports)
    assert after_one.w.tobytes() == after_many.w.tobytes()
    assert record_one.error == record_many.error
    values = [[r.after.error, *(t.after.error for t in r.tried)] for r in reports]
    choices = [[r.candidate, *(t.candidate for t in r.tried)] for r in reports]
    expected = fedex.exponentiate(start.belief, choices, values, [r.after.count for r in reports])
    assert after_many.belief.theta.tolist() == expected.theta.tolist()
    assert after_many.belief.theta.tolist() != after_one.belief.theta.tolist()


def test_full_information_finds_the_best_candidate_in_a_few_rounds():
    problem, arm = quadratics(), an_arm(RATES)
    setting = a_setting(fedex=FedEx(k=4, tries="all"), cohort=4)
    state = advance(setting, problem, arm, begin(setting, problem, arm), 6)
    reports = [work(setting.method, problem, job) for job in plan(setting, problem, arm, state)]
    errors = np.zeros(4)
    for report in reports:
        for tried in (report, *report.tried):
            errors[tried.candidate] += tried.after.error
    assert state.belief.mode == errors.argmin()
    assert state.belief.theta.max() > 0.5


def test_past_the_cutoff_a_client_tries_one_and_the_work_is_counted():
    problem, arm = quadratics(), an_arm(RATES)
    setting = a_setting(fedex=FedEx(k=4, tries=3, cutoff=1.0))
    state, records, expected = begin(setting, problem, arm), [], 0
    for _ in range(8):
        jobs, reports = a_round(setting, problem, arm, state)
        reports[0] = None
        expected += sum(1 + len(r.tried) for r in reports[1:])
        assert all(len(job.others) == (2 if state.belief.entropy >= 1.0 else 0) for job in jobs)
        state, record = fold(setting, problem, arm, state, reports)
        records.append(record)
    assert state.belief.entropy < 1.0
    assert trainings(setting.fedex, records) == expected
    assert 3 * 8 < expected < 3 * 3 * 8


def test_where_some_did_not_try_all_only_what_theta_drew_counts():
    problem, arm = quadratics(), an_arm(RATES)
    setting = a_setting(fedex=FedEx(k=4, tries=3))
    start = begin(setting, problem, arm)
    _, reports = a_round(setting, problem, arm, start)
    bare = [replace(report, tried=()) for report in reports]
    some = fold(setting, problem, arm, start, [bare[0], *reports[1:]])[0]
    assert some.belief.theta.tolist() == fold(setting, problem, arm, start, bare)[0].belief.theta.tolist()


@pytest.mark.parametrize("tries", [2, "all"])
def test_tries_give_the_same_on_any_number_of_workers(tries):
    studies = [
        tune(quadratics(), fedex=FedEx(k=3, tries=tries), schedule=random_search(8, 4), cohort=4, workers=workers)
        for workers in (1, 2)
    ]
    one, two = studies
    assert {a: pack(s) for a, s in one.states.items()} == {a: pack(s) for a, s in two.states.items()}
    assert one.local_work == two.local_work == one.rounds_used * 4 * one.setting.fedex.tried
