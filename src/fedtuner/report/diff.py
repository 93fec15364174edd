"""Are two studies equal to the bit, and if not, where do they first differ?

Events are compared by what they are about, so the order in which they were written does not matter: it depends on how
many workers there were. Nor does when states were saved: checksums are compared where both studies have them, and the
winner's always. Versions, and the order in which clients were met, are no part of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedtuner.errors import brief
from fedtuner.run.journal import Journal
from fedtuner.tables import plain

_ABOUT = {
    "setup": "setup",
    "arm": "arm {0}",
    "round": "arm {0}, round {1}",
    "ended": "end of arm {0}",
    "state": "state of arm {0} after round {1}",
    "eliminated": "elimination of arm {0}",
    "winner": "winner",
    "evaluated": "evaluation of arm {0} after round {1} on the {2} data, {3}",
    "sampled": "evaluation of arm {0} after round {1} on the {2} data of {4} clients drawn, {3}",
}


@dataclass(frozen=True)
class Difference:
    """The first thing of its kind that differs, and its values in both studies; None: a study does not have it."""

    event: str  # what it is: setup, arm, round, ...
    key: tuple[Any, ...]  # which one, such as (arm, round)
    name: str  # what of it, such as loss_after; empty where one of the studies has nothing of it
    first: Any
    second: Any
    more: int = 0  # how many further things of its kind differ

    @property
    def about(self) -> str:
        """What differs, in words."""
        return _ABOUT[self.event].format(*self.key)


def differences(first: Journal, second: Journal) -> list[Difference]:
    """Return the first difference of each kind: setup, arms, rounds, states, eliminations, winner, evaluations."""
    ours, theirs = _things(first), _things(second)
    won = {(study.won.arm, study.won.round) for study in (first, second) if study.won is not None}
    compared = (first.saved.keys() & second.saved.keys()) | won
    for study, things in ((first, ours), (second, theirs)):
        things["state"] = {key: {"checksum": study.saved[key]} for key in compared if key in study.saved}
    return [found for event in _ABOUT if (found := _first(event, ours[event], theirs[event])) is not None]


def _things(study: Journal) -> dict[str, Mapping[tuple[Any, ...], Mapping[str, Any]]]:
    """Return all that a study is made of but for its states: by kind, and by what it is about."""
    begun, won = study.begun, study.won
    assert begun is not None
    setup = {**begun.setup, "problem": begun.federation, "layout": begun.layout, "start": begun.start}
    setup |= {"extended": [vars(one) for one in study.extended]}
    return {
        "setup": {(): setup},
        "arm": {(id,): {**asdict(arm), "candidates": study.candidates[id]} for id, arm in study.arms.items()},
        "round": {(r.arm, r.round): vars(r) for r in study.history()},
        "ended": {(id,): {"ended": why} for id, why in study.ended.items()},
        "eliminated": {(id,): vars(gone) for id, gone in study.eliminated.items()},
        "winner": {} if won is None else {(): vars(won)},
        "evaluated": {(*key, split, how): vars(found) for (key, split, how), found in study.evaluated.items()},
        "sampled": {(*key, *more): vars(found) for (key, *more), found in study.sampled.items()},
    }


def _first(event: str, ours: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> Difference | None:
    keys = sorted(ours.keys() | theirs.keys())
    unequal = [key for key in keys if repr(ours.get(key)) != repr(theirs.get(key))]
    found = [(key, one) for key in unequal if (one := next(_inside(ours.get(key), theirs.get(key)), None))]
    if not found:
        return None
    key, (name, first, second) = found[0]
    return Difference(event, key, name, first, second, len(found) - 1)


def _inside(one: Any, other: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield what differs within two things, by name; to the bit, so 0.0 and -0.0 differ, and NaN is NaN."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            yield from _inside(one.get(key), other.get(key), f"{name}.{key}" if name else str(key))
    elif _lists(one, other) and len(one) == len(other):
        for at, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _inside(a, b, f"{name}[{at}]")
    elif repr(one) != repr(other):
        yield name, plain(one), plain(other)


def _lists(*values: Any) -> bool:
    return all(isinstance(value, Sequence) and not isinstance(value, str) for value in values)


def versions(first: Journal, second: Journal) -> list[str]:
    """Return which versions differ that the studies began with: they may be why results do."""
    ours, theirs = ({} if study.begun is None else study.begun.versions for study in (first, second))
    return [f"{name} {a} and {b}" for name in ours if (a := ours[name]) != (b := theirs.get(name, "none"))]


def as_table(found: Sequence[Difference]) -> dict[str, Any]:
    """Return differences for JSON."""
    return {"equal": not found, "differences": [{"about": one.about, **asdict(one)} for one in found]}


def as_lines(found: Sequence[Difference], names: tuple[str, str]) -> list[str]:
    """Return differences for a person; ``names`` are those of the two studies."""
    lines = []
    for one in found:
        more = f" (and {one.more} more)" if one.more else ""
        here = f"{one.name} = {brief(one.first, 80)} and {brief(one.second, 80)}"
        lines.append(f"{one.about}: {here if one.name else f'only in {names[one.first is None]}'}{more}")
    return lines
