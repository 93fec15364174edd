"""A model's evaluation from a sample of clients, with an interval.

Clients are drawn with replacement, each in proportion to its examples: by drawing examples uniformly from all clients',
and taking the clients whose they are. Hansen and Hurwitz, "On the Theory of Sampling from Finite Populations", Annals
of Mathematical Statistics, 1943. The plain mean of what the draws measure is then an unbiased estimate of the mean over
all clients by |V|, whatever their sizes, and its standard error is s / sqrt(draws). The interval of 95 % is 1.96
standard errors to each side. Where a model counts other examples than the client has (``Metrics.count``), the mean is
weighted by counted examples per example, and the standard error is that of a ratio.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedtuner import checks
from fedtuner.core.federation import Federation
from fedtuner.core.store import Evaluation
from fedtuner.core.tuner import Floats
from fedtuner.errors import SpecError
from fedtuner.rng import stream
from fedtuner.run.columns import SIDES, Columns, Ints

LEAST = 30  # clients of a sample: the interval is that of a normal distribution
MANY, ENOUGH = 100_000, 10_000  # of more clients than the first, ``fedtuner run`` evaluates a sample of the second


def usual_sample(federation: Federation) -> int | None:
    """Return how many clients ``fedtuner run`` evaluates a model on; None: all."""
    possible = federation.executor is None and not federation.model.metric.pooled
    return ENOUGH if possible and federation.population() > MANY else None


def checked(federation: Federation, given: Any) -> int | None:
    """Return a sample's size; None, all clients, where there are no more.

    Refused are clients whose sizes are not known here, and metrics that are no means over clients.
    """
    sample = checks.whole("sample", given, LEAST, remedy=": an interval needs as many")
    if federation.executor is not None:
        why = "the sizes of these clients' data are known to them alone"
        raise SpecError(f"sample = {sample}, but {why}: leave sample out to evaluate on all")
    metric = federation.model.metric
    if metric.pooled:
        why = f"{metric.name} is pooled, a value of all clients' examples together, and no mean over clients"
        raise SpecError(f"sample = {sample}, but {why}: leave sample out, or make the metric with pooled=False")
    return None if sample >= federation.population() else sample


def draw(sizes: Ints, sample: int, seed: int, split: str) -> tuple[Ints, Ints]:
    """Return the places of the clients that were drawn, and how often each was.

    The draws of a smaller sample are the first of a larger one; all models of a study are evaluated on the same.
    """
    ends = np.cumsum(sizes)
    if not len(ends) or not ends[-1]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    examples = stream(seed, "evaluation sample", split).integers(0, ends[-1], sample)
    places, times = np.unique(np.searchsorted(ends, examples, side="right"), return_counts=True)
    return places.astype(np.int64), times.astype(np.int64)


def estimate(kept: Columns, times: Ints, sizes: Ints, sample: int, population: int) -> Evaluation:
    """Return what a sample says of all clients: means, and their standard errors."""
    weights = kept.counts / sizes  # 1 where the model counts every example
    loss = [_ratio(kept.loss[side], weights, times) for side in SIDES]
    error = [_ratio(kept.error[side], weights, times) for side in SIDES]
    parts = {}
    for place, name in enumerate(kept.names):
        some = kept.groups == place
        means = [_ratio(kept.error[side][some], weights[some], times[some])[0] for side in SIDES]
        parts[f"group {name}"] = (means[0], means[1])
    return Evaluation(
        loss[0][0], loss[1][0], error[0][0], error[1][0], int(kept.counts.sum()), kept.reported,
        spread_before=error[0][1], spread_after=error[1][1], undefined=kept.undefined, breakdown=parts, sample=sample,
        population=population, loss_spread_before=loss[0][1], loss_spread_after=loss[1][1],
    )  # fmt: skip


def _ratio(values: Floats, weights: Floats, times: Ints) -> tuple[float, float]:
    """Return the weighted mean over draws, and its standard error; of draws whose value is defined."""
    known = (weights > 0) & ~np.isnan(values)
    values, weights, times = values[known], weights[known], times[known]
    draws, total = int(times.sum()), float((times * weights).sum())
    if not total:
        return math.nan, math.nan
    with np.errstate(invalid="ignore"):  # a loss that is infinite
        mean = float((times * weights * values).sum()) / total
        off = weights * (values - mean)
        squares = float((times * off * off).sum())
    return mean, math.sqrt(squares * draws / (draws - 1)) / total if draws > 1 else math.nan
