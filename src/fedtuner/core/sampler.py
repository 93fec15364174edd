"""Who proposes the arms: the protocol of samplers.

A proposal is a function of the seed, the arm's number and the arms proposed before it with their scores, so that a
study gets the same arms on any number of workers and after any stop.
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
    """An arm that was proposed before: what it is and, once it was compared with others, its score at each rung."""

    arm: Arm
    first: int  # the first of the arms that were started with it: these are proposed without each other's scores
    scores: Mapping[int, float] = field(default_factory=dict)  # by round; empty while it is running


@runtime_checkable
class Sampler(Protocol):
    """What proposes the client and the server configuration of arms. A frozen dataclass, or has ``describe()``."""

    @property
    def learns(self) -> bool:
        """Whether proposals depend on the arms before."""
        ...

    def propose(self, space: Space, seed: int, id: int, first: int, past: Sequence[Past]) -> Configs:
        """Return a client and a server configuration for arm ``id``, one of those that start with arm ``first``.

        ``past`` are the arms proposed before; those that start together with this one have no scores.
        """
        ...

    def check(self, space: Space, schedule: Schedule) -> None:
        """Refuse spaces and schedules that it cannot work with."""
        ...
