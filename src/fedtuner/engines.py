"""How a round's jobs are done: one client after the other, or many small ones at once.

``auto`` decides by what the model is and never by a stopwatch: the engines agree up to rounding, not to the bit, so the
choice must be the same wherever and whenever the study runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedtuner.arm import Setting, work
from fedtuner.errors import SpecError, suggest
from fedtuner.federation import Report, Simulation
from fedtuner.methods.base import Job
from fedtuner.task import Task

ENGINES = ("auto", "sequential", "batched")


def choose(name: str, task: Task) -> str:
    """Return the engine for a task: batched where it is asked for or worth it, and the model is one that it covers."""
    if name not in ENGINES:
        raise SpecError(f"engine = {name!r}, but must be one of {ENGINES}{suggest(str(name), ENGINES)}")
    if name == "sequential" or "fedtuner.pytorch" not in sys.modules:
        return "sequential"
    from fedtuner import batched

    return "batched" if batched.covers(task, worth_it=name == "auto") else "sequential"


def device(task: Task) -> str:
    """Return where a task's models are trained."""
    return str(getattr(task, "device", "cpu"))


def work_all(setting: Setting, problem: Simulation, jobs: Sequence[Job]) -> list[Report]:
    """Do a round's jobs and return their reports in order."""
    if setting.engine == "batched":
        from fedtuner import batched

        return batched.work_all(setting.method, problem, jobs)
    return [work(setting.method, problem, job) for job in jobs]
