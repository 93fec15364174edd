"""The model, and the data of one device."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

DIGITS = np.arange(10)


def initial() -> list[np.ndarray]:
    """Return the weights and biases that the training starts from."""
    return [np.zeros((10, 64)), np.zeros(10)]


def model(arrays: list[np.ndarray], **settings: object) -> SGDClassifier:
    """Return a logistic regression with these weights and biases."""
    made = SGDClassifier(loss="log_loss", learning_rate="constant", **settings)
    made.classes_ = DIGITS
    made.coef_, made.intercept_ = arrays
    return made


def load_data(partition: int, partitions: int) -> tuple:
    """Return a device's training and validation examples: neighbouring rows are of the same writers."""
    digits = load_digits()
    rows = np.array_split(np.arange(len(digits.target)), partitions)[partition]
    rows = np.random.default_rng(partition).permutation(rows)
    x, y = digits.data[rows] / 16, digits.target[rows]
    cut = len(rows) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])
