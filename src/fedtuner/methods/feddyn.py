"""FedDyn: a linear and a quadratic term on each client make the clients' stationary points those of the whole.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021. Local training minimises
L_i(w) - <l_i, w> + alpha/2 |w - w_t|^2; then l_i <- l_i - alpha (w_i - w_t), and the server keeps
h <- h - alpha/n sum (w_i - w_t), the mean of the l_i over the n clients there are, and moves to mean(w_i) - h/alpha.

alpha must be the same everywhere, so it is the server's. ``dyn`` is the paper's (Khodak et al., appendix B) binary
client hyperparameter: off, the client trains as in FedAvg, and its l_i and what it adds to h stay as they are.
Differences: means are by |T_i|, h over all clients (kept.py); at a fixed point l_i is the client's gradient and h is
zero, so it is the optimum of the |T|-weighted mean of the clients' losses instead of that of the plain one. The
server's optimiser takes the move for its change (lr = 1 without momentum is FedDyn itself).
Costs one vector of memory per client, and one more vector per round from it.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fedtuner.core.method import Local, Server, Update
from fedtuner.core.model import Hyper, Vector, Vectors
from fedtuner.core.records import Job, Plan, Tally
from fedtuner.methods import kept
from fedtuner.methods.local import TRAINING, descend, toward
from fedtuner.methods.server import STEP, change_of, method
from fedtuner.space import Choice, Config, Float

DYN = Hyper(Choice([True, False]), True, options=(True, False), about="whether the client uses the dynamic term")
ALPHA = Hyper(Float(1e-3, 1e-1, log=True), 0.01, low=1e-8, about="strength of the dynamic term", role="regulariser")


def local(client: Local, plan: Plan, job: Job) -> Update:
    """Train with the dynamic regulariser, and renew its linear term."""
    start = plan.w[: client.trainable]
    linear = job.remembered.get("linear", np.zeros_like(start))
    if not job.config["dyn"]:
        return Update(descend(client, plan.w, job.config), *kept.keep(job, "linear", linear, client.examples))
    alpha = np.float32(plan.server["alpha"])
    pull = toward(start, float(alpha))

    def drift(w: Vector, g: Vector) -> None:
        g -= linear
        pull(w, g)

    w = descend(client, plan.w, job.config, drift)
    moved = w[: client.trainable] - start
    return Update(w, *kept.keep(job, "linear", linear - alpha * moved, client.examples))


def aggregate(server: Server, tally: Tally, b: Config) -> tuple[Vector, Vectors]:
    """Renew h, the mean of all l_i, and step toward mean(w_i) - h/alpha."""
    h = kept.mean(server, tally, "linear")
    change = change_of(tally) - h["linear"] / np.float32(b["alpha"])
    w, slots = server.step(np.asarray(change, np.float32), tally, b)
    return w, {**slots, **h}


feddyn = method(
    "feddyn", "Acar et al. 2021", local, aggregate, client={**TRAINING, "dyn": DYN}, server={**STEP, "alpha": ALPHA},
    mean_step=False, extra={"linear": "trainable", kept.WEIGHT: (2,)}, sums=("linear", kept.WEIGHT),
    memory={"linear": "trainable", kept.WEIGHT: (1,)}, recount=partial(kept.recount, "linear"),
)  # fmt: skip
