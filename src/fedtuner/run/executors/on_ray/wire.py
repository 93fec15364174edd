"""What the driver needs of a cluster: actors, calls, time. One is Ray; that of benchmarks/scale only pretends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fedtuner.run.executors import channel
from fedtuner.run.executors.on_ray import Ray, cluster
from fedtuner.run.executors.on_ray.worker import Worker


class Wire(Protocol):
    """The connection of a driver to its workers."""

    lost: Any  # the exceptions that ``get`` raises when a worker, or what it answered, is gone

    def now(self) -> float:
        """Return the time in seconds."""

    def nodes(self) -> Mapping[str, Mapping[str, float]]:
        """Return the resources of the nodes that are alive, by their ids."""

    def room(self, part: float) -> int:
        """Return a part of the memory for objects on this node, in bytes."""

    def hire(self, settings: Ray, paths: Sequence[str], folder: str) -> Any:
        """Start a worker and return its actor."""

    def kill(self, actor: Any) -> None:
        """End an actor."""

    def put(self, value: Any) -> Any:
        """Return a reference to a value that is sent once per node."""

    def wait(self, calls: Sequence[Any], few: int, seconds: float) -> list[Any]:
        """Return the calls that are answered, once there are a few, or after so many seconds."""

    def get(self, call: Any) -> Any:
        """Return the value of a call, or raise its error."""

    def own(self, message: Any) -> Any:
        """Return a copy of a message for this process to keep."""


class RayWire:
    """Ray's."""

    def __init__(self, settings: Ray) -> None:
        cluster.connect(settings.address, settings.code)
        self._ray = cluster.load()
        self.lost = self._ray.exceptions.RayError

    def now(self) -> float:
        return time.monotonic()

    def nodes(self) -> Mapping[str, Mapping[str, float]]:
        return cluster.nodes()

    def room(self, part: float) -> int:
        here = self.nodes().get(self._ray.get_runtime_context().get_node_id(), {})
        return int(part * here.get("object_store_memory", 0))

    def hire(self, settings: Ray, paths: Sequence[str], folder: str) -> Any:
        options = {"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus, "max_restarts": 0}
        return self._ray.remote(Worker).options(**options).remote(paths, folder)

    def kill(self, actor: Any) -> None:
        self._ray.kill(actor)

    def put(self, value: Any) -> Any:
        return self._ray.put(value)

    def wait(self, calls: Sequence[Any], few: int, seconds: float) -> list[Any]:
        if not calls:
            time.sleep(min(seconds, 0.05))
            return []
        ready, rest = self._ray.wait(list(calls), num_returns=few, timeout=seconds)
        return [*ready, *(self._ray.wait(rest, num_returns=len(rest), timeout=0)[0] if ready and rest else ())]

    def get(self, call: Any) -> Any:
        return self._ray.get(call).unwrap()

    def own(self, message: Any) -> Any:
        return channel.own(message)
