"""Work that has one answer: a leg of an arm ("arm 7 up to round 150"), a client's job, a client's assessment.

So it can be cut, repeated after a death, and done anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedtuner import engines
from fedtuner.arm import Arm, Record, Setting, State, begin, rounds
from fedtuner.arm import work as work_of_client
from fedtuner.federation import Report, Simulation
from fedtuner.memory import Spilled, memory_of, recall
from fedtuner.methods.base import Job, Vectors
from fedtuner.task import Metrics


@dataclass(frozen=True)
class Place:
    """What every worker has."""

    setting: Setting
    problem: Simulation
    folder: Path  # for client memory that is too large for a state


@dataclass(frozen=True)
class Leg:
    """Advance an arm from its state (None: from the beginning) to round ``until``."""

    arm: Arm
    state: State | None
    until: int


@dataclass(frozen=True)
class Assessment:
    """Measure a model at one client; what the client remembers is read where the work is done."""

    job: Job
    memory: Vectors | Spilled


@dataclass(frozen=True)
class Share:
    """Several clients' work for one worker: what to do, and the jobs with their numbers."""

    what: Callable[[Place, Any], Any]
    numbers: tuple[int, ...]
    jobs: tuple[Any, ...]


@dataclass(frozen=True)
class Progress:
    """Rounds that an arm has done, and its state after the last of them where it was sent along."""

    arm: int
    records: tuple[Record, ...]
    state: State | None


def advance(
    place: Place, leg: Leg, stop: Callable[[], bool], work_all: Callable[[Sequence[Job]], list[Report]] | None = None
) -> Iterator[Progress]:
    """Do a leg round by round until it ends or is stopped."""
    setting, problem, folder = place.setting, place.problem, memory_of(place.folder, leg.arm.id)
    work_all = work_all or partial(engines.work_all, setting, problem)
    state = begin(setting, problem, leg.arm) if leg.state is None else leg.state
    if state.round == 0:
        yield Progress(leg.arm.id, (), state)
    for following, record in rounds(setting, problem, leg.arm, state, leg.until, folder, work_all):
        yield Progress(leg.arm.id, (record,), following)
        if stop():
            return


def work(place: Place, job: Job) -> Report:
    """Do a client's job."""
    return work_of_client(place.setting.method, place.problem, job)


def assess(place: Place, assessment: Assessment) -> tuple[Metrics, Metrics]:
    """Return what a client measures before and after local training."""
    report = work(place, replace(assessment.job, memory=recall(assessment.memory)))
    return report.before, report.after
