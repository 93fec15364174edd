"""The paper's sampler: every arm a fresh draw, uniform in the sampling scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedtuner.core.sampler import Configs, Past
from fedtuner.core.schedule import Schedule
from fedtuner.rng import stream
from fedtuner.space import Space


@dataclass(frozen=True)
class Uniform:
    """Every arm a fresh draw, uniform in the sampling scales."""

    learns = False

    def propose(self, space: Space, seed: int, id: int, first: int, past: Sequence[Past]) -> Configs:
        client, server = stream(seed, "arm", id, "client"), stream(seed, "arm", id, "server")
        return space.draw(client, server)

    def check(self, space: Space, schedule: Schedule) -> None:
        """Take everything."""

    def describe(self) -> str:
        return "uniform"


uniform = Uniform()
