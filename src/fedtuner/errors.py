"""Every error that fedtuner raises on purpose: one root, so that one ``except`` catches them all.

A message gives the value, the rule that it breaks and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class FedtunerError(Exception):
    """The root of fedtuner's errors."""


class SpecError(FedtunerError, ValueError):
    """A setting, space, schedule or file is not what it must be."""


class TaskError(FedtunerError):
    """The model, its loss and the data do not fit each other."""


class ClientError(FedtunerError):
    """A client's work raised: names the arm, the round, the client and its configuration."""


class WorkerError(FedtunerError):
    """A worker process died again and again on the same work."""


class FleetError(FedtunerError):
    """A fleet of devices cannot go on: too few are there, nobody answers, or the network is gone."""


class DataError(FedtunerError):
    """A data set is absent, cannot be had, or is not what it must be."""


class StoreError(FedtunerError):
    """The folder of a study cannot be used: another spec, another process, no room, no right to write."""


class Interrupted(KeyboardInterrupt):
    """The study was stopped and everything finished so far is kept; the message says how to continue."""


def suggest(name: object, known: Iterable[str] | Mapping[str, str]) -> str:
    """Return what to say after an unknown name: the nearest known one, or the list of them.

    A mapping gives each name other words for it, which are compared too.

    >>> suggest("leraning_rate", {"lr": "learning rate", "epochs": "passes over the data"})
    "; did you mean 'lr'?"
    """
    words = {other: other for other in known}
    if isinstance(known, Mapping):
        words |= {about.replace(" ", "_"): other for other, about in known.items()}
    near = difflib.get_close_matches(str(name).lower(), words, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {words[near[0]]!r}?"
    names = sorted(set(words.values()))
    return f"; known: {', '.join(names)}" if names else ""
