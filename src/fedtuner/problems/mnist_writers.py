"""MNIST by writer with a small convolutional network."""

from __future__ import annotations

from functools import partial

from fedtuner.data.mnist_writers import clients
from fedtuner.federations import Client, Simulation
from fedtuner.problems.models import small_cnn
from fedtuner.tasks.pytorch import Task


def problem() -> Simulation:
    """Return all writers."""
    return _problem("mnist-writers", clients())


def problem_iid() -> Simulation:
    """Return all examples, dealt out at random to clients as large as the writers."""
    return _problem("mnist-writers-iid", clients(by="chance"))


def problem_small() -> Simulation:
    """Return a hundred of the writers of the training part."""
    return _problem("mnist-writers-small", clients("train", limit=100))


def problem_iid_small() -> Simulation:
    """Return the examples of the same hundred writers, dealt out at random."""
    return _problem("mnist-writers-iid-small", clients("train", limit=100, by="chance"))


def _problem(name: str, chosen: list[Client]) -> Simulation:
    return Simulation(Task(partial(small_cnn, 1, 10, 28)), chosen, name)
