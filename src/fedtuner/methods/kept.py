"""A vector that every client keeps, and its mean over all clients on the server: SCAFFOLD's c, FedDyn's h.

The mean is by |T|, over all clients and not only a round's: c = sum |T_i| c_i / sum |T_i|, where c_i is zero until the
client's first round. Each client sends the changes of its |T_i| c_i and its |T_i| since its last report that was used,
and the server adds them up. These sums telescope, so c is that mean whatever cohorts were drawn. A mean of changes
weighted within each cohort would not be, if clients differ in size, and training would end at another point for each
seed. A broken report is not used, and its client keeps the values of the last one that was. A server that has a
client's |T_i| and c_i computes the changes itself: a device cannot lie about them, and a bound on |T_i| bounds its part
of c.

The |T_i| of clients that have not taken part yet are not known: the mean of the known ones stands for them.
"""

from __future__ import annotations

import numpy as np

from fedtuner.core.method import Server
from fedtuner.core.model import Vector, Vectors
from fedtuner.core.records import Job, Tally
from fedtuner.methods.server import slot

WEIGHT = "weight"  # of a client |T_i|; in the sum also the clients met; on the server also what c was divided by


def recount(name: str, job: Job, examples: int, memory: Vectors) -> tuple[Vectors, Vectors]:
    """Return what a client sends and keeps, found by the server from the client's |T| and what it remembers."""
    return keep(job, name, memory[name], examples)


def keep(job: Job, name: str, new: Vector, examples: int) -> tuple[Vectors, Vectors]:
    """Return what a client whose vector becomes ``new`` sends, and what it keeps."""
    weight, nothing = np.float32(examples), np.zeros(1, np.float32)
    counted, met = job.remembered.get(WEIGHT, nothing)[0], WEIGHT in job.remembered
    old = job.remembered.get(name, np.zeros_like(new))
    sent = {name: weight * new - counted * old, WEIGHT: np.array([weight - counted, not met], np.float32)}
    return sent, {name: new, WEIGHT: np.array([weight], np.float32)}


def mean(server: Server, tally: Tally, name: str) -> Vectors:
    """Return the mean of the vector over all clients after a round, and what is known of their weights."""
    before = server.slots.get(WEIGHT, np.zeros(3, np.float32))
    examples, met = before[:2] + tally.sums[WEIGHT]
    whole = examples * np.float32(max(1.0, server.population / max(met, 1.0)))
    total = before[2] * slot(server, name) + tally.sums[name]
    return {name: total / whole if whole else total, WEIGHT: np.array([examples, met, whole], np.float32)}
