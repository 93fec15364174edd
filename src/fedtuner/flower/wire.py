"""How a model travels: a task's as one vector, that of an app with its own training code as the app's own arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from fedtuner.core.model import Metric, Vector
from fedtuner.errors import SpecError, brief, one_line
from fedtuner.federations.arrays import NamedArrays

_LINE = 300  # characters of a reason
_HEADER = 1 << 14  # bytes of an array's header: NumPy reads no longer ones
_ENTRY = 16  # bytes of an entry, whatever its type


class MalformedError(Exception):
    """A message that cannot be used; the text says why, in one line of bounded length."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text, _LINE))


class Flat:
    """The model as one array, for a task that both sides have; clients send back w_i - w."""

    own_training = False  # whether the app trains with its own code, and sends back the arrays that it returns

    def __init__(self, size: int) -> None:
        self._size = size

    def record(self, w: Vector) -> ArrayRecord:
        """Return the vector as one array, ``w``."""
        return arrays_of({"w": w})

    def vector(self, record: ArrayRecord) -> Vector:
        """Return the vector, if it has the model's size and type."""
        w = vectors_of(record, {"w": self._size}).get("w")
        if w is None or w.shape != (self._size,) or w.dtype != np.float32:
            given = "no w" if w is None else f"w of shape {w.shape} and type {w.dtype}"
            raise MalformedError(f"{given}, but the model has {self._size} entries of type float32")
        return np.asarray(w)

    def change(self, record: ArrayRecord, w: Vector) -> Vector:
        """Return w_i - w, as the client sent it."""
        return self.vector(record)


class Arrays(NamedArrays):
    """The arrays of an app that trains by its own code, in messages with their own names and types."""

    def __init__(self, given: ArrayRecord | Mapping[str, Any] | Sequence[Any], metric: Metric | None = None) -> None:
        named = given if isinstance(given, Mapping) else {str(i): array for i, array in enumerate(given)}
        arrays = {name: array.numpy() if isinstance(array, Array) else array for name, array in named.items()}
        super().__init__(arrays, metric)

    def record(self, w: Vector) -> ArrayRecord:
        """Return w as the app's arrays."""
        return arrays_of(self.arrays(w))

    def change(self, record: ArrayRecord, w: Vector) -> Vector:
        """Return w_i - w, where w_i is what the app returned."""
        try:
            returned = self.vector(vectors_of(record, {part.name: part.size for part in self.layout()}))
        except SpecError as error:
            raise MalformedError(str(error)) from error
        with np.errstate(over="ignore", invalid="ignore"):
            return returned - w


Wire = Flat | Arrays


def arrays_of(vectors: Mapping[str, Vector]) -> ArrayRecord:
    """Return named vectors as Flower's arrays."""
    return ArrayRecord({name: Array(np.asarray(v, order="C")) for name, v in vectors.items()})


def vectors_of(record: ArrayRecord | None, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return Flower's arrays as NumPy's; nothing where there is no record.

    Where ``sizes`` are known, arrays of other names, or with more bytes than so many entries need, are not even read.
    """
    found = {}
    for name, array in () if record is None else record.items():
        if sizes is not None and name not in sizes:
            raise MalformedError(f"an array {brief(name)}, but there are only {brief(sorted(sizes))}")
        if sizes is not None and len(array.data) > _ENTRY * sizes[name] + _HEADER:
            raise MalformedError(f"array {name!r} has {len(array.data)} bytes, but {sizes[name]} entries")
        found[name] = _numpy(array)
    return found


def _numpy(array: Array) -> Any:
    try:
        read: object = array.numpy()
    except Exception as error:  # bytes that are no array
        raise MalformedError(f"an array cannot be read: {error}") from error
    if not isinstance(read, np.ndarray):  # such as a zip file of arrays
        raise MalformedError(f"an array cannot be read: it is a {type(read).__name__}")
    return read
