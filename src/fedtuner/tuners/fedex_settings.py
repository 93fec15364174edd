"""The settings of FedEx, and of tuners that are built on it: their checks, and what a prior says of an arm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtuner import checks
from fedtuner.core.records import Arm, Tried
from fedtuner.core.tuner import Floats
from fedtuner.errors import SpecError, brief
from fedtuner.space import Config
from fedtuner.tables import Table

STEPS = ("aggressive", "adaptive", "constant", "none")
METRICS = ("error", "loss")
SIGNALS = ("absolute", "improvement")
MOST = 10_000  # candidates: every arm draws all of them and the journal lists them
DOUBT = 0.2  # of a prior's theta, the part that is spread over all candidates


@dataclass(frozen=True)
class Settings:
    """How FedEx tunes: the number of candidates, their spread, and the update of theta."""

    k: int = 27  # candidates per arm; 1 is plain training
    eps: float = 0.1  # candidates 2..k are drawn from the eps-neighbourhood of the first; 1 is the whole space
    step: str = "aggressive"  # eta_t: aggressive, adaptive or constant; none leaves theta uniform
    gamma: float | None = None  # discount of the baseline lambda_t; None draws it from U[0, 1] per arm
    metric: str = "error"  # the clients' validation value that moves theta: error or loss
    cutoff: float = 0.0  # once theta's entropy (nats) is below this, theta stays and all clients use its mode
    signal: str = "absolute"  # absolute: the value after local training; improvement: after minus before
    tries: int | str = 1  # candidates that a client tries in a round, or "all"; the first one's update is used
    prior: tuple[Table, ...] | None = None  # what arms begin with whose c_1 is its mode: candidates and theta

    def __post_init__(self) -> None:
        k, eps = checks.whole("fedex.k", self.k, 1, MOST), checks.number("fedex.eps", self.eps)
        gamma = self.gamma
        if gamma is not None:
            gamma = checks.number("fedex.gamma", gamma, 0, 1, " (or left out: drawn per arm)")
        cutoff = checks.number("fedex.cutoff", self.cutoff)
        checks.one_of("fedex.step", self.step, STEPS)
        checks.one_of("fedex.metric", self.metric, METRICS)
        checks.one_of("fedex.signal", self.signal, SIGNALS)
        tries = checks.python(self.tries)
        if not checks.is_whole(tries) and not (isinstance(tries, str) and tries == "all"):
            raise SpecError(f"fedex.tries = {brief(tries)}, but must be a whole number or 'all'")
        checks.settle(self, k=k, eps=eps, gamma=gamma, cutoff=cutoff, tries=tries)
        if self.prior is not None:
            if not isinstance(self.prior, Sequence) or isinstance(self.prior, str):
                raise SpecError(f"fedex.prior = {brief(self.prior)}, but must be a list of tables")
            checks.settle(self, prior=tuple(map(_checked, self.prior)))
        if not 1 <= self.tried <= k:
            raise SpecError(f"fedex.tries = {brief(tries)}, but must be from 1 to the {k} candidates (fedex.k)")

    @property
    def tried(self) -> int:
        """How many candidates a client tries in a round, while theta moves."""
        return self.k if self.tries == "all" else int(self.tries)

    @property
    def labels(self) -> int:
        """k: values can be summed by candidate, as the gradient is linear in them."""
        return self.k

    def known(self, arm: Arm) -> tuple[tuple[Config, ...], Floats | None]:
        """Return the candidates that an arm has before any are drawn, its own first; and theta, if a prior knows it."""
        for prior in self.prior or ():
            ranked = sorted(zip(prior["theta"], prior["candidates"], strict=True), key=lambda pair: -pair[0])[: self.k]
            if all(arm.client.get(name) == value for name, value in ranked[0][1].items()):
                share = np.array([p for p, _ in ranked] + [0.0] * (self.k - len(ranked)))
                theta = (1 - DOUBT) * share / share.sum() + DOUBT / self.k
                return tuple({**arm.client, **config} for _, config in ranked), theta
        return (arm.client,), None


def value(tried: Tried, metric: str, signal: str) -> float:
    """Return the validation value after local training; for the signal "improvement" minus the one before."""
    after = float(getattr(tried.after, metric))
    return after - float(getattr(tried.before, metric)) if signal == "improvement" else after


def _checked(prior: Any) -> Table:
    """Return a prior, if it is one."""
    try:
        candidates, theta = tuple(map(dict, prior["candidates"])), tuple(map(float, prior["theta"]))
        if candidates and len(candidates) == len(theta) and min(theta) >= 0 and 0 < sum(theta) < math.inf:
            return {"candidates": candidates, "theta": theta}
    except (TypeError, LookupError, ValueError):
        pass
    raise SpecError(f"fedex.prior has {brief(prior)}, but must have tables of candidates and their theta")
