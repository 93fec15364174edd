"""Where the clients are: the protocol of federations.

Inside a study a client is a number: its place in a ``Simulation``, a hash of its id in a fleet of devices.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fedtuner.core.executor import OpenExecutor
from fedtuner.core.model import Model
from fedtuner.core.store import Note
from fedtuner.tables import Table

if TYPE_CHECKING:
    from fedtuner.core.setup import Setup
    from fedtuner.core.tally import Screen

SPLITS = ("train", "valid", "test")


@runtime_checkable
class Federation(Protocol):
    """What a study needs of the place where its clients are."""

    @property
    def name(self) -> str:
        """What the federation is called."""
        ...

    @property
    def model(self) -> Model:
        """What is learned."""
        ...

    @property
    def shows(self) -> str:
        """What the server sees of a round: "reports" of single clients, or only "sums"."""
        ...

    @property
    def screens(self) -> tuple[Screen, ...]:
        """What bounds or drops reports unless a study says otherwise."""
        ...

    @property
    def save_every_round(self) -> bool:
        """Whether rounds cost the time of real devices, so that each is saved as soon as it is done."""
        ...

    @property
    def executor(self) -> OpenExecutor | None:
        """What computes its rounds; None: any process that has the federation can do its clients' work."""
        ...

    def present(self) -> Sequence[int]:
        """Return the clients who can take part in a round now, always in the same order: cohorts are drawn from it."""
        ...

    def everyone(self) -> Sequence[int]:
        """Return the clients to evaluate on, after waiting until enough are there."""
        ...

    def population(self) -> int:
        """Return how many clients there are, present or not."""
        ...

    def id_of(self, client: int) -> str | int:
        """Return what a client is known by."""
        ...

    def check(self, setup: Setup) -> None:
        """Raise where something is wrong that can be seen before the work."""
        ...

    def describe(self) -> Table:
        """Return name, clients and fingerprint: a study continues only where they are the same."""
        ...

    def met(self) -> Sequence[str | int]:
        """Return the ids of the clients that have come by, where that is not known from the start."""
        ...

    def recall(self, ids: Sequence[str | int]) -> None:
        """Take note of the clients that a study had met before it was continued."""
        ...

    def notes(self) -> Sequence[Note]:
        """Return what went wrong on the way since this was last asked."""
        ...


class FederationDefaults:
    """What a federation has unless it says otherwise: a base class."""

    shows = "reports"
    screens: tuple[Screen, ...] = ()
    save_every_round = False
    executor: OpenExecutor | None = None

    def met(self) -> Sequence[str | int]:
        """Return nobody: all clients are known from the start."""
        return ()

    def recall(self, ids: Sequence[str | int]) -> None:
        """Do nothing."""

    def notes(self) -> Sequence[Note]:
        """Return nothing."""
        return ()


class HasData(Federation, Protocol):
    """A federation whose clients' data can be read in this process."""

    def data(self, client: int, split: str) -> Sized:
        """Return a client's split as the model takes it."""
        ...

    def size(self, client: int, split: str) -> int:
        """Return how many examples a client's split has, without loading it."""
        ...
