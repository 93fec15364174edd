"""What a study keeps: a journal of events, states by key, and clients' blobs.

A state is saved before the journal's line that names it, so every state that the journal names can be loaded. Lines are
only appended. The journal is the only description of a study; ``run.journal.Journal`` is its content in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from fedtuner.core.across import ALL
from fedtuner.core.metric import Z
from fedtuner.core.model import Vectors
from fedtuner.core.place import Place
from fedtuner.core.records import Arm, Blob, Key, Record, State
from fedtuner.core.schedule import Score
from fedtuner.space import Config
from fedtuner.tables import Table


@dataclass(frozen=True)
class Begun:
    """A study began: its setup and federation, and the versions of packages."""

    event: ClassVar[str] = "study"
    format: int
    setup: Table
    federation: Table
    layout: Sequence[Any]  # the parts of w
    versions: Table
    start: str = ""  # checksum of the weights that all arms begin from, where the model gives them (``Model.start``)
    code: Table = field(default_factory=dict)  # hashes of the model's code, by its parts
    command: str = ""  # that began it, where it was one
    groups: Mapping[str, Sequence[str | int]] = field(default_factory=dict)  # the ids of each group of clients


@dataclass(frozen=True)
class Joined:
    """A fleet met new clients."""

    event: ClassVar[str] = "clients"
    ids: tuple[str | int, ...]
    codes: tuple[str, ...] = ()  # hashes of their apps' code, if they have sent them


@dataclass(frozen=True)
class Started:
    """An arm was proposed; ``state`` is the checksum of the state that it continues, if it has a parent."""

    event: ClassVar[str] = "arm"
    arm: Arm
    candidates: tuple[Config, ...]  # those that its tuner begins with
    state: str = ""


@dataclass(frozen=True)
class Done:
    """A round was done. If the state after it was saved, ``state`` is its checksum and ``belief`` is theta."""

    event: ClassVar[str] = "round"
    record: Record
    belief: tuple[float, ...] = ()
    state: str = ""
    ended: str = ""
    candidates: tuple[Config, ...] = ()  # if the tuner has changed those it began with


@dataclass(frozen=True)
class OfArm:
    """What all events about an arm after a round have."""

    arm: int
    round: int


@dataclass(frozen=True)
class Late(OfArm):
    """A client's reply came after its round: the round's record counts it among those that did not report."""

    event: ClassVar[str] = "late"
    client: str | int


@dataclass(frozen=True)
class Failed(OfArm):
    """Clients' code raised an error in the round after this one; the arm gets no more rounds."""

    event: ClassVar[str] = "failed"
    error: str


@dataclass(frozen=True)
class Eliminated(OfArm):
    """The schedule eliminated an arm, with this score."""

    event: ClassVar[str] = "eliminated"
    score: Score


@dataclass(frozen=True)
class Evaluation:
    """Means over all clients by |V|, before local training (global) and after it (personalized).

    Those of a ``sample`` are estimates of them, with their standard errors.
    """

    loss_before: float
    loss_after: float
    error_before: float
    error_after: float
    validated: int  # examples
    clients: int  # who answered
    missing: int = 0  # who did not
    spread_before: float = math.nan  # standard errors of the mean errors, over clients; NaN where only sums are known
    spread_after: float = math.nan
    undefined: int = 0  # clients with examples for whom the error is not defined
    breakdown: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # errors of the worst tenth, groups ...
    sample: int = 0  # draws of clients; 0: it is of all
    population: int = 0  # of how many clients they were drawn
    loss_spread_before: float = math.nan  # standard errors of a sample's mean losses
    loss_spread_after: float = math.nan

    def found(self, when: str) -> tuple[float, float]:
        """Return the mean error "before" or "after" local training, and its standard error."""
        return getattr(self, f"error_{when}"), getattr(self, f"spread_{when}")

    def mean(self, metric: str, across: str = ALL) -> dict[str, float]:
        """Return a metric as {"global": ..., "personalized": ...}; with ``missing`` and ``undefined`` if not 0.

        Of a sample there are ``sample``, ``clients`` (how many they are) and ``population``, too; and of a mean over
        clients the ends of its interval of 95 %: ``global_low``, ``global_high`` ...
        """
        before, after = self.breakdown.get(across, (math.nan, math.nan))
        if across == ALL:
            before, after = getattr(self, f"{metric}_before"), getattr(self, f"{metric}_after")
        counts = {name: n for name in ("missing", "undefined") if (n := getattr(self, name))}
        found = {"global": before, "personalized": after, **counts}
        if not self.sample:
            return found
        found |= {name: getattr(self, name) for name in ("sample", "clients", "population")}
        if across == ALL:
            name = "spread" if metric == "error" else "loss_spread"
            for side, mean, when in (("global", before, "before"), ("personalized", after, "after")):
                half = Z * getattr(self, f"{name}_{when}")
                found |= {f"{side}_low": mean - half, f"{side}_high": mean + half}
        return found


