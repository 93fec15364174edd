"""Delta-SGD: every client finds its own step sizes, from how fast its gradient changes.

Kim et al., "Adaptive Federated Learning with Auto-Tuned Clients", ICLR 2024, after Malitsky and Mishchenko, "Adaptive
Gradient Descent without Descent", ICML 2020. In a round a client takes steps x_k+1 = x_k - eta_k g_k, where g_k is the
gradient at x_k on batch k, h_k the gradient at x_k-1 on the same batch, and

    eta_k   = min(gamma |x_k - x_k-1| / (2 |g_k - h_k|), sqrt(1 + delta theta_k-1) eta_k-1)
    theta_k = eta_k / eta_k-1

eta_0 is ``lr`` and theta_0 is 1, in every round anew. The aggregation is that of FedAvg. By default gamma is 2, delta
is 0.1 and eta_0 is 0.2, the paper's values, and nothing has to be tuned. Each step but the first takes two gradients.

A client whose data fits into one batch takes one step an epoch: with one epoch it steps by eta_0, as SGD does. More
epochs or smaller batches let it adapt.

Where the paper is silent: if the model or the gradient has not changed, the second bound alone counts. Both gradients
of a step have the same dropout masks, as they would differ by the masks otherwise; statistics such as batch-norm's are
those of x_k. Differences from the authors' code: there the first step is sqrt(1 + delta) eta_0, delta is 0.02 by
default, and 10^-8 is added to every eta_k. There is neither momentum nor weight decay, as in the paper.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fedtuner.core.method import Local, Update
from fedtuner.core.model import CHECKED, Hyper, Vector, finite
from fedtuner.core.records import Job, Plan
from fedtuner.methods.fedexp import square
from fedtuner.methods.local import TRAINING
from fedtuner.methods.server import method
from fedtuner.space import Config

STEPS = {
    "lr": replace(TRAINING["lr"], default=0.2, about="first step of a round; the client finds the others itself"),
    "epochs": TRAINING["epochs"],
    "batch": TRAINING["batch"],
    "gamma": Hyper(None, 2.0, low=0.0, about="steps are at most gamma / 2 times the inverse of the curvature"),
    "delta": Hyper(None, 0.1, low=0.0, about="how fast steps may grow"),
}


def next_step(eta: float, theta: float, moved: float, turned: float, c: Config) -> float:
    """Return eta_k for eta_k-1, theta_k-1, |x_k - x_k-1| and |g_k - h_k|.

    >>> next_step(0.5, 1.0, 0.5, 1.0, {"gamma": 2.0, "delta": 3.0}), next_step(0.5, 1.0, 0.5, 0.0, {"delta": 3.0})
    (0.5, 1.0)
    """
    most = math.sqrt(1 + float(c["delta"]) * theta) * eta
    return min(float(c["gamma"]) * moved / (2 * turned), most) if moved and turned else most


def local(client: Local, plan: Plan, job: Job) -> Update:
    """Take the steps of a round."""
    c, n, gradient = job.config, client.trainable, client.trainer.gradient
    w, before = plan.w.copy(), plan.w
    eta, theta = float(c["lr"]), 1.0
    for k, rows in enumerate(client.batches(int(c["epochs"]), int(c["batch"]))):
        if k % CHECKED == 0 and not finite(w[:n]):
            break  # it will not become finite again
        start = w.copy()
        g = gradient(w, rows, key=k).copy()
        if k:
            moved, turned = _distance(start[:n], before[:n]), _distance(g, gradient(before, rows, key=k))
            following = next_step(eta, theta, moved, turned, c)
            eta, theta = following, following / eta if eta else 1.0
        w[:n] -= np.float32(eta) * g
        before = start
    return Update(w)


def _distance(one: Vector, other: Vector) -> float:
    return math.sqrt(square(one - other))


deltasgd = method("deltasgd", "Kim et al. 2024", local, client=STEPS)
