"""Which worker does what: decisions without side effects, for executors of processes and of clusters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedtuner.core.executor import Advance
from fedtuner.core.records import Job

_ANSWERS = 200  # per second: as many as a driver takes from all its workers
_SAVED = 10**8  # bytes per second of states that a driver saves
_MOMENT = 0.25  # seconds that a worker works, at least, before it answers
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


def pace(workers: int) -> float:
    """Return how many seconds a worker of so many works before it answers, so that the driver can follow them all.

    >>> [pace(workers) for workers in (1, 50, 1000)]
    [0.25, 0.25, 5.0]
    """
    return max(_MOMENT, workers / _ANSWERS)


def interval(every: float, arms: int, size: int) -> float:
    """Return how many seconds there are between the states of an arm that a driver saves, of so many bytes each.

    To save a gigabyte takes a driver two seconds of its processor, and it should have four fifths of it for other work.

    >>> interval(10, 27, 10**6), interval(10, 1000, 10**8)
    (10, 1000.0)
    """
    return max(every, arms * size / _SAVED)


def places(nodes: Sequence[Mapping[str, float]], need: Mapping[str, float]) -> int:
    """Return how many workers that need these resources fit on nodes that have those.

    >>> places([{"CPU": 4}, {"CPU": 8, "GPU": 1}], {"CPU": 2}), places([{"CPU": 4}], {"CPU": 1, "GPU": 1})
    (6, 0)
    """
    amounts = {name: amount for name, amount in need.items() if amount > 0}
    return sum(min(int(node.get(name, 0) / amount + 1e-9) for name, amount in amounts.items()) for node in nodes)


def neediest(helpers: Sequence[int], most: int) -> int | None:
    """Return which arm gets the next idle worker: the one with the fewest helpers; None if none has use for more."""
    least = min(helpers, default=most)
    return helpers.index(least) if least < most else None


def fits(moving: int, size: int, room: int) -> bool:
    """Return whether so many bytes may be sent besides those that are moving; something may always move."""
    return not moving or moving + size <= room
