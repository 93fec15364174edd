"""Watchers of a study: they are told each event of its journal once it is written, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fedtuner import checks
from fedtuner.core.store import Begun, Done, Eliminated, Evaluated, Event, Failed, Started, Won
from fedtuner.errors import SpecError, brief
from fedtuner.run.journal import Journal

Watch = Callable[[Event], None]


class Watcher:
    """A base class: a subclass has those of the methods below that it wants.

    After a resume it is told only what is new. What it raises stops the study, which keeps what it has.
    """

    _out: tuple[Eliminated, ...] = ()

    def on_open(self, journal: Journal) -> None:
        """A study was opened, new or to go on: its journal so far, to which the events to come are added."""

    def on_study(self, event: Begun) -> None:
        """A study began."""

    def on_arm(self, event: Started) -> None:
        """An arm was started."""

    def on_round(self, event: Done) -> None:
        """A round was done; the events of an arm's rounds come when its state is saved, several at a time."""

    def on_failed(self, event: Failed) -> None:
        """An error has ended an arm."""

    def on_eliminated(self, event: Eliminated) -> None:
        """An arm is out."""

    def on_rung(self, events: tuple[Eliminated, ...]) -> None:
        """Arms were compared, and these are out; it is told with the next event after them."""

    def on_evaluated(self, event: Evaluated) -> None:
        """A model was evaluated, on all clients or on a sample of them."""

    def on_end(self, event: Won) -> None:
        """The study has a winner."""

    def __call__(self, event: Event) -> None:
        """Call the method of an event."""
        if isinstance(event, Eliminated):
            self._out = (*self._out, event)
        elif self._out:
            out, self._out = self._out, ()
            self.on_rung(out)
        for kind, name in _METHODS:
            if isinstance(event, kind):
                getattr(self, name)(event)


_METHODS = (
    (Begun, "on_study"), (Started, "on_arm"), (Done, "on_round"), (Failed, "on_failed"), (Eliminated, "on_eliminated"),
    (Evaluated, "on_evaluated"), (Won, "on_end"),
)  # fmt: skip


def watching(given: Any) -> Watch | None:
    """Return what calls a watcher, or all of several."""
    if given is None or callable(given):
        return _no_class(given)  # type: ignore[no-any-return]
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
        raise SpecError(f"watch = {brief(given)}, but must be a function of events, a Watcher, or a list of them")
    several = tuple(given)
    for one in several:
        checks.function("watch", one)
        _no_class(one)
    return _Several(several)


def _no_class(given: Any) -> Any:
    """Return a watcher; refuse the class of one, which can be called, too."""
    if isinstance(given, type):
        raise SpecError(f"watch is the class {given.__name__}, but must be an object: call it, {given.__name__}(...)")
    return given


@dataclass(frozen=True)
class _Several:
    watchers: tuple[Any, ...]

    def on_open(self, journal: Journal) -> None:
        for one in self.watchers:
            getattr(one, "on_open", lambda journal: None)(journal)

    def __call__(self, event: Event) -> None:
        for one in self.watchers:
            one(event)
