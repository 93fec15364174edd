"""The tasks are as the theorem wants them, and their regret is that of gradient descent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedtuner.rng import stream
from fedtuner.theory.tasks import draw, spreads, tables
from fedtuner.theory.theorem import Setting, steps

ODD = Setting(m=4, similarities=(0.0, 0.15), diameter=2.0, lipschitz=3.0, dimensions=3)  # no constant is 1


def loss(setting, w, z):
    return setting.lipschitz / math.sqrt(setting.dimensions) * np.abs(w - z).sum(axis=-1)


def tasks(setting, similarity, seed, n):
    """Optima and points of n tasks, made from the same streams in the plainest way."""
    d = setting.dimensions
    scale = similarity * setting.diameter * math.sqrt(3 / d)
    centre = stream(seed, "theory", "centre").uniform(-1, 1, d) * (setting.half - scale)
    where, points = draw(setting, stream(seed, "theory", "optima"), stream(seed, "theory", "points"), n)
    optima = centre + scale * where
    return optima, np.clip(optima[:, None] + points, -setting.half, setting.half)


@pytest.mark.parametrize("m", [1, 4, 9])
def test_a_task_s_optimum_is_a_minimiser_inside_the_box(m):
    setting = Setting(m=m, diameter=2.0, lipschitz=3.0, dimensions=3)
    optima, points = tasks(setting, 0.2, 0, 50)
    assert np.abs(points).max() <= setting.half
    assert np.abs(optima).max() <= setting.half
    others = stream(0, "others").uniform(-setting.half, setting.half, (500, 1, 1, 3))
    least = loss(setting, optima[:, None], points).sum(axis=1)
    assert (loss(setting, others, points).sum(axis=2) >= least - 1e-12).all()
    nearby = optima[:, None] + 1e-3 * stream(0, "nearby").normal(size=(500, 1, 1, 3))
    assert (loss(setting, nearby, points).sum(axis=2) >= least - 1e-12).all()


def test_losses_are_lipschitz_and_bounded():
    rng = stream(0, "pairs")
    u, v, z = rng.uniform(-ODD.half, ODD.half, (3, 10_000, 3))
    assert (np.abs(loss(ODD, u, z) - loss(ODD, v, z)) <= ODD.lipschitz * np.linalg.norm(u - v, axis=1) + 1e-12).all()
    corner = np.full(3, ODD.half)
    assert np.linalg.norm(2 * corner) == pytest.approx(ODD.diameter)
    assert loss(ODD, corner, -corner) == pytest.approx(ODD.b)  # b is reached, so no smaller one would do


def test_regret_is_that_of_gradient_descent_from_the_server_s_start():
    """Task by task, loss by loss: OGD with a subgradient of norm G, and w <- (1 - 1/t) w + w* / t."""
    n, sizes = 30, steps(ODD, 3)
    ((first, table),) = tables(ODD, 2, n, np.tile(sizes, (4, 1)), ())
    assert (first, table.shape) == (0, (4, n, 3))
    for run, (similarity, seed) in enumerate([(0.0, 0), (0.0, 1), (0.15, 0), (0.15, 1)]):
        optima, points = tasks(ODD, similarity, seed, n)
        start = np.zeros(3)
        for t in range(1, n + 1):
            for j, size in enumerate(sizes):
                w, regret = start.copy(), 0.0
                for z in points[t - 1]:
                    regret += loss(ODD, w, z) - loss(ODD, optima[t - 1], z)
                    subgradient = ODD.lipschitz / math.sqrt(3) * np.where(np.signbit(w - z), -1.0, 1.0)
                    assert np.linalg.norm(subgradient) == pytest.approx(ODD.lipschitz)
                    w = np.clip(w - size * subgradient, -ODD.half, ODD.half)
                assert table[run, t - 1, j] == pytest.approx(regret, abs=1e-9)
            start = (1 - 1 / t) * start + optima[t - 1] / t


def test_how_tables_are_cut_changes_nothing():
    sizes = np.tile(steps(ODD, 2), (2, 1))
    whole = np.concatenate([t for _, t in tables(ODD, 1, 1500, sizes, ())], axis=1)
    parts = np.concatenate([t for _, t in tables(ODD, 1, 1500, sizes, (7, 100, 1200))], axis=1)
    np.testing.assert_allclose(whole, parts, atol=1e-12)


def test_v_is_the_distance_to_the_best_single_start():
    (found,) = spreads(ODD, 2, [40])
    for s, similarity in enumerate(ODD.similarities):
        for seed in range(2):
            optima, _ = tasks(ODD, similarity, seed, 40)
            mean = optima.mean(axis=0)
            assert found[s, seed] == pytest.approx(math.sqrt(((optima - mean) ** 2).sum(axis=1).mean()), abs=1e-12)
