"""FedEx whose update knows the distance of configurations: a value also counts for candidates near its own.

FedEx (fedex.py) takes its k candidates for unrelated, and hears of each only when it is drawn. But candidates that are
near to each other do similarly well. With kappa(j, l) = exp(-d(j, l)^2 / (2 width_t^2)) the gradient is

    gradient_j = sum_i |V_i| (L_i - lambda_t) kappa(j, j_i) / (sum_l kappa(j, l) theta_l  sum_i |V_i|)
    width_t    = width H(theta) / log k

the estimate of exponential weights by a kernel (Bubeck, Lee and Eldan, "Kernel-Based Methods for Bandit Convex
Optimization", STOC 2017); all else is FedEx's. Its expectation is the mean of the values around candidate j, by kappa
and theta: candidates that are seldom drawn borrow from their neighbours, where FedEx divides what it has by a small
theta. With a constant width a neighbour of the best candidate that has most of theta would keep it, as all near it seem
equally good. So the width falls with theta's entropy H: as theta gets sure, it becomes FedEx, as for width 0.

d is the Euclidean distance of the client's hyperparameters as places in their ranges, each from 0 to 1 in the sampling
scale (``Ordered.unit``: a learning rate by its logarithm). Values of a ``Choice`` are at distance 0 or 1, as is a
conditional hyperparameter that only one of the two has. By default the width is half the root mean square distance of
the candidates, however many hyperparameters there are and however near candidates lie.

Gradients are linear in the values, so sums by candidate are enough: secure aggregation and privacy carry it, as FedEx.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtuner import checks
from fedtuner.core.model import Vectors
from fedtuner.core.records import Arm, Choice, Seen, Summary, Tried
from fedtuner.core.tuner import Floats, Streams
from fedtuner.space import Config, Domain, Ordered, Space, absent, unconditional
from fedtuner.tuners import fedex
from fedtuner.tuners.fedex import FedEx
from fedtuner.tuners.fedex_settings import Settings

MOST = 1000  # candidates: the kernel has the square of that


@dataclass(frozen=True)
class Kernel(Settings):
    """FedEx in which a value also counts for the candidates near its own."""

    kind: ClassVar[str] = "kernel"
    width: float | None = None  # as a part of the ranges; None: half the candidates' distance; 0 is FedEx

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("tuner.k", self.k, 1, MOST)
        if self.width is not None:
            checks.settle(self, width=checks.number("tuner.width", self.width))

    @cached_property
    def _fedex(self) -> FedEx:
        return FedEx(**{f.name: getattr(self, f.name) for f in fields(Settings)})

    def begin(self, arm: Arm, space: Space, seed: int, parent: Belief | None) -> Belief:
        """Return FedEx's belief, with the distances of its candidates."""
        begun = self._fedex.begin(arm, space, seed, None if parent is None else parent.fedex)
        return Belief(begun, squared_distances(begun.candidates, space))

    def choose(self, belief: Belief, n: int, streams: Streams) -> tuple[tuple[Choice, ...], ...]:
        return self._fedex.choose(belief.fedex, n, streams)

    def value(self, tried: Tried) -> float:
        return self._fedex.value(tried)

    def update(self, belief: Belief, seen: Sequence[Seen]) -> Belief:
        """Update theta as FedEx does, with each value spread over the candidates near its own."""
        width = usual_width(belief.squares) if self.width is None else self.width
        part = belief.fedex.theta.entropy / math.log(self.k) if self.k > 1 else 1.0
        spread = kernel(belief.squares, width * part)
        return replace(belief, fedex=self._fedex.update(belief.fedex, seen, spread))

    def best(self, belief: Belief) -> Config:
        return self._fedex.best(belief.fedex)

    def offers(self, belief: Belief) -> tuple[tuple[Config, ...], Floats]:
        return self._fedex.offers(belief.fedex)

    def summary(self, belief: Belief) -> Summary:
        return self._fedex.summary(belief.fedex)

    def pack(self, belief: Belief) -> Vectors:
        return self._fedex.pack(belief.fedex)

    def unpack(self, begun: Belief, arrays: Vectors) -> Belief:
        return replace(begun, fedex=self._fedex.unpack(begun.fedex, arrays))


@dataclass(frozen=True)
class Belief:
    """What FedEx knows in an arm, and the squared distances of its candidates."""

    fedex: fedex.Belief
    squares: Floats


def kernel(squares: Floats, width: float) -> Floats:
    """Return kappa for squared distances; at distance 0 it is 1, whatever the width."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        made = np.exp(-squares / (2 * width * width))
    return np.where(squares == 0, 1.0, made)


def usual_width(squares: Floats) -> float:
    """Return half the root mean square distance of candidates that are not equal."""
    apart = squares[squares > 0]
    return 0.5 * math.sqrt(float(apart.mean())) if apart.size else 0.0


def squared_distances(candidates: Sequence[Config], space: Space) -> Floats:
    """Return d^2 of all pairs of configurations."""
    total = np.zeros((len(candidates), len(candidates)))
    gone = [absent(space.client, config) for config in candidates]
    for name, domain in space.client.items():
        there = np.array([name in config and name not in out for config, out in zip(candidates, gone, strict=True)])
        apart = _apart(unconditional(domain), [config.get(name) for config in candidates], there)
        both = there[:, None] & there
        total += np.where(both, apart, np.where(there[:, None] == there, 0.0, 1.0)) ** 2
    return total


def _apart(domain: Domain, values: Sequence[object], there: NDArray[np.bool_]) -> Floats:
    """Return the distances of all pairs of values of a domain."""
    if isinstance(domain, Ordered):
        places = np.array([domain.unit(value) if known else 0.0 for value, known in zip(values, there, strict=True)])
        return np.asarray(np.abs(places[:, None] - places))
    kinds = np.array([values.index(value) for value in values])
    return np.asarray(kinds[:, None] != kinds, np.float64)
