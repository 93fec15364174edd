"""What clients keep between rounds, where it is too large for a state: one actor beside the driver reads and writes it.

The study's store is the driver's; workers on other nodes may not reach it. Vectors travel through Ray's object store.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtuner.core.model import Vectors
from fedtuner.core.records import Blob
from fedtuner.core.store import Blobs
from fedtuner.run.executors.channel import own
from fedtuner.run.executors.on_ray.answer import answering, value_of
from fedtuner.run.executors.on_ray.pool import connection, pool


class Keeper:
    """The actor. It keeps nothing itself, and to put a blob twice is to put it once: its calls may be repeated."""

    @answering
    def put(self, blobs: Blobs, folder: str, blob: Blob, vectors: Vectors) -> None:
        os.chdir(folder)  # the store's path may be relative
        blobs.put(blob, own(vectors))

    @answering
    def get(self, blobs: Blobs, folder: str, blob: Blob) -> Vectors:
        os.chdir(folder)
        return blobs.get(blob)


@dataclass(frozen=True)
class Kept:
    """Blobs as workers see them."""

    keeper: Any
    blobs: Blobs  # the driver's
    folder: str  # in which it runs

    def put(self, blob: Blob, vectors: Vectors) -> None:
        value_of(self.keeper.put.remote(self.blobs, self.folder, blob, dict(vectors)))  # it is there when this returns

    def get(self, blob: Blob) -> Vectors:
        return own(value_of(self.keeper.get.remote(self.blobs, self.folder, blob)))  # type: ignore[no-any-return]

    def check(self, blobs: Iterable[Blob]) -> None:
        """Do nothing: the session checks them."""

    def sweep(self, arm: int, used: Iterable[Blob], until: int | None = None) -> None:
        """Do nothing: the session does."""


def hire(blobs: Blobs) -> Kept:
    """Return what workers are given: a keeper on this machine, which Ray starts again if it dies."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    keeper = pool.wake((connection(), "keeper"))
    if keeper is None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
        made: Any = ray.remote(Keeper).options(**options)
        keeper = made.remote()
    return Kept(keeper, blobs, str(Path.cwd()))


def dismiss(kept: Kept) -> None:
    """Let a keeper rest."""
    pool.rest((connection(), "keeper"), [kept.keeper])
