"""CIFAR-10 with the network of McMahan et al. 2017, or a hundred of its devices with a small one."""

from __future__ import annotations

from functools import partial

from fedtuner.data.cifar10 import clients
from fedtuner.federations import Simulation
from fedtuner.problems.models import cifar_cnn, small_cnn
from fedtuner.tasks.pytorch import Task


def problem() -> Simulation:
    """Return all devices; the network draws a random crop of each image in training."""
    return Simulation(Task(cifar_cnn), clients(), "cifar10")


def problem_small() -> Simulation:
    """Return a hundred of the devices with a small network."""
    return Simulation(Task(partial(small_cnn, 3, 10, 32)), clients(limit=100), "cifar10-small")
