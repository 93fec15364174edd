"""What a client that diverged says to FedEx: its candidate is clearly worse, whatever the scale and the past."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedtuner import methods
from fedtuner.core.model import Metrics
from fedtuner.core.records import Tried
from fedtuner.testing.rounds import a_round, an_arm, reported, settle
from fedtuner.testing.toys import quadratics
from fedtuner.tuners.fedex import FedEx, exponentiate, gradient
from fedtuner.tuners.fedex_settings import STEPS
from fedtuner.tuners.theta import Theta, uniform

MOVING = [step for step in STEPS if step != "none"]


def after(baseline, k=4):
    """Theta when the mean of the past is this."""
    return Theta(np.full(k, -math.log(k)), past=baseline, mass=1.0)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize(
    ("baseline", "others"),
    [
        (2.3, [0.4, 0.9]),  # the past dominates
        (0.5, [0.4, 0.9]),
        (0.1, [70.0, 0.2]),  # another is nearly as bad
        (0.5, [0.5, 0.5]),
        (0.0, [0.0, 0.0]),
        (-0.4, [-0.5, -0.3]),  # improvements
        (0.2, [-0.5, -0.3]),
        (3.0, []),
        (-3.0, []),
        (1.0, [math.inf, 0.5]),
    ],
)
def test_its_gradient_is_positive_and_the_largest(baseline, others, bad, scale):
    """Its candidate loses, and none moves further by a value of the same weight."""
    values = [bad, *(scale * v for v in others)]
    found = gradient(after(scale * baseline), list(range(len(values))), values, [1] * len(values))
    assert found[0] > 0
    assert found[0] == pytest.approx(np.abs(found).max())
    finite = [v for v in values[1:] if math.isfinite(v)]
    assert found[0] / 4 * len(values) >= max(v - scale * baseline for v in (scale * baseline, *finite)) + 1 - 1e-9


@pytest.mark.parametrize("step", MOVING)
def test_its_candidate_loses_against_all_others(step):
    """With a baseline above all losses it had been as good as one that nobody tried."""
    p = exponentiate(after(2.3), [0, 1, 2], [math.inf, 2.2, 2.0], [1, 1, 1], step).p
    assert p[0] == p.min() < 0.25
    assert p[0] < p[3]  # which nobody tried


@pytest.mark.slow
@pytest.mark.parametrize("step", MOVING)
@pytest.mark.parametrize("diverged", [1, 5, 9, 10])
def test_the_baseline_does_not_run_away(step, diverged):
    """Of 10 clients many diverge in 300 rounds: lambda stays within what losses there were."""
    theta = exponentiate(uniform(3), [0, 1], [2.3, 2.2], [1, 1], step)
    values = [math.inf] * diverged + [0.5] * (10 - diverged)
    for gamma in (0.0, 0.9, 1.0):
        now = theta
        for t in range(300):
            now = exponentiate(now, [(t + i) % 3 for i in range(10)], values, [1] * 10, step, gamma)
            assert 0.5 - 1e-9 <= now.baseline <= 2.3


def test_an_improvement_from_infinity_counts_as_the_rounds_best():
    """The server's model had an infinite loss on this client, and training brought it back: no reason to blame it."""
    inf, fine = Metrics(math.inf, 1.0, 5), Metrics(0.7, 0.2, 5)
    value = FedEx(metric="loss", signal="improvement").value
    assert value(Tried(0, inf, fine)) == -math.inf
    assert math.isnan(value(Tried(0, inf, inf)))
    found = exponentiate(after(-0.2), [0, 1, 2], [-math.inf, -0.5, -0.1], [1, 1, 1])
    said = exponentiate(after(-0.2), [0, 1, 2], [-0.5, -0.5, -0.1], [1, 1, 1])
    assert found.p.tolist() == said.p.tolist()


def test_a_diverged_client_moves_theta_in_a_study_by_the_loss():
    """The end to end of it: a candidate whose client breaks is less probable after the round than one untried."""
    tuner = FedEx(k=3, metric="loss", gamma=0.5, eps=0.0)
    for seed in range(20):
        round, arm = a_round(methods.fedavg, quadratics(), tuner=tuner, cohort=2, seed=seed), an_arm(methods.fedavg)
        state = round.begin(arm)
        state = replace(state, belief=replace(state.belief, theta=after(50.0, 3)))  # far above what comes
        _, (first, second) = reported(round, arm, state)
        bad, good = first.tried[0].label, second.tried[0].label
        if bad != good:
            break
    broken = replace(first, finite=False, tried=(replace(first.tried[0], after=Metrics(math.inf, 1.0, 12)),))
    following, _ = settle(round, arm, state, broken, second)
    p = following.belief.theta.p
    assert p[bad] < p[3 - bad - good] < p[good]
