"""The experiment: the regret of FedEx and of what it is compared with, after more and more tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedtuner import checks
from fedtuner.errors import SpecError
from fedtuner.experiments.statistics import LEVEL, quantile
from fedtuner.rng import stream
from fedtuner.theory.tasks import spreads, tables
from fedtuner.theory.theorem import Floats, Setting, candidates, eta, known_step, steps
from fedtuner.theory.tuners import hedge, play, replay

TUNERS = {
    "best": "best fixed step in hindsight, 0 included",
    "known": "step for a known V",
    "full": "full information",
    "full_same": "full information, FedEx's k",
    "fedex": "FedEx",
    "fedex_start": "FedEx, regret against the start",
    "uniform": "steps drawn uniformly",
    "naive": "naive step D / (G sqrt m)",
}
SHORTEST = 100  # tasks of the shortest run

Progress = Callable[[int, int], None]  # is given the tasks done and the tasks in all


def horizons(tau: int) -> list[int]:
    """Return the horizons: numbers of tasks from 100 up to tau, two per factor of ten. Each is a run of its own."""
    checks.whole("tau", tau, 1, 10**9)
    if tau < 10 * SHORTEST:
        raise SpecError(f"tau = {tau}, but a rate needs at least {10 * SHORTEST} tasks")
    n = 1 + round(2 * math.log10(tau / SHORTEST))
    return [round(x) for x in np.geomspace(SHORTEST, tau, n)]


def measure(setting: Setting, tau: int, seeds: int, progress: Progress = lambda done, total: None) -> dict[str, Any]:
    """Return each tuner's task-averaged regret, [horizons, similarities, seeds], in units of D G sqrt(m).

    Beside it: the horizons, each with the k of FedEx and the k of full information; V / D; the probability of theta's
    mode at the end of FedEx's run; and the lowest eta value / theta with the regret against the optimum, and against
    the start.
    """
    checks.whole("seeds", seeds, 0, 10_000)
    if seeds < 2:
        raise SpecError(f"seeds = {seeds}, but an interval needs at least 2")
    at, n = horizons(tau), len(setting.similarities)
    v = spreads(setting, seeds, at)
    most, runs = max(candidates(setting, tau), candidates(setting, tau, full=True)), n * seeds
    known = np.stack([known_step(setting, v[h].reshape(-1), t) for h, t in enumerate(at)], axis=1)
    sizes = np.concatenate([np.tile(steps(setting, most), (runs, 1)), known, np.zeros((runs, 1))], axis=1)

    ks = [(candidates(setting, t), candidates(setting, t, full=True)) for t in at]
    thetas = [np.full((2 * runs, k), -math.log(k)) for k, _ in ks]  # regret against the optimum, and against the start
    chances = [[stream(seed, "theory", "choices", t) for seed in range(seeds)] for t in at]
    pasts = [[np.zeros((runs, k)) for k in pair] for pair in ks]
    sums, lowest = np.zeros((runs, sizes.shape[1])), np.zeros(2)
    found = {name: np.zeros((len(at), runs)) for name in TUNERS}
    for first, table in tables(setting, seeds, tau, sizes, at):
        count = table.shape[1]
        sums += table.sum(axis=1)
        for h, t in enumerate(at):
            if first >= t:
                continue
            k, wide = ks[h]
            costs, stay = table[:, :, :k], table[:, :, -1:]
            draws = np.tile(np.stack([chance.random(count) for chance in chances[h]]), (2 * n, 1))
            both = np.concatenate([costs, costs]), np.concatenate([costs, costs - stay])
            thetas[h], paid, low = play(thetas[h], *both, draws, eta(setting, k, t))
            lowest = np.minimum(lowest, low.reshape(2, -1).min(axis=1))
            found["fedex"][h] += paid[:runs]
            found["fedex_start"][h] += paid[runs:]
            for side, (name, size) in enumerate((("full_same", k), ("full", wide))):
                step = eta(setting, size, t, full=True)
                pasts[h][side], paid = hedge(pasts[h][side], table[:, :, :size], step)
                found[name][h] += paid
            if first + count == t:
                found["best"][h] = sums.min(axis=1)
                found["known"][h] = sums[:, most + h]
                found["uniform"][h] = sums[:, :k].mean(axis=1)
                found["naive"][h] = sums[:, 0]
        progress(first + count, tau)
    scale = np.asarray(at)[:, None] * setting.unit
    regret = {name: (total / scale).reshape(len(at), n, seeds) for name, total in found.items()}
    modes = [np.exp(theta[:runs]).max(axis=1).reshape(n, seeds) for theta in thetas]
    return {"tau": at, "k": ks, "v": v / setting.diameter, "regret": regret, "mode": np.stack(modes), "lowest": lowest}


def check(setting: Setting, tau: int = 1000, seed: int = 0) -> float:
    """Return the largest difference in theta between `play` and `hedge` and the functions that tune a federation."""
    k, small = candidates(setting, tau), replace(setting, similarities=setting.similarities[-1:])
    sizes = np.tile(steps(small, k), (seed + 1, 1))
    costs = np.concatenate([table for _, table in tables(small, seed + 1, tau, sizes, ())], axis=1)[seed:]
    chance = stream(seed, "theory", "choices", tau)
    step, wide = eta(small, k, tau), eta(small, k, tau, full=True)
    log_theta, _, _ = play(np.full((1, k), -math.log(k)), costs, costs, chance.random((1, tau)), step)
    one = np.exp(log_theta[0]) - replay(costs[0], stream(seed, "theory", "choices", tau), step)
    past, _ = hedge(np.zeros((1, k)), costs, wide)
    weights = np.exp(-wide * (past[0] - past[0].min()))
    two = weights / weights.sum() - replay(costs[0], chance, wide, full=True)
    return float(max(np.abs(one).max(), np.abs(two).max()))


def rate(tau: Sequence[int], excess: Floats) -> Floats:
    """Return each seed's exponent: the least-squares slope of log excess ([horizons, seeds]) against log tau."""
    x = np.log(np.asarray(tau, dtype=float))
    x = x - x.mean()
    return np.asarray(x @ np.log(np.maximum(excess, 1e-12)) / (x @ x))


def straightness(tau: Sequence[int], excess: Floats, level: float = LEVEL) -> float:
    """Return half the width of the slope's interval in the regression of the mean log excess on log tau.

    The mean is over seeds. The interval is wide where the curve bends, even if all seeds agree on the curve.
    """
    x = np.log(np.asarray(tau, dtype=float))
    x = x - x.mean()
    y = np.log(np.maximum(excess, 1e-12)).mean(axis=1)
    misfit = y - y.mean() - (x @ y) / (x @ x) * x
    freedom = len(x) - 2
    return float(quantile((1 + level) / 2, freedom) * math.sqrt(misfit @ misfit / freedom / (x @ x)))
