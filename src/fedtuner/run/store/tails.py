"""Journals that are followed while a study writes them: each time only what is new is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from fedtuner.core.store import Event
from fedtuner.errors import StoreError
from fedtuner.run.store.bucket import Bucket, Found, Version
from fedtuner.run.store.lines import decode


class Tail(Protocol):
    """A journal as far as it was read."""

    def new(self) -> tuple[list[Event], bool]:
        """Return the events since the last call, and whether they are those of another journal, from its start."""


class FileTail:
    """The tail of a file."""

    def __init__(self, file: Path) -> None:
        self._file, self._read, self._inode = file, 0, -1

    def new(self) -> tuple[list[Event], bool]:
        again = False
        try:
            with self._file.open("rb") as file:
                inode = self._file.stat().st_ino
                if inode != self._inode or file.seek(0, 2) < self._read:  # another journal, or one that was cut
                    self._read, self._inode, again = 0, inode, True
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return [], False
        except OSError as error:
            raise StoreError(f"cannot read {self._file}: {error.strerror}") from error
        events, size = decode(data, str(self._file))
        self._read += size
        return events, again


class ObjectTail:
    """The tail of a journal's objects: a list of them each time, and those that have grown."""

    def __init__(self, bucket: Bucket, listed: Callable[[], Sequence[Found]]) -> None:
        self._bucket, self._listed = bucket, listed
        self._first: Version | None = None  # of the first object, once there is a second: it does not change any more
        self._number, self._read = 0, 0  # the object that was read last, from 0, and how many bytes of it
        self._seen: Version | None = None

    def new(self) -> tuple[list[Event], bool]:
        found, again = self._listed(), False
        gone = len(found) <= self._number or found[self._number].size < self._read
        if self._seen is not None and (gone or (self._first is not None and found[0].version != self._first)):
            self._first = self._seen = None
            self._number, self._read, again = 0, 0, True
        events: list[Event] = []
        for number in range(self._number, len(found)):
            if found[number].version == self._seen and number == self._number:
                continue
            got = self._bucket.get(found[number].name)
            if got is None:
                break
            read = self._read if number == self._number else 0
            new, size = decode(got[0][read:], f"{self._bucket.url}/{found[number].name}")
            self._number, self._read, self._seen = number, read + size, got[1]
            self._first = found[0].version if number else None
            events += new
        return events, again
