"""Federated architecture search: the activation, the width and a second layer are client hyperparameters.

One network has the parameters of all eight architectures; each client of a round trains and validates the one that
FedEx drew for it, and all share one vector of weights. Its result stands beside the same study on one fixed
architecture. benchmarks/architecture.py compares with every architecture, over several seeds.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtuner as ft
from fedtuner.data import digits

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}
CHOICES = {"activation": ["relu", "tanh"], "width": [64, 8], "deep": [False, True]}  # the first is the default


class Net(nn.Module):
    """A perceptron that uses the first ``width`` of its hidden units, and its second hidden layer only if ``deep``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.activation, self.width, self.deep = "relu", 64, False

    def forward(self, x: Tensor) -> Tensor:
        act, n = ACTIVATIONS[self.activation], self.width
        scale = (64 / n) ** 0.5  # weights begin small enough for 64 inputs, which is too small for fewer
        h = act(F.linear(x, self.first.weight[:n], self.first.bias[:n]))
        if self.deep:
            h = act(F.linear(scale * h, self.second.weight[:n, :n], self.second.bias[:n]))
        return F.linear(scale * h, self.last.weight[:, :n], self.last.bias)


def configure(net: nn.Module, chosen: ft.space.Config) -> None:
    """Set which of its parameters the network uses, and how."""
    net.activation, net.width, net.deep = chosen["activation"], chosen["width"], chosen["deep"]


def problem() -> ft.Simulation:
    """Return the digits with this network; a study.toml can name it: problem = "architecture:problem"."""
    task = ft.pytorch.Task(Net, choices=CHOICES, configure=configure)
    return ft.Simulation(task, digits.clients(), name="digits-architectures")


def space(**architecture: object) -> ft.Space:
    """Return the space: a few training hyperparameters, and the architecture, as far as it is not fixed."""
    training = {"lr": ft.Float(0.03, 0.5, log=True), "epochs": ft.Int(1, 3), "batch": ft.PowerOfTwo(8, 32)}
    return ft.Space(client={**training, **CHOICES, **architecture}, server={"lr": ft.Float(0.5, 2.0, log=True)})


if __name__ == "__main__":
    made = problem()
    tuner = {
        "schedule": ft.halving(budget=120, longest=30, eta=3, eliminations=2),
        "fedex": ft.FedEx(k=12, eps=1.0),  # eps = 1: candidates differ in their architecture, too
    }
    searched = ft.tune(made, space(), **tuner)
    print("found  ", {name: searched.best.client[name] for name in CHOICES})
    print("error  ", searched.evaluate("test"))
    fixed = ft.tune(made, space(activation="tanh", width=8, deep=True), **tuner)
    print("tanh, 8 units, two layers:", fixed.evaluate("test"))
    net = made.task.module(searched.best.model, searched.best.client)  # in the shape that was found
    print(net.activation, net.width, net.deep)
