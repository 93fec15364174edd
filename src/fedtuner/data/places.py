"""The folders that data sets are read from and written to.

Each set has a folder of its own name, in one of these:

1. the folder that the environment variable FEDTUNER_DATA names;
2. fedtuner's folder in the user's cache: ``$XDG_CACHE_HOME/fedtuner``, else ``~/.cache/fedtuner``;
3. a folder ``shared/data`` in the current folder or in one above it.

A set is read from the first that has its files. Downloads and conversions are written to ``home()``: 1 if the variable
is set, else 2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedtuner.errors import SpecError, brief, suggest


@dataclass(frozen=True)
class Needed:
    """The files of a set; a folder that has files of one of the patterns has the set."""

    about: str
    files: tuple[str, ...]  # glob patterns within the set's folder
    get: bool  # whether ``fedtuner data get`` can download it


SETS = {
    "mnist_by_writer": Needed("MNIST joined to QMNIST's writer ids", ("mnist_by_writer.npz",), get=False),
    "shakespeare": Needed(
        "Shakespeare's plays by speaking role",
        ("roles.jsonl.xz", "shakespeare.safetensors", "all_data/*.json", "*.json"),
        get=True,
    ),
    "femnist": Needed(
        "LEAF's FEMNIST", ("femnist.safetensors", "all_data/*.json", "*.json"), get=True
    ),
    "cifar10": Needed(
        "CIFAR-10", ("cifar-10-batches-py/data_batch_1", "data_batch_1", "cifar10_20k.npz"), get=True
    ),
}  # fmt: skip


def home() -> Path:
    """Return the folder that downloads and conversions go to; it need not exist yet."""
    named = os.environ.get("FEDTUNER_DATA")
    return Path(named).expanduser() if named else _cache()


def folders() -> Iterator[Path]:
    """Yield the folders that may have sets, in the order in which they are searched."""
    yield home()
    yield _cache()
    here = Path.cwd()
    for above in (here, *here.parents):
        yield above / "shared" / "data"


def holds(folder: Path, name: str) -> bool:
    """Return whether a folder has the files of a set."""
    return any(next(folder.glob(pattern), None) is not None for pattern in _needed(name).files)


def find(name: str) -> Path:
    """Return the folder of a set; if no folder has it, raise an error that says how to get it."""
    for parent in folders():
        if holds(parent / name, name):
            return parent / name
    raise SpecError(absent(name))


def absent(name: str) -> str:
    """Return the error message for a missing set: its content, the command that gets it, the files to place by hand."""
    needed = _needed(name)
    by_hand = f"place {' or '.join(needed.files)} in {home() / name}"
    how = f"run 'fedtuner data get {name}', or {by_hand}" if needed.get else by_hand
    return f"the data set {name!r} ({needed.about}) is not here: {how}; FEDTUNER_DATA names another folder"


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fedtuner"


def _needed(name: str) -> Needed:
    if name not in SETS:
        raise SpecError(f"no data set {brief(name)}{suggest(name, list(SETS))}")
    return SETS[name]
