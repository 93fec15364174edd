"""Data sets as lists of clients, and how a client's examples are split."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtuner.errors import SpecError
from fedtuner.federation import Client
from fedtuner.rng import stream

ORDERS = ("shuffled", "in-order")


def split(id: str | int, x: Any, y: Any, order: str = "shuffled", seed: int = 0) -> Client:
    """Return a client with 80 % of its examples to train on, 10 % to validate and 10 % to test, as in the paper.

    ``shuffled`` makes the three alike (i.i.d. within the client); ``in-order`` keeps them in the order of the data, so
    that the client is tested on what came last. Validation and test have at least one example where there are three.
    """
    if order not in ORDERS:
        raise SpecError(f"order = {order!r}, but must be one of {ORDERS}")
    n = len(x)
    rows = np.arange(n) if order == "in-order" else stream(seed, "split", id).permutation(n)
    held = max(round(0.1 * n), 1 if n >= 3 else 0)
    train, valid, test = np.split(rows, [n - 2 * held, n - held])
    return Client(id, (x[train], y[train]), (x[valid], y[valid]), (x[test], y[test]))
