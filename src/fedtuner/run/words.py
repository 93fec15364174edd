"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable

Z = 1.96  # standard errors on each side of a mean: an interval of 95 %


def shown(error: float, rate: bool) -> str:
    """Return an error: in percent where errors are rates.

    >>> shown(0.03, True), shown(2.5, False), shown(math.nan, True), shown(math.inf, False)
    ('3.0 %', '2.5', 'none', 'infinite')
    """
    if not math.isfinite(error):
        return "none" if math.isnan(error) else "infinite"
    return f"{100 * error:.1f} %" if rate else f"{error:.4g}"


def with_interval(error: float, spread: float, rate: bool) -> str:
    """Return an error with its interval of 95 %, where its standard error is known.

    >>> with_interval(0.03, 0.01, True), with_interval(2.5, math.nan, False)
    ('3.0 % (1.0 to 5.0)', '2.5')
    """
    if not math.isfinite(error) or not math.isfinite(spread):
        return shown(error, rate)
    low, high = error - Z * spread, error + Z * spread
    ends = (100 * max(0.0, low), 100 * min(1.0, high)) if rate else (low, high)
    return f"{shown(error, rate)} ({' to '.join(f'{end:.1f}' if rate else f'{end:.4g}' for end in ends)})"


def rates(errors: Iterable[float]) -> bool:
    """Return whether errors can be rates; a regression's are in units of their own."""
    return all(e <= 1 for e in errors if math.isfinite(e))


def duration(seconds: float | None) -> str:
    """Return a time.

    >>> duration(75), duration(7300), duration(None)
    ('1 min 15 s', '2 h 1 min', '?')
    """
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(n: float) -> str:
    """Return a number of bytes.

    >>> size(999), size(20_480), size(3.2e9)
    ('999 B', '20 kB', '3.2 GB')
    """
    power = min(4, max(0, (len(str(int(n))) - 1) // 3))
    n, unit = n / 1000**power, ("B", "kB", "MB", "GB", "TB")[power]
    return f"{n:.0f} {unit}" if n >= 10 or not power else f"{n:.1f} {unit}"
