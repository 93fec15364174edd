"""Where rounds are computed: the protocol of executors, and the work that they are given.

"Arm 7 from this state to round 150" has one answer, so it can be cut, repeated after a crash, and done anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedtuner.core.records import Arm, Plan, Record, State, Tally

if TYPE_CHECKING:
    from fedtuner.core.round import Round
    from fedtuner.core.store import Blobs

Stop = Callable[[], bool]  # whether to stop after the rounds under way


@dataclass(frozen=True)
class Advance:
    """Bring an arm from its state to round ``until``."""

    arm: Arm
    state: State
    until: int

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        return self.state.round >= self.until or bool(self.state.ended)


@dataclass(frozen=True)
class Progress:
    """Rounds that an arm has done, and its state after the last of them where it was sent along."""

    arm: int
    records: tuple[Record, ...]
    state: State | None


class Executor(Protocol):
    """Does work that has one answer, in any order."""

    def advance(self, work: Sequence[Advance], stop: Stop) -> Iterator[Progress]:
        """Do the work, yielding progress as it comes; an arm's last progress has its state. Ends early on ``stop``."""
        ...

    def evaluate(self, plan: Plan) -> Tally:
        """Do an evaluation's jobs and return the tally of what their clients measured."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


OpenExecutor = Callable[["Round", "Blobs", "int | None"], Executor]  # the last: how many workers; None is the default
