"""Watchers of a study: they are called with each event of its journal, in order, once it is written."""

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

    After a resume it is called with new events only. What it raises stops the study, which keeps what it has.
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
        """Arms were compared, and these are out; it is called with the next event after them."""

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


@dataclass(frozen=True)
class Watchers:
    """All watchers of a study, as one."""

    watchers: tuple[Watch, ...] = ()

    def on_open(self, journal: Journal) -> None:
        for one in self.watchers:
            if isinstance(one, Watcher):  # not a function
                one.on_open(journal)

    def __call__(self, event: Event) -> None:
        for one in self.watchers:
            one(event)


NOBODY = Watchers()


def watching(given: Any) -> Watchers:
    """Return the watchers that a function, a ``Watcher``, several of them, or None stands for."""
    several = () if given is None else (given,) if callable(given) else given
    if not isinstance(several, Iterable) or isinstance(several, (str, bytes)):
        raise SpecError(f"watch = {brief(given)}, but must be a function of events, a Watcher, or a list of them")
    made = tuple(several)
    for one in made:
        checks.function("watch", one)
        if isinstance(one, type):  # it can be called, too
            raise SpecError(f"watch is the class {one.__name__}, but must be an object: call it, {one.__name__}(...)")
    return Watchers(made)
