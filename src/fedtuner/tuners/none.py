"""No tuning within an arm: every client trains with the arm's own configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtuner.core.model import Vectors
from fedtuner.core.records import Arm, Choice, Seen, Summary, Tried
from fedtuner.core.tuner import Floats, Streams
from fedtuner.space import Config, Space


@dataclass(frozen=True)
class Untuned:
    """No tuning within an arm: the belief is the arm's configuration, and stays so."""

    kind: ClassVar[str] = "none"
    labels = 1
    tried = 1

    def begin(self, arm: Arm, space: Space, seed: int, parent: Config | None) -> Config:
        return arm.client

    def choose(self, belief: Config, n: int, streams: Streams) -> tuple[tuple[Choice, ...], ...]:
        return ((Choice(0, belief),),) * n

    def value(self, tried: Tried) -> float:
        return tried.after.error

    def update(self, belief: Config, seen: Sequence[Seen]) -> Config:
        return belief

    def best(self, belief: Config) -> Config:
        return belief

    def offers(self, belief: Config) -> tuple[tuple[Config, ...], Floats]:
        return (belief,), np.ones(1)

    def summary(self, belief: Config) -> Summary:
        return Summary()

    def pack(self, belief: Config) -> Vectors:
        return {}

    def unpack(self, begun: Config, arrays: Vectors) -> Config:
        return begun


none = Untuned()
