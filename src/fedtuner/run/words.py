"""Numbers as people read them."""

from __future__ import annotations


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


def without_examples(split: str) -> str:
    """Return what there is to say of a split of which no client has examples."""
    return f"no client has {split} examples, so there is no {split} error"
