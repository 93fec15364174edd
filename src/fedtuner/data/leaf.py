"""LEAF's JSON: ``users``, ``num_samples`` and ``user_data`` in each file of a folder, read one client at a time.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018. A file is hundreds of megabytes of text, so it is not
parsed as a whole: the reader finds where each client's object ends and parses that.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedtuner.data import binary, checks, lazy, places
from fedtuner.data.lazy import Array
from fedtuner.data.partition import Clients, Id
from fedtuner.errors import SpecError

Encode = Callable[[list[Any], list[Any]], tuple[Array, Array]]

_CHUNK = 2**22
_SPACE = re.compile(rb"[\s,:]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}]*(?=[\s,\]}])")
# What matters on the way to the end of an object or a list: its marks, and strings, which may have such marks in them.
# Each pattern starts with a set of bytes, which is what Python searches for fastest.
_REST = rb'(?:(?<=")[^"\\]*(?:\\.[^"\\]*)*")?'
_MARKS = {
    b"{": re.compile(rb'["{}]' + _REST, re.DOTALL),
    b"[": re.compile(rb'["\[\]]' + _REST, re.DOTALL),
}


def numbers(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    """Return examples of numbers: x as float32, y as int64."""
    return np.array(x, np.float32), np.array(y, np.int64)


def clients(
    folder: Path | str,
    cache: Path | str,
    order: str = "shuffled",
    seed: int = 0,
    classes: int | None = None,
    encode: Encode = numbers,
) -> Clients:
    """Return the clients of a folder of LEAF's files, loaded when visited from the file ``cache``.

    The file is made where it is missing or the folder has changed. ``encode`` turns a client's x and y into arrays.
    """
    file = converted(files(Path(folder)), Path(cache), encode, classes)
    return lazy.clients(file, file.owners, order, seed)


def files(folder: Path) -> list[Path]:
    """Return LEAF's files in a folder, or in its ``all_data``."""
    found = sorted(folder.glob("*.json")) or sorted(folder.glob("all_data/*.json"))
    if not found:
        raise SpecError(f"no .json files in {folder}: give LEAF's data/all_data folder")
    return found


def converted(sources: list[Path], target: Path, encode: Encode, classes: int | None = None) -> binary.File:
    """Return the binary form of LEAF's files, made if it is missing or older than they."""
    return binary.cached(target, binary.stamp(sources), examples(sources, encode), classes)


def of_set(name: str, folder: Path | None, encode: Encode, classes: int) -> binary.File:
    """Return a set of LEAF's from its folder: the file ``NAME.safetensors``, made from the JSON if there is any.

    Where the folder cannot be written to, the file is made in ``places.home()``.
    """
    folder = folder or places.find(name)
    target = folder / f"{name}.safetensors"
    sources = sorted(folder.glob("*.json")) or sorted(folder.glob("all_data/*.json"))
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
            what = f"client {user!r} in {source.name}"
            try:
                arrays = encode(x, y) if y else (np.zeros(0), np.zeros(0))  # counted, and left out later
            except (SpecError, TypeError, ValueError) as error:
                raise SpecError(f"{what}: {error}") from error
            checks.examples(what, *arrays)
            yield user, *arrays


def read(path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield each user of one file with its x and y as JSON has them; check them against the file's own lists."""
    lists: dict[str, list[Any]] = {}
    counts: dict[str, int] = {}
    with path.open("rb") as file:
        text = _Text(file, path)
        parse = json.JSONDecoder(parse_float=_Floats().__getitem__).decode
        text.enter()
        while (key := text.key()) is not None:
            if key in ("users", "num_samples"):
                lists[key] = json.loads(text.value())
            elif key != "user_data":
                text.value()
            else:
                text.enter()
                while (user := text.key()) is not None:
                    x, y = _user(text, user, parse)
                    counts[user] = len(y)
                    yield user, x, y
    stated = dict(zip(lists.get("users", counts), lists.get("num_samples", counts.values()), strict=False))
    for user in {**stated, **counts}:
        if stated.get(user) != counts.get(user):
            raise SpecError(
                f"client {user!r} in {path.name}: num_samples says {stated.get(user, 'nothing')}, but user_data has "
                f"{counts.get(user, 'nothing')}"
            )


def _user(text: _Text, user: str, parse: Callable[[str], Any]) -> tuple[list[Any], list[Any]]:
    try:
        data = parse(text.value().decode())
        x, y = data["x"], data["y"]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, SpecError):
            raise SpecError(f"client {user!r}: {error}") from error
        raise SpecError(f"client {user!r} in {text.path.name}: no x and y: {type(error).__name__}: {error}") from error
    if len(x) != len(y):
        raise SpecError(f"client {user!r} in {text.path.name}: x has {len(x)} examples, y has {len(y)}")
    return x, y


class _Floats(dict[str, float]):
    """Pixels have few values: looking a number's text up is faster than reading it."""

    def __missing__(self, text: str) -> float:
        if len(self) > 100_000:  # no pixels
            self.clear()
        value = self[text] = float(text)
        return value


class _Text:
    """A file of JSON of which only the part being looked at is in memory."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self.path = file, path
        self._held, self._at = b"", 0  # all that is before _at is done with

    def enter(self) -> None:
        """Step into an object."""
        if self._next() != b"{":
            raise self._wrong("an object was expected")
        self._at += 1

    def key(self) -> str | None:
        """Return the next key of the object, or None at its end."""
        mark = self._next()
        if mark == b"}":
            self._at += 1
            return None
        if mark != b'"':
            raise self._wrong("a key was expected")
        return str(json.loads(self.value()))

    def value(self) -> bytes:
        """Return the text of the next value."""
        mark = self._next()
        length = self._nested(mark) if mark in _MARKS else self._reach(_STRING if mark == b'"' else _SCALAR, 0)
        self._at += length
        return self._held[self._at - length : self._at]

    def _next(self) -> bytes:
        """Return the byte that the next thing starts with."""
        while True:
            found = _SPACE.match(self._held, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._held):
                return self._held[self._at : self._at + 1]
            self._more()

    def _nested(self, opener: bytes) -> int:
        """Return the length of the object or list that starts here. Places are counted from here: _more moves both."""
        depth, ahead = 0, 0
        while True:
            for found in _MARKS[opener].finditer(self._held, self._at + ahead):
                start, end = found.span()
                if end - start > 1:  # a whole string
                    continue
                mark = self._held[start:end]
                if mark == b'"':  # a string whose end is not here yet
                    ahead = start - self._at
                    break
                depth += 1 if mark == opener else -1
                if not depth:
                    return end - self._at
            else:
                ahead = len(self._held) - self._at
            self._more()

    def _reach(self, pattern: re.Pattern[bytes], ahead: int) -> int:
        """Return where what starts ``ahead`` of here ends."""
        while (found := pattern.match(self._held, self._at + ahead)) is None:
            self._more()
        return found.end() - self._at

    def _more(self) -> None:
        chunk = self._file.read(_CHUNK)
        if not chunk:
            raise self._wrong("the file ends too early: is it whole?")
        self._held, self._at = self._held[self._at :] + chunk, 0

    def _wrong(self, what: str) -> SpecError:
        place = self._file.tell() - len(self._held) + self._at
        return SpecError(f"{self.path.name} is not LEAF's JSON: {what} (byte {place:,})")
