"""Cooling: over the last part of an arm's rounds the server takes a smaller and smaller part of its step."""

from __future__ import annotations

from fedtuner.core.records import Arm, State

COOLEST = 0.02  # the least part of its step that the server takes


def progress(arm: Arm, state: State) -> float:
    """Return the part of an arm's own rounds that is done, up to its horizon; 0 where it has none.

    A child's own rounds begin after the round of its parent from which it started.
    """
    if arm.horizon is None:
        return 0.0
    begun = arm.parent[1] if arm.parent else 0
    return min(1.0, (state.round - begun) / (arm.horizon - begun)) if arm.horizon > begun else 1.0


def part_of_step(cooling: float, done: float) -> float:
    """Return the part of its step that the server takes: it falls evenly over the last part of an arm's rounds.

    Whatever the method and its optimiser, the model moves by that part of the way it would; what else the server keeps
    (momentum, control variates) is that of the whole step, and statistics such as batch-norm's follow the clients.

    >>> [part_of_step(0.5, done) for done in (0.25, 0.5, 0.75, 1.0)]
    [1.0, 1.0, 0.5, 0.02]
    """
    return min(1.0, max(COOLEST, (1 - done) / cooling)) if cooling else 1.0
