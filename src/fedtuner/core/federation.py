"""Where the clients are: the protocol of federations.

Inside a study a client is a number: its index in a ``Simulation``, a hash of its id in a fleet of devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtuner.core.executor import OpenExecutor
from fedtuner.core.metric import Metric
from fedtuner.core.model import Model
from fedtuner.core.store import Note
from fedtuner.tables import Table

if TYPE_CHECKING:
    from fedtuner.core.setup import Setup
    from fedtuner.core.stages import Screen

SPLITS = ("train", "valid", "test")


@runtime_checkable
class Federation(Protocol):
    """The clients and the model of a study, and how to reach the clients."""

    @property
    def name(self) -> str:
        """Its name in reports and stores."""

    @property
    def model(self) -> Model:
        """The model that is trained."""

    @property
    def shows(self) -> str:
        """What the server sees of a round: single clients' "reports", or only "sums" (secure aggregation)."""

    @property
    def screens(self) -> tuple[Screen, ...]:
        """The default of ``Setup.screens``."""

    @property
    def save_every_round(self) -> bool:
        """Whether each round is saved as soon as it is done, because rounds cost the time of real devices."""

    @property
    def executor(self) -> OpenExecutor | None:
        """What computes its rounds; None: any process that holds the federation can do its clients' work."""

    @property
    def groups(self) -> Mapping[str | int, str]:
        """The groups that clients belong to, by id: evaluations report each, and ``Setup.across`` can be the worst."""

    def present(self) -> Sequence[int]:
        """Return the clients who can take part in a round now, in a fixed order, as cohorts are drawn from it."""

    def everyone(self) -> Sequence[int]:
        """Return the clients to evaluate on; a fleet first waits until enough are connected."""

    def population(self) -> int:
        """Return the number of clients, present or not."""

    def id_of(self, client: int) -> str | int:
        """Return a client's id outside the study: in records, logs and error messages."""

    def check(self, setup: Setup) -> None:
        """Raise an error if the federation cannot run this setup."""

    def describe(self) -> Table:
        """Return name, clients and fingerprint: a study continues only where they are the same."""

    @property
    def code(self) -> Mapping[str, str]:
        """Hashes of the model's code, by its parts: a study continues only with the same code."""

    def met(self) -> Sequence[str | int]:
        """Return the ids of all clients met so far, if they are not known from the start."""

    @property
    def codes(self) -> Mapping[str | int, str]:
        """Hashes of the code of the clients met so far, by their ids, if they have code of their own."""

    def recall(self, ids: Sequence[str | int], codes: Mapping[str | int, str] = MappingProxyType({})) -> None:
        """Take over the ids of clients and the hashes of their code from the journal of a continued study."""

    def retire(self, arms: Sequence[int]) -> None:
        """Take note of arms that get no more rounds."""

    def notes(self) -> Sequence[Note]:
        """Return the faults since the last call, for the log; late replies (``store.LATE``) go to the journal, too."""


def described(federation: Federation) -> Table:
    """Return what a federation is: as it describes itself, with its metric unless that is the plain error rate."""
    metric = federation.model.metric.table()
    return {**federation.describe(), **({} if metric == Metric().table() else {"metric": metric})}


class FederationDefaults:
    """Defaults for federations: a base class."""

    shows = "reports"
    screens: tuple[Screen, ...] = ()
    save_every_round = False
    executor: OpenExecutor | None = None
    groups: Mapping[str | int, str] = MappingProxyType({})
    code: Mapping[str, str] = MappingProxyType({})
    codes: Mapping[str | int, str] = MappingProxyType({})

    def met(self) -> Sequence[str | int]:
        """Return nobody: all clients are known from the start."""
        return ()

    def recall(self, ids: Sequence[str | int], codes: Mapping[str | int, str] = MappingProxyType({})) -> None:
        """Do nothing."""

    def retire(self, arms: Sequence[int]) -> None:
        """Do nothing."""

    def notes(self) -> Sequence[Note]:
        """Return nothing."""
        return ()


class HasData(Federation, Protocol):
    """A federation whose clients' data can be read in this process."""

    def data(self, client: int, split: str) -> Sized:
        """Return a client's split as the model takes it."""

    def size(self, client: int, split: str) -> int:
        """Return how many examples a client's split has, without loading it."""

    def sizes(self, split: str) -> NDArray[np.int64]:
        """Return how many examples each of ``everyone()`` has in a split."""
