"""Object stores in this process's memory, for tests: what they hold, and buckets that stop a study."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedtuner.core.place import Url, place
from fedtuner.errors import StoreError
from fedtuner.run.store import Objects
from fedtuner.run.store.bucket import Bucket, Version
from fedtuner.run.store.lease import Lease

_numbers = itertools.count()


def new(name: str = "study") -> Url:
    """A place in an object store that nothing else has."""
    found = place("store", f"memory://b{next(_numbers)}/{name}")
    assert isinstance(found, Url)
    return found


def content(url: Url) -> dict[str, bytes]:
    """All objects below a URL, by what their names add to it."""
    import obstore

    from fedtuner.run.store.bucket import _memories

    store = _memories[url.bucket]
    names = [one["path"] for some in obstore.list(store, url.key or None) for one in some]
    return {name.removeprefix(f"{url.key}/"): bytes(obstore.get(store, name).bytes()) for name in sorted(names)}


def filled(objects: Mapping[str, bytes]) -> Url:
    """A new place with these objects."""
    url = new()
    for name, data in objects.items():
        Bucket(url).put(name, data)
    return url


class Late(Bucket):
    """A bucket in which every lock has expired."""

    def age(self, name: str) -> float:
        return math.inf


def quiet(bucket: Bucket) -> Lease:
    """A lock without a thread."""
    return Lease(bucket, beats=False)


def store(url: Url, kind: type[Bucket] = Late, *arguments: Any) -> Objects:
    return Objects(url, kind(url, *arguments), quiet)


class Changing(Bucket):
    """A bucket that calls ``change`` with a description before each change of an object."""

    def change(self, doing: str) -> None:
        """Do nothing."""

    def age(self, name: str) -> float:
        return math.inf

    def put(self, name: str, data: bytes) -> None:
        self.change(f"put {name}")
        super().put(name, data)

    def create(self, name: str, data: bytes) -> Version | None:
        self.change(f"create {name}")
        return super().create(name, data)

    def swap(self, name: str, data: bytes, version: Version) -> Version | None:
        self.change(f"swap {name}")
        return super().swap(name, data, version)

    def delete(self, names: Any) -> None:
        for name in (known := list(names)):  # one by one: a kill may come in the middle
            self.change(f"delete {name}")
            super().delete([name])
        assert isinstance(known, list)


class Snapshots(Changing):
    """Keeps what a kill would leave behind at each change, each content once, whatever the lock says."""

    def __init__(self, url: Url) -> None:
        super().__init__(url)
        self.changes, self.kept = 0, dict[str, dict[str, bytes]]()
        self._known: set[int] = set()

    def change(self, doing: str) -> None:
        self.changes += 1
        found = content(self.url) if self._reached else {}
        about = hash(tuple((name, data) for name, data in found.items() if name != "lock"))
        if about not in self._known:
            self._known.add(about)
            self.kept[f"{self.changes} {doing}"] = found


class Failing(Changing):
    """Fails at the n-th change whose description matches a pattern, and at all later ones until it is mended.

    ``after`` fails when the change was done: the answer was lost.
    """

    def __init__(self, url: Url, n: int, pattern: str = ".*", after: bool = False) -> None:
        super().__init__(url)
        self.left, self.pattern, self.after, self.mended = n, pattern, after, False

    def _fails(self, doing: str) -> bool:
        self.left -= re.match(self.pattern, doing) is not None
        return self.left <= 0 and not self.mended

    def change(self, doing: str) -> None:
        if not self.after and self._fails(doing):
            raise StoreError(f"cannot {doing}: the network is gone")

    def swap(self, name: str, data: bytes, version: Version) -> Version | None:
        new = super().swap(name, data, version)
        self._lose(f"swap {name}")
        return new

    def create(self, name: str, data: bytes) -> Version | None:
        new = super().create(name, data)
        self._lose(f"create {name}")
        return new

    def _lose(self, doing: str) -> None:
        if self.after and self._fails(doing):
            self.mended = True
            raise StoreError(f"cannot {doing}: the answer was lost")


class Counting(Changing):
    """Counts requests by kind."""

    def __init__(self, url: Url) -> None:
        super().__init__(url)
        self.counts: dict[str, int] = {}

    def _request(self, doing: str, name: str = "") -> Any:
        kind = f"{doing} {re.split(r'[-/.]', name)[0]}".strip()
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return super()._request(doing, name)


def each(objects: Mapping[str, bytes], pattern: str) -> Iterator[str]:
    yield from (name for name in objects if re.fullmatch(pattern, name))


Lock = Callable[[Bucket], Lease]
