"""Who proposes the arms: the protocol of samplers.

A proposal is a function of the seed, the arm's number, and the earlier arms with their scores: a study has the same
arms for any number of workers and after any interruption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from fedtuner.core.records import Arm
from fedtuner.core.schedule import Schedule
from fedtuner.space import Space, Value

Configs = tuple[dict[str, Value], dict[str, Value]]  # of the client, of the server


@dataclass(frozen=True)
class Past:
    """An arm proposed earlier and, once it was compared with others, its score at each rung."""

    arm: Arm
    first: int  # the lowest of the arms started together with it; they do not know each other's scores
    scores: Mapping[int, float] = field(default_factory=dict)  # by round; empty while it is running


@runtime_checkable
class Sampler(Protocol):
    """Proposes client and server configurations of arms. A frozen dataclass, or an object with ``describe()``."""

    @property
    def learns(self) -> bool:
        """Whether proposals depend on earlier arms."""

    def propose(self, space: Space, seed: int, id: int, first: int, past: Sequence[Past]) -> Configs:
        """Return a client and a server configuration for arm ``id``; ``first`` is the lowest of those started with it.

        ``past`` are the earlier arms; those that start together with this one have no scores.
        """

    def check(self, space: Space, schedule: Schedule) -> None:
        """Refuse spaces and schedules that it cannot work with."""
