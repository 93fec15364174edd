"""SCAFFOLD: control variates keep local training from drifting toward each client's own optimum.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020. Each local step adds
c - c_i to the gradient; afterwards c_i becomes

    option I    the gradient of the client's whole loss at the server's model;
    option II   c_i - c + (w_t - w_i) / (K lr), which is the mean of the gradients along the K local steps.

Differences: option II is computed as that mean, so it also holds with momentum and Adam, where the quotient does not;
means over the round's clients are weighted by |T_i|, as the paper's appendix B has it, instead of equally.
Costs one vector of memory per client, and one more vector each way per round.
"""

from __future__ import annotations

import numpy as np

from fedtuner.core.method import Local, Server, Update
from fedtuner.core.model import Hyper, Vector, Vectors
from fedtuner.core.records import Job, Plan, Tally
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

    renewed = client.full_gradient(plan.w.copy()) if job.config["option"] == "I" and client.examples else None
    w = descend(client, plan.w, job.config, drift)
    if renewed is None:
        renewed = total / np.float32(steps) if steps else ours
    return Update(w, extra={"control": renewed - ours}, memory={"control": renewed})


def aggregate(server: Server, tally: Tally, b: Config) -> tuple[Vector, Vectors]:
    """Step toward the mean model; c moves by the mean change of the c_i times the share of clients that took part."""
    w, slots = average(server, tally, b)
    change = tally.extra["control"] * np.float32(tally.trained / server.population)
    control = server.slots["control"] + change if "control" in server.slots else change
    return w, {**slots, "control": control}


scaffold = method(
    "scaffold", "Karimireddy et al. 2020", local, aggregate, client={**TRAINING, "option": OPTION}, sends=("control",),
    extra={"control": "trainable"}, memory={"control": "trainable"},
)  # fmt: skip
