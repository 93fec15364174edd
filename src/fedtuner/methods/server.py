"""The server's step: the paper's aggregation, and the adaptive optimisers of Reddi et al. in its place.

Khodak et al. 2021: w' = (1 - alpha_t) w + alpha_t sum |T_i| w_i / sum |T_i| with momentum, alpha_t = lr gamma^t, where
t counts from 0, so the first round's step is lr itself. Written as a step along the mean change (w_i - w), whose
discounted sum is the momentum; without momentum it is the paper's equation.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021: FedAdam, FedYogi and FedAdagrad take the mean change for a
gradient. As there, v starts at tau^2 and there is no correction for the start; beta1 is ``momentum``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedtuner.methods.base import Contribution, Server, Vectors
from fedtuner.space import PAPER_SERVER, Config
from fedtuner.task import Hyper, Vector

STEP: Mapping[str, Hyper] = {
    "lr": Hyper(PAPER_SERVER["lr"], 1.0, low=0.0, about="server learning rate; 1 takes the mean of the clients"),
    "momentum": Hyper(PAPER_SERVER["momentum"], 0.0, low=0.0, high=1.0, about="momentum of the server; adam's beta1"),
    "gamma": Hyper(PAPER_SERVER["gamma"], 1.0, low=0.0, high=1.0, about="decay of the learning rate per round"),
    "optimiser": Hyper(None, "sgd", options=("sgd", "adam", "yogi", "adagrad"), about="of the server"),
    "beta2": Hyper(None, 0.99, low=0.0, high=1.0, about="memory of squared changes: adam, yogi"),
    "tau": Hyper(None, 1e-3, low=1e-12, about="adaptivity: adam, yogi, adagrad"),
}


_BLOCK = 1 << 15  # entries: what is added up stays in the cache


def mean_change(w: Vector, shares: Sequence[float], models: Sequence[Vector]) -> Vector:
    """Return sum share_i (w_i - w), added in the order given: the same bits wherever it runs."""
    total, scratch = np.zeros_like(w), np.empty_like(w[:_BLOCK])
    for start in range(0, w.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        sums, part = total[block], scratch[: w.size - start]
        for share, model in zip(shares, models, strict=True):
            np.subtract(model[block], w[block], out=part)
            np.multiply(part, np.float32(share), out=part)
            sums += part
    return total


def mean_extra(name: str, contributions: Sequence[Contribution]) -> Vector:
    """Return sum share_i of the vectors that the clients sent under this name."""
    first = contributions[0].update.extra[name]
    return mean_change(
        np.zeros_like(first), [c.share for c in contributions], [c.update.extra[name] for c in contributions]
    )


def average(server: Server, contributions: Sequence[Contribution], b: Config) -> tuple[Vector, Vectors]:
    """Take a step toward the weighted mean of the clients' models."""
    change = mean_change(server.w, [c.share for c in contributions], [c.update.w for c in contributions])
    return step(server, change, b)


def step(server: Server, change: Vector, b: Config) -> tuple[Vector, Vectors]:
    """Return the model and slots after one step of the server's optimiser along ``change``."""
    alpha = np.float32(float(b["lr"]) * float(b["gamma"]) ** server.round)
    momentum, slots = np.float32(b["momentum"]), dict(server.slots)
    if b["optimiser"] == "sgd":
        if momentum:
            if "momentum" in slots:
                change = change + momentum * slots["momentum"]
            slots["momentum"] = change
        return server.w + alpha * change, slots
    tau, beta2 = np.float32(b["tau"]), np.float32(b["beta2"])
    m = momentum * slots.get("momentum", np.zeros_like(change)) + (1 - momentum) * change
    v = slots.get("square", np.full_like(change, tau * tau))
    square = change * change
    if b["optimiser"] == "adam":
        v = beta2 * v + (1 - beta2) * square
    elif b["optimiser"] == "yogi":
        v = v - (1 - beta2) * square * np.sign(v - square)
    else:
        v = v + square
    moved: Vector = np.asarray(server.w + alpha * m / (np.sqrt(v) + tau), np.float32)
    return moved, slots | {"momentum": m, "square": v}
