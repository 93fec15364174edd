"""Checks that many settings share. Each raises a SpecError that gives the value, the rule and, where needed, a remedy.

Numbers of NumPy are numbers: checks return Python's, for the same results and the same tables.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner.errors import SpecError, brief, suggest


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number; True and False are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a value is a finite number; True and False are none."""
    if not is_whole(value) and not isinstance(value, (float, np.floating)):
        return False
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # a whole number that is too large for a real one
        return False


def python(value: Any) -> Any:
    """Return a number, string or boolean of NumPy as Python's; other values as they are."""
    return value.item() if isinstance(value, np.generic) else value


def whole(name: str, value: Any, least: int = 1, most: int | None = None, remedy: str = "") -> int:
    """Return a whole number from ``least`` to ``most``; refuse other values."""
    if not is_whole(value) or value < least:
        raise SpecError(f"{name} = {brief(value)}, but must be a whole number >= {least}{remedy}")
    if most is not None and value > most:
        raise SpecError(f"{name} = {brief(value)}, but must be at most {most}")
    return int(value)


def seed(value: Any) -> int:
    """Return a seed, which is any whole number of 64 bits."""
    if not is_whole(value) or not -(2**63) <= value < 2**63:
        raise SpecError(f"seed = {brief(value)}, but must be a whole number of at most 64 bits")
    return int(value)


def number(name: str, value: Any, low: float = 0.0, high: float = math.inf, remedy: str = "") -> float:
    """Return a number from ``low`` to ``high``; refuse other values."""
    if not is_number(value) or not low <= value <= high:
        rule = f">= {low:g}" if high == math.inf else f"in [{low:g}, {high:g}]"
        if isinstance(value, float) and value == high:
            rule = f"finite and {rule}"
        raise SpecError(f"{name} = {brief(value)}, but must be {rule}{remedy}")
    return python(value)  # type: ignore[no-any-return]


def one_of(name: str, value: Any, known: Iterable[str]) -> None:
    """Refuse what is not one of the known names."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        raise SpecError(f"{name} = {brief(value)}, but must be one of {names}{suggest(value, names)}")


def function(name: str, value: Any, remedy: str = "") -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise SpecError(f"{name} = {brief(value)}, but must be a function{remedy}")


def path(name: str, value: Any, what: str = "a file") -> Path:
    """Return the path of a file or folder; refuse what can be the name of none."""
    if not isinstance(value, (str, os.PathLike)) or isinstance(value, bytes):
        raise SpecError(f"{name} = {brief(value)}, but must be the name of {what}")
    text = os.fspath(value)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise SpecError(f"{name} = {brief(text)}, but must be the name of {what}")
    return Path(text)


def client_id(value: Any) -> str | int:
    """Return what a client is known by: a string or a whole number."""
    if not is_whole(value) and not isinstance(value, str):
        raise SpecError(f"a client has the id {brief(value)}, but an id must be a string or a whole number")
    return python(value)  # type: ignore[no-any-return]


class Ids:
    """The ids of clients seen so far, none of which may occur again."""

    def __init__(self) -> None:
        self.seen: set[str | int] = set()

    def add(self, id: Any, where: str = "") -> str | int:
        """Add the next id and return it; raise an error if it is none, or was seen before."""
        known = client_id(id)
        if known in self.seen:
            raise SpecError(f"two clients have the id {brief(known)}{where}: ids must differ")
        self.seen.add(known)
        return known


def groups(given: Any, ids: Collection[str | int]) -> dict[str | int, str]:
    """Return the groups of clients by their ids; refuse what is no table of names, and ids that no client has."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name.strip() for name in given.values()):
        raise SpecError(f"groups = {brief(given)}, but must be names of groups by client ids: {{'a': 'rural'}}")
    for id in given:
        if id not in ids:
            raise SpecError(f"groups has {brief(id)}, but no client has that id")
    return dict(given)


def settle(record: object, **values: Any) -> None:
    """Put checked values in place of those that a frozen record was made with."""
    for name, value in values.items():
        object.__setattr__(record, name, value)
