"""Delta-SGD: its steps by hand, what they are bounded by, and that it is SGD where it has one step."""

import math
from itertools import pairwise

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner import methods
from fedtuner.core.method import Local, default_space, defaults
from fedtuner.core.records import Choice, Job, Plan
from fedtuner.methods.deltasgd import local, next_step
from fedtuner.rng import stream
from fedtuner.run import spec
from fedtuner.testing.rounds import a_round, advance, an_arm, reported
from fedtuner.testing.toys import Quadratics, quadratics

USUAL = defaults(methods.deltasgd.client)


class Watched:
    """A trainer that notes where gradients are asked for, and with which rows and draws."""

    def __init__(self, trainer):
        self.trainer, self.asked = trainer, []

    def gradient(self, w, rows, key=None):
        self.asked.append((w.copy(), rows.tolist(), key))
        return self.trainer.gradient(w, rows, key)


def trained(points, curvature, start, statistics=0, **config):
    """Train on these points from ``start``; return w and what the trainer was asked."""
    task = Quadratics(len(start) - statistics, statistics)
    data = task.prepare((points, curvature))
    with task.training(data, {}, 0) as trainer:
        watched = Watched(trainer)
        client = Local(watched, data, data, task.trainable, 1, stream(0, "deltasgd"))
        job = Job(0, (Choice(0, USUAL | config),))
        w = np.array(start, np.float32)
        plan = Plan(0, 0, 0, "valid", {}, 0.0, w, {}, (job,))
        return local(client, plan, job).w, watched.asked


def test_steps_by_hand():
    """f(x) = 2 x^2 from x_0 = 1, whose gradient is 4 x: |x_k - x_k-1| / |g_k - h_k| is always 1/4. gamma 2, delta 3.

    eta_0 = 0.1:                                                   x_1 = 1 - 0.1 * 4 = 0.6
    eta_1 = min(1/4, sqrt(1 + 3 * 1) 0.1) = 0.2, theta_1 = 2:       x_2 = 0.6 - 0.2 * 2.4 = 0.12
    eta_2 = min(1/4, sqrt(1 + 3 * 2) 0.2 = 0.53) = 0.25:            x_3 = 0.12 - 0.25 * 0.48 = 0
    """
    for epochs, expected in enumerate([0.6, 0.12, 0.0], 1):
        w, _ = trained([[0.0]], [4.0], [1.0], lr=0.1, delta=3.0, epochs=epochs)
        assert w.tolist() == pytest.approx([expected], abs=1e-6)


def test_theta_is_the_quotient_of_the_last_two_steps():
    """With a flat loss the second bound alone counts: 0.1, then sqrt(1 + 3) 0.1 = 0.2, then sqrt(1 + 3 * 2) 0.2 = 0.53.

    Its gradients are those of curvature 10^-3 around 1000: about -1 everywhere.
    """
    steps = [0.1, 0.2, math.sqrt(7) * 0.2]
    w, _ = trained([[1000.0]], [1e-3], [0.0], lr=0.1, delta=3.0, epochs=3)
    assert w.tolist() == pytest.approx([sum(steps)], rel=1e-3)


def test_gamma_scales_the_first_bound():
    """Curvature 4: eta_1 = gamma / 8, here 1/8 with gamma 1; the second bound is 2. x_1 = 0.6, x_2 = 0.6 (1 - 4/8)."""
    w, _ = trained([[0.0]], [4.0], [1.0], lr=0.1, gamma=1.0, delta=400.0, epochs=2)
    assert w.tolist() == pytest.approx([0.3], abs=1e-6)


def test_both_gradients_of_a_step_are_of_one_batch_and_one_draw():
    """Else they would differ by what the batches differ in, however near the models are."""
    points = np.arange(12, dtype=np.float32)[:, None]
    _, asked = trained(points, [1.0], [0.5], batch=5, epochs=2)
    first, *pairs = asked
    assert len(pairs) == 2 * 5  # six batches, of which the first needs one gradient
    before = first[0]
    for (w, rows, key), (earlier, again, same) in zip(pairs[::2], pairs[1::2], strict=True):
        assert (rows, key) == (again, same)
        assert earlier.tolist() == before.tolist() != w.tolist()
        before = w
    assert len({key for _, _, key in pairs}) == 5


