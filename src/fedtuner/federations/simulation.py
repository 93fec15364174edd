"""A federation in this process: a model and its clients' data."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtuner import checks
from fedtuner.core.code import known_by
from fedtuner.core.federation import SPLITS, FederationDefaults
from fedtuner.core.fingerprint import add_data, as_array, raw
from fedtuner.core.method import defaults
from fedtuner.core.model import Learner, Task, Vector
from fedtuner.core.setup import Setup
from fedtuner.errors import FedtunerError, SpecError, TaskError, brief, counted
from fedtuner.space import Config

ALIGNED = 16  # bytes
_TRIED = 64  # examples of a lazy split that the model is tried on before the work


@dataclass(frozen=True)
class Client:
    """One client's data: each split is a pair (x, y) of arrays, or anything with a length and an index, or lazy."""

    id: str | int
    train: Any = field(repr=False)
    valid: Any = field(repr=False)
    test: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        checks.settle(self, id=checks.client_id(self.id))


@runtime_checkable
class Lazy(Protocol):
    """A split that is loaded when its client is visited and let go afterwards."""

    def __len__(self) -> int: ...

    def load(self) -> Any:
        """Return the split: a pair (x, y) of arrays."""

    def fingerprint(self) -> str:
        """Return what the data is known by: the same for the same examples."""


