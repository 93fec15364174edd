"""The model, and the data of one device."""

from functools import cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

CLIENTS = 1000  # rows that the devices have
LABELS = np.arange(10)


def initial() -> list[np.ndarray]:
    """Return the weights and biases that the training starts from."""
    return [np.zeros((10, 64)), np.zeros(10)]


def create_model(arrays: list[np.ndarray], strength: float = 1.0, local_epochs: int = 1) -> LogisticRegression:
    """Return a logistic regression with these weights and biases, which the next fit goes on from."""
    model = LogisticRegression(C=strength, max_iter=local_epochs, warm_start=True)
    model.classes_ = LABELS
    model.coef_, model.intercept_ = arrays
    return model


digits = cache(load_digits)


def examples(rows: np.ndarray) -> tuple:
    """Return images and labels."""
    return digits().data[rows] / 16, digits().target[rows]


def load_data(partition_id: int, num_partitions: int) -> tuple:
    """Return a device's training and validation examples: neighbouring rows are of the same writers."""
    rows = np.array_split(np.arange(CLIENTS), num_partitions)[partition_id]
    rows = np.random.default_rng(partition_id).permutation(rows)
    cut = len(rows) * 4 // 5
    return examples(rows[:cut]), examples(rows[cut:])


def load_test() -> tuple:
    """Return the server's test examples, of writers that no device has."""
    return examples(np.arange(CLIENTS, 1797))
