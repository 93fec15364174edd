"""Clients from arrays, from files of arrays, and from anything that yields each client's examples.

All functions take ``order`` and ``seed`` of the 80/10/10 split, and ``classes``, the number of classes to check labels
against. Without ``cache`` all examples are in memory. With ``cache``, the name of a file, the examples are converted to
that file once, and each client's examples are loaded when the client is visited. The file is made anew when arrays, or
files of arrays, have changed. What else yields examples is not looked at while there is a file: delete it then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner.checks import client_id, path, whole
from fedtuner.core.federation import SPLITS
from fedtuner.data import binary, checks, lazy
from fedtuner.data.binary import Examples
from fedtuner.data.lazy import Array
from fedtuner.data.partition import SMALLEST, Clients, Id, check_order, split
from fedtuner.errors import SpecError, brief, one_line
from fedtuner.federations import Client


def from_examples(
    examples: Examples, order: str = "shuffled", seed: int = 0, classes: int | None = None,
    cache: Path | str | None = None,
) -> Clients:  # fmt: skip
    """Return the clients of (id, x, y): x and y are all examples of one client, in the order of the data."""
    return _clients(examples, order, seed, classes, (cache, None))


Cache = tuple[Path | str | None, str | None]  # a file, and what identifies the examples that it must have, if known


def _clients(examples: Examples, order: str, seed: int, classes: int | None, cache: Cache) -> Clients:
    check_order(order, seed)
    if classes is not None:
        whole("classes", classes)
    if not isinstance(examples, Iterable):
        raise SpecError(f"examples = {brief(examples)}, but must be (id, x, y) of each client")
    if cache[0] is not None:
        file = binary.cached(path("cache", cache[0]), cache[1], _triples(examples), classes)
        return lazy.clients(file, file.owners, order, seed)
    made, ids = Clients(), checks.Ids()
    shape: tuple[int, ...] | None = None
    for id, x, y in _triples(examples):
        ids.add(id)
        checks.examples(f"client {brief(id)}", x, y, shape, classes)
        shape = x.shape[1:] if len(x) else shape
        if len(x) < SMALLEST:
            made.left_out.append(id)
        else:
            made.append(split(id, x, y, order, seed))
    return made


def from_arrays(
    x: Any, y: Any, ids: Any, order: str = "shuffled", seed: int = 0,
    *, classes: int | None = None, cache: Path | str | None = None,
) -> Clients:  # fmt: skip
    """Return a client for each value in ``ids``, a column of strings or whole numbers: the client of each example."""
    x, y, column = (checks.array("the data", name, part) for name, part in (("x", x), ("y", y), ("ids", ids)))
    if column.ndim != 1 or not x.ndim or not y.ndim or not len(x) == len(y) == len(column):
        raise SpecError(f"x, y and ids have shapes {x.shape}, {y.shape} and {column.shape}: each example needs one id")
    if column.dtype.kind not in "iuUSO":
        raise SpecError(f"ids are of type {column.dtype}, but must be strings or whole numbers")
    if column.dtype.kind == "O":
        for id in column:
            client_id(id)
        if len({isinstance(id, str) for id in column}) > 1:
            raise SpecError("ids are strings and whole numbers, but must all be of one type")
    known = None if cache is None else _hash(x, y, column)
    return _clients(_grouped(x, y, column), order, seed, classes, (cache, known))


def from_rows(
    x: Any, y: Any, rows: Mapping[Id, Array] | Sequence[Array], order: str = "shuffled", seed: int = 0,
    *, classes: int | None = None, cache: Path | str | None = None,
) -> Clients:  # fmt: skip
    """Return a client for each array of rows, as the functions of ``partition`` return them."""
    x, y = checks.array("the data", "x", x), checks.array("the data", "y", y)
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise SpecError(f"x and y have shapes {x.shape} and {y.shape}, but both need one row per example")
    if not isinstance(rows, Iterable) or isinstance(rows, (str, bytes)):
        raise SpecError(f"rows = {brief(rows)}, but must be an array of rows for each client")
    owners = list(rows.items() if isinstance(rows, Mapping) else enumerate(rows))
    held = [(id, _rows(id, part, len(x))) for id, part in owners]
    known = None if cache is None else _hash(x, y, *(part for _, part in held), [id for id, _ in held])
    return _clients(((id, x[part], y[part]) for id, part in held), order, seed, classes, (cache, known))


def from_npz(
    folder: Path | str, order: str = "shuffled", seed: int = 0, classes: int | None = None,
    cache: Path | str | None = None,
) -> Clients:  # fmt: skip
    """Return a client for each ``.npz`` file of a folder, named by the file.

    A file has ``x`` and ``y``; or, already split, ``x_train``, ``y_train``, ``x_valid``, ``y_valid`` and, if the client
    has test examples, ``x_test``, ``y_test``.
    """
    files = sorted(path("folder", folder, "a folder").glob("*.npz"))
    if not files:
        raise SpecError(f"no .npz files in {folder}: give a folder with one for each client")
    if "x" in _load(files[0]):
        known = None if cache is None else binary.stamp(files)
        return _clients(_whole(files), order, seed, classes, (cache, known))
    if cache is not None:
        raise SpecError(f"{files[0].name} is already split: such files are read into memory, without a cache")
    made = Clients(_already_split(file) for file in files)
    checks.check(made, classes=classes)
    return made


def _triples(examples: Examples) -> Iterator[tuple[Id, Array, Array]]:
    """Yield id, x and y of each client, as arrays."""
    for one in examples:
        if not isinstance(one, tuple) or len(one) != 3:
            raise SpecError(f"a client's examples are {brief(one)}, but must be (id, x, y)")
        id = client_id(one[0])
        what = f"client {brief(id)}"
        yield id, checks.array(what, "x", one[1]), checks.array(what, "y", one[2])


def _rows(id: Id, held: Any, n: int) -> Array:
    """Return a client's rows; refuse those that are none of n examples."""
    what = f"client {brief(id)}"
    rows = checks.array(what, "rows", held)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise SpecError(f"{what}: rows are of shape {rows.shape} and type {rows.dtype}, but must be whole numbers")
    for row in rows[(rows < 0) | (rows >= n)][:1] if rows.size else ():
        raise SpecError(f"{what}: row {row}, but there are {n} examples")
    return rows.astype(np.int64)


def _hash(*parts: Any) -> str:
    """Return what identifies arrays."""
    digest = hashlib.blake2b(digest_size=12)
    for part in map(np.asarray, parts):
        digest.update(repr((part.shape, part.dtype.str)).encode())
        digest.update(repr(part.tolist()).encode() if part.dtype.hasobject else np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def _grouped(x: Array, y: Array, column: Array) -> Iterator[tuple[Id, Array, Array]]:
    if not len(column):
        return
    order = np.argsort(column, kind="stable")
    ids, starts = np.unique(column[order], return_index=True)
    for id, rows in zip(ids.tolist(), np.split(order, starts[1:]), strict=True):
        yield _text(id) if isinstance(id, bytes) else id, x[rows], y[rows]


def _text(id: bytes) -> str:
    try:
        return id.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"a client has the id {brief(id)}, which is not UTF-8") from error


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
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # a damaged file may raise anything
        why = one_line(str(error), 150)
        raise SpecError(f"client {brief(file.stem)}: {file} cannot be read as .npz: {why}") from error


def _named(arrays: Mapping[str, Array], name: str, file: Path) -> Array:
    if name not in arrays:
        has = brief(sorted(arrays))
        raise SpecError(f"client {brief(file.stem)}: no array {name!r} in {file.name}, which has {has}")
    return arrays[name]
