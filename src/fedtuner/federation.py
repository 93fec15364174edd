"""Where the clients live: their data, and what comes back from their work.

``Simulation`` keeps them in this process. A federation of real devices (``flower.Fleet``) answers the same jobs with
the same reports. Inside a study a client is a number: its place in a ``Simulation``, a hash of its id elsewhere.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedtuner.errors import FedtunerError, SpecError, TaskError
from fedtuner.fedex import FedEx
from fedtuner.methods.base import Method, Update
from fedtuner.task import Metrics, Task

SPLITS = ("train", "valid", "test")
_TRIED = 64  # examples of a lazy split that the model is tried on before the work


@dataclass(frozen=True)
class Client:
    """One client's data: each split is a pair (x, y) of arrays, or anything with a length and an index, or lazy."""

    id: str | int
    train: Any
    valid: Any
    test: Any = None


@runtime_checkable
class Lazy(Protocol):
    """A split that is loaded when its client is visited and let go afterwards."""

    def __len__(self) -> int: ...

    def load(self) -> Any:
        """Return the split: a pair (x, y) of arrays."""
        ...

    def fingerprint(self) -> str:
        """Return what the data is known by: the same for the same examples."""
        ...


@dataclass(frozen=True)
class Try:
    """What a candidate that a client only tried would have given: for theta, not for the model."""

    candidate: int
    before: Metrics
    after: Metrics


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
    tried: tuple[Try, ...] = ()  # the job's other candidates


@runtime_checkable
class Federation(Protocol):
    """What a study needs of the place where its clients live."""

    task: Task
    name: str
    own_code: bool  # clients train by code of their own: the names of client hyperparameters are theirs
    dear: bool  # rounds cost time of real devices: each is saved as soon as it is done

    @property
    def population(self) -> int:
        """How many clients there are, here or not."""
        ...

    def available(self) -> Sequence[int]:
        """Return the clients who can take part in a round now, always in the same order: cohorts are drawn from it."""
        ...

    def gather(self) -> Sequence[int]:
        """Return the same, after waiting until there are enough."""
        ...

    def id_of(self, client: int) -> str | int:
        """Return what a client is known by."""
        ...

    def check(self, cohort: int | None = None, method: Method | None = None, fedex: FedEx | None = None) -> None:
        """Raise where something is wrong that can be seen before the work."""
        ...

    def fingerprint(self) -> str:
        """Return what the problem is known by: a study continues only on the same one."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return name, clients and fingerprint, for the spec in a store."""
        ...


