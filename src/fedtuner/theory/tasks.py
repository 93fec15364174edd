"""The tasks of the experiment, and the regret of every step size on each of them.

W is the box of diameter D. The i-th loss of a task is (G / sqrt(d)) |w - z_i|_1 for a point z_i in W. It is convex,
its subgradients have norm G exactly, and it lies in [0, G D], so b = G D. The points z_i are drawn around the task's
optimum w_t* and then shifted so that w_t* is their coordinate-wise median, hence an exact minimiser of the sum of the
losses. The optima are uniform on a box, whose size sets the similarity V.

The server's start depends on the optima alone, not on the step sizes that were drawn. So one table holds all that any
tuner may ask for: the regret of every step size on every task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from fedtuner.rng import Generator, stream
from fedtuner.theory.theorem import Floats, Setting

_CHUNK = 1000  # tasks of a table
_BLOCK = 64  # tasks whose descents are computed together: they fit in the processor's cache


def draw(setting: Setting, where: Generator, around: Generator, n: int) -> tuple[Floats, Floats]:
    """Return the optima of n tasks in [-1, 1]^d, which the caller scales, and each task's points around its optimum."""
    optima = where.uniform(-1, 1, (n, setting.dimensions))
    scale = setting.noise * setting.diameter / math.sqrt(setting.dimensions)
    points = around.laplace(0, scale, (n, setting.m, setting.dimensions))
    return optima, points - np.median(points, axis=1, keepdims=True)


def regrets(setting: Setting, starts: Floats, optima: Floats, points: Floats, sizes: Floats) -> Floats:
    """Return [tasks, sizes]: the regret of OGD with each step size on each task, against the task's optimum.

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
    """Yield (first task, [runs, tasks, sizes]) up to task tau: the regret of each step size on each task.

    There is a run for each pair of a similarity and a seed; ``sizes`` is [runs, sizes]. A table ends at each of the
    ``edges``, and after `_CHUNK` tasks; the regrets do not depend on where tables end.
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
            inside = np.clip(optima[:, None] + points, -setting.half, setting.half)  # the median stays what it is
            table[run] = regrets(setting, starts, optima, inside, sizes[run])
        yield first, table
