"""Local SGD or Adam, the Loc_c of most methods: FedProx, SCAFFOLD, FedDyn and Ditto add a drift to its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from fedtuner.core.method import Local, Update
from fedtuner.core.model import CHECKED, Hyper, Rates, Vector, finite
from fedtuner.core.records import Job, Plan
from fedtuner.space import PAPER_CLIENT, Config

Drift = Callable[[Vector, Vector], None]  # (w, gradient): adds the term to the gradient in place
Visit = Callable[[Vector], None]  # (w): sees every iterate
Step = Callable[[Vector, Vector], None]  # (w, gradient): moves w in place

TRAINING: Mapping[str, Hyper] = {
    "lr": Hyper(PAPER_CLIENT["lr"], 0.1, low=0.0, about="learning rate", role="step"),
    "momentum": Hyper(
        PAPER_CLIENT["momentum"], 0.0, low=0.0, high=1.0, about="momentum; adam's beta1", role="momentum"
    ),
    "weight_decay": Hyper(PAPER_CLIENT["weight_decay"], 0.0, low=0.0, about="L2 penalty", role="regulariser"),
    "epochs": Hyper(
        PAPER_CLIENT["epochs"], 1, low=1, high=1e6, whole=True, about="passes over the client's data", role="work"
    ),
    "batch": Hyper(PAPER_CLIENT["batch"], 32, low=1, whole=True, about="examples per step", role="batch"),
    "optimiser": Hyper(None, "sgd", options=("sgd", "adam"), about="of local training"),
    "beta2": Hyper(None, 0.999, low=0.0, high=1.0, about="adam's memory of squared gradients"),
}


def descend(client: Local, start: Vector, c: Config, drift: Drift | None = None, visit: Visit | None = None) -> Vector:
    """Return w after ``epochs`` of the optimiser from ``start``, step for step as torch's.

    g = gradient + drift(w) + weight_decay w, then one step of the optimiser along g.
    """
    w = start.copy()
    head = w[: client.trainable]
    batches = client.batches(int(c["epochs"]), int(c["batch"]))
    if c["optimiser"] == "sgd" and drift is None and visit is None:
        client.trainer.descend(w, batches, _rates(c))
        return w
    step = OPTIMISERS[str(c["optimiser"])](client, c)
    for n, rows in enumerate(batches, 1):
        if n % CHECKED == 0 and not finite(head):
            break  # it will not become finite again
        g = client.gradient(w, rows)
        if drift is not None:
            drift(head, g)
        step(head, g)
        if visit is not None:
            visit(w)
    return w


def _rates(c: Config) -> Rates:
    return Rates(float(c["lr"]), float(c["momentum"]), float(c["weight_decay"]))


def _sgd(client: Local, c: Config) -> Step:
    """v = momentum v + g;  w = w - lr v.  In one pass, where the task can."""
    rates, sgd = _rates(c), client.trainer.sgd
    velocity = np.zeros(client.trainable, np.float32) if rates.momentum else None

    def step(w: Vector, g: Vector) -> None:
        sgd(w, g, velocity, rates)

    return step


def _adam(client: Local, c: Config) -> Step:
    """m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  w = w - lr m' / (sqrt(v') + 1e-8);  ' corrects for the start."""
    lr, decay = float(c["lr"]), np.float32(c["weight_decay"])
    beta1, beta2 = min(float(c["momentum"]), 1 - 1e-6), min(float(c["beta2"]), 1 - 1e-9)
    m, v, scratch = (np.zeros(client.trainable, np.float32) for _ in range(3))
    t = 0

    def step(w: Vector, g: Vector) -> None:
        nonlocal t, m, v
        t += 1
        if decay:
            g += np.multiply(w, decay, out=scratch)
        m *= np.float32(beta1)
        m += np.multiply(g, np.float32(1 - beta1), out=scratch)
        v *= np.float32(beta2)
        np.multiply(g, g, out=scratch)
        v += np.multiply(scratch, np.float32(1 - beta2), out=scratch)
        np.sqrt(v, out=scratch)
        np.multiply(scratch, np.float32(1 / math.sqrt(1 - beta2**t)), out=scratch)
        np.add(scratch, np.float32(1e-8), out=scratch)
        np.divide(m, scratch, out=scratch)
        w -= np.multiply(scratch, np.float32(lr / (1 - beta1**t)), out=scratch)

    return step


OPTIMISERS: Mapping[str, Callable[[Local, Config], Step]] = {"sgd": _sgd, "adam": _adam}


def toward(centre: Vector, strength: float) -> Drift:
    """Return the gradient of strength/2 |w - centre|^2: the proximal term."""
    gap = np.empty_like(centre)
    factor = np.float32(strength)

    def drift(w: Vector, g: Vector) -> None:
        np.subtract(w, centre, out=gap)
        np.multiply(gap, factor, out=gap)
        g += gap

    return drift


def train(client: Local, plan: Plan, job: Job) -> Update:
    """Plain local training."""
    return Update(descend(client, plan.w, job.config))


def proximal(client: Local, plan: Plan, job: Job) -> Update:
    """Local training with a proximal term mu/2 |w - w_t|^2; none where mu = 0."""
    mu = float(job.config["mu"])
    drift = toward(plan.w[: client.trainable], mu) if mu else None
    return Update(descend(client, plan.w, job.config, drift))
