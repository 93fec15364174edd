"""Data sets as lists of clients: built-in sets, one module each, and readers for your own data."""

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
    # readers
    "from_arrays", "from_rows", "from_npz", "from_examples", "from_torch", "from_partitions", "from_leaf",
    # partitions
    "iid", "by_label", "by_size", "dirichlet",
]  # fmt: skip
