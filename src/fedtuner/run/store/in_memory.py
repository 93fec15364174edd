"""A store in this process's memory: for studies that need not be continued. Large client memory goes to a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fedtuner.core.model import Vectors
from fedtuner.core.records import Key, State
from fedtuner.core.store import Event, Note
from fedtuner.errors import StoreError
from fedtuner.run.store.states import FileBlobs


class InMemory:
    """A store that ends with its process."""

    path = None

    def __init__(self) -> None:
        self.blobs = FileBlobs.temporary(self)
        self.notes: list[Note] = []
        self._events: list[Event] = []
        self._states: dict[Key, tuple[State, Vectors]] = {}
        self._open = False

    def exists(self) -> bool:
        return bool(self._events)

    def events(self) -> Iterator[Event]:
        yield from list(self._events)

    def append(self, events: Sequence[Event], notes: Sequence[Note] = ()) -> None:
        self._events += events
        self.notes += notes

    def save(self, key: Key, state: State, belief: Vectors) -> str:
        self._states[key] = (state, belief)
        return "in memory"

    def load(self, key: Key, known: str = "") -> tuple[State, Vectors]:
        if key not in self._states:
            raise StoreError(f"the state of arm {key[0]} after round {key[1]} is no longer kept")
        return self._states[key]

    def has(self, key: Key) -> bool:
        return key in self._states

    def drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._states.pop(key, None)

    def open(self, room: int = 0) -> None:
        """Take the store, unless another study of this process has it."""
        if self._open:
            raise StoreError("this store is in use by another running study: close() it, or use another store")
        self._open = True

    def close(self) -> None:
        self._open = False
