"""Splits that are loaded when their client is visited, for data larger than memory.

A ``Source`` has the examples of all clients in a compact form, in memory or memory-mapped; a ``Split`` is some rows of
it. ``Simulation`` loads a client's splits for its work in a round and keeps only those of the last client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtuner.data.partition import SMALLEST, Clients, Id, three
from fedtuner.federations import Client

Array = NDArray[Any]


class Source(Protocol):
    """The examples of many clients."""

    def take(self, rows: Array) -> tuple[Array, Array]:
        """Return these examples as x and y."""

    def labels(self, rows: Array) -> Array:
        """Return the y of these examples."""

    def fingerprint(self) -> str:
        """Return a hash of all examples."""


@dataclass(frozen=True, eq=False)
class Split:
    """Some rows of a source: ``split.load()`` gives the arrays x and y, ``split[i]`` one example."""

    source: Source
    rows: Array | range

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        x, y = self.source.take(np.array([self.rows[i]]))
        return x[0], y[0]

    def load(self) -> tuple[Array, Array]:
        return self.source.take(np.asarray(self.rows))

    def labels(self) -> Array:
        return self.source.labels(np.asarray(self.rows))

    def fingerprint(self) -> str:
        named = repr(self.rows) if isinstance(self.rows, range) else self.rows.astype(np.int64).tobytes()
        digest = hashlib.blake2b(self.source.fingerprint().encode(), digest_size=12)
        digest.update(named.encode() if isinstance(named, str) else named)
        return digest.hexdigest()


class Table:
    """A source that has x and y as arrays."""

    def __init__(self, x: Array, y: Array, fingerprint: str | None = None) -> None:
        self.x, self.y, self._fingerprint = x, y, fingerprint

    def take(self, rows: Array) -> tuple[Array, Array]:
        return np.ascontiguousarray(self.x[rows]), self.y[rows]

    def labels(self, rows: Array) -> Array:
        return self.y[rows]

    def fingerprint(self) -> str:
        if self._fingerprint is None:
            digest = hashlib.blake2b(digest_size=12)
            for part in (self.x, self.y):
                digest.update(repr((part.shape, part.dtype.str)).encode())
                digest.update(np.ascontiguousarray(part).data)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint


def clients(
    source: Source, owners: Iterable[tuple[Id, Array | range]], order: str = "shuffled", seed: int = 0
) -> Clients:
    """Return a client for each (id, rows), split 80/10/10; those with fewer than three rows are left out."""
    made = Clients()
    for id, rows in owners:
        if len(rows) < SMALLEST:
            made.left_out.append(id)
        else:
            made.append(Client(id, *(Split(source, _pick(rows, part)) for part in three(len(rows), id, order, seed))))
    return made


def labels(split: Any) -> Array:
    """Return the labels of any split; x of a lazy split is not loaded."""
    if split is None:
        return np.zeros(0, np.int64)
    if isinstance(split, Split):
        return split.labels()
    if isinstance(split, (tuple, list)) and len(split) == 2 and all(hasattr(part, "shape") for part in split):
        return np.asarray(split[1])
    return np.array([split[i][1] for i in range(len(split))])


def _pick(rows: Array | range, part: NDArray[np.int64]) -> Array | range:
    """Return some of a client's rows; consecutive ones as a range, which takes no memory for millions of rows."""
    if isinstance(rows, range):
        if part[-1] - part[0] == len(part) - 1 and (np.diff(part) == 1).all():
            return rows[int(part[0]) : int(part[-1]) + 1]
        return (rows.start + rows.step * part).astype(np.int32 if rows.stop < 2**31 else np.int64)
    return np.asarray(rows)[part]
