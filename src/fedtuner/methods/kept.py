"""A vector that every client keeps, and its mean over all clients on the server: SCAFFOLD's c, FedDyn's h.

The mean is by |T|, over all clients and not only a round's: c = sum |T_i| c_i / sum |T_i|, where c_i is zero before the
client is first met. Each client sends by how much its |T_i| c_i and its |T_i| have changed since they were last counted
and the server adds these up, so that they telescope: whatever cohorts were drawn, c is that mean. A mean of changes
weighted within the cohort is not, where sizes differ, and training then ends elsewhere with every seed. A report that
is broken is not counted, and its client keeps what was counted before. A server that has the client's |T_i| and c_i
finds the changes itself: a device cannot lie about them, and where its |T_i| is bounded, so is its part of c.

What clients weigh that have not been met is not known: they count as the mean of those that have.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fedtuner.core.method import Local, Recount, Server
from fedtuner.core.model import Vector, Vectors
from fedtuner.core.records import Job, Tally
from fedtuner.methods.server import slot

WEIGHT = "weight"  # of a client |T_i|; in the sum also the clients met; on the server also what c was divided by


def keep(client: Local, job: Job, name: str, new: Vector) -> tuple[Vectors, Vectors]:
    """Return what a client sends when its vector becomes ``new``, and what it remembers."""
    return _sent_and_kept(job, name, new, client.examples)


def recount(name: str) -> Recount:
    """Return the function by which a server finds what a client sends from its |T| and what it remembers."""
    return partial(_recounted, name)


def _recounted(name: str, job: Job, examples: int, memory: Vectors) -> tuple[Vectors, Vectors]:
    return _sent_and_kept(job, name, memory[name], examples)


def _sent_and_kept(job: Job, name: str, new: Vector, examples: int) -> tuple[Vectors, Vectors]:
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
