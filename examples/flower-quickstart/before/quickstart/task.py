"""The network, the data of one device, and how it trains and validates."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    """A perceptron for images of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.output = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.hidden(x)))


def load_data(partition: int, partitions: int) -> tuple:
    """Return a device's training and validation examples: neighbouring rows are of the same writers."""
    digits = load_digits()
    rows = np.array_split(np.arange(len(digits.target)), partitions)[partition]
    rows = np.random.default_rng(partition).permutation(rows)
    x = torch.tensor(digits.data[rows] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[rows])
    cut = len(rows) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def fit(net: nn.Module, data: tuple, lr: float, epochs: int, batch: int) -> None:
    """Train by SGD."""
    x, y = data
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()


def test(net: nn.Module, data: tuple) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    x, y = data
    with torch.no_grad():
        logits = net(x)
    return float(nn.functional.cross_entropy(logits, y)), float((logits.argmax(1) == y).float().mean())
