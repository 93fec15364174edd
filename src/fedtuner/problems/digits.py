"""scikit-learn's digits with a small perceptron."""

from __future__ import annotations

from functools import partial

from fedtuner.data.digits import clients
from fedtuner.federations import Simulation
from fedtuner.problems.models import mlp
from fedtuner.tasks.pytorch import Task


def problem() -> Simulation:
    """Return the digits with each client's examples shuffled."""
    return Simulation(_task(), clients(), "digits")


def problem_in_order() -> Simulation:
    """Return the digits with each client tested on those that it wrote last."""
    return Simulation(_task(), clients(order="in-order"), "digits-in-order")


def _task() -> Task:
    return Task(partial(mlp, 64, 64, 10))
