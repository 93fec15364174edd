"""The paper's aggregation as a server optimiser: a step along the mean change, with momentum and a decaying rate.

Khodak et al. 2021: w' = (1 - alpha_t) w + alpha_t sum |T_i| w_i / sum |T_i| with momentum, alpha_t = lr gamma^t, where
t counts from 0, so the first round's step is lr itself. Written as a step along the mean change (w_i - w), whose
discounted sum is the momentum; without momentum it is the paper's equation.
"""

from __future__ import annotations

import numpy as np

from fedtuner.core.method import Optimiser, Server
from fedtuner.core.model import Hyper, Vector, Vectors
from fedtuner.core.records import Tally
from fedtuner.space import PAPER_SERVER, Config, Float

HYPERS = {  # effective steps lr / (1 - momentum) from 1/2 to 2; the paper's ranges are wider (paper_ranges.py)
    "lr": Hyper(Float(0.5, 1.0, log=True), 1.0, low=0.0, about="server learning rate; 1 takes the mean of the clients"),
    "momentum": Hyper(Float(0.0, 0.5), 0.0, low=0.0, high=1.0, about="momentum of the server; adam's beta1"),
    "gamma": Hyper(PAPER_SERVER["gamma"], 1.0, low=0.0, high=1.0, about="decay of the learning rate per round"),
}


def rate(server: Server, b: Config) -> np.float32:
    """Return alpha_t."""
    return np.float32(float(b["lr"]) * float(b["gamma"]) ** server.round)


def step(server: Server, change: Vector, tally: Tally, b: Config) -> tuple[Vector, Vectors]:
    """Step along the change and, with momentum, along past ones."""
    momentum, slots = np.float32(b["momentum"]), dict(server.slots)
    if momentum:
        if "momentum" in slots:
            change = change + momentum * slots["momentum"]
        slots["momentum"] = change
    return server.w + rate(server, b) * change, slots


sgd = Optimiser("sgd", "Khodak et al. 2021", step, HYPERS)
