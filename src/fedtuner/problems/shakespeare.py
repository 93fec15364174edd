"""Shakespeare's plays by role, with the character model of McMahan et al. 2017 or a small one."""

from __future__ import annotations

from fedtuner.data.shakespeare import clients
from fedtuner.federations import Simulation
from fedtuner.problems.models import char_lstm, small_lstm
from fedtuner.tasks.pytorch import Task


def problem() -> Simulation:
    """Return the paper's non-i.i.d. Shakespeare: each role trains on what it says first and is tested on the last."""
    return Simulation(Task(char_lstm), clients("in-order"), "shakespeare")


def problem_iid() -> Simulation:
    """Return the paper's i.i.d. Shakespeare: the windows shuffled within each role."""
    return Simulation(Task(char_lstm), clients("shuffled"), "shakespeare-iid")


def problem_small() -> Simulation:
    """Return a hundred roles with at most a thousand windows each, in the order of the play, and a small network."""
    return Simulation(Task(small_lstm), clients("in-order", limit=100, examples=1000), "shakespeare-small")


def problem_iid_small() -> Simulation:
    """Return a hundred roles with at most a thousand windows each, shuffled within each role, and a small network."""
    return Simulation(Task(small_lstm), clients("shuffled", limit=100, examples=1000), "shakespeare-iid-small")
