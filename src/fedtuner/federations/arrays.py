"""A model that the server knows by its named arrays alone: the code that trains and evaluates it is the clients'."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedtuner.core.model import Metric, ModelDefaults, Part, Vector
from fedtuner.errors import SpecError, brief, one_line

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of torch's batch-norm


class NamedArrays(ModelDefaults):
    """A model given by its named arrays; every arm begins from them as they were given.

    Arrays of real numbers are trained; whole numbers and batch-norm's statistics are averaged without the server's
    optimiser. In w, which is of float32, the trained arrays come first.
    """

    own_training = True

    def __init__(self, given: Mapping[str, Any], metric: Metric | None = None) -> None:
        self.metric = metric or Metric()
        if not isinstance(given, Mapping):
            raise SpecError(f"arrays = {brief(given)}, but must be a mapping of names to arrays, such as a state_dict")
        arrays = {name: _numpy(name, array) for name, array in given.items()}
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise SpecError(f"array {brief(name)} has values that are NaN or infinite: start from finite ones")
        if not sum(array.size for array in arrays.values()):
            raise SpecError("the model has no arrays: give a mapping of names to arrays, such as a state_dict")
        self._kinds = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        fixed = [name for name, a in arrays.items() if a.dtype.kind != "f" or name.rpartition(".")[2] in _STATISTICS]
        self._order = [name for name in arrays if name not in fixed] + fixed
        self.size = sum(array.size for array in arrays.values())
        self.trainable = self.size - sum(arrays[name].size for name in fixed)
        if not self.trainable:
            raise SpecError(
                f"the model has nothing to train: all of {list(arrays)[:5]} are whole numbers or statistics"
            )
        self.start: Vector | None = self.vector(arrays)

    def __repr__(self) -> str:
        arrays = one_line(", ".join(f"{name} {shape}" for name, (shape, _) in self._kinds.items()), 100)
        return f"<{type(self).__name__}: {arrays}, {self.metric.name}>"

    def initial(self, seed: int) -> Vector:
        assert self.start is not None
        return self.start.copy()

    def layout(self) -> list[Part]:
        return [Part(name, self._kinds[name][0]) for name in self._order]

    def vector(self, arrays: Mapping[str, Any]) -> Vector:
        """Return named arrays as w; refuse those that are not the model's."""
        odd = sorted(set(arrays) ^ set(self._kinds))
        if odd:
            raise SpecError(f"arrays that only one side has: {odd[:5]}")
        checked = {name: _numpy(name, arrays[name]) for name in self._order}
        for name, array in checked.items():
            if array.shape != self._kinds[name][0]:
                raise SpecError(f"array {name!r} is of shape {array.shape}, but must be of {self._kinds[name][0]}")
        with np.errstate(over="ignore"):
            return np.concatenate([np.asarray(array, np.float32).reshape(-1) for array in checked.values()])

    def arrays(self, w: Vector) -> dict[str, Any]:
        """Return w, such as ``plan.w``, as new arrays of the given names, order, shapes and types."""
        parts, start = {}, 0
        for name in self._order:
            shape, dtype = self._kinds[name]
            part = w[start : start + math.prod(shape)].reshape(shape)
            start += part.size
            with np.errstate(invalid="ignore", over="ignore"):
                parts[name] = np.array(part if dtype.kind == "f" else np.rint(part), dtype)
        return {name: parts[name] for name in self._kinds}


def _numpy(name: str, given: Any) -> Any:
    if hasattr(given, "detach"):
        given = given.detach().cpu().numpy()
    try:
        array = np.asarray(given)
    except ValueError as error:  # lists of several lengths
        raise SpecError(f"array {brief(name)} is not of one shape: {error}") from error
    if array.dtype.kind not in "fiub":
        raise SpecError(f"array {name!r} is of type {array.dtype}, but must be of numbers")
    return array
