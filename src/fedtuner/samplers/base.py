"""From the number of an arm to its hyperparameters.

A *proposer* gives an arm's b and c_1; ``local`` makes the arm of them: FedEx's other candidates around c_1. An arm is a
function of the seed, its number and the arms proposed before it with their scores, so that a study gets the same arms
on any number of workers and after any stop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from fedtuner.arm import Arm
from fedtuner.fedex import FedEx
from fedtuner.methods.base import Method, defaults
from fedtuner.rng import stream
from fedtuner.schedules import Schedule
from fedtuner.space import Space, Value, draw, near


@dataclass(frozen=True)
class Past:
    """An arm that was proposed before: what it is and, once its bracket has finished, its score at each rung."""

    arm: Arm
    first: int  # the first arm of its bracket: those of one bracket are proposed without each other's scores
    scores: Mapping[int, float] = field(default_factory=dict)  # by round; none: it has not finished


Configs = tuple[dict[str, Value], dict[str, Value]]  # of the client, of the server
Sampler = Callable[..., Arm]  # (id, past=()) -> Arm


@runtime_checkable
class Proposer(Protocol):
    """What proposes the b and c_1 of arms: ``uniform``, or one that learns."""

    @property
    def learns(self) -> bool:
        """Whether proposals depend on the arms before."""
        ...

    def propose(self, space: Space, seed: int, id: int, first: int, past: Sequence[Past]) -> Configs:
        """Return a client and a server configuration for arm ``id`` of the bracket that begins at arm ``first``.

        ``past`` are the arms 0..id-1; those of the same bracket have no scores yet.
        """
        ...

    def check(self, space: Space, schedule: Schedule) -> None:
        """Refuse spaces and schedules that it cannot work with."""
        ...

    def describe(self) -> Any:
        """Return what stands for it in a study.toml and in a store's spec."""
        ...


@dataclass(frozen=True)
class Uniform:
    """The paper's: every arm a fresh draw, uniform in the sampling scales."""

    learns = False

    def propose(self, space: Space, seed: int, id: int, first: int, past: Sequence[Past]) -> Configs:
        """Return a uniform draw."""
        return draw(space.client, stream(seed, "arm", id, "client")), draw(
            space.server, stream(seed, "arm", id, "server")
        )

    def check(self, space: Space, schedule: Schedule) -> None:
        """Take everything."""

    def describe(self) -> str:
        """Return its name."""
        return "uniform"


uniform = Uniform()


def local(space: Space, method: Method, settings: FedEx, seed: int, proposer: Proposer = uniform) -> Sampler:
    """Return the paper's sampler: b and c_1 as proposed, c_2..c_k from the eps-neighbourhood of c_1.

    An arm's b and c_1 do not depend on k, so a study with FedEx and one without it meet the same arms. Hyperparameters
    that the space does not name keep the method's defaults; a model keeps its own.
    """
    fixed = defaults(method.client)

    def arm(id: int, first: int = 0, past: Sequence[Past] = ()) -> Arm:
        centre, drawn = proposer.propose(space, seed, id, first, past)
        others = (
            near(space.client, centre, settings.eps, stream(seed, "arm", id, "candidate", j))
            for j in range(1, settings.k)
        )
        gamma = float(stream(seed, "arm", id, "gamma").random()) if settings.gamma is None else settings.gamma
        return Arm(id, defaults(method.server) | drawn, tuple(fixed | c for c in (centre, *others)), gamma)

    return arm
