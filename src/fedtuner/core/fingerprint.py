"""What data is known by: a hash of all that can be seen of it, the same in every process."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def add_data(digest: Any, value: Any) -> None:
    """Add data to a hash: numbers, strings, arrays and tensors, and lists, tables and dataclasses of them.

    Of other objects the type alone is added: what they hold may be large, or change as it is read.
    """
    array = as_array(value)
    if array is not None:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(raw(array))
    elif isinstance(value, _PLAIN):
        digest.update(f"{type(value).__name__} {value!r};".encode())
    elif isinstance(value, (list, tuple)):
        _add_all(digest, value)
    elif isinstance(value, Mapping):
        _add_all(digest, [part for pair in value.items() for part in pair])
    elif is_dataclass(value) and not isinstance(value, type):
        _add_all(digest, [getattr(value, f.name) for f in fields(value)])
    else:
        digest.update(f"{type(value).__module__}.{type(value).__qualname__};".encode())


def _add_all(digest: Any, values: Any) -> None:
    digest.update(f"{len(values)}[".encode())
    for value in values:
        add_data(digest, value)
    digest.update(b"]")


def as_array(value: Any) -> Any:
    """Return an array, a tensor or a list of numbers of one shape as an array; None if it is none of these."""
    if hasattr(value, "numpy") and hasattr(value, "detach"):
        try:
            value = value.detach().cpu()
            value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
        except (TypeError, RuntimeError):  # a sparse one, or one without values
            return None
    elif isinstance(value, list) and value and isinstance(value[0], (int, float, list)):
        value = _stacked(value)
    elif isinstance(value, np.generic):
        value = np.asarray(value)
    return value if isinstance(value, np.ndarray) and not value.dtype.hasobject else None


def raw(array: Any) -> Any:
    """Return an array's bytes, without copying them where they lie in order."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data if flat.dtype.itemsize else b""


def _stacked(values: list[Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(values)
    except ValueError:  # of several shapes
        return None