@runtime_checkable
class Columns(Protocol):
    """Clients of which ids and sizes are known as columns, and whose splits are all lazy: ``LazyClients``.

    They are checked as columns, not client by client, and none is kept.
    """

    @property
    def ids(self) -> Sequence[str | int]:
        """Return distinct ids."""

    @property
    def sizes(self) -> Mapping[str, NDArray[np.int64]]:
        """Return how many examples each client has, by split."""

    @property
    def fingerprint(self) -> str:
        """Return what ids, sizes and data are known by."""

    @property
    def code(self) -> str:
        """Return what the code that makes or reads the data is known by."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Client: ...


class Simulation(FederationDefaults):
    """A problem in this process: a model (a task or a learner) and its clients; ``groups`` names their groups by id."""

    def __init__(
        self, model: Task | Learner, clients: Iterable[Client] | Columns, name: str = "simulation",
        groups: Mapping[str | int, str] | None = None,
    ) -> None:  # fmt: skip
        if isinstance(model, type) or not all(hasattr(model, name) for name in ("evaluate", "prepare", "layout")):
            given = type(model).__name__
            raise SpecError(f"model is {given}, but must be a task such as fedtuner.pytorch.Task(build), or a learner")
        if not isinstance(clients, Iterable) or isinstance(clients, (str, bytes)):
            raise SpecError(f"clients = {brief(clients)}, but must be a list of Client(id, train, valid, test)")
        if not isinstance(name, str) or not name.isprintable():
            raise SpecError(f"name = {brief(name)}, but must be a string of one line")
        self.model = model
        self._columns = clients if isinstance(clients, Columns) else None
        self.clients: Sequence[Client] = cast(Any, clients) if self._columns else tuple(clients)
        self.name = name
        self.left_out: list[str | int] = list(getattr(clients, "left_out", ()))  # ids of those too small to split
        self._prepared: dict[tuple[int, str], Sized] = {}
        self._visit: dict[tuple[int, str], Sized] = {}  # the lazy splits of the client visited last
        if not self.clients:
            few = f": {len(self.left_out)} have too few examples for three splits" if self.left_out else ""
            raise SpecError(f"a problem needs at least one client{few}")
        self.groups = checks.groups(groups, self._distinct() if self._columns is None else self._columns.ids)

    def __repr__(self) -> str:
        model = f"{type(self.model).__name__}, {self.model.metric.name}"
        return f"<{type(self).__name__}: {self.name}, {counted(len(self.clients), 'client')}, {model}>"

    def _distinct(self) -> set[str | int]:
        """Return the ids of clients that were given one by one; refuse what are none, or two alike."""
        ids = checks.Ids()
        for client in self.clients:
            if not isinstance(client, Client):
                raise SpecError(f"{brief(client)} is no Client: give Client(id, train, valid, test)")
            ids.add(client.id)
        return ids.seen

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to another process: it prepares the data that it visits."""
        return {**self.__dict__, "_prepared": {}, "_visit": {}}

    @property
    def task(self) -> Task | Learner:
        return self.model

    def population(self) -> int:
        return len(self.clients)

    def present(self) -> Sequence[int]:
        return range(len(self.clients))

    def everyone(self) -> Sequence[int]:
        return self.present()

    def id_of(self, client: int) -> str | int:
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
            if len(self._visit[key]) != len(given):  # clients are drawn, and work is shared out, by their sizes
                what = f"client {brief(self.clients[client].id)}, {split} data"
                raise TaskError(f"{what}: {len(self._visit[key])} examples were loaded, but its size is {len(given)}")
        return self._visit[key]

    def on(self, device: str) -> Simulation:
        """Return the same problem with its model and data on another device, such as ``cuda``."""
        moved = Simulation(self.model.on(device), self._columns or self.clients, self.name, self.groups)
        moved.left_out = self.left_out
        return moved

    def check(self, setup: Setup | None = None) -> None:
        """Prepare everything that is not lazy and try the model on a few examples: mistakes show before long work."""
        _ = self.code  # before any of it has run
        try:
            self._check(setup)
        except SystemExit as error:
            said = f"the code of the model or the data called sys.exit({brief(error.code)})"
            raise TaskError(f"{said}: it must return, or raise an error") from error

    def _check(self, setup: Setup | None) -> None:
        if setup is not None and setup.cohort > len(self.clients):
            there = counted(len(self.clients), "client")
            raise SpecError(f"cohort = {brief(setup.cohort)}, but the problem has {there}: lower cohort")
        config = defaults(self.model.hyperparameters)
        if setup is not None and self.model.own_training:  # what its code reads is for the space to say
            config = {**{name: domain.ends()[0] for name, domain in setup.space.client.items()}, **config}
        sizes = {split: self.sizes(split) for split in SPLITS}
        for i in map(int, np.flatnonzero(sum(sizes.values()) == 0)):
            client = self.clients[i]
            if any(getattr(client, split) is not None for split in SPLITS):
                raise SpecError(
                    f"client {client.id!r} has no examples at all: leave it out, or give None for its splits"
                )
        for split in ("train", "valid"):
            if not sizes[split].any():
                raise SpecError(f"no client has any {split} examples")
        first = int(np.argmax(sizes["train"] > 0))
        w = self.model.initial(0)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Using a target size")  # torch only warns of a misfit
                metrics = self.model.evaluate(w, self._sample(first), config)
        except TaskError as error:
            raise TaskError(f"client {self.clients[first].id!r}: {error}") from error
        if not metrics.finite:
            raise TaskError(
                f"the untrained model's loss on client {self.clients[first].id!r} is {metrics.loss}: are there NaN or "
                "infinite values in the data?"
            )
        if metrics.undefined and not self._defined(w, config):
            rule = "it must be defined for some client"
            raise TaskError(f"the {self.model.metric.name} of the untrained model is NaN for every client: {rule}")
        for i, split, row in _odd(self.clients) if self._columns is None else ():
            x, y = getattr(self.clients[i], split)
            what = f"client {brief(self.clients[i].id)}, {split} data, example {row}"
            try:
                metrics = self.model.evaluate(w, self.model.prepare((x[row : row + 1], y[row : row + 1])), config)
            except TaskError as error:
                raise TaskError(f"{what}: {error}") from error
            if y.ndim == 1 and not metrics.finite:  # torch's losses pass over examples of label -100, and give NaN
                raise TaskError(f"{what}: its label is {y[row]}, and its loss {metrics.loss}: leave such examples out")

    def _defined(self, w: Vector, config: Config) -> bool:
        """Return whether the metric is defined for any client."""
        splits = (self.data(i, split) for i in self.present() for split in ("train", "valid"))
        return any(len(data) and not self.model.evaluate(w, data, config).undefined for data in splits)

    def fingerprint(self) -> str:
        """Return a hash of the clients' data and of the model's shape: a study continues only on the same problem."""
        digest = hashlib.blake2b(digest_size=12)
        digest.update(repr(self.model.layout()).encode())
        if self.groups:
            digest.update(repr(sorted(self.groups.items(), key=str)).encode())
        if self._columns is not None:
            digest.update(self._columns.fingerprint.encode())
            return digest.hexdigest()
        for i, client in enumerate(self.clients):
            digest.update(repr((client.id, [self.size(i, split) for split in SPLITS])).encode())
            for split in SPLITS:
                given = getattr(client, split)
                if isinstance(given, Lazy):
                    digest.update(given.fingerprint().encode())
                elif not _add_arrays(digest, given) and given is not None:
                    add_data(digest, self.data(i, split))  # it was read when its size was asked for
        return digest.hexdigest()

    @cached_property
    def code(self) -> Mapping[str, str]:  # type: ignore[override]
        """What the model's code is known by, and that of lazy clients."""
        made = self.code_of(self.model)
        return made if self._columns is None else {**made, "data": self._columns.code}

    @staticmethod
    def code_of(model: Any) -> Mapping[str, str]:
        """Return what a model's code is known by: as the model says, or by its class and attributes."""
        known = getattr(model, "code", None)
        return known if isinstance(known, Mapping) else {"model": known_by(model)}

    def describe(self) -> dict[str, Any]:
        """Return name, number of clients, fingerprint and, as the bits depend on it, a device that is not the CPU."""
        device = str(self.model.device)
        about = {"name": self.name, "clients": len(self.clients), "fingerprint": self.fingerprint()}
        return about if device == "cpu" else {**about, "device": device}

    def _prepare(self, client: int, split: str, given: Any) -> Sized:
        try:
            return self.model.prepare(aligned(given))
        except FedtunerError as error:
            raise type(error)(f"client {brief(self.clients[client].id)}, {split} data: {error}") from error

    def size(self, client: int, split: str) -> int:
        if (client, split) not in self._prepared:
            given = getattr(self.clients[client], split)
            if isinstance(given, Lazy):
                return len(given)
        return len(self.data(client, split))

    def sizes(self, split: str) -> NDArray[np.int64]:
        if self._columns is not None:
            return self._columns.sizes[split]
        return np.array([self.size(i, split) for i in range(len(self.clients))], np.int64)

    def _sample(self, client: int) -> Sized:
        given = self.clients[client].train
        if not isinstance(given, Lazy):
            return self.data(client, "train")
        loaded = given.load()
        if isinstance(loaded, Mapping):
            loaded = _few(loaded)
        elif isinstance(loaded, tuple):
            loaded = tuple(map(_few, loaded))
        return self._prepare(client, "train", loaded)


def aligned(given: Any) -> Any:
    """Return a split whose arrays begin where those do that NumPy makes.

    Vector instructions round differently on others: on views into larger arrays, on files in memory, and on what
    another process has sent. Results should depend on what the data is, not on where it lies.
    """
    if isinstance(given, np.ndarray):
        return given if given.ctypes.data % ALIGNED == 0 else given.copy()
    if isinstance(given, (tuple, list)):
        return type(given)(map(aligned, given)) if type(given) in (tuple, list) else given
    return {key: aligned(part) for key, part in given.items()} if type(given) is dict else given


def _few(part: Any) -> Any:
    return {k: v[:_TRIED] for k, v in part.items()} if isinstance(part, Mapping) else part[:_TRIED]


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


def _add_arrays(digest: Any, split: Any) -> bool:
    """Add the values of a split's arrays to a hash, and return whether it is made of arrays alone."""
    parts = split if isinstance(split, (tuple, list)) else ()
    arrays = [as_array(part) for part in parts if not isinstance(part, list)]
    if not arrays or len(arrays) < len(parts) or any(array is None for array in arrays):
        return False
    for array in arrays:
        digest.update(raw(array))
    return True
