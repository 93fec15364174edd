"""FEMNIST with LEAF's network, or a hundred of its writers with a small one."""

from __future__ import annotations

from functools import partial

from fedtuner.data.femnist import CLASSES, clients
from fedtuner.federations import Simulation
from fedtuner.problems.models import femnist_cnn, small_cnn
from fedtuner.tasks.pytorch import Task


def problem() -> Simulation:
    """Return the paper's non-i.i.d. FEMNIST: each client is a writer, its own examples split at random."""
    return _problem("femnist", "writer")


def problem_iid() -> Simulation:
    """Return the i.i.d. FEMNIST: examples dealt out at random to clients as large as the writers.

    The paper says no more than "shuffled within each device", which its non-i.i.d. version is, too; dealing over all
    devices is LEAF's own i.i.d. version.
    """
    return _problem("femnist-iid", "chance")


def problem_small() -> Simulation:
    """Return a hundred of the writers with a small network."""
    return _problem("femnist-small", "writer", 100)


def problem_iid_small() -> Simulation:
    """Return the examples of a hundred writers, dealt out at random, with a small network."""
    return _problem("femnist-iid-small", "chance", 100)


def _problem(name: str, by: str, limit: int | None = None) -> Simulation:
    net = partial(femnist_cnn, CLASSES) if limit is None else partial(small_cnn, 1, CLASSES, 28)
    return Simulation(Task(net), clients(by, limit=limit), name)
