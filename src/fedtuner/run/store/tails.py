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
    """The tail of a journal's objects: a list of them each time, and those that have grown.

    The first object begins with the mark of who opened the study first, and does not change once there is a second. So
    another journal in its place is noticed.
    """

    def __init__(self, bucket: Bucket, listed: Callable[[], Sequence[Found]]) -> None:
        self._bucket, self._listed = bucket, listed
        self._number, self._read = 0, 0  # the object that was read last, from 0, and how many bytes of it
        self._seen: Version = {}  # of that object
        self._mark = b""  # the first line of the first object

    def new(self) -> tuple[list[Event], bool]:
        found, again = self._listed(), False
        if self._mark and not self._is_same(found):
            self._number, self._read, self._seen, self._mark, again = 0, 0, {}, b"", True
        events: list[Event] = []
        for number in range(self._number, len(found)):
            if number == self._number and found[number].version == self._seen:
                continue
            got = self._bucket.get(found[number].name)
            if got is None:
                break
            read = self._read if number == self._number else 0
            new, size = decode(got[0][read:], f"{self._bucket.url}/{found[number].name}")
            self._number, self._read, self._seen = number, read + size, got[1]
            self._mark = self._mark or got[0].partition(b"\n")[0]
            events += new
        return events, again

    def _is_same(self, found: Sequence[Found]) -> bool:
        """Return whether objects go on from what was read; reads the first one only if it has changed."""
        if len(found) <= self._number or found[self._number].size < self._read:
            return False
        if found[self._number].version == self._seen:
            return True
        first = self._bucket.get(found[0].name)
        return first is not None and first[0].startswith(self._mark)
