"""The network, the data of one device, and how it trains and validates."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

CLIENTS = 1000  # rows that the devices have


class Net(nn.Module):
    """A perceptron for images of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.output = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.hidden(x)))


digits = cache(load_digits)


def examples(rows: np.ndarray) -> tuple:
    """Return images and labels."""
    return torch.tensor(digits().data[rows] / 16, dtype=torch.float32), torch.tensor(digits().target[rows])


def load_data(partition_id: int, num_partitions: int) -> tuple:
    """Return a device's training and validation examples: neighbouring rows are of the same writers."""
    rows = np.array_split(np.arange(CLIENTS), num_partitions)[partition_id]
    rows = np.random.default_rng(partition_id).permutation(rows)
    cut = len(rows) * 4 // 5
    return examples(rows[:cut]), examples(rows[cut:])


def load_test() -> tuple:
    """Return the server's test examples, of writers that no device has."""
    return examples(np.arange(CLIENTS, 1797))


def fit(net: nn.Module, data: tuple, epochs: int, lr: float, batch_size: int) -> None:
    """Train by SGD."""
    x, y = data
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()


def test(net: nn.Module, data: tuple) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    x, y = data
    with torch.no_grad():
        logits = net(x)
    return float(nn.functional.cross_entropy(logits, y)), float((logits.argmax(1) == y).float().mean())


def get_weights(net: nn.Module) -> list[np.ndarray]:
    """Return the network's arrays."""
    return [array.numpy() for array in net.state_dict().values()]


def set_weights(net: nn.Module, arrays: list[np.ndarray]) -> None:
    """Give a network its arrays."""
    net.load_state_dict({name: torch.tensor(a) for name, a in zip(net.state_dict(), arrays, strict=True)})
