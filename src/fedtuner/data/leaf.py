"""LEAF's JSON: ``users``, ``num_samples`` and ``user_data`` in each file of a folder, read one client at a time.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018. A file is hundreds of megabytes of text, so ijson reads
it as a stream, with the examples of one client in memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedtuner.checks import is_number, path
from fedtuner.data import binary, checks, lazy, places
from fedtuner.data.lazy import Array
from fedtuner.data.partition import Clients, Id, check_order
from fedtuner.errors import FAILURES, SpecError, brief, one_line

_DEEPEST = 100
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

Encode = Callable[[list[Any], list[Any]], tuple[Array, Array]]


def numbers(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    """Return examples of numbers: x as float32, y as int64."""
    try:
        with np.errstate(over="ignore"):  # what is too large becomes infinite, which the check of examples finds
            return np.array(x, np.float32), _whole(y)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SpecError(f"x must be numbers of one shape: {one_line(str(error), 150)}") from error


def _whole(y: list[Any]) -> Array:
    """Return labels as whole numbers; 1.0 is one, 0.5 is none."""
    for row, label in enumerate(y):
        if not is_number(label) or label != int(label) or abs(label) >= 2**63:
            raise SpecError(f"the label of example {row} is {brief(label)}, but labels must be whole numbers")
    return np.array(y, np.int64)


def clients(
    folder: Path | str, cache: Path | str, order: str = "shuffled", seed: int = 0, classes: int | None = None,
    encode: Encode = numbers,
) -> Clients:  # fmt: skip
    """Return the clients of a folder of LEAF's files; their examples are loaded from the file ``cache`` when visited.

    The file is made if it is missing or the folder has changed. ``encode`` turns a client's x and y into arrays.
    """
    sources = files(path("folder", folder, "a folder"))
    check_order(order, seed)
    if not sources:
        raise SpecError(f"no .json files in {folder}: give LEAF's data/all_data folder")
    file = converted(sources, path("cache", cache), encode, classes)
    return lazy.clients(file, file.owners, order, seed)


def files(folder: Path) -> list[Path]:
    """Return LEAF's files in a folder, or in its ``all_data``."""
    return sorted(folder.glob("*.json")) or sorted(folder.glob("all_data/*.json"))


def converted(sources: list[Path], target: Path, encode: Encode, classes: int | None = None) -> binary.File:
    """Return the converted form of LEAF's files, made if it is missing or the files have changed."""
    return binary.cached(target, binary.stamp(sources), examples(sources, encode), classes)


def of_set(name: str, folder: Path | None, encode: Encode, classes: int) -> binary.File:
    """Return one of LEAF's sets from its folder: the file ``NAME.safetensors``, made from JSON files if there are any.

    If the folder cannot be written to, the file is made in ``places.home()``.
    """
    folder = folder or places.find(name)
    target = folder / f"{name}.safetensors"
    sources = files(folder)
    if not sources:
        if not target.exists():
            raise SpecError(f"no {target.name} and no .json files of LEAF's in {folder}")
        return binary.File(target)
    if not target.exists() and not os.access(folder, os.W_OK):
        target = places.home() / name / target.name
    return converted(sources, target, encode, classes)


def examples(sources: list[Path], encode: Encode = numbers) -> Iterator[tuple[Id, Array, Array]]:
    """Yield each client's id, x and y, over all files."""
    ids = checks.Ids()
    for source in sources:
        for user, x, y in read(source):
            ids.add(user, f", the second in {source.name}")
            what = f"client {brief(user)} in {source.name}"
            try:
                arrays = encode(x, y) if y else (np.zeros(0), np.zeros(0))  # left out later, and listed there
            except FAILURES as error:  # a function of one's own may raise anything
                raise SpecError(f"{what}: {error}") from error
            checks.examples(what, *arrays)
            yield user, *arrays


