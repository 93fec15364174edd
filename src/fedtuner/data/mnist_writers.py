"""MNIST's 70,000 digits by the person who wrote them: 836 writers, known from QMNIST's records.

LeCun, Cortes and Burges, MNIST; Yadav and Bottou, "Cold Case: The Lost MNIST Digits", NeurIPS 2019. Clients differ in
handwriting and hardly in their shares of the labels; with ``by="chance"`` they differ in neither.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedtuner import checks
from fedtuner.data import places
from fedtuner.data.arrays import from_examples
from fedtuner.data.partition import Clients, exchange, subset
from fedtuner.errors import SpecError, one_line
from fedtuner.rng import stream

PARTS = ("both", "train", "test")


def clients(
    part: str = "both", order: str = "shuffled", seed: int = 0, limit: int | None = None, folder: Path | None = None,
    by: str = "writer",
) -> Clients:  # fmt: skip
    """Return the writers of MNIST's training part (539), of its test part (297; no writer is in both), or all.

    ``limit`` of them are drawn at random. With ``by="chance"`` there are as many clients of the same sizes, with
    examples drawn from all these writers. x are bytes of shape (28, 28), y the digit.
    """
    checks.one_of("part", part, PARTS)
    checks.one_of("by", by, ("writer", "chance"))
    path = (folder or places.find("mnist_by_writer")) / "mnist_by_writer.npz"
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            images, labels, writers, tested = (file[k] for k in ("images", "labels", "writers", "mnist_test"))
            if writers.shape != tested.shape or not len(images) == len(labels) == len(writers) > 0:
                raise ValueError("its arrays are of several lengths, or empty")
            changes = np.diff(writers.astype(np.int64)) != 0
    except Exception as error:  # a damaged file may raise anything
        raise SpecError(f"{path} cannot be read ({one_line(str(error), 100)}): place another one there") from error
    # The rows are sorted by (part, writer), so each writer is one slice.
    starts = np.flatnonzero(np.r_[True, changes])
    slices = [slice(a, b) for a, b in zip(starts, [*starts[1:], len(writers)], strict=True)]
    if part != "both":
        slices = [s for s in slices if tested[s.start] == (part == "test")]
    chosen = subset(slices, limit, seed)
    held = [np.arange(s.start, s.stop) for s in chosen]
    if by == "chance":
        held = exchange(held, stream(seed, "mnist iid"))
    ids = (f"writer{writers[s.start]:04d}" for s in chosen)
    owners = ((id, images[rows], labels[rows]) for id, rows in zip(ids, held, strict=True))
    return from_examples(owners, order, seed, classes=10)
