"""The arrays of an app that trains by its own code, as the vector that a study works on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord

from fedtuner.errors import SpecError, TaskError
from fedtuner.flower.messages import MalformedError
from fedtuner.space import Config
from fedtuner.task import Hyper, Metrics, Part, Trainer, Vector

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of torch's batch-norm


class Arrays:
    """A model given by its arrays; the code that trains and evaluates it is on the clients.

    Arrays of real numbers are trained; whole numbers and batch-norm's statistics are averaged without the server's
    optimiser. Messages carry all arrays in their own types; between rounds the server keeps them as float32.
    """

    smallest_batch = 1
    hyperparameters: Mapping[str, Hyper] = {}

    def __init__(self, given: ArrayRecord | Mapping[str, Any] | Sequence[Any], worst_error: float = 1.0) -> None:
        self.worst_error = worst_error
        named = dict(given) if isinstance(given, Mapping) else {str(i): a for i, a in enumerate(given)}
        arrays = {name: _numpy(name, a) for name, a in named.items()}
        if not sum(a.size for a in arrays.values()):
            raise SpecError("the model has no arrays: give ArrayRecord(model.state_dict()) or a list of arrays")
        self._kinds = {name: (a.shape, a.dtype) for name, a in arrays.items()}
        fixed = [name for name, a in arrays.items() if a.dtype.kind != "f" or name.rpartition(".")[2] in _STATISTICS]
        self._order = [name for name in arrays if name not in fixed] + fixed
        self.size = sum(a.size for a in arrays.values())
        self.trainable = self.size - sum(arrays[name].size for name in fixed)
        self.first: Vector = self._flat(arrays)

    def initial(self, seed: int) -> Vector:
        """Return the arrays as they were given: every arm starts from them."""
        return self.first.copy()

    def layout(self) -> list[Part]:
        """Return the arrays in their order in w."""
        return [Part(name, tuple(self._kinds[name][0])) for name in self._order]

    def record(self, w: Vector) -> ArrayRecord:
        """Return w as arrays with the given names, order, shapes and types."""
        parts, start = {}, 0
        for name in self._order:
            shape, dtype = self._kinds[name]
            part = w[start : start + math.prod(shape)].reshape(shape)
            start += part.size
            with np.errstate(invalid="ignore", over="ignore"):
                parts[name] = np.asarray(part if dtype.kind == "f" else np.rint(part), dtype)
        return ArrayRecord({name: Array(parts[name]) for name in self._kinds})

    def vector(self, record: ArrayRecord) -> Vector:
        """Return the arrays as w, if they have the given names and shapes."""
        if set(record) != set(self._kinds):
            odd = sorted(set(record) ^ set(self._kinds))
            raise MalformedError(f"arrays that only one side has: {odd[:5]}")
        try:
            arrays = {name: array.numpy() for name, array in record.items()}
        except Exception as error:
            raise MalformedError(f"an array cannot be read: {error}") from error
        for name, a in arrays.items():
            if a.shape != self._kinds[name][0] or a.dtype.kind not in "fiub":
                shape = self._kinds[name][0]
                raise MalformedError(f"array {name!r} has shape {a.shape} and type {a.dtype}, but the server's {shape}")
        with np.errstate(over="ignore"):
            return self._flat(arrays)

    def prepare(self, split: Any) -> NoReturn:
        """Refuse: the data is on the clients."""
        raise TaskError("these clients train by code of their own: there is no data on the server")

    def training(self, data: Any, config: Config, seed: int) -> AbstractContextManager[Trainer]:
        """Refuse: the code is on the clients."""
        raise TaskError("these clients train by code of their own: there is no training on the server")

    def evaluate(self, w: Vector, data: Any) -> Metrics:
        """Refuse: the code is on the clients."""
        raise TaskError("these clients evaluate by code of their own: there is no evaluation on the server")

    def _flat(self, arrays: Mapping[str, Any]) -> Vector:
        return np.concatenate([np.asarray(arrays[name], np.float32).reshape(-1) for name in self._order])


def _numpy(name: str, given: Any) -> Any:
    if isinstance(given, Array):
        given = given.numpy()
    if hasattr(given, "detach"):
        given = given.detach().cpu().numpy()
    array = np.asarray(given)
    if array.dtype.kind not in "fiub":
        raise SpecError(f"array {name!r} is of type {array.dtype}, but must be of numbers")
    return array
