"""FedEx as its theorem has it: tuning the step size of online gradient descent, one task after the other.

Khodak et al., "Federated Hyperparameter Tuning", NeurIPS 2021: Section 4 and the proof in the appendix. A task is m
convex losses; a client runs online gradient descent (OGD) on them from the server's start w_t, with a step of
c_j = D / (G j sqrt(m)) that FedEx draws; the server then moves to the mean of the tasks' optima (its step is 1/t), and
FedEx's theta moves by the regret of the step that was drawn. docs/theory.md says what comes out.

The tasks: W is the box of diameter D; the i-th loss is (G / sqrt(d)) |w - z_i|_1 for a point z_i in W. It is convex,
its subgradients have norm G exactly, and it lies in [0, G D], so b = G D. The points scatter around the task's optimum
w_t* so that it is their coordinate-wise median, hence an exact minimiser; the optima are uniform on a box whose size
sets the similarity V. As the start depends on the optima alone, all that any tuner may ask for is one table: the regret
of every step on every task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtuner.errors import SpecError
from fedtuner.experiments.statistics import LEVEL, quantile
from fedtuner.fedex import Belief, Floats, choose, exponentiate, uniform
from fedtuner.rng import Generator, stream

Tell = Callable[[int, int], None]
TUNERS = ("best", "known", "full", "full_same", "fedex", "fedex_start", "uniform", "naive")
SHORTEST = 100  # tasks of the shortest run that is compared
_CHUNK = 1000  # tasks at a time
_BLOCK = 64  # tasks whose descents fit the cache together


@dataclass(frozen=True)
class Setting:
    """The family of tasks."""

    m: int = 9  # losses of a task
    similarities: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2)  # V / D; the box holds up to 0.288
    diameter: float = 1.0  # D
    lipschitz: float = 1.0  # G
    dimensions: int = 2  # d
    k: int | None = None  # steps to choose from, in place of the theorem's number, which grows with tau
    noise: float = 0.1  # Laplace scale of the points around their task's optimum, in units of D / sqrt(d)

    def __post_init__(self) -> None:
        if self.m < 1 or self.dimensions < 1:
            raise SpecError(f"m = {self.m} and dimensions = {self.dimensions}, but both must be >= 1")
        if self.k is not None and self.k < 2:
            raise SpecError(f"k = {self.k}, but there must be at least 2 steps to choose from")
        if not self.similarities or any(not 0 <= v <= 0.288 for v in self.similarities):
            raise SpecError(f"similarities = {self.similarities}, but there must be some, in [0, 0.288] (V / D)")
        if not (self.diameter > 0 and self.lipschitz > 0 and self.noise >= 0):
            raise SpecError("diameter and lipschitz must be > 0 and noise >= 0")

    @property
    def b(self) -> float:
        """The largest value of a loss on W."""
        return self.lipschitz * self.diameter

    @property
    def half(self) -> float:
        """Half the side of the box W."""
        return self.diameter / (2 * math.sqrt(self.dimensions))

    @property
    def unit(self) -> float:
        """D G sqrt(m): the regret that one task alone must cost, up to a constant; the unit of all results."""
        return self.diameter * self.lipschitz * math.sqrt(self.m)


# What the theorem prescribes


def steps(setting: Setting, k: int) -> Floats:
    """Return the configurations c_1, ..., c_k."""
    return np.asarray(setting.diameter / (setting.lipschitz * math.sqrt(setting.m) * np.arange(1, k + 1)))


def candidates(setting: Setting, tau: int, full: bool = False) -> int:
    """Return k: k^(3/2) = (D G / b) sqrt(tau / 2m), rounded, at least 2.

    With full information the error of bandit feedback no longer grows with k, and the exponent becomes 1.
    """
    if setting.k is not None and not full:
        return setting.k
    size = setting.diameter * setting.lipschitz / setting.b * math.sqrt(tau / (2 * setting.m))
    return max(2, round(size if full else size ** (2 / 3)))


def eta(setting: Setting, k: int, tau: int, full: bool = False) -> float:
    """Return the step of theta: sqrt(log k / (k tau)) / (m b); with full information, without the k."""
    return math.sqrt(math.log(k) / ((1 if full else k) * tau)) / (setting.m * setting.b)


def known_step(setting: Setting, v: Floats, tau: int) -> Floats:
    """Return the step for a known V: the one that minimises the bound on the regret of a fixed step."""
    spread = setting.diameter**2 * (1 + math.log(tau)) / tau + v**2
    return np.asarray(np.sqrt(spread / (2 * setting.m)) / setting.lipschitz)


def bound(setting: Setting, tau: int, v: float, full: bool = False) -> dict[str, float]:
    """Return the terms of the proof's bound on the expected task-averaged regret (its fifth line), and their sum.

    ``feedback`` is what learning theta costs, ``similarity`` is sqrt(2) G V sqrt(m), and ``start`` is the rest:
    learning the start, and that only k steps are tried. ``printed`` is the proof's last line, for
    comparison: it does not follow from the fifth (docs/theory.md).
    """
    D, G, m, b = setting.diameter, setting.lipschitz, setting.m, setting.b
    k = candidates(setting, tau, full)
    c = steps(setting, k)
    feedback = 2 * m * b * math.sqrt((1 if full else k) * math.log(k) / tau)
    fixed = float(np.min((D**2 * (1 + math.log(tau)) / tau + v**2) / (2 * c) + c * m * G**2))
    similarity = math.sqrt(2) * G * v * math.sqrt(m)
    printed = m * b * math.sqrt(2 * math.log(tau) / tau) + 4 * D * math.sqrt((1 + math.log(tau)) / (2 * tau))
    printed += (D * G / tau + 2 * G * v) * math.sqrt(m / 2)
    terms = {"feedback": feedback, "start": fixed - similarity, "similarity": similarity}
    return terms | {"total": feedback + fixed, "printed": printed}


# Tasks, and what each step costs on them


def draw(setting: Setting, where: Generator, around: Generator, n: int) -> tuple[Floats, Floats]:
    """Return n tasks: their optima in [-1, 1]^d, to be scaled, and their points around the optimum."""
    optima = where.uniform(-1, 1, (n, setting.dimensions))
    scale = setting.noise * setting.diameter / math.sqrt(setting.dimensions)
    points = around.laplace(0, scale, (n, setting.m, setting.dimensions))
    return optima, points - np.median(points, axis=1, keepdims=True)


def regrets(setting: Setting, starts: Floats, optima: Floats, points: Floats, sizes: Floats) -> Floats:
    """Return [tasks, sizes]: each task's regret under OGD with each step size, against the task's optimum.

    ``starts`` and ``optima`` are [tasks, d], ``points`` [tasks, m, d].
    """
    slope = setting.lipschitz / math.sqrt(setting.dimensions)  # of a loss, along each coordinate
    paid = np.zeros((len(starts), sizes.size))
    for at in range(0, len(starts), _BLOCK):
        some = slice(at, at + _BLOCK)
        w = np.repeat(starts[some, :, None], sizes.size, axis=2)
        for i in range(setting.m):
            gap = w - points[some, i, :, None]
            w -= np.copysign(sizes * slope, gap)
            np.clip(w, -setting.half, setting.half, out=w)
            paid[some] += np.abs(gap, out=gap).sum(axis=1)
    least = np.abs(optima[:, None] - points).sum(axis=(1, 2))
    return np.asarray(slope * (paid - least[:, None]))


# Tuners


def play(log_theta: Floats, costs: Floats, values: Floats, draws: Floats, eta: float) -> tuple[Floats, Floats, Floats]:
    """Play FedEx for many runs at once, with B = 1 and lambda = 0.

    ``costs`` and ``values`` are [runs, tasks, k]: what a step costs, and what the client reports of it; ``draws`` are
    [runs, tasks] in [0, 1). Returns log theta, each run's cost in expectation over its draws of the step, and its
    lowest eta value / theta: the proof's bandit lemma wants it >= -1. `replay` is the same with fedex.py's functions.
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


