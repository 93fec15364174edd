"""A study's journal with the order of its rounds, read once or followed while the study writes it."""

from __future__ import annotations

from collections.abc import Iterable

from fedtuner.core.place import Place
from fedtuner.core.records import Key
from fedtuner.core.store import Done, Eliminated, Event, Extended, Started, Store, Won
from fedtuner.errors import StoreError, named
from fedtuner.run.journal import Journal
from fedtuner.run.reading import fold
from fedtuner.run.store import at


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
    """The history of a store; ``refresh`` reads what was written since."""

    def __init__(self, path: Place) -> None:
        self.path = path
        self._tail = at(path).tail()
        self.history = History(name=str(path))

    def refresh(self) -> bool:
        """Read what is new; return whether there was anything."""
        events, again = self._tail.new()
        if again:
            self.history = History(name=str(self.path))
        self.history.add(events)
        return bool(events)


class Study:
    """A study's store as the page reads it: its own history, and that of the untuned default inside it."""

    def __init__(self, path: Place) -> None:
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
