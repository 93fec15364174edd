"""Where rounds are computed: in this process, in worker processes, or on a cluster. The results are the same bits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from fedtuner.core.executor import Executor, OpenExecutor
from fedtuner.core.round import Round
from fedtuner.core.store import Blobs
from fedtuner.run.executors.on_ray import Ray
from fedtuner.run.executors.processes import Processes
from fedtuner.run.executors.serial import Serial


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class OnThisMachine:
    """Worker processes, by default one per core; one worker is this process."""

    kind: ClassVar[str] = "processes"

    def __call__(self, round: Round, blobs: Blobs, workers: int | None) -> Executor:
        wanted = workers or cores()
        return Serial(round, blobs) if wanted == 1 else Processes(round, blobs, wanted)


open_executor = OnThisMachine()  # unless another is asked for
KINDS: dict[str, type[OpenExecutor]] = {"processes": OnThisMachine, "ray": Ray}

__all__ = ["KINDS", "OnThisMachine", "Processes", "Ray", "Serial", "cores", "open_executor"]
