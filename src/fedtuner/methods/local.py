"""Local SGD, the Loc_c of most methods: FedProx, SCAFFOLD, FedDyn and Ditto add one drift term to its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedtuner.methods.base import Job, Local, Update
from fedtuner.space import PAPER_CLIENT, PAPER_MU, Config
from fedtuner.task import Hyper, Vector

Drift = Callable[[Vector, Vector], None]  # (w, gradient): adds the term to the gradient in place

SGD: Mapping[str, Hyper] = {
    "lr": Hyper(PAPER_CLIENT["lr"], 0.1, low=0.0, about="learning rate"),
    "momentum": Hyper(PAPER_CLIENT["momentum"], 0.0, low=0.0, high=1.0, about="heavy-ball momentum"),
    "weight_decay": Hyper(PAPER_CLIENT["weight_decay"], 0.0, low=0.0, about="L2 penalty"),
    "epochs": Hyper(PAPER_CLIENT["epochs"], 1, low=1, whole=True, about="passes over the client's data"),
    "batch": Hyper(PAPER_CLIENT["batch"], 32, low=1, whole=True, about="examples per step"),
}
MU = Hyper(PAPER_MU, 0.01, low=0.0, about="strength of the pull toward the server's model")


def descend(client: Local, start: Vector, c: Config, drift: Drift | None = None) -> Vector:
    """Return w after ``epochs`` of SGD from ``start``, step for step as ``torch.optim.SGD``.

    g = gradient + drift(w) + weight_decay w;  v = momentum v + g;  w = w - lr v
    """
    lr, momentum, decay = (np.float32(c[name]) for name in ("lr", "momentum", "weight_decay"))
    w = start.copy()
    head = w[: client.trainable]
    scratch = np.empty_like(head)
    velocity = np.zeros_like(head) if momentum else None
    for rows in client.batches(int(c["epochs"]), int(c["batch"])):
        g = client.gradient(w, rows)
        if drift is not None:
            drift(head, g)
        if decay:
            g += np.multiply(head, decay, out=scratch)
        if velocity is not None:
            velocity *= momentum
            velocity += g
            g = velocity
        head -= np.multiply(g, lr, out=scratch)
    return w


def toward(centre: Vector, strength: float) -> Drift:
    """Return the gradient of strength/2 |w - centre|^2: the proximal term."""
    gap = np.empty_like(centre)
    factor = np.float32(strength)

    def drift(w: Vector, g: Vector) -> None:
        np.subtract(w, centre, out=gap)
        np.multiply(gap, factor, out=gap)
        g += gap

    return drift


def sgd(client: Local, job: Job) -> Update:
    """Plain local SGD."""
    return Update(descend(client, job.w, job.config))


def proximal_sgd(client: Local, job: Job) -> Update:
    """Local SGD with a proximal term mu/2 |w - w_t|^2; none where mu = 0."""
    mu = float(job.config["mu"])
    drift = toward(job.w[: client.trainable], mu) if mu else None
    return Update(descend(client, job.w, job.config, drift))
