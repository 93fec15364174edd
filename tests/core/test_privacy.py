"""Privacy: a client moves what is released by no more than the sensitivity, and the noise is what epsilon asks for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import fedtuner as ft
from fedtuner import methods
from fedtuner.core.metric import Metrics
from fedtuner.core.privacy import METRICS, SENSITIVITY, Gaussian
from fedtuner.core.records import Report, Seen, Tally, Tried
from fedtuner.core.robust import Median
from fedtuner.core.screens import Weights
from fedtuner.errors import SpecError
from fedtuner.run import spec
from fedtuner.space import Float, Space
from fedtuner.testing.rounds import a_round, an_arm, reported, settle
from fedtuner.testing.toys import quadratics

GAUSSIAN = Gaussian(4.0, 1e-5, clip=0.5, loss=2.0, rounds=20)
TWO = Space({"lr": Float(0.01, 0.2, log=True)})
ODD = (math.nan, math.inf, -math.inf, 0.0, -3.0, 1e30)


def silent(privacy: Gaussian) -> Gaussian:
    """The same without noise: what the noise is added to."""
    made = replace(privacy)
    made.__dict__["noise"] = 0.0
    return made


def private_round(privacy=GAUSSIAN, k=3):
    return a_round(methods.fedavg, quadratics(), space=TWO, tuner=ft.FedEx(k=k), cohort=6, privacy=privacy)


def odd(report: Report, rng: np.random.Generator) -> Report:
    """A report of anything: sizes from nothing to infinity."""
    change = np.asarray(rng.standard_normal(report.change.size) * 10.0 ** rng.integers(-3, 9), np.float32)
    if rng.random() < 0.3:
        change[0] = rng.choice(ODD)
    before, after = (
        Metrics(*(float(rng.choice([*ODD, rng.random()])) for _ in "le"), int(rng.integers(3))) for _ in "ba"
    )
    tried = tuple(Tried(t.label, before, after) for t in report.tried)
    finite = bool(np.isfinite(change).all())
    return replace(report, change=change, examples=int(rng.integers(1000)), tried=tried, finite=finite)


def neutral(report: Report) -> Report:
    """The report whose part is zero."""
    metrics = Metrics(GAUSSIAN.loss / 2, 0.5, 1)
    tried = tuple(Tried(t.label, metrics, metrics) for t in report.tried)
    return replace(report, change=np.zeros_like(report.change), tried=tried, finite=True)


def parts(tally: Tally) -> np.ndarray:
    """The sum of the clients' parts, from the means that a tally has."""
    assert tally.change is not None
    n, values = tally.reported, np.zeros(3)
    for seen in tally.seen:
        values[seen.labels[0]] = seen.weight * (seen.values[0] - 0.5)
    metrics = [(m.loss / GAUSSIAN.loss - 0.5, m.error - 0.5) for m in (tally.before, tally.after)]
    change = tally.change.astype(np.float64) / GAUSSIAN.clip
    return np.concatenate([n * change, n * METRICS * np.ravel(metrics), METRICS * values])


def test_a_client_moves_what_is_released_by_at_most_the_sensitivity():
    round, arm = private_round(silent(GAUSSIAN)), an_arm(methods.fedavg)
    plan, usual = reported(round, arm, round.begin(arm))
    largest = 0.0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        reports = [odd(r, rng) for r in usual]
        whole, place = parts(round.tally(plan, reports)), int(rng.integers(len(reports)))
        less = parts(round.tally(plan, [neutral(r) if i == place else r for i, r in enumerate(reports)]))
        moved = float(np.linalg.norm(whole - less))
        assert moved <= SENSITIVITY * (1 + 1e-5)
        largest = max(largest, moved)
    assert largest > 0.95 * SENSITIVITY  # the bound is no larger than it must be


def test_nothing_of_a_single_client_is_in_the_tally_and_the_record():
    round, arm = private_round(), an_arm(methods.fedavg)
    state = round.begin(arm)
    _, reports = reported(round, arm, state)
    reports[0] = replace(reports[0], finite=False, change=np.full_like(reports[0].change, np.nan))
    following, record = settle(round, arm, state, *reports)
    assert (record.rows, record.broken, record.examples, record.validated) == ((), 0, 6, 6)
    assert not following.memory
    assert np.isfinite(following.w).all()


def test_a_round_in_which_nobody_reports_releases_nothing():
    round, arm = private_round(), an_arm(methods.fedavg)
    state = round.begin(arm)
    following, record = settle(round, arm, state, *[None] * 6)
    assert np.array_equal(following.w, state.w)
    assert record.dropped == 6


def delta_by_integration(epsilon: float, sigma: float) -> float:
    """The definition: the mass by which N(0, sigma^2) exceeds e^epsilon N(1, sigma^2)."""
    x = np.linspace(-12 * sigma, 12 * sigma + 1, 400_001)
    p, q = (np.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) for mean in (0, 1))
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]))


