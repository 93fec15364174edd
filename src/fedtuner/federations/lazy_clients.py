"""Clients of which only ids and sizes are known: their data is made or read when they are visited.

A list of a million ``Client`` objects takes half a gigabyte, and minutes to look through. ``LazyClients`` has ids and
sizes as columns instead, and makes a ``Client`` when it is asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fedtuner import checks
from fedtuner.core.code import known_by
from fedtuner.core.federation import SPLITS
from fedtuner.errors import SpecError, brief
from fedtuner.federations.simulation import Client

MOST = 100_000_000  # clients
Id = str | int
Sizes = NDArray[np.int64]


class LazyClients(Sequence[Client]):
    """Clients whose data ``make(id, split)`` returns when they are visited.

    ``ids`` are distinct strings or whole numbers; or how many clients there are, whose ids are then 0, 1, 2 ...
    ``sizes`` says how many examples they have to train on, to validate with and to test on: three numbers where all
    clients have as many, or three columns. ``make`` returns what a split of ``Client`` may be, such as arrays (x, y),
    the same whenever it is called; it is not called for splits without examples. A study continues only where ids,
    sizes and the code of ``make`` are the same, and ``fingerprint``: a string to change when the data changes that
    ``make`` reads.
    """

    def __init__(
        self, ids: int | Iterable[Id], sizes: Sequence[Any], make: Callable[[Id, str], Any], *, fingerprint: str = ""
    ) -> None:
        self.ids = _ids(ids)
        self.sizes: Mapping[str, Sizes] = _sizes(sizes, len(self.ids))
        checks.function("make", make)
        if not isinstance(fingerprint, str):
            raise SpecError(f"fingerprint = {brief(fingerprint)}, but must be a string")
        self.make, self._given = make, fingerprint

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, i: int) -> Client: ...
    @overload
    def __getitem__(self, i: slice) -> list[Client]: ...
    def __getitem__(self, i: int | slice) -> Client | list[Client]:
        if isinstance(i, slice):
            return [self[n] for n in range(*i.indices(len(self)))]
        n = range(len(self))[i]  # refuses what is no place, and counts negative ones from the end
        return Client(checks.python(self.ids[n]), *(Split(self, n, split) for split in SPLITS))

    def __iter__(self) -> Iterator[Client]:
        return (self[n] for n in range(len(self)))

    def __repr__(self) -> str:
        return f"<LazyClients: {len(self)}>"

    @property
    def code(self) -> str:
        """What the code of ``make`` is known by."""
        return known_by(self.make)

    @cached_property
    def fingerprint(self) -> str:
        """What ids and sizes are known by, and the data as far as a fingerprint of it was given."""
        digest = hashlib.blake2b(repr((len(self), self._given)).encode(), digest_size=12)
        for start in range(0, len(self), _AT_ONCE):
            digest.update(repr(list(map(checks.python, self.ids[start : start + _AT_ONCE]))).encode())
        for split in SPLITS:
            for start in range(0, len(self), _AT_ONCE):
                digest.update(np.ascontiguousarray(self.sizes[split][start : start + _AT_ONCE], np.int64).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Split:
    """A split of one of these clients."""

    clients: LazyClients
    client: int
    split: str

    def __len__(self) -> int:
        return int(self.clients.sizes[self.split][self.client])

    def load(self) -> Any:
        return self.clients.make(checks.python(self.clients.ids[self.client]), self.split) if len(self) else None

    def fingerprint(self) -> str:
        return f"{self.clients.fingerprint} {self.client} {self.split}"


_AT_ONCE = 100_000  # clients that are hashed at once


def _ids(given: Any) -> Sequence[Id]:
    """Return distinct ids, or refuse what are none."""
    if checks.is_whole(given):
        return range(checks.whole("ids", given, 1, MOST))
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        raise SpecError(f"ids = {brief(given)}, but must be a list of ids, or how many clients there are")
    if isinstance(given, range):
        ids: Sequence[Id] = given
    elif isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "iuU":
        column = given.copy()  # it stays a column: a tuple takes ten times the memory
        column.setflags(write=False)
        ids = column  # type: ignore[assignment]
    else:
        ids = tuple(map(checks.client_id, given))
    if not len(ids) or (not isinstance(ids, range) and len(set(ids)) < len(ids)):
        raise SpecError(f"ids = {brief(list(ids[:3]))} ..., but must be distinct ids, at least one")
    return ids


def _sizes(given: Any, clients: int) -> dict[str, Sizes]:
    """Return a column of sizes for each split; numbers stand for columns that take no memory."""
    rule = "but must be three: examples to train on, to validate with and to test on"
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != len(SPLITS):
        raise SpecError(f"sizes = {brief(given)}, {rule}")
    made = {}
    for split, some in zip(SPLITS, given, strict=True):
        column = np.asarray(some)
        if column.dtype.kind not in "iu" or column.shape not in ((), (clients,)):
            raise SpecError(
                f"sizes of {split} = {brief(some)}, but must be a whole number, or one for each of {clients} clients"
            )
        if column.size and int(column.min()) < 0:
            raise SpecError(f"sizes of {split} has {int(column.min())}, but must be at least 0")
        made[split] = np.broadcast_to(column.astype(np.int64), (clients,))
    return made
