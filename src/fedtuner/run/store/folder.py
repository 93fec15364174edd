"""A study's folder.

    journal.jsonl        what has happened, a line per event: the only description of the study
    states/ARM-ROUND.safetensors   an arm after a round: model, server slots, client memory, belief
    memory/ARM/          client memory of an arm where it is large, until the arm is eliminated
    log.jsonl            what went wrong on the way: no part of the result
    lock                 taken by the process that writes

First the state (written aside, flushed to disk, renamed), then the line that names it, then old states go. So a line on
disk always has its state, and nothing is ever mended: a crash leaves at most states that no line names, which the next
opening deletes, and an unfinished flush at the journal's end, which it cuts off and notes in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedtuner.core.memory import blobs_of
from fedtuner.core.model import Vectors
from fedtuner.core.place import at_home
from fedtuner.core.records import Key, State
from fedtuner.core.store import Begun, Done, Event, Note, Started
from fedtuner.errors import StoreError, named
from fedtuner.run.store.files import Files, check_room, disk_errors, exists
from fedtuner.run.store.lines import decode, encode, encode_notes
from fedtuner.run.store.lock import Lock
from fedtuner.run.store.states import FileBlobs, checksum, loaded, pack
from fedtuner.run.store.tails import FileTail, Tail

START: Key = (-1, 0)  # the weights that all arms begin from, where they do not come from the seed
# What a store may hold before its journal: what it writes itself, studies inside it, and what systems put everywhere.
_OURS = re.compile(r"lock|states|memory|log\.jsonl|proxy|untuned(-\d+)?|retrained-\d+|lost\+found|\..*")
_STATE = re.compile(r"-?\d+-\d+\.safetensors(\.\d+\.part)?")  # names of states, and of states half written


class Folder:
    """A store in a folder of the local disk."""

    def __init__(self, path: str | Path, files: Files | None = None) -> None:
        self.path = at_home(Path(path))
        self.files = files or Files()
        self.blobs = FileBlobs(self.path / "memory", self.files)
        self._lock: Lock | None = None
        self._size = 0  # of the journal, while the folder is open
        self._failed = False  # the last append: the journal may end with a part of it
        self._read: list[Event] | None = None  # what opening has read, until it is asked for
        if exists(self.path / "spec.json"):
            raise StoreError(
                f"{self.path} holds a study of the first format (it has a spec.json), which this version does not "
                "read: use another --store (store=)"
            )

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    def exists(self) -> bool:
        return exists(self.journal)

    def tail(self) -> Tail:
        """Return the journal, to be followed."""
        return FileTail(self.journal)

    def beside(self, pattern: str) -> list[Path]:
        """Return the places inside this one whose names match a pattern."""
        return sorted(folder for folder in self.path.glob("*") if re.fullmatch(pattern, folder.name))

    def events(self) -> Iterator[Event]:
        known, self._read = self._read, None
        yield from self._decode()[0] if known is None else known

    def append(self, events: Sequence[Event], notes: Sequence[Note] = ()) -> None:
        with self._writing():
            if events:
                lines = encode(events)
                self._check_alone()
                self._failed = True
                self.files.append(self.journal, lines, self._size)
                self._failed = False
                self._size += len(lines)
                self._read = None
            if notes:
                self.files.append(self.path / "log.jsonl", encode_notes(notes))

    def save(self, key: Key, state: State, belief: Vectors) -> str:
        data = pack(state, belief)
        with self._writing():
            for arm in {blob.arm for blob in blobs_of(state.memory)}:  # what it refers to is on disk before it is
                self.files.sync(self.blobs.folder / str(arm))
            self.files.replace(self._file(key), data)
            self.files.sync(self.path / "states")
        return checksum(data)

    def load(self, key: Key, known: str = "") -> tuple[State, Vectors]:
        path = self._file(key)
        return loaded(path.read_bytes, known, str(path))

    def has(self, key: Key) -> bool:
        return self._file(key).exists()

    def drop(self, keys: Iterable[Key]) -> None:
        with self._writing():
            for key in keys:
                self.files.remove(self._file(key))

    def open(self, room: int = 0) -> None:
        """Take the folder, cut off an unfinished flush, and delete states that no line of the journal names."""
        for part in (self.path, *self.path.parents):
            if exists(part) and not part.is_dir():
                raise StoreError(f"{part} is a file, but a study's store is a folder: use another --store (store=)")
        with disk_errors(self.path):
            self._refuse_anothers()
            self.files.make_folder(self.path / "states")
            self._lock = Lock(self.path)
            self.blobs = replace(self.blobs, held=self._lock.held)
            try:
                self._adopt()
                check_room(self.path, room)
            except BaseException:
                self.close()
                raise

    def _refuse_anothers(self) -> None:
        """Refuse a folder that holds other files than a study's; watchers may have folders in it before it begins."""
        if self.exists() or not exists(self.path) or (exists(self.path / "states") and self._is_used()):
            return
        others = sorted(f.name for f in self.path.iterdir() if f.is_file() and not _OURS.fullmatch(f.name))
        if others:
            few = ", ".join(map(named, others[:3])) + (" ..." if len(others) > 3 else "")
            raise StoreError(
                f"{self.path} is no study's folder, but not empty either (it has {few}): name an empty folder or a new "
                "one in --store (store=)"
            )

    def _adopt(self) -> None:
        self._read, self._size, unfinished = self._decode()
        if not self._read and self._is_used():
            raise StoreError(
                f"{self.path} has states of a study, but no journal that says which: restore journal.jsonl, or use "
                "another --store (store=)"
            )
        if unfinished:
            self.append((), [Note("cut", f"an unfinished flush of {unfinished} bytes was cut off the journal's end")])
            self.files.cut(self.journal, self._size)
        named = set(named_states(self._read))
        for file in sorted((self.path / "states").iterdir()):
            if _STATE.fullmatch(file.name) and file.name not in named:
                self.files.remove(file)

    def _is_used(self) -> bool:
        """Return whether there is what a study writes after its journal's first line."""
        states = (file.name for file in (self.path / "states").iterdir() if _STATE.fullmatch(file.name))
        return any((self.path / "memory").glob("*/*.safetensors")) or any(
            not name.startswith(state_name(START)) for name in states
        )

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = self._read = None
            self.blobs = replace(self.blobs, held=None)

    def _check_alone(self) -> None:
        """Raise if another process has written to the journal: locks of some mounts are not known to other machines."""
        if self._lock is None or self._failed:
            return
        try:
            size = self.journal.stat().st_size
        except FileNotFoundError:
            size = 0
        if size != self._size:
            raise StoreError(
                f"{self.journal} was changed by another process, though this study has locked {self.path} (do the "
                "locks of its mount hold on one machine only?): nothing more is written there. End the other, and run "
                "the same command again"
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Change the folder, if it is still the one that was taken."""
        with disk_errors(self.path):
            if self._lock is not None:
                self._lock.held.check()
            yield

    def _decode(self) -> tuple[list[Event], int, int]:
        """Return the events of finished flushes, how many bytes they are, and how many come after them."""
        if not self.exists():
            return [], 0, 0
        try:
            data = self.journal.read_bytes()
        except OSError as error:
            raise StoreError(f"cannot read {self.journal}: {error.strerror}") from error
        events, size = decode(data, str(self.journal))
        return events, size, len(data) - size

    def _file(self, key: Key) -> Path:
        return self.path / "states" / state_name(key)


def state_name(key: Key) -> str:
    """Return what the file of a state is called."""
    return f"{key[0]}-{key[1]}.safetensors"


def named_states(events: Iterable[Event]) -> Iterator[str]:
    """Yield the names of the states that a journal names."""
    for event in events:
        if isinstance(event, Done) and event.state:
            yield state_name((event.record.arm, event.record.round))
        if isinstance(event, Started) and event.state and event.arm.parent:
            yield state_name((event.arm.id, event.arm.parent[1]))
        if isinstance(event, Begun) and event.start:
            yield state_name(START)
