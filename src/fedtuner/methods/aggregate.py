"""The paper's aggregation: w' = (1 - alpha_t) w + alpha_t sum |T_i| w_i / sum |T_i|, with momentum.

alpha_t = lr gamma^t, where t counts from 0, so the first round's step is lr itself. Written as a step along the mean
change (w_i - w), whose discounted sum is the momentum; without momentum it is the paper's equation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedtuner.methods.base import Contribution, Server, Vectors
from fedtuner.space import PAPER_SERVER, Config
from fedtuner.task import Hyper, Vector

STEP: Mapping[str, Hyper] = {
    "lr": Hyper(PAPER_SERVER["lr"], 1.0, low=0.0, about="server learning rate; 1 takes the mean of the clients"),
    "momentum": Hyper(PAPER_SERVER["momentum"], 0.0, low=0.0, high=1.0, about="momentum of the server's steps"),
    "gamma": Hyper(PAPER_SERVER["gamma"], 1.0, low=0.0, high=1.0, about="decay of the learning rate per round"),
}


def mean_change(w: Vector, shares: Sequence[float], models: Sequence[Vector]) -> Vector:
    """Return sum share_i (w_i - w), added in the order given: the same bits wherever it runs."""
    total, scratch = np.zeros_like(w), np.empty_like(w)
    for share, model in zip(shares, models, strict=True):
        np.subtract(model, w, out=scratch)
        np.multiply(scratch, np.float32(share), out=scratch)
        total += scratch
    return total


def average(server: Server, contributions: Sequence[Contribution], b: Config) -> tuple[Vector, Vectors]:
    """Return the next model and slots."""
    change = mean_change(server.w, [c.share for c in contributions], [c.update.w for c in contributions])
    slots: Vectors = server.slots
    momentum = np.float32(b["momentum"])
    if momentum:
        if "momentum" in server.slots:
            change += momentum * server.slots["momentum"]
        slots = {**server.slots, "momentum": change}
    alpha = np.float32(float(b["lr"]) * float(b["gamma"]) ** server.round)
    return server.w + alpha * change, slots
