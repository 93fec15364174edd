"""Checks of the clients' data before any training; each error names the client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtuner import checks
from fedtuner.core.federation import SPLITS
from fedtuner.errors import FAILURES, SpecError, brief, one_line
from fedtuner.federations import Client, Lazy

Ids = checks.Ids
Shape = tuple[int, ...]


def check(clients: Iterable[Client], shape: Shape | None = None, classes: int | None = None) -> None:
    """Raise an error that names the first client with a duplicate id, an empty split or bad examples.

    ``shape`` is that of one example, by default the shape of the first client's examples; labels must be in
    0..``classes``-1. Every split is loaded, also a lazy one. None stands for a split that the client does not have.
    """
    if not isinstance(clients, Iterable):
        raise SpecError(f"clients = {brief(clients)}, but must be a list of Client(id, train, valid, test)")
    ids = checks.Ids()
    for client in clients:
        if not isinstance(client, Client):
            raise SpecError(f"{brief(client)} is no Client: give Client(id, train, valid, test)")
        ids.add(client.id)
        for split in SPLITS:
            given = getattr(client, split)
            if given is None:
                continue
            what = f"client {brief(client.id)}, {split} data"
            x, y = _arrays(given.load() if isinstance(given, Lazy) else given, what)
            if not x.size:
                raise SpecError(f"{what}: no examples; leave the client out, or give None if it has no such data")
            shape = shape or x.shape[1:]
            examples(what, x, y, shape, classes)


def array(what: str, name: str, part: Any) -> NDArray[Any]:
    """Return an array; raise an error that starts with ``what`` if there is none of one shape."""
    try:
        return np.asarray(part)
    except (ValueError, TypeError) as error:
        raise SpecError(f"{what}: {name} is not of one shape: {one_line(str(error), 150)}") from error


def examples(what: str, x: Any, y: Any, shape: Shape | None = None, classes: int | None = None) -> None:
    """Raise an error that starts with ``what`` unless x and y have equal length, that shape and finite numbers."""
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise SpecError(f"{what}: x has shape {x.shape} and y {y.shape}, but both need one row per example")
    if shape is not None and len(x) and x.shape[1:] != tuple(shape):
        raise SpecError(f"{what}: examples have shape {x.shape[1:]}, but must have {tuple(shape)} as the others")
    for name, part in (("x", x), ("y", y)):
        if part.dtype.kind not in "biuf":
            raise SpecError(f"{what}: {name} is of type {part.dtype}, but must be numbers")
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            row = int(np.flatnonzero(~np.isfinite(part).reshape(len(part), -1).all(axis=1))[0])
            raise SpecError(f"{what}: {name} of example {row} has values that are NaN or infinite")
    if classes is not None and y.size:
        checks.whole("classes", classes)
        if y.dtype.kind not in "biu":
            raise SpecError(f"{what}: labels are of type {y.dtype}, but must be whole numbers")
        wrong = np.flatnonzero((y.reshape(len(y), -1) < 0).any(axis=1) | (y.reshape(len(y), -1) >= classes).any(axis=1))
        if wrong.size:
            row = int(wrong[0])
            raise SpecError(f"{what}: the label of example {row} is {y[row]}, but must be in 0..{classes - 1}")


def _arrays(split: Any, what: str) -> tuple[Any, Any]:
    if isinstance(split, Mapping):
        raise SpecError(f"{what}: a {type(split).__name__}, but must be a pair (x, y) of arrays")
    if isinstance(split, (tuple, list)) and len(split) == 2 and all(hasattr(part, "shape") for part in split):
        return np.asarray(split[0]), np.asarray(split[1])
    try:
        pairs = [split[i] for i in range(len(split))]
        return np.stack([np.asarray(x) for x, _ in pairs]) if pairs else np.zeros(0), np.array([y for _, y in pairs])
    except FAILURES as error:  # a data set of one's own may raise anything
        raise SpecError(
            f"{what}: not a pair (x, y) of arrays, nor (x, y) examples of one shape: {one_line(str(error), 150)}"
        ) from error
