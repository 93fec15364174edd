"""SCAFFOLD: control variates keep local training from drifting toward each client's own optimum.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020. Each local step adds
c - c_i to the gradient; afterwards c_i becomes

    option I    the gradient of the client's whole loss at the server's model;
    option II   the mean of the gradients along the K local steps.

Both are gradients of the loss on the data, which is what clients differ in: weight decay is no part of c_i, so that
each client may have its own. Differences: for plain SGD without weight decay option II is the paper's quotient
c_i - c + (w_t - w_i) / (K lr); computed as the mean, it also holds with decay, momentum and Adam, where that does not.
c is the mean of all c_i by |T_i| (kept.py) instead of the equal one. At a fixed point no client moves: c_i is its
gradient there and c is zero, so it is the optimum of the |T|-weighted mean of the clients' losses, which is what FedAvg
and the paper's appendix B aim at; with equal weights it would be that of their plain mean. By whichever weights the
round's models are averaged, the fixed point is the same; they are |T_i|, as in FedAvg.
Costs one vector of memory per client, and one more vector each way per round.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fedtuner.core.method import Local, Server, Update
from fedtuner.core.model import Hyper, Vector, Vectors
from fedtuner.core.records import Job, Plan, Tally
from fedtuner.methods import kept
from fedtuner.methods.local import TRAINING, descend
from fedtuner.methods.server import average, method
from fedtuner.space import Config

OPTION = Hyper(None, "II", options=("I", "II"), about="control variates: I at the server's model, II along the steps")


def local(client: Local, plan: Plan, job: Job) -> Update:
    """Train with the gradient corrected by c - c_i, and renew c_i."""
    nothing = np.zeros(client.trainable, np.float32)
    ours, servers = job.remembered.get("control", nothing), plan.slots.get("control", nothing)
    correction, total, steps = servers - ours, np.zeros_like(nothing), 0

    def drift(w: Vector, g: Vector) -> None:
        nonlocal total, steps
        total += g
        steps += 1
        g += correction

    whole = job.config["option"] == "I" and client.examples >= client.smallest_batch
    renewed = client.full_gradient(plan.w.copy()) if whole else None
    w = descend(client, plan.w, job.config, drift)
    if renewed is None:
        renewed = total / np.float32(steps) if steps else ours
    return Update(w, *kept.keep(job, "control", renewed, client.examples))


def aggregate(server: Server, tally: Tally, b: Config) -> tuple[Vector, Vectors]:
    """Step toward the mean model; c is the mean of all c_i."""
    w, slots = average(server, tally, b)
    return w, {**slots, **kept.mean(server, tally, "control")}


scaffold = method(
    "scaffold", "Karimireddy et al. 2020", local, aggregate, client={**TRAINING, "option": OPTION}, sends=("control",),
    extra={"control": "trainable", kept.WEIGHT: (2,)}, sums=("control", kept.WEIGHT),
    memory={"control": "trainable", kept.WEIGHT: (1,)}, recount=partial(kept.recount, "control"),
)  # fmt: skip
