"""Ditto: each client trains its own model beside the global one, held near it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021. The global model is trained
as in FedAvg. Beside it the client takes as many steps on its own model v_i, with a pull lambda/2 |v_i - w_t|^2 toward
the global model that it was sent; v_i starts at the first w_t that the client meets. The personalized objective
validates v_i. Both use the same local hyperparameters. Costs one vector of memory per client and twice the local work.
"""

from __future__ import annotations

from fedtuner.core.method import Local, Update
from fedtuner.core.model import Hyper
from fedtuner.core.records import Job, Plan
from fedtuner.methods.local import TRAINING, descend, toward
from fedtuner.methods.server import method
from fedtuner.space import Float

LAMBDA = Hyper(
    Float(0.05, 2.0, log=True),
    0.1,
    low=0.0,
    about="pull of the personal model toward the global one",
    role="regulariser",
)


def local(client: Local, plan: Plan, job: Job) -> Update:
    """Train the global model, then the client's own."""
    w = descend(client, plan.w, job.config)
    pull = toward(plan.w[: client.trainable], float(job.config["lambda"]))
    own = descend(client, job.remembered.get("personal", plan.w), job.config, pull)
    return Update(w, memory={"personal": own}, personal=own)


ditto = method("ditto", "Li et al. 2021", local, client={**TRAINING, "lambda": LAMBDA}, memory={"personal": "all"})
