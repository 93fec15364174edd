"""FedEx and full information on tables of regrets, for many runs at once.

`replay` is FedEx on one run by the functions that tune a federation. `experiment.check` compares it with `play` and
`hedge`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedtuner.rng import Generator
from fedtuner.theory.theorem import Floats
from fedtuner.tuners.fedex import exponentiate
from fedtuner.tuners.theta import Theta, choose, uniform


def play(log_theta: Floats, costs: Floats, values: Floats, draws: Floats, eta: float) -> tuple[Floats, Floats, Floats]:
    """Run FedEx with one client a round (B = 1) and without a baseline (lambda = 0).

    ``costs`` and ``values`` are [runs, tasks, k]: the regret of a step size, and what the client reports of it.
    ``draws`` are [runs, tasks] in [0, 1). Returns log theta; the sum of each run's costs, in expectation over its draws
    of step sizes; and each run's lowest eta value / theta, which the proof's lemma on bandit feedback wants >= -1.
    """
    log_theta, rows = log_theta.copy(), np.arange(len(log_theta))
    total, lowest = np.zeros(len(log_theta)), np.zeros(len(log_theta))
    for t in range(costs.shape[1]):
        theta = np.exp(log_theta)
        total += np.einsum("rk,rk->r", theta, costs[:, t])
        edges = theta.cumsum(axis=1)
        j = (draws[:, t, None] >= edges / edges[:, -1:]).sum(axis=1)
        move = eta * values[rows, t, j] / theta[rows, j]
        np.minimum(lowest, move, out=lowest)
        log_theta[rows, j] -= move
        log_theta = np.maximum(log_theta - log_theta.max(axis=1, keepdims=True), -700.0)
        log_theta -= np.log(np.exp(log_theta).sum(axis=1, keepdims=True))
    return log_theta, total, lowest


def hedge(past: Floats, costs: Floats, eta: float) -> tuple[Floats, Floats]:
    """Run exponentiated gradient with full information: theta is proportional to exp(-eta (the sum of past costs)).

    ``past`` is [runs, k], ``costs`` [runs, tasks, k]. Returns the new sums of past costs, and the sum of each run's
    expected costs.
    """
    sums = past[:, None] + np.cumsum(costs, axis=1)
    before = np.concatenate([past[:, None], sums[:, :-1]], axis=1)
    theta = np.exp(-eta * (before - before.min(axis=2, keepdims=True)))
    expected = (theta * costs).sum(axis=2) / theta.sum(axis=2)
    return sums[:, -1], np.asarray(expected.sum(axis=1))


def replay(values: Floats, rng: Generator, eta: float, full: bool = False) -> Floats:
    """Return theta after FedEx on [tasks, k] values of one run, by the functions that tune a federation.

    Algorithm 2 with a constant step has eta = sqrt(2 log k), so the values are given in units that make it ``eta``; a
    theta without past rounds has lambda = 0. With full information every candidate reports, with theta as its weight:
    the estimate of the gradient is then the gradient.
    """
    k = values.shape[1]
    theta, unit = uniform(k), eta / math.sqrt(2 * math.log(k))
    for row in values * unit:
        chosen: Sequence[int] = range(k) if full else choose(theta, 1, rng)
        weights = theta.p if full else np.ones(1)
        theta = exponentiate(Theta(theta.log_theta), chosen, list(row[list(chosen)]), list(weights), "constant")
    return theta.p
