"""Clients that fedtuner does not reach: a study over them is driven by ``ask`` and ``tell``.

The model is known by its named arrays alone; training and evaluation are the caller's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedtuner import checks
from fedtuner.core.executor import Executor
from fedtuner.core.federation import FederationDefaults
from fedtuner.core.model import Metric
from fedtuner.core.round import Round
from fedtuner.core.setup import Setup
from fedtuner.core.store import Blobs
from fedtuner.errors import SpecError, brief
from fedtuner.federations.arrays import NamedArrays

MOST = 100_000_000  # clients without names


class Outside(FederationDefaults):
    """Clients outside of fedtuner: their ids or, where they have none, how many there are."""

    save_every_round = True

    def __init__(
        self, arrays: Mapping[str, Any], clients: Sequence[str | int] | int, name: str = "outside",
        metric: Metric | None = None, groups: Mapping[str | int, str] | None = None,
    ) -> None:  # fmt: skip
        self.model, self.name = NamedArrays(arrays, metric), name
        if checks.is_whole(clients):
            clients = range(checks.whole("clients", clients, 1, MOST))
        if not isinstance(clients, Iterable) or isinstance(clients, (str, bytes)):
            raise SpecError(f"clients = {brief(clients)}, but must be a list of ids, or how many there are")
        self.ids = tuple(map(checks.client_id, clients))
        if len(set(self.ids)) < len(self.ids) or not self.ids:
            raise SpecError(f"clients = {brief(list(self.ids))}, but must be distinct ids, at least one")
        self.groups = checks.groups(groups, self.ids)

    def executor(self, round: Round, blobs: Blobs, workers: int | None) -> Executor:
        """Refuse: there is nothing here that could do the clients' work."""
        raise SpecError("these clients are outside of fedtuner: ask() for rounds and tell() their reports")

    def present(self) -> Sequence[int]:
        return range(len(self.ids))

    def everyone(self) -> Sequence[int]:
        return self.present()

    def population(self) -> int:
        return len(self.ids)

    def id_of(self, client: int) -> str | int:
        return self.ids[client]

    def check(self, setup: Setup) -> None:
        if setup.cohort > len(self.ids):
            raise SpecError(f"cohort = {setup.cohort}, but there are {len(self.ids)} clients: lower cohort")

    def describe(self) -> dict[str, Any]:
        digest = hashlib.blake2b(repr((self.ids, self.model.layout())).encode(), digest_size=12).hexdigest()
        return {"name": self.name, "clients": len(self.ids), "fingerprint": digest}
