"""What tunes client configurations within an arm: FedEx, FedEx with a kernel, a Gaussian belief, or nothing."""

from fedtuner.tuners import fedex
from fedtuner.tuners.fedex import FedEx
from fedtuner.tuners.gaussian import Gaussian
from fedtuner.tuners.kernel import Kernel
from fedtuner.tuners.none import Untuned, none

KINDS = {"fedex": FedEx, "gaussian": Gaussian, "kernel": Kernel, "none": Untuned}

__all__ = ["KINDS", "FedEx", "Gaussian", "Kernel", "Untuned", "fedex", "none"]
