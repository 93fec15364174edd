"""How the jobs of a round are done in one process: one client after the other, or many small ones at once.

A model's ``engine("auto")`` decides by the kind of model, not by measured time: engines agree up to rounding, not to
the bit, so the choice must be the same on every machine and in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedtuner.core.records import Plan, Report
    from fedtuner.core.round import Round

ENGINES = ("auto", "sequential", "batched")


@dataclass(frozen=True)
class Engine:
    """A way to do a round's jobs."""

    name: str
    divisible: bool  # whether a round gives the same bits when its jobs are spread over several processes
    work_all: Callable[[Round, Plan], list[Report]]


def _one_by_one(round: Round, plan: Plan) -> list[Report]:
    return [round.work(plan, job) for job in plan.jobs]


sequential = Engine("sequential", True, _one_by_one)
