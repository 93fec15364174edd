"""FEMNIST: handwritten digits and letters, 62 classes, by the person who wrote them.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018. Read from a converted file, which is made from NIST's
archives or from LEAF's JSON; a writer's images are loaded when the writer is visited. All images are 0.6 GB as bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtuner.checks import one_of
from fedtuner.data import lazy, leaf
from fedtuner.data.lazy import Array
from fedtuner.data.partition import Clients, exchange, subset
from fedtuner.errors import SpecError
from fedtuner.rng import stream

CLASSES = 62  # 0..9, A..Z, a..z


def clients(
    by: str = "writer", order: str = "shuffled", seed: int = 0, limit: int | None = None, folder: Path | None = None
) -> Clients:
    """Return the writers; with ``by="chance"`` as many clients of the same sizes, with examples drawn from all writers.

    ``limit`` writers are drawn at random first. x are bytes of shape (28, 28), y is in 0..61.
    """
    one_of("by", by, ("writer", "chance"))
    file = leaf.of_set("femnist", folder, encode, CLASSES)
    owners = subset(file.owners, limit, seed)
    if by == "chance":
        parts = exchange([np.arange(rows.start, rows.stop) for _, rows in owners], stream(seed, "femnist iid"))
        return lazy.clients(file, [(id, part) for (id, _), part in zip(owners, parts, strict=True)], order, seed)
    return lazy.clients(file, owners, order, seed)


def encode(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    """Return LEAF's pixels, multiples of 1/255 in 0..1, as bytes, and its labels."""
    pixels, labels = leaf.numbers(x, y)
    if pixels.shape != (len(y), 784):
        raise SpecError(f"images have shape {pixels.shape[1:]}, but must have 784 pixels")
    pixels *= 255
    whole = np.rint(pixels)
    with np.errstate(invalid="ignore"):  # infinite pixels, which the comparison below finds, as it does NaN
        np.abs(np.subtract(pixels, whole, out=pixels), out=pixels)
    if pixels.size and not (pixels.max() <= 0.01 and whole.min() >= 0 and whole.max() <= 255):
        raise SpecError("pixels must be multiples of 1/255 in 0..1")
    short: Array = labels.astype(np.int16)
    if not np.array_equal(short, labels):
        short = labels  # unchanged, so that the check of labels can name the wrong one
    return whole.astype(np.uint8).reshape(-1, 28, 28), short
