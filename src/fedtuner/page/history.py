"""A study's journal with the order of its rounds, read once or followed while the study writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedtuner.core.records import Key
from fedtuner.core.store import Done, Eliminated, Event, Extended, Started, Store, Won
from fedtuner.errors import StoreError, named
from fedtuner.run.journal import Journal, fold
from fedtuner.run.store import Folder
from fedtuner.run.store.lines import decode


class History:
    """A journal, and its rounds by the schedule's steps.

    Between two decisions of a schedule (an arm starts, is eliminated or wins) lies one step. Which of a step's arms
    came first depends on the workers, so within a step rounds are in the order of arms.
    """

    def __init__(self, events: Iterable[Event] = (), name: str = "the study") -> None:
        self.name = name
        self.journal = Journal()
        self.steps: list[list[Key]] = []
        self.add(events)

    def add(self, events: Iterable[Event]) -> None:
        """Take further events."""
        events = list(events)
        fold(events, self.name, self.journal)
        for event in events:
            if isinstance(event, Done):
                self.steps = self.steps or [[]]
                self.steps[-1].append((event.record.arm, event.record.round))
            elif isinstance(event, (Started, Eliminated, Won, Extended)) and (not self.steps or self.steps[-1]):
                self.steps.append([])


class Follower:
    """The history of a folder; ``refresh`` reads what was written since."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = Folder(path).journal
        self._start()

    def _start(self) -> None:
        self.history, self._read, self._inode = History(name=str(self.path)), 0, -1

    def refresh(self) -> bool:
        """Read what is new; return whether there was anything."""
        try:
            with self._file.open("rb") as file:
                inode = self._file.stat().st_ino
                if inode != self._inode or file.seek(0, 2) < self._read:  # another journal, or one that was cut
                    self._start()
                    self._inode = inode
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"cannot read {self._file}: {error.strerror}") from error
        events, size = decode(new, str(self._file))
        self.history.add(events)
        self._read += size
        return size > 0


class Study:
    """A study's folder as the page reads it: its own history, and that of the untuned default inside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own, self._untuned = Follower(path), Follower(path / "untuned")
        self.refresh()
        if self._own.history.journal.begun is None:
            raise StoreError(f"no study in {named(path)}: there is no journal; 'fedtuner run' makes one")

    def refresh(self) -> bool:
        """Read what is new; return whether there was anything."""
        grown = self._own.refresh()
        if self._own.history.journal.begun is not None:
            beside = self.path / self._own.history.journal.untuned  # another one, once the study is extended
            if beside != self._untuned.path:
                self._untuned = Follower(beside)
        return self._untuned.refresh() or grown

    @property
    def history(self) -> History:
        """The study's own."""
        return self._own.history

    @property
    def untuned(self) -> History | None:
        """The untuned default's, if there is one."""
        found = self._untuned.history
        return found if found.journal.begun is not None else None


def of_store(store: Store, name: str) -> History:
    """Return the history of a store that is not followed."""
    return History(store.events(), name)
