"""The converted form of a data set: one file with the examples of all clients, memory-mapped for reading.

It is a safetensors file, so that other tools can read it: ``x`` and ``y`` (clients one after the other), ``ends`` (the
row after each client's last) and ``ids`` (a JSON list, as bytes). Clients are written one at a time, so that one client
at a time is in memory, and the file gets its name when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedtuner.data import checks
from fedtuner.data.lazy import Array, Table
from fedtuner.data.partition import Id
from fedtuner.errors import SpecError, brief, one_line
from fedtuner.run.store.files import exists

Examples = Iterable[tuple[Id, Array, Array]]  # a client's id, x and y

_START = 1024  # the byte at which the arrays start, after the header
_TYPES = {"U8": "|u1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F32": "<f4"}


class File(Table):
    """A converted data set; ``owners`` are its clients and their rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                if int.from_bytes(file.read(8), "little") != _START - 8:
                    raise ValueError("its beginning is another")
                header = json.loads(file.read(_START - 8))
            meta = header.pop("__metadata__")
            x, y, ends, ids = (_part(path, header[name]) for name in ("x", "y", "ends", "ids"))
            spans = pairwise([0, *np.array(ends).tolist()])
            self.owners = [(id, range(*span)) for id, span in zip(json.loads(bytes(ids)), spans, strict=True)]
            self.made_from = str(meta["made_from"])
            if not len(x) == len(y) == ends[-1]:
                raise ValueError("its arrays are of several lengths")
            super().__init__(x, np.array(y), str(meta["fingerprint"]))  # y is small enough to be in memory
        except Exception as error:  # a file of others, or a damaged one, may raise anything
            why = one_line(str(error), 100)
            raise SpecError(f"{path} is no converted data set ({why}): delete it and convert again") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return File, (self.path,)  # a worker maps the file itself: a pickled map would be a copy of all examples


def convert(examples: Examples, path: Path, made_from: str = "", classes: int | None = None) -> File:
    """Write the examples of all clients to a file and open it; ``made_from`` identifies their source."""
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")  # two processes may convert at once
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as file:
                _write(file, examples, made_from, classes)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise SpecError(f"cannot write to {path}: {error.strerror or error}") from error
    return File(path)


def _write(file: BinaryIO, examples: Examples, made_from: str, classes: int | None) -> None:
    file.seek(_START)
    digest, ids, labels = hashlib.blake2b(digest_size=12), checks.Ids(), []
    names: list[Id] = []
    ends: list[int] = []
    first: Array | None = None
    for id, x, y in examples:
        what, (x, y) = f"client {brief(id)}", (np.asarray(x), np.asarray(y))
        names.append(ids.add(id))
        checks.examples(what, x, y, None if first is None else first.shape[1:], classes)
        x, y = _stored(x), _stored(y)
        checks.examples(what, x, y)  # what is too large for the file's type is infinite now
        ends.append(len(x) + (ends[-1] if ends else 0))
        if not len(x):
            continue
        first = x if first is None else first
        if x.dtype != first.dtype:
            raise SpecError(f"{what}: x is of type {x.dtype}, but that of the others is {first.dtype}")
        file.write(x.data)
        digest.update(x.data)
        labels.append(y)
    if first is None:
        raise SpecError("there are no clients with examples to convert")
    header = {"x": _entry((ends[-1], *first.shape[1:]), first.dtype, 0)}
    parts = {
        "y": _stored(np.concatenate(labels)),
        "ends": np.array(ends, np.int64),
        "ids": np.frombuffer(json.dumps(names).encode(), np.uint8),
    }
    end = header["x"]["data_offsets"][1]
    for name, part in parts.items():
        header[name] = _entry(part.shape, part.dtype, end)
        end = header[name]["data_offsets"][1]
        file.write(part.data)
        digest.update(part.data)
    header["__metadata__"] = {"fingerprint": digest.hexdigest(), "made_from": made_from}
    file.seek(0)
    file.write((_START - 8).to_bytes(8, "little") + json.dumps(header).encode().ljust(_START - 8))


def _entry(shape: tuple[int, ...], dtype: np.dtype[Any], start: int) -> dict[str, Any]:
    """Return the header's entry for an array."""
    code = next(code for code, kind in _TYPES.items() if np.dtype(kind) == dtype)
    return {"dtype": code, "shape": list(shape), "data_offsets": [start, start + math.prod(shape) * dtype.itemsize]}


def _stored(part: Array) -> Array:
    """Return an array converted to one of the types that the file can have."""
    if part.dtype.kind == "b":
        part = part.astype(np.uint8)
    elif part.dtype.kind == "f":
        with np.errstate(over="ignore"):
            part = part.astype("<f4")
    elif part.dtype.kind in "iu" and part.dtype.str not in _TYPES.values():
        part = part.astype("<i8")
    return np.ascontiguousarray(part)


def _part(path: Path, entry: dict[str, Any]) -> Array:
    start, end = entry["data_offsets"]
    kind, shape = np.dtype(_TYPES[entry["dtype"]]), tuple(entry["shape"])
    if min(shape) < 0 or math.prod(shape) * kind.itemsize != end - start or path.stat().st_size < _START + end:
        raise ValueError(f"an array of shape {shape} is not there")
    if start == end:
        return np.zeros(shape, kind)
    return np.memmap(path, kind, "r", _START + start, shape)


def stamp(files: Iterable[Path]) -> str:
    """Return a hash of the names, sizes and modification times of files, which differs when one has changed."""
    files_now = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.blake2b(repr(sorted(files_now)).encode(), digest_size=12).hexdigest()


def cached(
    path: Path, made_from: str | None, examples: Iterator[tuple[Id, Array, Array]], classes: int | None = None
) -> File:
    """Return the converted file; the examples are converted only if there is no file with this ``made_from``.

    Where that is not known (None) any file will do.
    """
    if exists(path):
        file = File(path)
        if made_from in (None, file.made_from):
            checks.examples(str(path), file.y, file.y, classes=classes)  # it may have been made without this check
            return file
    return convert(examples, path, made_from or "", classes)
