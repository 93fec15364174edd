"""Where rounds are computed on one machine: in this process, or in worker processes. The results are the same bits."""

from __future__ import annotations

import os

from fedtuner.core.executor import Executor
from fedtuner.core.round import Round
from fedtuner.core.store import Blobs
from fedtuner.run.executors.processes import Processes
from fedtuner.run.executors.serial import Serial


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_executor(round: Round, blobs: Blobs, workers: int | None) -> Executor:
    """Return an executor with this many workers, by default one per core; one worker is this process."""
    wanted = workers or cores()
    return Serial(round, blobs) if wanted == 1 else Processes(round, blobs, wanted)


__all__ = ["Processes", "Serial", "cores", "open_executor"]
