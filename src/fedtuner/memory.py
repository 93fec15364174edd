"""What clients remember between rounds: in the state itself while it is small, in files past a limit.

A method such as SCAFFOLD keeps a vector per client and arm: n clients of d parameters cost 4 n d bytes. Past ``LIMIT``
bytes for one arm each client's vectors go to a file of their own, named by client and round and never changed, so a
state that refers to them stays what it was; what no state refers to any more is swept away.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedtuner.errors import StoreError
from fedtuner.methods.base import Vectors

LIMIT = 16 * 2**20  # bytes per arm, if all its clients remembered as much as the largest


@dataclass(frozen=True)
class Spilled:
    """A client's vectors in a file."""

    folder: Path
    client: int
    round: int

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"{self.client}-{self.round}.safetensors"


Memory = Mapping[int, Vectors | Spilled]


def memory_of(path: Path, arm: int) -> Path:
    """Return the folder of an arm's files within a study's."""
    return path / "memory" / str(arm)


def recall(kept: Vectors | Spilled) -> Vectors:
    """Return a client's vectors, read from their file if they are in one."""
    if not isinstance(kept, Spilled):
        return kept
    from safetensors.numpy import load

    return {name: array.copy() for name, array in load(kept.path.read_bytes()).items()}


def spill(memory: Memory, folder: Path, round: int, clients: int) -> Memory:
    """Return the memory with this round's new vectors moved to files, if ``clients`` such would pass the limit."""
    fresh = {i: m for i, m in memory.items() if not isinstance(m, Spilled)}
    if clients * max((_size(m) for m in fresh.values()), default=0) <= LIMIT:
        return memory
    from safetensors.numpy import save

    moved = {i: Spilled(folder, i, round) for i in fresh}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for i, vectors in fresh.items():
            aside = moved[i].path.with_suffix(".part")
            aside.write_bytes(save(dict(vectors)))
            aside.replace(moved[i].path)
    except OSError as error:
        raise StoreError(f"cannot write what clients remember to {folder}: {error.strerror or error}") from error
    return {**memory, **moved}


def sweep(folder: Path, memory: Memory, round: int) -> None:
    """Delete the files of rounds up to ``round`` that the arm's memory after it does not refer to.

    Later files belong to rounds that are under way; whatever these refer to of earlier ones, ``memory`` does too.
    """
    if not folder.is_dir():
        return
    used = {kept.path.name for kept in memory.values() if isinstance(kept, Spilled)}
    for file in folder.glob("*.safetensors"):
        if file.name not in used and int(file.stem.partition("-")[2]) <= round:
            file.unlink(missing_ok=True)


def drop(folder: Path) -> None:
    """Delete all of an arm's files."""
    shutil.rmtree(folder, ignore_errors=True)


def _size(vectors: Vectors) -> int:
    return sum(v.nbytes for v in vectors.values())
