"""FedHyper's global step: the server steps further while successive rounds agree, and less far while they do not.

Wang et al., "FedHyper: A Universal and Robust Learning Rate Scheduler for Federated Learning with Hypergradient
Descent", ICLR 2024: its scheduler of the global rate, FedHyper-G. With D_t the mean change of round t,

    alpha_t = alpha_t-1 + <D_t, D_t-1>, within [0.2, 5]
    w       = w + alpha_t D_t

where alpha is 1 in the first round. The inner product is the derivative of the loss with respect to alpha, but for the
sign (hypergradient descent, Baydin et al., ICLR 2018). The server needs nothing but the mean change, so secure
aggregation and privacy carry it.

Differences: alpha is a factor of the server's lr, gamma and momentum, whose defaults leave it as it is; D is what the
method steps along (a meta-gradient for MAML, a corrected mean for FedDyn). The bounds are those of the authors' code.
Their schedulers of the clients' rates are not here: FedEx and the schedules tune these.

The inner product has the scale of the changes squared. Where changes are small, as with one local step on the digits
(5 10^-4), alpha hardly moves from 1, and the method is FedAvg. It is meant for clients that do much local work.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fedtuner.core.method import Optimiser, Server
from fedtuner.core.model import Vector, Vectors
from fedtuner.core.records import Tally
from fedtuner.methods import momentum
from fedtuner.space import Config

LEAST, MOST = 0.2, 5.0  # bounds of alpha
ALPHA, LAST = "alpha", "last"  # slots: alpha_t, and D_t
_BLOCK = 1 << 15  # entries that are multiplied at a time: no copy of a large vector is made


def inner(one: Vector, other: Vector) -> float:
    """Return the inner product, added in double precision and in one order."""
    blocks = (slice(n, n + _BLOCK) for n in range(0, one.size, _BLOCK))
    return sum(float((one[b].astype(np.float64) * other[b]).sum()) for b in blocks)  # fsum refuses inf - inf


def following(alpha: float, agreement: float) -> float:
    """Return alpha_t for alpha_t-1 and <D_t, D_t-1>.

    >>> following(1.0, 0.5), following(1.0, -3.0), following(1.0, 9.0), following(1.5, float("nan"))
    (1.5, 0.2, 5.0, 1.5)
    """
    return alpha if math.isnan(agreement) else min(max(alpha + agreement, LEAST), MOST)


def step(server: Server, change: Vector, tally: Tally, b: Config) -> tuple[Vector, Vectors]:
    """Step along the change, by alpha as much as its mean says."""
    alpha = float(server.slots[ALPHA][0]) if ALPHA in server.slots else 1.0
    if LAST in server.slots:
        alpha = following(alpha, inner(change, server.slots[LAST]))
    w, slots = momentum.step(server, np.float32(alpha) * change, tally, b)
    return w, {**slots, ALPHA: np.array([alpha], np.float32), LAST: change}


HYPERS = {name: replace(hyper, domain=None) for name, hyper in momentum.HYPERS.items()}
HYPERS["lr"] = replace(HYPERS["lr"], about="factor of FedHyper's step")
fedhyper = Optimiser("fedhyper", "Wang et al. 2024", step, HYPERS)
