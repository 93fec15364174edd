"""Networks for the built-in problems."""

from __future__ import annotations

from torch import nn


def mlp(inputs: int, hidden: int, classes: int, dropout: float = 0.0) -> nn.Module:
    """Return a perceptron with one hidden layer and dropout after it."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, classes)
    )
