"""Checks that many settings share. Each raises a SpecError that gives the value, the rule and, where needed, a remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fedtuner.errors import SpecError, suggest


def whole(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is not a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SpecError(f"{name} = {value!r}, but must be a whole number >= {least}")


def number(name: str, value: Any, low: float = 0.0, high: float = math.inf, remedy: str = "") -> None:
    """Refuse what is not a number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        rule = f">= {low:g}" if high == math.inf else f"in [{low:g}, {high:g}]"
        raise SpecError(f"{name} = {value!r}, but must be {rule}{remedy}")


def one_of(name: str, value: Any, known: Iterable[str]) -> None:
    """Refuse what is not one of the known names."""
    names = tuple(known)
    if value not in names:
        raise SpecError(f"{name} = {value!r}, but must be one of {names}{suggest(str(value), names)}")