@pytest.mark.parametrize(
    ("epsilon", "delta", "rounds"), [(1.0, 1e-5, 1), (8.0, 1e-5, 500), (0.1, 1e-3, 7), (50.0, 1e-6, 3)]
)
def test_the_noise_is_that_of_the_definition(epsilon, delta, rounds):
    privacy = Gaussian(epsilon, delta, rounds=rounds)
    sigma = privacy.noise / math.sqrt(rounds)  # rounds of noise s are as one of noise s / sqrt(rounds)
    assert delta_by_integration(epsilon, sigma) == pytest.approx(delta, rel=1e-3)
    keys = [(0, t) for t in range(rounds)]
    assert privacy.spent(keys) == pytest.approx(epsilon, rel=1e-6)
    assert privacy.spent([]) == 0 <= privacy.spent(keys[: rounds // 2]) < epsilon


def test_what_is_released_has_that_noise():
    privacy = Gaussian(100.0, 1e-5, clip=0.5, loss=2.0, rounds=1)  # so little noise that nothing is cut
    middle = Metrics(1.0, 0.5, 100)
    seen = tuple(Seen((i % 2,), (0.5,), 1.0) for i in range(100))
    tally = Tally(asked=100, reported=100, change=np.zeros(9999, np.float32), before=middle, after=middle, seen=seen)
    made = [privacy.release(tally, (0, t), 1) for t in range(200)]
    unit = privacy.noise * SENSITIVITY / 100
    assert made[0].change is not None
    assert made[0].change.std() == pytest.approx(unit * privacy.clip, rel=0.05)
    assert abs(made[0].change.mean()) < 5 * unit * privacy.clip / math.sqrt(9999)
    for numbers, expected in (
        ([m.before.loss for m in made], unit / METRICS * 2.0),
        ([m.after.error for m in made], unit / METRICS),
        ([m.seen[0].values[0] for m in made], 2 * unit / METRICS),
    ):
        assert np.std(numbers) == pytest.approx(expected, rel=0.2)


def test_the_noise_is_named_by_seed_arm_and_round():
    tally = Tally(asked=2, reported=2, change=np.zeros(5, np.float32), before=Metrics(1, 0, 2), after=Metrics(1, 0, 2))
    made = {
        repr(GAUSSIAN.release(tally, key, seed)) for key in ((0, 1), (0, 2), (1, 1)) for seed in (0, 1) for _ in "ab"
    }
    assert len(made) == 6


@pytest.mark.slow
def test_a_private_study_is_the_same_for_any_number_of_workers_and_spends_its_epsilon(tmp_path):
    def tune(**more):
        return ft.tune(quadratics(40), TWO, fedex=ft.FedEx(k=3), cohort=20, schedule=ft.random_search(12, 6), **more)

    one, two = (tune(privacy=Gaussian(50.0), workers=workers, store=tmp_path / str(workers)) for workers in (1, 2))
    assert [repr(r) for r in one.history] == [repr(r) for r in two.history]
    assert one.best.model.tobytes() == two.best.model.tobytes() != tune().best.model.tobytes()
    assert one.epsilon_spent == pytest.approx(50.0)
    assert one.describe()["privacy"]["rounds"] == 12
    assert all(not r.rows and 0 <= r.error <= 1 for r in one.history)
    assert min(r.loss_before for r in one.history) < one.history[0].loss_before
    assert tune().epsilon_spent == math.inf
    with pytest.raises(SpecError, match=r"privacy\.rounds = 12, but the schedule may take 24"):
        one.extend(24)
    exact = one.evaluate()  # of the test data, without noise
    assert exact["global"] == pytest.approx(two.evaluate()["global"], abs=0)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"method": methods.scaffold}, "method = scaffold, but with privacy the server sees only sums"),
        ({"combine": Median()}, "looks at single updates, but with privacy"),
        ({"screens": (Weights(),)}, "screens compare single reports, but with privacy"),
        ({"fedex": ft.FedEx(k=3, tries="all")}, "fedex.tries = 3, but with privacy"),
        ({"method": methods.fedavg.stepping_by("fedexp")}, "server.optimiser = 'fedexp' reads more than changes"),
        ({"privacy": Gaussian(rounds=3)}, "privacy.rounds = 3, but the schedule may take 4"),
        ({"privacy": 8.0}, r"privacy = 8.0, but must be such as fedtuner.core.privacy.Gaussian"),
    ],
)
def test_what_privacy_does_not_cover_is_refused(changed, why):
    settings = {"privacy": Gaussian(), "fedex": ft.FedEx(k=3), "schedule": ft.random_search(4, 2), **changed}
    with pytest.raises(SpecError, match=why):
        ft.prepare(quadratics(), cohort=4, **settings)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"epsilon": 0}, "privacy.epsilon = 0, but must be > 0"),
        ({"epsilon": 1e3}, r"privacy.epsilon = 1000.0, but must be in \[0, 100\]"),
        ({"delta": -1}, "privacy.delta = -1"),
        ({"clip": math.nan}, "privacy.clip = nan"),
        ({"value": (1.0, 0.0)}, "privacy.value = .* must be two numbers"),
        ({"value": "ab"}, "privacy.value = 'ab'"),
        ({"error": 1.0}, r"privacy.error = 1.0, but must be two numbers"),
        ({"rounds": 0}, "privacy.rounds = 0"),
    ],
)
def test_settings_that_make_no_sense(given, why):
    with pytest.raises(SpecError, match=why):
        Gaussian(**given)


def test_a_tally_of_elsewhere_is_refused():
    """It may have been made of reports that nothing bounds."""
    study = ft.prepare(quadratics(), TWO, cohort=4, schedule=ft.random_search(2, 1), privacy=Gaussian())
    plan = study.ask()
    assert plan is not None
    with pytest.raises(SpecError, match="a tally, but privacy bounds single reports"):
        study.tell(plan, Tally(asked=4, reported=4))
    study.close()


def test_it_is_a_table_of_a_study_toml():
    parsed = spec.parse(spec.tomllib.loads('problem = "digits"\n[privacy]\nepsilon = 4.0\nvalue = [0.0, 2.0]'))
    assert parsed.settings["privacy"] == Gaussian(4.0, value=(0.0, 2.0))
    with pytest.raises(SpecError, match=r"no setting privacy\.epsilonn"):
        spec.parse({"problem": "digits", "privacy": {"epsilonn": 4.0}})
    with pytest.raises(SpecError, match=r"privacy = 8\.0, but must be a table"):
        spec.parse({"problem": "digits", "privacy": 8.0})