@dataclass(frozen=True)
class Evaluated(OfArm):
    """An arm's state was evaluated, on all clients or on a sample of them."""

    event: ClassVar[str] = "evaluated"
    split: str
    config: str  # mode: all clients use theta's mode; sample: each a draw from theta
    result: Evaluation


@dataclass(frozen=True)
class Won(OfArm):
    """The schedule named its winner."""

    event: ClassVar[str] = "winner"
    score: Score


@dataclass(frozen=True)
class Extended:
    """The study goes on after its end: by its schedule with further arms, or by the winner's training."""

    event: ClassVar[str] = "extended"
    budget: int  # rounds over all arms, with those before
    by: str  # schedule, run, winner or rest: ``schedules.Longer``


LATE = Late.event  # the kind of a note

Event = Begun | Joined | Started | Done | Failed | Late | Eliminated | Evaluated | Won | Extended


@dataclass(frozen=True)
class Note:
    """A fault of transport or storage, or its repair: a line of log.jsonl, which is no part of the result.

    A reply that came after its round (of kind ``LATE``, with its arm, round and client) is in the journal, too.
    """

    kind: str
    text: str
    arm: int | None = None
    round: int | None = None
    client: str | int | None = None


class Blobs(Protocol):
    """Client memory that is too large for a state: written once, also by workers, and never changed."""

    def put(self, blob: Blob, vectors: Vectors) -> None:
        """Keep a client's vectors."""

    def get(self, blob: Blob) -> Vectors:
        """Return a client's vectors."""

    def check(self, blobs: Iterable[Blob]) -> None:
        """Raise an error that names all blobs that are missing or damaged, as far as that is seen without reading."""

    def sweep(self, arm: int, used: Iterable[Blob], until: int | None = None) -> None:
        """Delete an arm's blobs of rounds up to ``until`` (None: all rounds), except those in ``used``."""


@runtime_checkable
class Store(Protocol):
    """Where a study is kept: a folder, an object store, or this process's memory."""

    @property
    def path(self) -> Place | None:
        """Its folder or URL; None for a store that ends with this process."""

    @property
    def blobs(self) -> Blobs:
        """Client memory that is too large for a state."""

    def events(self) -> Iterator[Event]:
        """Yield all events, in order."""

    def append(self, events: Sequence[Event], notes: Sequence[Note] = ()) -> None:
        """Append events to the journal and notes to the log; they are on disk when this returns."""

    def save(self, key: Key, state: State, belief: Vectors) -> str:
        """Save a state, with its belief as packed by the tuner; return its checksum."""

    def load(self, key: Key, known: str = "") -> tuple[State, Vectors]:
        """Return a state without its belief, and the packed belief; ``known`` is the checksum to verify."""

    def has(self, key: Key) -> bool:
        """Return whether a state is saved."""

    def drop(self, keys: Iterable[Key]) -> None:
        """Delete states."""

    def open(self, room: int = 0) -> None:
        """Lock the store for this process; ``room`` bytes should be free."""

    def close(self) -> None:
        """Release the lock."""
