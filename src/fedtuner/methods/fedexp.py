"""FedExP: the server steps beyond the mean of the clients' models, the further the less their changes agree.

Jhunjhunwala et al., "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023. With the clients' changes
d_i = w_i - w and their shares p_i = |T_i| / sum |T|, the step along the mean change is longer by the factor

    eta = max(1, sum p_i |d_i|^2 / (2 |sum p_i d_i|^2)).

Each client sends one number more, |d_i|^2, which is averaged like d_i: a sum, so secure aggregation carries it. Where
a server outside fedtuner does not give it (``Plan.tally``), eta is 1. The factor is that of the clients' changes,
whatever the method steps along, and the server's lr, momentum and gamma apply to the longer step; none of them is tuned
by default. Differences:

- The paper adds a constant eps to |mean d|^2, chosen per task (10^-3 to 10^-1) and decayed with the clients' rate.
  Where changes are small (one local step: |mean d|^2 is 5 10^-4 on the digits) eps is the larger part, and eta is 1.
  Instead eta is at most half the number of clients that trained, which is what it is for changes at right angles; so
  with one or two clients it is 1.
- It extrapolates only while local training does no harm. Where the client's step is far too large, local training
  overshoots: the changes are large and point everywhere, and it is their mean that holds the model. A longer step
  undoes that. So eta is 1 while local training raises the clients' validation loss by more than a tenth, in a mean over
  rounds in which each weighs ``MEMORY`` times the next.
- The paper evaluates the mean of the last two models; here it is the last, and ``cooling`` shortens the last steps.

benchmarks/rounds/fedexp.py compares these bounds with the plain formula.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fedtuner.core.method import Optimiser, Server
from fedtuner.core.model import Metrics, Vector, Vectors
from fedtuner.core.records import Tally
from fedtuner.methods import momentum
from fedtuner.space import Config

MEMORY = 0.9  # weight of a round's losses against the next one's
RISE = 0.1  # of the loss, by local training: beyond it there is no extrapolation
SQUARE = "square"  # |d_i|^2, of which the tally has the mean
OVERSHOOT = "overshoot"  # a slot: the loss's rise by local training and the loss itself, summed with past rounds'
_BLOCK = 1 << 15  # entries that are squared at a time: no copy of a large vector is made


def square(change: Vector) -> float:
    """Return |change|^2, added in double precision and in one order."""
    blocks = (change[n : n + _BLOCK] for n in range(0, change.size, _BLOCK))
    return math.fsum(float(np.square(block, dtype=np.float64).sum()) for block in blocks)


def extra(change: Vector) -> Vectors:
    """Return what a client adds to its change."""
    return {SQUARE: np.array([square(change)], np.float32)}


def factor(squares: float, mean: float, clients: int) -> float:
    """Return eta for the mean of |d_i|^2, the square of the mean d_i, and the number of clients.

    >>> factor(1.0, 0.25, 4), factor(1.0, 1.0, 4), factor(1.0, 0.0, 10), factor(0.0, 0.0, 10)
    (2.0, 1.0, 5.0, 1.0)
    """
    most = max(1.0, clients / 2)
    if not squares > 2 * mean:  # also where nobody has moved, and where the mean is not a number
        return 1.0
    return min(most, squares / (2 * mean)) if mean else most


def overshoot(past: Vector, before: Metrics, after: Metrics) -> Vector:
    """Return the slot after a round; a round in which nobody validated, or with an infinite loss before, is not in it.

    A rise counts as no more than the loss itself, so that a round in which a client diverged is forgotten like others.
    """
    if not before.finite or math.isnan(after.loss):
        return past
    rise, size = min(after.loss - before.loss, abs(before.loss)), abs(before.loss)
    return np.asarray(np.float32(MEMORY) * past + np.array([rise, size]), np.float32)


def step(server: Server, change: Vector, tally: Tally, b: Config) -> tuple[Vector, Vectors]:
    """Step along the change, by eta as much as its mean says."""
    assert tally.change is not None
    seen = overshoot(server.slots.get(OVERSHOOT, np.zeros(2, np.float32)), tally.before, tally.after)
    further = SQUARE in tally.extra and seen[0] <= RISE * seen[1]
    eta = factor(float(tally.extra[SQUARE][0]), square(tally.change), tally.trained) if further else 1.0
    w, slots = momentum.step(server, np.float32(eta) * change, tally, b)
    return w, {**slots, OVERSHOOT: seen}


HYPERS = {name: replace(hyper, domain=None) for name, hyper in momentum.HYPERS.items()}
HYPERS["lr"] = replace(HYPERS["lr"], about="factor of FedExP's step")
fedexp = Optimiser("fedexp", "Jhunjhunwala et al. 2023", step, HYPERS, extra)
