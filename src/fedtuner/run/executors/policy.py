"""Who does what: pure decisions that process and cluster executors share. A transport only submits and waits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedtuner.core.executor import Advance
from fedtuner.core.records import Job

_STEP = 12  # examples: what a step of local training costs beside its examples, for small and large networks alike


def longest_first(work: Sequence[Advance]) -> list[Advance]:
    """Return the work in the order in which to hand it out: the most rounds first."""
    return sorted(work, key=lambda advance: advance.state.round - advance.until)


def few(workers: int, divisible: bool) -> int:
    """Return at how many arms left their rounds are split over all workers; 0 where rounds cannot be split."""
    return (workers + 1) // 2 if divisible else 0


def shares(costs: Sequence[float], workers: int) -> list[list[int]]:
    """Return the numbers of the jobs that each worker gets: the costliest first, to whoever has least to do."""
    made: list[list[int]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for n in sorted(range(len(costs)), key=lambda n: -costs[n]):
        least = loads.index(min(loads))
        made[least].append(n)
        loads[least] += costs[n]
    return [share for share in made if share]


def cost(examples: int, job: Job) -> float:
    """Return about how long a client's work takes, in examples: a step costs as much as some examples more."""
    total = 0.0
    for choice in job.choices:
        batch, epochs = float(choice.config.get("batch", examples)), float(choice.config.get("epochs", 1))
        total += epochs * (examples + _STEP * math.ceil(examples / max(batch, 1.0)))
    return total
