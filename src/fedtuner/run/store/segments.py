"""Lines that only grow, in objects that cannot: NAME-000001.jsonl, NAME-000002.jsonl ... in order of name.

The last object is written again with every flush, one request, until it has ``LIMIT`` bytes; then the next one is
begun. So a journal of megabytes is a few dozen objects, and a flush sends at most ``LIMIT`` bytes besides its own.

Each write is conditional: it replaces the very version that this process wrote or read before, or creates an object
that is not there. Who takes over adds a mark to the last object, and from then on every write of another process that
still thinks the lines are its own is refused by the store. This needs no clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedtuner.errors import StoreError
from fedtuner.run.store.bucket import Bucket, Found, Version

LIMIT = 128 * 1024  # bytes


@dataclass(frozen=True)
class Segment:
    """One of the objects, as it was read."""

    name: str
    data: bytes
    version: Version


class Segments:
    """The lines of one name in a bucket."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        self._bucket, self._name = bucket, name
        self._pattern = re.compile(rf"{name}-\d{{6}}\.jsonl")
        self._number = 0  # of the object that grows; 0: there is none yet
        self._data = self._mark = b""
        self._version: Version = {}
        self._tried: bytes | None = None  # what a write that failed would have written: it may be there

    def listed(self) -> Sequence[Found]:
        """Return the objects that there are, in order."""
        found = [one for one in self._bucket.find() if self._pattern.fullmatch(one.name)]
        for number, one in enumerate(found, start=1):
            if one.name != self._object(number):
                raise StoreError(
                    f"{self._bucket.url}/{self._object(number)} is missing: restore it, or use another store"
                )
        return found

    def read(self) -> list[Segment]:
        """Return the objects' contents, in order."""
        names = [one.name for one in self.listed()]
        contents = self._bucket.get_all(names)
        return [Segment(name, *got) for name, got in zip(names, contents, strict=True) if got is not None]

    def take(self, mark: str) -> list[Segment]:
        """Make the lines this process's own, and return what there is; writes of others are refused from now on."""
        self._mark = f"# {mark}\n".encode()
        while True:
            found = self.read()
            self._number = len(found)
            if not found:  # the first write creates the first object
                return found
            last = found[-1]
            if not self._write(last.data + self._mark, last.version):
                continue  # a write came in between
            if len(self._data) < LIMIT or self._next(b""):
                return found

    def append(self, lines: bytes) -> None:
        """Add lines; they are in the store when this returns."""
        grows = self._number > 0 and len(self._data) < LIMIT
        if not (self._write(self._data + lines, self._version) if grows else self._next(lines)):
            raise StoreError(
                f"{self._bucket.url} is written to by another study: nothing more is written there. What was kept "
                "before is whole: run the same command again, once the other has ended"
            )

    def _next(self, lines: bytes) -> bool:
        self._number += 1
        done = False
        try:
            done = self._write(self._mark + lines, None)
        finally:
            self._number -= not done
        return done

    def _write(self, data: bytes, version: Version | None) -> bool:
        """Write the object that grows, in place of one version of it (None: where there is none)."""
        name, tried, self._tried = self._object(self._number), self._tried, data
        new = self._bucket.create(name, data) if version is None else self._bucket.swap(name, data, version)
        if new is None and tried is not None:  # was the write done whose failure was told?
            found = self._bucket.get(name)
            if found is not None and found[0] == tried:
                new = self._bucket.swap(name, data, found[1])
        self._tried = None
        if new is not None:
            self._data, self._version = data, new
        return new is not None

    def _object(self, number: int) -> str:
        return f"{self._name}-{number:06d}.jsonl"
