"""MAML: the server learns a starting point from which a few local steps do well on validation data.

Finn et al., "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017; federated as in appendix B
of Khodak et al. 2021. Loc_c takes ``steps`` plain gradient steps w_s+1 = w_s - lr (grad L_T(w_s) + weight_decay w_s),
each on the whole training data or on a minibatch, and returns the adapted model and the meta-gradient: the gradient of
L_V(w_last) with respect to the first w, taken back through the steps by v <- v - lr (H_s v + weight_decay v), or, with
``first_order``, left as it is. Agg_b feeds the clients' mean meta-gradient to the server's optimiser.

The meta-gradient uses the client's validation data, so validation scores are optimistic for this method; the test data
is untouched. A client without validation examples sends a zero gradient.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedtuner.core.method import Local, Server, Update
from fedtuner.core.model import Hyper, Rows, Vector, Vectors
from fedtuner.core.records import Job, Plan, Tally
from fedtuner.methods import server as steps
from fedtuner.methods.local import TRAINING
from fedtuner.methods.server import STEP, method
from fedtuner.space import Config, Float, Int

INNER = {
    "lr": TRAINING["lr"],
    "weight_decay": TRAINING["weight_decay"],
    "steps": Hyper(Int(1, 5), 1, low=0, whole=True, about="inner gradient steps", role="work"),
    "batch": replace(TRAINING["batch"], domain=None, about="examples per inner step, where full_batch is off"),
    "full_batch": Hyper(None, True, options=(True, False), about="inner steps on all the client's data"),
    "first_order": Hyper(None, False, options=(True, False), about="leave out second derivatives"),
}
RATES = {  # of a gradient and not of a change of w, whatever the optimiser
    "lr": Hyper(Float(1e-3, 1e-1, log=True), 0.01, low=0.0, about="learning rate of the meta-gradient's optimiser"),
    "momentum": Hyper(Float(0.0, 0.9), 0.9, low=0.0, high=1.0, about="momentum; adam's beta1"),
}
OPTIMISERS = {  # not FedExP: how far to step along a gradient is no question of how far clients have moved
    name: replace(known, hypers={**known.hypers, **RATES})
    for name, known in steps.OPTIMISERS.items()
    if name != "fedexp"
}
OUTER = {
    **STEP,
    **RATES,
    "optimiser": Hyper(None, "adam", options=tuple(OPTIMISERS), about="of the meta-gradient"),
}


def local(client: Local, plan: Plan, job: Job) -> Update:
    """Take the inner steps and return the adapted model and the meta-gradient."""
    c, n = job.config, client.trainable
    lr, decay = np.float32(c["lr"]), np.float32(c["weight_decay"])
    w = plan.w.copy()
    path: list[tuple[Vector, Rows]] = []
    for s, rows in enumerate(_inner_batches(client, c)):
        path.append((w.copy(), rows))
        g = client.trainer.gradient(w, rows, key=s)
        w[:n] -= lr * (g + decay * w[:n])
    meta = np.zeros(n, np.float32)
    if len(client.valid) >= client.smallest_batch:
        held = client.trainer.on(client.valid)
        meta = held.gradient(w.copy(), np.arange(len(client.valid)), key=len(path)).copy()
        if not c["first_order"]:
            for s, (at, rows) in reversed(list(enumerate(path))):
                meta -= lr * (client.trainer.curvature(at.copy(), meta, rows, key=s) + decay * meta)
    return Update(w, extra={"meta": meta})


def _inner_batches(client: Local, c: Config) -> list[Rows]:
    if client.examples < client.smallest_batch or not client.examples:
        return []
    if c["full_batch"]:
        return [np.arange(client.examples)] * int(c["steps"])
    return [
        client.rng.permutation(client.examples)[: max(int(c["batch"]), client.smallest_batch)]
        for _ in range(int(c["steps"]))
    ]


def aggregate(server: Server, tally: Tally, b: Config) -> tuple[Vector, Vectors]:
    """Step against the mean meta-gradient."""
    return server.step(-tally.extra["meta"], tally, b)


maml = method(
    "maml", "Finn et al. 2017", local, aggregate, client=INNER, server=OUTER, optimisers=OPTIMISERS,
    extra={"meta": "trainable"},
)  # fmt: skip
