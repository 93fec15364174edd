"""FEMNIST: handwritten digits and letters, 62 classes, by the person who wrote them. From LEAF's JSON.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018. The images stay in a converted file and are loaded when
their writer is visited: all of them are 0.6 GB as bytes, and several GB as text.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner.data import lazy, leaf
from fedtuner.data.lazy import Array
from fedtuner.data.partition import Clients, subset
from fedtuner.errors import SpecError
from fedtuner.federation import Simulation
from fedtuner.rng import stream

CLASSES = 62  # 0..9, A..Z, a..z


def clients(
    by: str = "writer",
    order: str = "shuffled",
    seed: int = 0,
    limit: int | None = None,
    folder: Path | None = None,
) -> Clients:
    """Return the writers; with ``by="chance"`` as many clients of the same sizes, dealt from all writers' examples.

    ``limit`` writers are drawn at random, before any dealing. x are bytes of shape (28, 28), y is in 0..61.
    """
    if by not in ("writer", "chance"):
        raise SpecError(f"by = {by!r}, but must be 'writer' or 'chance'")
    file = leaf.of_set("femnist", folder, encode, CLASSES)
    owners = subset(file.owners, limit, seed)
    if by == "chance":
        dealt = stream(seed, "femnist iid").permutation(np.concatenate([np.arange(r.start, r.stop) for _, r in owners]))
        ends = np.cumsum([len(rows) for _, rows in owners])
        parts = np.split(dealt, ends[:-1])
        return lazy.clients(file, [(id, part) for (id, _), part in zip(owners, parts, strict=True)], order, seed)
    return lazy.clients(file, owners, order, seed)


def encode(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    """Return LEAF's pixels, multiples of 1/255 in 0..1, as bytes, and its labels."""
    pixels = np.array(x, np.float32) * np.float32(255)
    if pixels.shape != (len(y), 784):
        raise SpecError(f"images have shape {pixels.shape[1:]}, but must have 784 pixels")
    if not np.isfinite(pixels).all():
        raise SpecError("there are pixels that are NaN or infinite")
    whole = np.rint(pixels)
    if pixels.size and (np.abs(pixels - whole).max() > 0.01 or whole.min() < 0 or whole.max() > 255):
        raise SpecError("pixels must be multiples of 1/255 in 0..1")
    return whole.astype(np.uint8).reshape(-1, 28, 28), np.array(y, np.int64).astype(np.int16)


def problem() -> Simulation:
    """Return the paper's non-i.i.d. FEMNIST: each client is a writer, its own examples split at random."""
    return _problem("femnist", "writer", None)


def problem_iid() -> Simulation:
    """Return the i.i.d. FEMNIST: examples dealt out at random to clients as large as the writers.

    The paper says no more than "shuffled within each device", which its non-i.i.d. version is, too; dealing over all
    devices is LEAF's own i.i.d. version.
    """
    return _problem("femnist-iid", "chance", None)


def problem_small() -> Simulation:
    """Return a hundred of the writers with a small network."""
    return _problem("femnist-small", "writer", 100)


def problem_iid_small() -> Simulation:
    """Return the examples of a hundred writers, dealt out at random, with a small network."""
    return _problem("femnist-iid-small", "chance", 100)


def _problem(name: str, by: str, limit: int | None) -> Simulation:
    from fedtuner.models import femnist_cnn, small_cnn
    from fedtuner.pytorch import Task

    net = partial(femnist_cnn, CLASSES) if limit is None else partial(small_cnn, 1, CLASSES, 28)
    return Simulation(Task(net), clients(by, limit=limit), name)
