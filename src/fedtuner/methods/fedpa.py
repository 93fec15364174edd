"""FedPA: clients send not their mean but what their local posterior says the server should move by.

Al-Shedivat et al., "Federated Learning via Posterior Averaging", ICLR 2021. The iterates of local SGD, after a burn-in,
are averaged in windows (iterate-averaged stochastic gradients) to give l samples x_1..x_l of the client's posterior.
The client sends delta = S^-1 (w_t - mean x) with the shrinkage estimate of their covariance

    S = r I + (1 - r) cov(x),   r = 1 / (1 + (l - 1) rho),

computed in O(l^2 d) time and O(l d) memory without ever forming S. In the first ``burn_in_rounds`` it is FedAvg.
Differences: windows are of equal length over the steps after the burn-in, which is a fraction of all local steps; with
one sample, from which no covariance can be estimated, that sample is the last iterate, so it is FedAvg exactly. The
personalized model is the last iterate of local training.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtuner.core.method import Local, Update
from fedtuner.core.model import Hyper, Vector, finite
from fedtuner.core.records import Job, Plan
from fedtuner.methods.local import TRAINING, descend
from fedtuner.methods.server import STEP, method
from fedtuner.space import Float, Int

Floats = NDArray[np.float64]

SAMPLING = {
    "samples": Hyper(Int(2, 10), 5, low=1, whole=True, about="posterior samples; 1 is fedavg"),
    "rho": Hyper(Float(1e-4, 1.0, log=True), 0.01, low=0.0, about="shrinkage: 0 trusts no covariance"),
    "burn_in": Hyper(Float(0.0, 0.8), 0.5, low=0.0, high=1.0, about="part of the local steps before sampling"),
}
BURN_IN_ROUNDS = Hyper(None, 0, low=0, whole=True, about="rounds of fedavg before sampling starts")


def local(client: Local, plan: Plan, job: Job) -> Update:
    """Train, collecting samples on the way, and send the posterior's delta."""
    c, start = job.config, plan.w[: client.trainable]
    wanted = int(c["samples"]) if plan.round >= int(plan.server["burn_in_rounds"]) else 1
    n, batch = client.examples, int(c["batch"])
    steps = int(c["epochs"]) * sum(min(batch, n - at) >= client.smallest_batch for at in range(0, n, batch))
    first = min(int(float(c["burn_in"]) * steps), max(steps - 1, 0))
    windows = np.array_split(np.arange(first, steps), min(wanted, max(steps - first, 1)))
    if len(windows) < 2:
        return Update(descend(client, plan.w, c))
    samples: list[Vector] = []
    total, seen, position = np.zeros_like(start), 0, 0

    def visit(w: Vector) -> None:
        nonlocal total, seen, position
        if position >= first:
            total += w[: client.trainable]
            seen += 1
            if seen == len(windows[len(samples)]):
                samples.append(total / np.float32(seen))
                total, seen = np.zeros_like(start), 0
        position += 1

    last = descend(client, plan.w, c, visit=visit)
    if not finite(last):  # it may have ended before the first sample; what it had sampled before is no posterior
        return Update(last)
    w = last.copy()
    w[: client.trainable] = start - posterior_delta(start, samples, float(c["rho"]))
    return Update(w, personal=last)


def posterior_delta(start: Vector, samples: Sequence[Vector], rho: float) -> Vector:
    """Return S^-1 (start - mean of samples), by one rank-one correction of the inverse per sample.

    S is r (I + rho sum_t (t-1)/t u_t u_t'), u_t = x_t - mean(x_1..x_{t-1}), so with v_t the inverse before sample t
    applied to u_t, the inverse after it subtracts g_t v_t v_t' / (1 + g_t u_t'v_t), g_t = rho (t-1)/t.
    """
    mean = samples[0].astype(np.float64)
    corrections: list[tuple[Floats, float]] = []

    def inverse(y: Floats) -> Floats:
        result = y.copy()
        for v, factor in corrections:
            result -= factor * float(v @ y) * v
        return result

    for t, sample in enumerate(samples[1:], start=2):
        u = sample - mean
        v, g = inverse(u), rho * (t - 1) / t
        corrections.append((v, g / (1 + g * float(u @ v))))
        mean += u / t
    return ((1 + (len(samples) - 1) * rho) * inverse(start - mean)).astype(np.float32)


fedpa = method(
    "fedpa", "Al-Shedivat et al. 2021", local,
    client={**TRAINING, **SAMPLING}, server={**STEP, "burn_in_rounds": BURN_IN_ROUNDS},
)  # fmt: skip
