"""A study in an object store: S3, Google Cloud Storage, Azure, or this process's memory.

    journal-000001.jsonl ...       what has happened, a line per event: ``segments``
    states/ARM-ROUND.safetensors   an arm after a round
    memory/ARM/                    client memory of an arm where it is large
    log-000001.jsonl ...           what went wrong on the way: no part of the result
    lock                           who writes: ``lease``

The order is a folder's: first the state, then the line that names it, then old states go. Every object is written
whole, so a crash leaves at most states that no line names, which the next opening deletes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from fedtuner.core.memory import blobs_of
from fedtuner.core.model import Vectors
from fedtuner.core.place import Url
from fedtuner.core.records import Key, State
from fedtuner.core.store import Event, Note
from fedtuner.errors import StoreError
from fedtuner.run.store.bucket import Bucket
from fedtuner.run.store.folder import START, named_states, state_name
from fedtuner.run.store.lease import Lease
from fedtuner.run.store.lines import decode, encode, encode_notes
from fedtuner.run.store.object_blobs import ObjectBlobs
from fedtuner.run.store.segments import Segment, Segments
from fedtuner.run.store.states import checksum, loaded, pack
from fedtuner.run.store.tails import ObjectTail, Tail

_STATE = re.compile(r"-?\d+-\d+\.safetensors")


class Objects:
    """A store at a URL."""

    def __init__(self, url: Url, bucket: Bucket | None = None, lock: Callable[[Bucket], Lease] = Lease) -> None:
        self.path = url
        self.bucket = bucket or Bucket(url)
        self.blobs = ObjectBlobs(self.bucket)
        self._lock, self._process = lock, 0
        self._lease: Lease | None = None
        self._journal, self._log = Segments(self.bucket, "journal"), Segments(self.bucket, "log")
        self._log_mark = ""
        self._states: set[str] = set()  # those that there are, while the store is open
        self._read: list[Event] | None = None  # what opening has read, until it is asked for

    def exists(self) -> bool:
        return bool(self._journal.listed())

    def tail(self) -> Tail:
        """Return the journal, to be followed."""
        return ObjectTail(self.bucket, self._journal.listed)

    def beside(self, pattern: str) -> list[Url]:
        """Return the places inside this one whose names match a pattern."""
        return [self.path / name for name in self.bucket.folders() if re.fullmatch(pattern, name)]

    def events(self) -> Iterator[Event]:
        known, self._read = self._read, None
        yield from self._decode(self._journal.read()) if known is None else known

    def append(self, events: Sequence[Event], notes: Sequence[Note] = ()) -> None:
        self._held().check()
        if events:
            self._journal.append(encode(events))
            self._read = None
        if notes:
            if self._log_mark:  # the first notes of this opening
                self._log.take(self._log_mark)
                self._log_mark = ""
            self._log.append(encode_notes(notes))

    def save(self, key: Key, state: State, belief: Vectors) -> str:
        data, name = pack(state, belief), state_name(key)
        self._held().check()
        self.blobs.send(blobs_of(state.memory))
        self.bucket.put(f"states/{name}", data)
        self._states.add(name)
        return checksum(data)

    def load(self, key: Key, known: str = "") -> tuple[State, Vectors]:
        name = f"states/{state_name(key)}"

        def read() -> bytes:
            found = self.bucket.get(name)
            if found is None:
                raise ValueError("there is no such object")
            return found[0]

        state, belief = loaded(read, known, f"{self.path}/{name}")
        if self._lease is not None:  # workers may need what clients remember
            self.blobs.fetch(blobs_of(state.memory))
        return state, belief

    def has(self, key: Key) -> bool:
        name = state_name(key)
        return name in self._states if self._lease is not None else self.bucket.get(f"states/{name}") is not None

    def drop(self, keys: Iterable[Key]) -> None:
        old = {state_name(key) for key in keys} & self._states
        if old:
            self._held().check()
            self.bucket.delete(f"states/{name}" for name in sorted(old))
            self._states -= old

    def open(self, room: int = 0) -> None:
        """Take the lock and the journal, and delete states that no line of the journal names."""
        if self._lease is not None:
            used = f"{self.path} is in use by another running study, in this process"
            raise StoreError(f"{used}: close() it, or use another store")
        self._lease, self._process = self._lock(self.bucket), os.getpid()
        try:
            mark = f"opened by {self._lease.owner} ({self._lease.owner.id})"
            self._read = self._decode(self._journal.take(mark))
            self._log_mark = mark
            self._adopt(self._read)
        except BaseException:
            self.close()
            raise

    def _adopt(self, events: Sequence[Event]) -> None:
        self._states = {one.name for one in self.bucket.find("states") if _STATE.fullmatch(one.name)}
        if not events and any(name != state_name(START) for name in self._states):
            raise StoreError(
                f"{self.path} has states of a study, but no journal that says which: restore journal-000001.jsonl, or "
                "use another --store (store=)"
            )
        unnamed = self._states - set(named_states(events))
        self.bucket.delete(f"states/{name}" for name in sorted(unnamed))
        self._states -= unnamed
        self.blobs.open()

    def close(self) -> None:
        if self._lease is not None and self._process == os.getpid():  # a fork has taken nothing
            self._lease.release()
            self._lease = self._read = None

    def _held(self) -> Lease:
        if self._lease is None:
            raise StoreError(f"{self.path} is not open: open() it before it is written to")
        return self._lease

    def _decode(self, segments: Iterable[Segment]) -> list[Event]:
        return [event for one in segments for event in decode(one.data, f"{self.path}/{one.name}")[0]]