def replay(values: Floats, rng: Generator, eta: float, full: bool = False) -> Floats:
    """Return theta after FedEx on [tasks, k] values, by the functions that tune a federation.

    Algorithm 2 with a constant step has eta = sqrt(2 log k), so the values are given in units that make it ``eta``; a
    belief without a past has lambda = 0. With full information every candidate reports, with theta as its weight:
    the estimate of the gradient is then the gradient.
    """
    k = values.shape[1]
    belief, unit = uniform(k), eta / math.sqrt(2 * math.log(k))
    for row in values * unit:
        chosen: Sequence[int] = range(k) if full else choose(belief, 1, rng)
        weights = belief.theta if full else np.ones(1)
        belief = exponentiate(Belief(belief.log_theta), chosen, list(row[list(chosen)]), list(weights), "constant")
    return belief.theta


def hedge(past: Floats, costs: Floats, eta: float) -> tuple[Floats, Floats]:
    """Play with full information for many runs at once: theta is proportional to exp(-eta (the sum of past costs)).

    ``past`` is [runs, k], ``costs`` [runs, tasks, k]. Returns the new past and each run's expected cost.
    """
    sums = past[:, None] + np.cumsum(costs, axis=1)
    before = np.concatenate([past[:, None], sums[:, :-1]], axis=1)
    theta = np.exp(-eta * (before - before.min(axis=2, keepdims=True)))
    expected = (theta * costs).sum(axis=2) / theta.sum(axis=2)
    return sums[:, -1], np.asarray(expected.sum(axis=1))


# The experiment


def horizons(tau: int) -> list[int]:
    """Return the numbers of tasks to compare: from 100 up to tau, about two in a decade."""
    if tau < 10 * SHORTEST:
        raise SpecError(f"tau = {tau}, but a rate needs at least {10 * SHORTEST} tasks")
    n = 1 + round(2 * math.log10(tau / SHORTEST))
    return [round(x) for x in np.geomspace(SHORTEST, tau, n)]


