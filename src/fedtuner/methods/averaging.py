"""FedAvg, FedProx and Reptile: local training and a weighted mean of the clients' models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
Nichol et al., "On First-Order Meta-Learning Algorithms", 2018.

As in the paper's experiments all three have the server's learning rate schedule and momentum; FedAvg and FedProx in
their textbook form are the defaults lr = 1, momentum = 0, gamma = 1, and Reptile is the step part of the way
(default lr = 0.5). FedProx here solves the proximal problem by SGD and has no inexactness criterion.
"""

from __future__ import annotations

from dataclasses import replace

from fedtuner.core.model import Hyper
from fedtuner.methods.local import TRAINING, proximal, train
from fedtuner.methods.server import method
from fedtuner.space import PAPER_MU

MU = Hyper(PAPER_MU, 0.01, low=0.0, about="strength of the pull toward the server's model", role="regulariser")

fedavg = method("fedavg", "McMahan et al. 2017", train, client=TRAINING, plain=True)
fedprox = method("fedprox", "Li et al. 2020", proximal, client={**TRAINING, "mu": MU})
part = {**fedavg.server, "lr": replace(fedavg.server["lr"], default=0.5)}  # of sgd's way, not of other optimisers'
reptile = replace(fedavg, name="reptile", paper="Nichol et al. 2018", server=part)
