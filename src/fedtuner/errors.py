"""Every error that fedtuner raises on purpose: one root, so that one ``except`` catches them all.

A message gives the value, the rule that it breaks and the remedy, in one line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

FAILURES = (Exception, SystemExit)  # what code of one's own may raise; Ctrl-C is none of its failures

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def one_line(text: str, most: int = 500) -> str:
    """Return a text as one line of printable characters, without objects' places in memory.

    Of a longer one the middle is left out.

    >>> one_line("two\\nlines: <ast.Name object at 0x7f0a>")
    'two lines: <ast.Name object>'
    """
    line = _ADDRESS.sub("", " ".join(text.split()))
    if not line.isprintable():
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    half = (most - 5) // 2
    return line if len(line) <= most else f"{line[:half]} ... {line[-half:]}"


def brief(value: object, most: int = 60) -> str:
    """Return a value as a message shows it: in one line, not too long, and without its place in memory.

    >>> brief("x" * 100, 10)
    "'xxxxxxxxx ..."
    """
    try:
        text = repr(value)
    except Exception:  # an object of one's own, a whole number of too many digits, a list of too many levels
        return f"a {type(value).__name__}"
    line = one_line(text, len(text) + 1)
    return line if len(line) <= most else f"{line[:most]} ..."


def named(path: object, most: int = 260) -> str:
    """Return the name of a file or folder as a message shows it: as it is, unless it is no plain text or too long."""
    text = str(path)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= most else f"{text[:most]} ..."


def counted(n: int, one: str, many: str = "") -> str:
    """Return a number of things in words.

    >>> counted(1, "study", "studies"), counted(2, "arm")
    ('1 study', '2 arms')
    """
    return f"{n} {one if n == 1 else many or one + 's'}"


class FedtunerError(Exception):
    """The root of fedtuner's errors."""

    most: ClassVar[int] = 500  # characters of a message

    def __str__(self) -> str:
        return one_line(super().__str__(), self.most)


class SpecError(FedtunerError, ValueError):
    """A setting, space, schedule or file is not what it must be."""


class TaskError(FedtunerError):
    """The model, its loss and the data do not fit each other."""


class ClientError(FedtunerError):
    """An exception in a client's work; the message names arm, round, client and configuration."""

    most = 2000


class WorkerError(FedtunerError):
    """Several worker processes died on the same work."""


class ClusterError(FedtunerError):
    """A cluster cannot be used: it is not there, refuses this process, has no room, or has other code or data."""


class RemoteError(FedtunerError):
    """The traceback of an error in a worker: shown as the cause of the error that it becomes here."""

    def __str__(self) -> str:
        return f"in a worker:\n{self.args[0]}"


class FleetError(FedtunerError):
    """A fleet cannot go on: too few devices are connected, none answers, or the network is down."""


class DataError(FedtunerError):
    """A data set is missing, cannot be downloaded, or is malformed."""


class StoreError(FedtunerError):
    """A store cannot be used: it holds another study, is in use, is full, is damaged or is not writable."""


class FedtunerWarning(UserWarning):
    """Something that one should know, though the work goes on."""


class Interrupted(KeyboardInterrupt):
    """The study was stopped and everything finished so far is kept; the message says how to continue."""


def suggest(name: object, known: Iterable[str] | Mapping[str, str]) -> str:
    """Return the end of a message about an unknown name: the nearest known one, or the list of them.

    A mapping gives each known name a description, which is compared, too.

    >>> suggest("leraning_rate", {"lr": "learning rate", "epochs": "passes over the data"})
    "; did you mean 'lr'?"
    """
    words = {other: other for other in known}
    if isinstance(known, Mapping):
        words |= {about.replace(" ", "_"): other for other, about in known.items()}
    given = name.lower() if isinstance(name, str) else brief(name)
    near = difflib.get_close_matches(given, words, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {words[near[0]]!r}?"
    text = ", ".join(sorted(set(words.values())))
    text = text if len(text) <= 200 else text[:200].rpartition(", ")[0] + ", ..."
    return f"; known: {text}" if words else ""
