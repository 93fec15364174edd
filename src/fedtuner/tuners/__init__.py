"""What tunes client configurations within an arm: FedEx, with a kernel too; a Gaussian; FedPop's vectors; nothing."""

from typing import Any

from fedtuner import checks, tables
from fedtuner.core.schedule import Schedule
from fedtuner.core.tuner import Tuner
from fedtuner.tuners import fedex
from fedtuner.tuners.fedex import FedEx
from fedtuner.tuners.fedpop import FedPop
from fedtuner.tuners.gaussian import Gaussian
from fedtuner.tuners.kernel import Kernel
from fedtuner.tuners.none import Untuned, none

KINDS = {"fedex": FedEx, "fedpop": FedPop, "gaussian": Gaussian, "kernel": Kernel, "none": Untuned}


def inside(schedule: Schedule | None, cohort: Any = 10) -> Tuner | None:
    """Return the tuner that a schedule was published with, for cohorts of a size; None if it has none of its own."""
    table = getattr(schedule, "tuner", None)
    if table is None:
        return None
    size = {"k": int(cohort)} if checks.is_whole(cohort) and cohort > 0 else {}
    return tables.read(KINDS, {**table, **size}, "tuner", "none")  # type: ignore[no-any-return]


__all__ = ["KINDS", "FedEx", "FedPop", "Gaussian", "Kernel", "Untuned", "fedex", "inside", "none"]
