"""Reading a journal: its lines in order, each of which can follow those before it."""

from __future__ import annotations

from collections.abc import Iterable

from fedtuner.core.store import Begun, Done, Event, Extended, OfArm, Started, Store, Won
from fedtuner.errors import StoreError, named
from fedtuner.run.journal import Journal
from fedtuner.tables import is_real, misfit, plain


def read(store: Store, name: str) -> Journal:
    """Return the journal of a store, which need not be open."""
    journal = fold(store.events(), name)
    if journal.begun is None:
        raise StoreError(f"no study in {named(name)}: there is no journal; 'fedtuner run' makes one")
    return journal


def fold(events: Iterable[Event], name: str, journal: Journal | None = None) -> Journal:
    """Return the journal of a store's events, or a journal with further ones.

    Raises an error if lines are missing, repeated or out of order.
    """
    journal = Journal() if journal is None else journal
    for number, event in enumerate(events, start=1):
        wrong = _wrong(event, journal)
        if wrong:
            raise StoreError(
                f"{name}, line {number} of the journal: {wrong}. Restore it from a copy, or use another store"
            )
        journal.add(event)
    return journal


# What the first line must say: all that shows, compares and exports a study reads it.
_SCHEDULE = {"kind": str, "budget": int, "longest": int, "score": str, "discount": is_real}
_BEGUN = {
    "setup": {
        "method": str, "target": str, "seed": int, "schedule": _SCHEDULE, "client": dict, "server": dict,
        "tuner": lambda tuner: isinstance(tuner, (dict, str)),
    },
    "federation": {"name": str},
    "layout": [{"name": str, "shape": [int], "axes": [int]}],
}  # fmt: skip


def _wrong(event: Event, journal: Journal) -> str:
    """Return why an event cannot follow those before it; empty if it can."""
    if isinstance(event, Begun) == (journal.begun is not None):
        return "a study begins once, with the first line"
    if isinstance(event, Begun):
        return misfit(plain(vars(event)), _BEGUN)
    if isinstance(event, Started):
        arm, parent = event.arm.id, event.arm.parent
        if arm in journal.arms:
            return f"arm {arm} starts a second time"
        if not event.candidates:
            return f"arm {arm} starts without candidates"
        if parent is not None and (parent[0] not in journal.arms or parent[1] > journal.round_of(parent[0])):
            return f"arm {arm} goes on from arm {parent[0]} after round {parent[1]}, which is not there"
    if isinstance(event, Done):
        arm, round = event.record.arm, event.record.round
        if arm not in journal.arms:
            return f"round {round} of arm {arm}, which has not started"
        if round != journal.round_of(arm) + 1:
            return f"round {round} of arm {arm} comes after its round {journal.round_of(arm)}"
    if isinstance(event, OfArm) and event.arm not in journal.arms:
        return f"arm {event.arm}, which has not started"
    if isinstance(event, Extended) and (journal.won is None or event.budget < journal.budget + (event.by != "rest")):
        return f"an extension to {event.budget} rounds of a study that has {journal.budget} or no winner"
    return _cannot_win(event.arm, event.round, journal) if isinstance(event, Won) else ""


def _cannot_win(arm: int, round: int, journal: Journal) -> str:
    if round > journal.round_of(arm):
        return f"round {round} of arm {arm}, which is at round {journal.round_of(arm)}"
    records = journal.records(arm, round)
    candidates, theta = journal.offers((arm, round)) if records else ((), ())
    if not records or len(candidates) != len(theta) or records[-1].mode >= len(candidates):
        return f"arm {arm} has won, but its rounds or its candidates are missing"
    return ""
