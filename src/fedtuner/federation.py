"""Where the clients live: their data, and what comes back from their work.

``Simulation`` keeps them in this process. A federation of real devices answers the same jobs with the same reports.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtuner.errors import FedtunerError, SpecError, TaskError
from fedtuner.methods.base import Update
from fedtuner.task import Metrics, Task

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Client:
    """One client's data: each split is a pair (x, y) of arrays, or anything with a length and an index."""

    id: str | int
    train: Any
    valid: Any
    test: Any = None


@dataclass(frozen=True)
class Report:
    """What a client sends to the server after its work."""

    client: int
    candidate: int
    update: Update
    examples: int  # |T|
    before: Metrics  # of the server's model on the client's validation data; its count is |V|
    after: Metrics  # of the model after local training
    finite: bool  # whether the update is made of numbers


class Simulation:
    """A problem in this process: a task and its clients."""

    def __init__(self, task: Task, clients: Iterable[Client], name: str = "simulation") -> None:
        self.task = task
        self.clients = tuple(clients)
        self.name = name
        self._prepared: dict[tuple[int, str], Sized] = {}
        if not self.clients:
            raise SpecError("a problem needs at least one client")
        seen: set[str | int] = set()
        for client in self.clients:
            if not isinstance(client, Client):
                raise SpecError(f"{client!r} is no Client: give Client(id, train, valid, test)")
            if client.id in seen:
                raise SpecError(f"two clients have the id {client.id!r}: ids must differ")
            seen.add(client.id)

    def data(self, client: int, split: str) -> Sized:
        """Return a client's split as the task takes it; converted once."""
        key = (client, split)
        if key not in self._prepared:
            owner = self.clients[client]
            try:
                self._prepared[key] = self.task.prepare(getattr(owner, split))
            except FedtunerError as error:
                raise type(error)(f"client {owner.id!r}, {split} data: {error}") from error
        return self._prepared[key]

    def check(self) -> None:
        """Prepare everything, and try the model on the first client with examples: mistakes show before long work."""
        sizes = {split: [len(self.data(i, split)) for i in range(len(self.clients))] for split in SPLITS}
        for split in ("train", "valid"):
            if not any(sizes[split]):
                raise SpecError(f"no client has any {split} examples")
        first = next(i for i, n in enumerate(sizes["train"]) if n)
        w = self.task.initial(0)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Using a target size")  # torch only warns of a misfit
                metrics = self.task.evaluate(w, self.data(first, "train"))
        except TaskError as error:
            raise TaskError(f"client {self.clients[first].id!r}: {error}") from error
        if not metrics.finite:
            raise TaskError(
                f"the untrained model's loss on client {self.clients[first].id!r} is {metrics.loss}: are there NaN or "
                "infinite values in the data?"
            )

    def fingerprint(self) -> str:
        """Return a hash of the clients' data and of the model's shape: a study continues only on the same problem."""
        digest = hashlib.blake2b(digest_size=12)
        digest.update(repr(self.task.layout()).encode())
        for i, client in enumerate(self.clients):
            digest.update(repr((client.id, [len(self.data(i, split)) for split in SPLITS])).encode())
            for split in SPLITS:
                _hash_arrays(digest, getattr(client, split))
        return digest.hexdigest()


def _hash_arrays(digest: Any, split: Any) -> None:
    # Splits that are not plain arrays are known by their ids and sizes alone: reading them may be slow.
    if not isinstance(split, (tuple, list)):
        return
    for part in split:
        if hasattr(part, "numpy") and hasattr(part, "detach"):
            part = part.detach().cpu().numpy()
        if isinstance(part, np.ndarray) and part.dtype != object:
            digest.update(np.ascontiguousarray(part).data)
