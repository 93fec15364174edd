"""Where a study runs: its store, its executor and its watchers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedtuner import checks
from fedtuner.core.executor import OpenExecutor
from fedtuner.core.place import Place
from fedtuner.core.store import Store
from fedtuner.run import store as stores
from fedtuner.run.watchers import NOBODY, Watchers


@dataclass(frozen=True)
class Where:
    """Where a study runs. Its results do not depend on it."""

    store: Store
    workers: int | None = None  # None: one per core
    executor: OpenExecutor | None = None  # None: worker processes
    watch: Watchers = NOBODY  # called with every event of the journal, in order, once it is written

    def __post_init__(self) -> None:
        if self.executor is not None:
            checks.function("executor", self.executor)

    @property
    def path(self) -> Place | None:
        """The study's folder or URL; None if it has none."""
        return self.store.path

    @staticmethod
    def at(store: str | Place | Store | None, **more: Any) -> Where:
        """Return the ``Where`` of a folder, a URL, a ``Store``, or (None) of this process's memory."""
        return Where(stores.InMemory() if store is None else stores.of(store), **more)
