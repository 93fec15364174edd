"""What a study leaves behind: events in the order in which they happened, states by key, and clients' blobs.

A state is saved before the line that names it, so every state that the journal names can be loaded. The journal only
grows, and it is the only description of a study; ``run.journal.Journal`` is what its events add up to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from fedtuner.core.model import Vectors
from fedtuner.core.records import Arm, Blob, Key, Record, State
from fedtuner.core.schedule import Score
from fedtuner.space import Config
from fedtuner.tables import Table


@dataclass(frozen=True)
class Begun:
    """A study began: what it is, on what, and the versions that it began with."""

    event: ClassVar[str] = "study"
    format: int
    setup: Table
    federation: Table
    layout: Sequence[Any]  # the parts of w
    versions: Table
    start: str = ""  # the checksum of the weights that all arms begin from, where they do not come from the seed


@dataclass(frozen=True)
class Joined:
    """Clients came that the study had not met before."""

    event: ClassVar[str] = "clients"
    ids: tuple[str | int, ...]


@dataclass(frozen=True)
class Started:
    """An arm was proposed; ``state`` is the checksum of the state that it goes on from, if it has a parent."""

    event: ClassVar[str] = "arm"
    arm: Arm
    candidates: tuple[Config, ...]  # what its tuner begins with
    state: str = ""


@dataclass(frozen=True)
class Done:
    """An arm did a round. Where its state was saved, ``state`` is the checksum, and ``belief`` is theta after it."""

    event: ClassVar[str] = "round"
    record: Record
    belief: tuple[float, ...] = ()
    state: str = ""
    ended: str = ""
    candidates: tuple[Config, ...] = ()  # what theta is over, where the tuner has moved what it began with


@dataclass(frozen=True)
class Eliminated:
    """The schedule let an arm go, with this score."""

    event: ClassVar[str] = "eliminated"
    arm: int
    round: int
    score: Score


@dataclass(frozen=True)
class Evaluation:
    """What clients measured with a model, before local training (global) and after it (personalized)."""

    loss_before: float
    loss_after: float
    error_before: float
    error_after: float
    validated: int  # examples
    clients: int  # who answered, and who of all clients did not
    missing: int = 0

    def mean(self, metric: str) -> dict[str, float]:
        """Return one metric's means as {"global": ..., "personalized": ...}; ``missing`` is said where it is not 0."""
        found = {"global": getattr(self, f"{metric}_before"), "personalized": getattr(self, f"{metric}_after")}
        return found | ({"missing": float(self.missing)} if self.missing else {})


@dataclass(frozen=True)
class Evaluated:
    """An arm's state was evaluated on all clients."""

    event: ClassVar[str] = "evaluated"
    arm: int
    round: int
    split: str
    config: str  # mode: all clients with theta's mode;  sample: each with its own draw
    result: Evaluation


@dataclass(frozen=True)
class Won:
    """The schedule named its winner."""

    event: ClassVar[str] = "winner"
    arm: int
    round: int
    score: Score


Event = Begun | Joined | Started | Done | Eliminated | Evaluated | Won


@dataclass(frozen=True)
class Note:
    """What went wrong on the way, or was mended: kept in log.jsonl, and no part of the result."""

    kind: str
    text: str
    arm: int | None = None
    round: int | None = None
    client: str | int | None = None


class Blobs(Protocol):
    """What clients remember, where that is too large for a state: put once, never changed. Workers write here, too."""

    def put(self, blob: Blob, vectors: Vectors) -> None:
        """Keep a client's vectors."""
        ...

    def get(self, blob: Blob) -> Vectors:
        """Return a client's vectors."""
        ...

    def sweep(self, arm: int, used: Iterable[Blob], until: int | None = None) -> None:
        """Delete an arm's blobs of rounds up to ``until`` (None: of all rounds) but for those that are used."""
        ...


@runtime_checkable
class Store(Protocol):
    """Where a study is kept: a folder, or this process's memory."""

    @property
    def path(self) -> Path | None:
        """Its folder; None where it has none, so that it ends with this process."""
        ...

    @property
    def blobs(self) -> Blobs:
        """What clients remember, where that is too large for a state."""
        ...

    def events(self) -> Iterator[Event]:
        """Yield what has happened."""
        ...

    def append(self, events: Sequence[Event], notes: Sequence[Note] = ()) -> None:
        """Add to what has happened; it is on disk when this returns."""
        ...

    def save(self, key: Key, state: State, belief: Vectors) -> str:
        """Keep a state, its belief packed by the tuner; return its checksum."""
        ...

    def load(self, key: Key, known: str = "") -> tuple[State, Vectors]:
        """Return a state, without a belief, and the packed belief; ``known`` is its checksum."""
        ...

    def has(self, key: Key) -> bool:
        """Return whether a state is kept."""
        ...

    def drop(self, keys: Iterable[Key]) -> None:
        """Delete states."""
        ...

    def open(self, room: int = 0) -> None:
        """Take the store for this process alone; ``room`` bytes should be free."""
        ...

    def close(self) -> None:
        """Let another process have it."""
        ...
