"""Data sets as lists of clients: ready ones, one module each, and readers for your own."""

from __future__ import annotations

from fedtuner.data.arrays import from_arrays, from_examples, from_npz, from_rows
from fedtuner.data.checks import check
from fedtuner.data.datasets import from_partitions, from_torch
from fedtuner.data.lazy import labels
from fedtuner.data.leaf import clients as from_leaf
from fedtuner.data.partition import ORDERS, Clients, by_label, by_size, dirichlet, iid, split

__all__ = [
    # clients
    "Clients", "split", "check", "labels", "ORDERS",
    # from what you have
    "from_arrays", "from_rows", "from_npz", "from_examples", "from_torch", "from_partitions", "from_leaf",
    # who holds what
    "iid", "by_label", "by_size", "dirichlet",
]  # fmt: skip