def read(path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield each user of one file with its x and y as JSON has them; check them against the file's own lists.

    LEAF writes the lists ``users`` and ``num_samples`` before ``user_data``. If one comes later, or is missing, the
    file is read once more to look for it.
    """
    try:
        import ijson
    except ImportError as error:
        raise SpecError(f"{path.name} is read by ijson: pip install 'fedtuner[data]'") from error
    counts: dict[str, int] = {}
    with path.open("rb") as file:
        try:
            # Floats, not Decimals; and of whole numbers with more than 4300 digits ijson would die.
            users = next(ijson.items(_Shallow(file, path.name), "users", use_float=True), None)
            file.seek(0)
            stated = next(ijson.items(_Shallow(file, path.name), "num_samples", use_float=True), None)
            file.seek(0)
            for user, data in ijson.kvitems(_Shallow(file, path.name), "user_data", use_float=True):
                x, y = _examples(f"client {brief(user)} in {path.name}", data)
                counts[user] = len(y)
                yield user, x, y
        except ijson.JSONError as error:
            reason, last = str(error).partition("\n")[0], next(reversed(counts), None)
            place = f"before byte {file.tell():,}" + ("" if last is None else f", after client {brief(last)}")
            raise SpecError(f"{path.name} is not LEAF's JSON: {reason} ({place})") from error
    if not counts and users is None:
        raise SpecError(f"{path.name} is not LEAF's JSON: no clients in its {path.stat().st_size:,} bytes")
    _compare(path, counts, users, stated)


class _Shallow:
    """A file of JSON that is refused where lists are nested too deeply: ijson's memory grows with the square of it."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self._depth, self._in_text, self._escaped = 0, 0, False  # at the end of what was read

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        read = data[1:] if self._escaped else data
        self._escaped = (len(read) - len(read.rstrip(b"\\"))) % 2 == 1 if data else self._escaped
        parts = _ESCAPED.sub(b"", read).split(b'"')  # in turn outside of texts and inside
        brackets = b"".join(parts[self._in_text :: 2]).translate(None, _NO_BRACKETS)
        self._in_text ^= (len(parts) - 1) % 2
        opened = np.isin(np.frombuffer(brackets, np.uint8), list(b"[{"))
        depths = self._depth + np.cumsum(np.where(opened, 1, -1))
        if depths.max(initial=0) > _DEEPEST:
            raise SpecError(f"{self._name} is not LEAF's JSON: its lists are nested more than {_DEEPEST} deep")
        self._depth = int(depths[-1]) if len(depths) else self._depth
        return data


def _examples(what: str, data: Any) -> tuple[list[Any], list[Any]]:
    x, y = (data.get(name) if isinstance(data, dict) else None for name in ("x", "y"))
    if not (isinstance(x, list) and isinstance(y, list)):
        raise SpecError(f"{what}: no x and y: both must be lists, with one entry for each example")
    if len(x) != len(y):
        raise SpecError(f"{what}: x has {len(x)} examples, y has {len(y)}")
    return x, y


def _compare(path: Path, counts: Mapping[str, int], users: list[str] | None, stated: list[int] | None) -> None:
    """Raise an error that names the first client whose number of examples is not the one that the file states."""
    if users is not None and not (isinstance(users, list) and all(isinstance(user, str) for user in users)):
        raise SpecError(f"{path.name}: users = {brief(users)}, but must be a list of strings")
    if stated is not None and not isinstance(stated, list):
        raise SpecError(f"{path.name}: num_samples = {brief(stated)}, but must be a list of numbers")
    said = dict(zip(counts if users is None else users, counts.values() if stated is None else stated, strict=False))
    for user in {**said, **counts}:
        if said.get(user) != counts.get(user):
            raise SpecError(
                f"client {brief(user)} in {path.name}: num_samples says "
                f"{brief(said[user]) if user in said else 'nothing'}, but user_data has {counts.get(user, 'nothing')}"
            )
