"""Where rounds are computed: the protocol of executors, and the records of their work.

The result of "arm 7 from this state to round 150" does not depend on who computes it or in how many pieces, so the work
can be split, moved, and repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedtuner.core.records import Arm, Plan, Record, State, Tally

if TYPE_CHECKING:
    from fedtuner.core.round import Round
    from fedtuner.core.store import Blobs

Stop = Callable[[], bool]  # whether to stop once the current rounds are done


@dataclass(frozen=True)
class Advance:
    """Work to do: train an arm from its state up to round ``until``."""

    arm: Arm
    state: State
    until: int

    @property
    def done(self) -> bool:
        return self.state.round >= self.until or bool(self.state.ended)


@dataclass(frozen=True)
class Progress:
    """Work done: rounds of an arm and, where it was sent along, the state after the last of them.

    Where an error ends the arm alone (``Setup.failing``), its last progress has the error and the state before it.
    """

    arm: int
    records: tuple[Record, ...]
    state: State | None
    error: str = ""


class Executor(Protocol):
    """Computes rounds and evaluations; the arms of one call may run in any order."""

    def advance(self, work: Sequence[Advance], stop: Stop) -> Iterator[Progress]:
        """Do the work and yield progress; an arm's last progress has its state. End early once ``stop()`` is true."""

    def evaluate(self, plan: Plan) -> Tally:
        """Do an evaluation's jobs and return their tally."""

    def close(self) -> None:
        """End the workers."""


OpenExecutor = Callable[["Round", "Blobs", "int | None"], Executor]  # the last: number of workers, None for the default
