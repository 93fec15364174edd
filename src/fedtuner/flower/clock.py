"""The time that deadlines and waits of a fleet are counted by: the machine's, or one that a test moves on by itself."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A clock that never goes back."""

    def now(self) -> float:
        """Return the seconds since some fixed moment."""

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""


class RealClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
