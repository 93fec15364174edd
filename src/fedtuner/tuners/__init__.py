"""What tunes client configurations within an arm: FedEx, or nothing."""

from fedtuner.tuners import fedex
from fedtuner.tuners.fedex import FedEx
from fedtuner.tuners.none import Untuned, none

KINDS = {"fedex": FedEx, "none": Untuned}

__all__ = ["KINDS", "FedEx", "Untuned", "fedex", "none"]
