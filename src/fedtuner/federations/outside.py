"""Clients that fedtuner does not reach: a study over them is driven by ``ask`` and ``tell``.

The model is known by its named arrays alone; training and evaluation are the caller's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtuner import checks
from fedtuner.core.engine import Engine, sequential
from fedtuner.core.executor import Executor
from fedtuner.core.federation import FederationDefaults
from fedtuner.core.model import Metric, ModelDefaults, Part, Vector
from fedtuner.core.round import Round
from fedtuner.core.setup import Setup
from fedtuner.core.store import Blobs
from fedtuner.errors import SpecError


class Arrays(ModelDefaults):
    """A model that is known by its named arrays; every arm begins from them as they were given."""

    own_training = True

    def __init__(self, arrays: Mapping[str, Any], metric: Metric | None = None) -> None:
        self.metric = metric or Metric()
        given = {name: np.asarray(array) for name, array in arrays.items()}
        for name, array in given.items():
            if array.dtype.kind not in "fiub":
                raise SpecError(f"array {name!r} is of type {array.dtype}, but must be of numbers")
        if not sum(a.size for a in given.values()):
            raise SpecError("the model has no arrays: give a mapping of names to arrays, such as a state_dict")
        self._parts = [Part(name, a.shape) for name, a in given.items()]
        self.size = self.trainable = sum(part.size for part in self._parts)
        self.start: Vector | None = self.vector(given)

    def initial(self, seed: int) -> Vector:
        """Return the arrays as they were given."""
        assert self.start is not None
        return self.start.copy()

    def layout(self) -> list[Part]:
        """Return the arrays in the order in which they were given."""
        return list(self._parts)

    def vector(self, arrays: Mapping[str, Any]) -> Vector:
        """Return named arrays as the vector that a study works on."""
        for part in self._parts:
            if part.name not in arrays or np.shape(arrays[part.name]) != part.shape:
                shape = np.shape(arrays[part.name]) if part.name in arrays else "missing"
                raise SpecError(f"array {part.name!r} is {shape}, but must be of shape {part.shape}")
        return np.concatenate([np.asarray(arrays[p.name], np.float32).reshape(-1) for p in self._parts])

    def arrays(self, w: Vector) -> dict[str, Vector]:
        """Return a vector, such as ``plan.w``, as named arrays."""
        made, start = {}, 0
        for part in self._parts:
            made[part.name] = w[start : start + part.size].reshape(part.shape)
            start += part.size
        return made

    def engine(self, name: str) -> Engine:
        """Return the sequential engine: nothing is computed here."""
        return sequential


class Outside(FederationDefaults):
    """Clients outside of fedtuner: their ids or, where they have none, how many there are."""

    save_every_round = True

    def __init__(
        self, arrays: Mapping[str, Any], clients: Sequence[str | int] | int, name: str = "outside",
        metric: Metric | None = None,
    ) -> None:  # fmt: skip
        self.model, self.name = Arrays(arrays, metric), name
        if isinstance(clients, int):
            checks.whole("clients", clients)
            clients = range(clients)
        self.ids = tuple(clients)
        if len(set(self.ids)) < len(self.ids) or not self.ids:
            raise SpecError(f"clients = {list(self.ids)[:5]}, but must be distinct ids, at least one")

    def executor(self, round: Round, blobs: Blobs, workers: int | None) -> Executor:
        """Refuse: there is nothing here that could do the clients' work."""
        raise SpecError("these clients are outside of fedtuner: ask() for rounds and tell() their reports")

    def present(self) -> Sequence[int]:
        """Return all clients: who does not answer is told as None."""
        return range(len(self.ids))

    def everyone(self) -> Sequence[int]:
        """Return all clients."""
        return self.present()

    def population(self) -> int:
        """Return how many clients there are."""
        return len(self.ids)

    def id_of(self, client: int) -> str | int:
        """Return a client's id."""
        return self.ids[client]

    def check(self, setup: Setup) -> None:
        """Refuse cohorts of more clients than there are."""
        if setup.cohort > len(self.ids):
            raise SpecError(f"cohort = {setup.cohort}, but there are {len(self.ids)} clients: lower cohort")

    def describe(self) -> dict[str, Any]:
        """Return name, clients and a hash of ids and shapes."""
        digest = hashlib.blake2b(repr((self.ids, self.model.layout())).encode(), digest_size=12).hexdigest()
        return {"name": self.name, "clients": len(self.ids), "fingerprint": digest}


