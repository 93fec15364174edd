"""What tunes client configurations within an arm: FedEx, FedPop's client vectors, or nothing."""

from typing import Any

from fedtuner import checks, tables
from fedtuner.core.schedule import Schedule
from fedtuner.core.tuner import Tuner
from fedtuner.tuners import fedex
from fedtuner.tuners.fedex import FedEx
from fedtuner.tuners.fedpop import FedPop
from fedtuner.tuners.none import Untuned, none

KINDS = {"fedex": FedEx, "fedpop": FedPop, "none": Untuned}


def inside(schedule: Schedule | None, cohort: Any = 10) -> Tuner | None:
    """Return the tuner that a schedule was published with, for cohorts of a size; None if it has none of its own."""
    table = getattr(schedule, "tuner", None)
    if table is None:
        return None
    size = {"k": int(cohort)} if checks.is_whole(cohort) and cohort > 0 else {}
    return tables.read(KINDS, {**table, **size}, "tuner", "none")  # type: ignore[no-any-return]


__all__ = ["KINDS", "FedEx", "FedPop", "Untuned", "fedex", "inside", "none"]
