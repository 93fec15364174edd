"""The only source of randomness: a stream is named by what it is for, never by when or where it is drawn.

The same (seed, path) gives the same numbers in any process, in any order, for any number of workers.
"""

from __future__ import annotations

import hashlib

import numpy as np

Generator = np.random.Generator


def _digest(seed: int, path: tuple[str | int, ...], size: int) -> int:
    # The type is part of the name: client 1 and client "1" are different clients.
    name = repr((int(seed), *(part if isinstance(part, str) else int(part) for part in path)))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=size).digest(), "little")


def stream(seed: int, *path: str | int) -> Generator:
    """Return the generator that belongs to ``path`` (purpose, arm, round, client ...) under ``seed``."""
    return np.random.Generator(np.random.PCG64(_digest(seed, path, 16)))


def number(seed: int, *path: str | int) -> int:
    """Return the 63-bit integer that belongs to ``path``: a seed for libraries with their own generators."""
    return _digest(seed, path, 8) >> 1