def test_steps_are_at_most_the_inverse_of_the_curvature_and_grow_slowly():
    """On points that differ, curvature 2: steps are at most gamma / 4, and at most 1.05 times the last."""
    w, asked = trained(np.arange(12, dtype=np.float32)[:, None], [2.0], [0.5], batch=4, epochs=9, lr=0.01)
    at = [a[0][0] for a in (asked[0], *asked[1::2])] + [w[0]]
    means = [np.mean(a[1]) for a in (asked[0], *asked[1::2])]
    etas = [(x - y) / (2 * (x - mean)) for x, y, mean in zip(at, at[1:], means, strict=False)]
    assert max(etas) <= 0.5 + 1e-4
    for last, eta in pairwise(etas):
        assert eta <= last * math.sqrt(1 + 0.1 * 1.05) * (1 + 1e-3)
    assert etas[-1] > 2 * etas[0]


def test_a_model_that_does_not_move_keeps_its_growing_step():
    assert next_step(0.5, 1.0, 0.0, 0.0, USUAL) == next_step(0.5, 1.0, 1.0, 0.0, USUAL) == math.sqrt(1.1) * 0.5
    w, _ = trained([[1.0]], [1.0], [1.0], epochs=4)
    assert w.tolist() == [1.0]
    w, _ = trained([[0.0]], [1.0], [1.0], epochs=4, lr=0.0)
    assert w.tolist() == [1.0]


def test_one_batch_is_a_step_of_sgd():
    """A client with one batch has one step, of eta_0."""
    for method, client in ((methods.fedavg, {"lr": 0.2}), (methods.deltasgd, {})):
        round, arm = a_round(method, quadratics(examples=12)), an_arm(method, client)
        _, reports = reported(round, arm, round.begin(arm))
        changes = [report.change for report in reports]
        if method is methods.fedavg:
            expected = changes
    np.testing.assert_allclose(changes, expected, rtol=1e-6)


def test_every_round_begins_anew():
    """A client's steps depend on the model and its data, not on rounds before."""
    round, arm = a_round(methods.deltasgd, quadratics()), an_arm(methods.deltasgd, {"epochs": 4, "batch": 4})
    state = advance(round, arm, 3)
    assert not state.memory
    assert not state.slots


def test_statistics_are_those_of_the_batches_that_were_trained_on():
    w, _ = trained([[0.0], [1.0], [2.0]], [1.0], [1.0, 0.0], statistics=1, batch=1)
    assert w[1] == 3


def test_it_finds_a_step_where_the_default_is_far_too_long():
    """Curvature 400: the first step overshoots, all others are right; SGD with that step diverges."""
    w, _ = trained([[0.0]], [400.0], [1.0], epochs=30)
    assert abs(float(w[0])) < 1e-3


def test_a_client_that_diverges_stops_early():
    with np.errstate(all="ignore"):
        w, asked = trained([[0.0]], [1e30], [1.0], epochs=60, gamma=1e30, lr=1e30)
    assert not np.isfinite(w).all()
    assert len(asked) < 40


def test_it_is_named_in_a_study_and_tunes_its_first_step_and_its_work():
    assert set(default_space(methods.deltasgd, {}).client) == {"lr", "epochs", "batch"}
    assert (USUAL["lr"], USUAL["gamma"], USUAL["delta"]) == (0.2, 2.0, 0.1)
    read = spec.parse({"problem": "toys:problem", "method": "deltasgd", "cohort": 3, "client": {"gamma": [1.0, 2.0]}})
    assert read.study(None, 1).setup.method is methods.deltasgd
    study = ft.tune(
        toys.problem(), ft.Space(), method="deltasgd", fedex=None, schedule=ft.random_search(4, 4), cohort=3,
        progress=False, workers=1,
    )  # fmt: skip
    assert study.best.client == USUAL
