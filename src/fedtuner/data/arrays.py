"""Clients from arrays, from files of arrays, and from anything that yields each client's examples.

All functions take ``order`` and ``seed`` of the 80/10/10 split, and ``classes``, the number of classes to check labels
against. Without ``cache`` all examples are in memory. With ``cache``, the name of a file, the examples are converted to
that file once, and each client's examples are loaded when the client is visited. Delete the file when the data changes.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner.core.federation import SPLITS
from fedtuner.data import binary, checks, lazy
from fedtuner.data.binary import Examples
from fedtuner.data.lazy import Array
from fedtuner.data.partition import SMALLEST, Clients, Id, split
from fedtuner.errors import SpecError
from fedtuner.federations import Client


def from_examples(
    examples: Examples,
    order: str = "shuffled",
    seed: int = 0,
    classes: int | None = None,
    cache: Path | str | None = None,
) -> Clients:
    """Return the clients of (id, x, y): x and y are all examples of one client, in the order of the data."""
    if cache is not None:
        path = Path(cache)
        file = binary.File(path) if path.exists() else binary.convert(examples, path, classes=classes)
        return lazy.clients(file, file.owners, order, seed)
    made, ids = Clients(), checks.Ids()
    shape: tuple[int, ...] | None = None
    for id, x, y in examples:
        ids.add(id)
        checks.examples(f"client {id!r}", x, y, shape, classes)
        shape = x.shape[1:] if len(x) else shape
        if len(x) < SMALLEST:
            made.left_out.append(id)
        else:
            made.append(split(id, x, y, order, seed))
    return made


def from_arrays(
    x: Any,
    y: Any,
    ids: Any,
    order: str = "shuffled",
    seed: int = 0,
    *,
    classes: int | None = None,
    cache: Path | str | None = None,
) -> Clients:
    """Return a client for each value in ``ids``, a column of strings or whole numbers: the client of each example."""
    x, y, column = np.asarray(x), np.asarray(y), np.asarray(ids)
    if column.ndim != 1 or not len(x) == len(y) == len(column):
        raise SpecError(f"x, y and ids have shapes {x.shape}, {y.shape} and {column.shape}: each example needs one id")
    if column.dtype.kind not in "iuUSO":
        raise SpecError(f"ids are of type {column.dtype}, but must be strings or whole numbers")
    return from_examples(_grouped(x, y, column), order, seed, classes, cache)


def from_rows(
    x: Any,
    y: Any,
    rows: Mapping[Id, Array] | Sequence[Array],
    order: str = "shuffled",
    seed: int = 0,
    *,
    classes: int | None = None,
    cache: Path | str | None = None,
) -> Clients:
    """Return a client for each array of rows, as the functions of ``partition`` return them."""
    x, y = np.asarray(x), np.asarray(y)
    owners = rows.items() if isinstance(rows, Mapping) else enumerate(rows)
    return from_examples(((id, x[held], y[held]) for id, held in owners), order, seed, classes, cache)


def from_npz(
    folder: Path | str,
    order: str = "shuffled",
    seed: int = 0,
    classes: int | None = None,
    cache: Path | str | None = None,
) -> Clients:
    """Return a client for each ``.npz`` file of a folder, named by the file.

    A file has ``x`` and ``y``; or, already split, ``x_train``, ``y_train``, ``x_valid``, ``y_valid`` and, if the client
    has test examples, ``x_test``, ``y_test``.
    """
    files = sorted(Path(folder).glob("*.npz"))
    if not files:
        raise SpecError(f"no .npz files in {folder}: give a folder with one for each client")
    if "x" in _load(files[0]):
        return from_examples(_whole(files), order, seed, classes, cache)
    if cache is not None:
        raise SpecError(f"{files[0].name} is already split: such files are read into memory, without a cache")
    made = Clients(_already_split(file) for file in files)
    checks.check(made, classes=classes)
    return made


def _grouped(x: Array, y: Array, column: Array) -> Iterator[tuple[Id, Array, Array]]:
    order = np.argsort(column, kind="stable")
    ids, starts = np.unique(column[order], return_index=True)
    for id, rows in zip(ids.tolist(), np.split(order, starts[1:]), strict=True):
        yield id.decode() if isinstance(id, bytes) else id, x[rows], y[rows]


def _whole(files: Sequence[Path]) -> Iterator[tuple[Id, Array, Array]]:
    for file in files:
        arrays = _load(file)
        yield file.stem, _named(arrays, "x", file), _named(arrays, "y", file)


def _already_split(file: Path) -> Client:
    arrays = _load(file)
    needed = [s for s in SPLITS if s != "test" or "x_test" in arrays]
    return Client(file.stem, *((_named(arrays, f"x_{s}", file), _named(arrays, f"y_{s}", file)) for s in needed))


def _load(file: Path) -> dict[str, Array]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise SpecError(f"client {file.stem!r}: {file} cannot be read as .npz: {error}") from error


def _named(arrays: Mapping[str, Array], name: str, file: Path) -> Array:
    if name not in arrays:
        raise SpecError(f"client {file.stem!r}: no array {name!r} in {file.name}, which has {sorted(arrays)}")
    return arrays[name]
