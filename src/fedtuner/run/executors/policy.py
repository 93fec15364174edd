"""Which worker does what: decisions without side effects, for executors of processes and of clusters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedtuner.core.executor import Advance
from fedtuner.core.records import Job

_STEP = 12  # a step of local training costs as much as so many examples, in small and large networks alike


def longest_first(work: Sequence[Advance]) -> list[Advance]:
    """Return the work in the order in which to hand it out: the most rounds first."""
    return sorted(work, key=lambda advance: advance.state.round - advance.until)


def few(workers: int, divisible: bool) -> int:
    """Return the number of running arms from which on rounds are split over all workers; 0 if they cannot be."""
    return (workers + 1) // 2 if divisible else 0


def shares(costs: Sequence[float], workers: int) -> list[list[int]]:
    """Return the numbers of each worker's jobs: the costliest job first, each to the worker with the least to do."""
    made: list[list[int]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for n in sorted(range(len(costs)), key=lambda n: -costs[n]):
        least = loads.index(min(loads))
        made[least].append(n)
        loads[least] += costs[n]
    return [share for share in made if share]


def cost(examples: int, job: Job) -> float:
    """Return the estimated cost of a client's work, where one example costs 1."""
    total = 0.0
    for choice in job.choices:
        batch, epochs = float(choice.config.get("batch", examples)), float(choice.config.get("epochs", 1))
        total += epochs * (examples + _STEP * math.ceil(examples / max(batch, 1.0)))
    return total