def spreads(setting: Setting, seeds: int, at: Sequence[int]) -> Floats:
    """Return [horizons, similarities, seeds]: V of the first tasks, as the theorem defines it."""
    scale = np.asarray(setting.similarities) * setting.diameter * math.sqrt(3 / setting.dimensions)
    found = np.zeros((len(at), len(scale), seeds))
    for seed in range(seeds):
        where = stream(seed, "theory", "optima").uniform(-1, 1, (at[-1], setting.dimensions))
        for h, tau in enumerate(at):
            found[h, :, seed] = scale * math.sqrt(where[:tau].var(axis=0).sum())
    return found


def tables(setting: Setting, seeds: int, tau: int, sizes: Floats, edges: Sequence[int]) -> Iterator[tuple[int, Floats]]:
    """Yield (first task, [runs, tasks, sizes]) up to tau: the regret of each step; a run is a (similarity, seed).

    ``sizes`` is [runs, sizes]. The tables are cut at ``edges``; how they are cut changes nothing.
    """
    d, n = setting.dimensions, len(setting.similarities)
    scale = np.repeat(np.asarray(setting.similarities) * setting.diameter * math.sqrt(3 / d), seeds)
    centre = np.stack([stream(seed, "theory", "centre").uniform(-1, 1, d) for seed in range(seeds)])
    centre = np.tile(centre, (n, 1)) * (setting.half - scale)[:, None]
    streams = [(stream(seed, "theory", "optima"), stream(seed, "theory", "points")) for seed in range(seeds)]
    sums = np.zeros((n * seeds, d))
    cuts = sorted({0, tau, *range(0, tau, _CHUNK), *(e for e in edges if e < tau)})
    for first, last in pairwise(cuts):
        drawn = [draw(setting, *pair, last - first) for pair in streams]
        table = np.empty((n * seeds, last - first, sizes.shape[1]))
        for run in range(n * seeds):
            where, points = drawn[run % seeds]
            optima = centre[run] + scale[run] * where
            sum_before = sums[run] + np.cumsum(optima, axis=0) - optima
            starts = sum_before / np.maximum(np.arange(first, last), 1)[:, None]  # the server's step 1/t: the mean
            sums[run] = sum_before[-1] + optima[-1]
            inside = np.clip(optima[:, None] + points, -setting.half, setting.half)  # keeps the median
            table[run] = regrets(setting, starts, optima, inside, sizes[run])
        yield first, table


def measure(setting: Setting, tau: int, seeds: int, tell: Tell = lambda done, total: None) -> dict[str, Any]:
    """Return each tuner's task-averaged regret, [horizons, similarities, seeds], in units of D G sqrt(m)."""
    if seeds < 2:
        raise SpecError(f"seeds = {seeds}, but an interval needs at least 2")
    at, n = horizons(tau), len(setting.similarities)
    v = spreads(setting, seeds, at)
    most, runs = max(candidates(setting, tau), candidates(setting, tau, full=True)), n * seeds
    known = np.stack([known_step(setting, v[h].reshape(-1), t) for h, t in enumerate(at)], axis=1)
    sizes = np.concatenate([np.tile(steps(setting, most), (runs, 1)), known, np.zeros((runs, 1))], axis=1)

    ks = [(candidates(setting, t), candidates(setting, t, full=True)) for t in at]
    thetas = [np.full((2 * runs, k), -math.log(k)) for k, _ in ks]  # FedEx on both signals
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
        tell(first + count, tau)
    scale = np.asarray(at)[:, None] * setting.unit
    regret = {name: (total / scale).reshape(len(at), n, seeds) for name, total in found.items()}
    modes = [np.exp(theta[:runs]).max(axis=1).reshape(n, seeds) for theta in thetas]
    return {"tau": at, "k": ks, "v": v / setting.diameter, "regret": regret, "mode": np.stack(modes), "lowest": lowest}


def check(setting: Setting, tau: int = 1000, seed: int = 0) -> float:
    """Return how far `play` and `hedge` end from fedex.py's own functions: the largest difference in theta."""
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


def rate(tau: Sequence[int], excess: Floats) -> NDArray[np.float64]:
    """Return each seed's exponent: the least-squares slope of log excess ([horizons, seeds]) against log tau."""
    x = np.log(np.asarray(tau, dtype=float))
    x = x - x.mean()
    return np.asarray(x @ np.log(np.maximum(excess, 1e-12)) / (x @ x))


def straightness(tau: Sequence[int], excess: Floats, level: float = LEVEL) -> float:
    """Return half the interval of the mean exponent that the line's own misfit leaves, whatever the seeds agree on.

    It is the regression's, of the mean log excess over seeds; a curve that bends has a wide one.
    """
    x = np.log(np.asarray(tau, dtype=float))
    x = x - x.mean()
    y = np.log(np.maximum(excess, 1e-12)).mean(axis=1)
    misfit = y - y.mean() - (x @ y) / (x @ x) * x
    freedom = len(x) - 2
    return float(quantile((1 + level) / 2, freedom) * math.sqrt(misfit @ misfit / freedom / (x @ x)))