class Simulation:
    """A problem in this process: a task and its clients."""

    own_code = False
    dear = False

    def __init__(self, task: Task, clients: Iterable[Client], name: str = "simulation") -> None:
        self.task = task
        self.clients = tuple(clients)
        self.name = name
        self.left_out: list[str | int] = list(getattr(clients, "left_out", ()))  # ids of those too small to split
        self._prepared: dict[tuple[int, str], Sized] = {}
        self._visit: dict[tuple[int, str], Sized] = {}  # the lazy splits of the client visited last
        if not self.clients:
            raise SpecError("a problem needs at least one client")
        seen: set[str | int] = set()
        for client in self.clients:
            if not isinstance(client, Client):
                raise SpecError(f"{client!r} is no Client: give Client(id, train, valid, test)")
            if client.id in seen:
                raise SpecError(f"two clients have the id {client.id!r}: ids must differ")
            seen.add(client.id)

    @property
    def population(self) -> int:
        """How many clients there are."""
        return len(self.clients)

    def available(self) -> Sequence[int]:
        """Return all clients: here everybody is there."""
        return range(len(self.clients))

    def gather(self) -> Sequence[int]:
        """Return all clients."""
        return self.available()

    def id_of(self, client: int) -> str | int:
        """Return a client's id."""
        return self.clients[client].id

    def data(self, client: int, split: str) -> Sized:
        """Return a client's split as the task takes it; converted once, a lazy one at each visit."""
        key = (client, split)
        if key in self._prepared:
            return self._prepared[key]
        given = getattr(self.clients[client], split)
        if not isinstance(given, Lazy):
            self._prepared[key] = self._prepare(client, split, given)
            return self._prepared[key]
        if any(visited != client for visited, _ in self._visit):
            self._visit.clear()
        if key not in self._visit:
            self._visit[key] = self._prepare(client, split, given.load())
        return self._visit[key]

    def on(self, device: str) -> Simulation:
        """Return the same problem with its model and data on another device, such as ``cuda``."""
        if not hasattr(self.task, "on"):
            raise SpecError(f"device = {device!r}, but {type(self.task).__name__} runs only where it is: on the CPU")
        moved = Simulation(self.task.on(device), self.clients, self.name)
        moved.left_out = self.left_out
        return moved

    def check(self, cohort: int | None = None, method: Method | None = None, fedex: FedEx | None = None) -> None:
        """Prepare everything that is not lazy and try the model on a few examples: mistakes show before long work."""
        if cohort is not None and cohort > len(self.clients):
            raise SpecError(f"cohort = {cohort}, but the problem has {len(self.clients)} clients: lower cohort")
        sizes = {split: [self.size(i, split) for i in range(len(self.clients))] for split in SPLITS}
        for i, client in enumerate(self.clients):
            given = [split for split in SPLITS if getattr(client, split) is not None]
            if given and not any(sizes[split][i] for split in given):
                raise SpecError(
                    f"client {client.id!r} has no examples at all: leave it out, or give None for its splits"
                )
        for split in ("train", "valid"):
            if not any(sizes[split]):
                raise SpecError(f"no client has any {split} examples")
        first = next(i for i, n in enumerate(sizes["train"]) if n)
        w = self.task.initial(0)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Using a target size")  # torch only warns of a misfit
                metrics = self.task.evaluate(w, self._sample(first))
        except TaskError as error:
            raise TaskError(f"client {self.clients[first].id!r}: {error}") from error
        if not metrics.finite:
            raise TaskError(
                f"the untrained model's loss on client {self.clients[first].id!r} is {metrics.loss}: are there NaN or "
                "infinite values in the data?"
            )
        if math.isnan(metrics.error):
            raise TaskError(f"the error of the untrained model on client {self.clients[first].id!r} is NaN")
        for i, split, row in _odd(self.clients):
            x, y = getattr(self.clients[i], split)
            try:
                self.task.evaluate(w, self.task.prepare((x[row : row + 1], y[row : row + 1])))
            except TaskError as error:
                raise TaskError(f"client {self.clients[i].id!r}, {split} data, example {row}: {error}") from error

    def fingerprint(self) -> str:
        """Return a hash of the clients' data and of the model's shape: a study continues only on the same problem."""
        digest = hashlib.blake2b(digest_size=12)
        digest.update(repr(self.task.layout()).encode())
        for i, client in enumerate(self.clients):
            digest.update(repr((client.id, [self.size(i, split) for split in SPLITS])).encode())
            for split in SPLITS:
                _hash_arrays(digest, getattr(client, split))
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return name, number of clients and fingerprint."""
        return {"name": self.name, "clients": len(self.clients), "fingerprint": self.fingerprint()}

    def _prepare(self, client: int, split: str, given: Any) -> Sized:
        try:
            return self.task.prepare(given)
        except FedtunerError as error:
            raise type(error)(f"client {self.clients[client].id!r}, {split} data: {error}") from error

    def size(self, client: int, split: str) -> int:
        """Return how many examples a client's split has, without loading a lazy one."""
        if (client, split) not in self._prepared:
            given = getattr(self.clients[client], split)
            if isinstance(given, Lazy):
                return len(given)
        return len(self.data(client, split))

    def _sample(self, client: int) -> Sized:
        given = self.clients[client].train
        if not isinstance(given, Lazy):
            return self.data(client, "train")
        return self._prepare(client, "train", tuple(part[:_TRIED] for part in given.load()))


def _odd(clients: Iterable[Client]) -> Iterator[tuple[int, str, int]]:
    """Yield client, split and row of an example of each shape and type, and of the lowest and the highest label."""
    kinds: set[Any] = set()
    ends: dict[str, tuple[int, tuple[int, str, int]]] = {}
    for i, client in enumerate(clients):
        for split in SPLITS:
            given = getattr(client, split)
            if not (isinstance(given, (tuple, list)) and len(given) == 2 and all(hasattr(p, "shape") for p in given)):
                continue
            x, y = given
            if len(x) != len(y) or not len(x):
                continue
            kind = (tuple(x.shape[1:]), str(x.dtype), tuple(y.shape[1:]), str(y.dtype))
            if kind not in kinds:
                kinds.add(kind)
                yield i, split, 0
            labels = np.asarray(y.detach().cpu() if hasattr(y, "detach") else y)
            if labels.ndim == 1 and labels.dtype.kind in "iu":
                for end, row in (("low", labels.argmin()), ("high", labels.argmax())):
                    label = int(labels[row]) if end == "high" else -int(labels[row])
                    if end not in ends or label > ends[end][0]:
                        ends[end] = (label, (i, split, int(row)))
    yield from (place for _, place in ends.values())


def _hash_arrays(digest: Any, split: Any) -> None:
    # Splits that are neither plain arrays nor lazy are known by ids and sizes alone: reading them may be slow.
    if isinstance(split, Lazy):
        digest.update(split.fingerprint().encode())
    if not isinstance(split, (tuple, list)):
        return
    for part in split:
        if hasattr(part, "numpy") and hasattr(part, "detach"):
            part = part.detach().cpu().numpy()
        if isinstance(part, np.ndarray) and part.dtype != object:
            digest.update(np.ascontiguousarray(part).data)
