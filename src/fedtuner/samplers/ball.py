"""The candidates of one arm as arms of their own: how much do configurations in FedEx's neighbourhood differ?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedtuner import checks
from fedtuner.core.sampler import Configs, Past
from fedtuner.core.schedule import Schedule
from fedtuner.rng import stream
from fedtuner.space import Space


@dataclass(frozen=True)
class Ball:
    """Arm 0 as ``uniform`` has it; arm j with its b, and the c_{j+1} that FedEx would try in arm 0."""

    kind: ClassVar[str] = "ball"
    eps: float = 0.1  # the size of the neighbourhood; 0: all arms are equal, and differ by chance alone

    learns = False

    def __post_init__(self) -> None:
        checks.settle(self, eps=checks.number("sampler.eps", self.eps))

    def propose(self, space: Space, seed: int, id: int, first: int, past: Sequence[Past]) -> Configs:
        centre, server = space.draw(stream(seed, "arm", 0, "client"), stream(seed, "arm", 0, "server"))
        near = space.near(centre, self.eps, stream(seed, "arm", 0, "candidate", id), server) if id else centre
        return near, server

    def check(self, space: Space, schedule: Schedule) -> None:
        """Take everything."""
