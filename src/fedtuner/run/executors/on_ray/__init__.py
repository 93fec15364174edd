"""Rounds on a Ray cluster: the same bits as on one machine.

cluster.py   finds the cluster, or says what to start
wire.py      what the driver needs of it
team.py      hires workers as the cluster grows, and replaces those that die
pool.py      workers rest between two sessions of one process
driver.py    the executor: hands out arms, takes their rounds and states
worker.py    an actor: it advances one arm at a time, or helps with the clients of another's round
keeper.py    an actor beside the store: it reads and writes what clients keep between rounds
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from fedtuner import checks
from fedtuner.core.executor import Executor
from fedtuner.core.round import Round
from fedtuner.core.store import Blobs
from fedtuner.errors import SpecError, brief


@dataclass(frozen=True)
class Ray:
    """An executor on a Ray cluster: ``tune(..., executor=ft.ray(address="auto"))``.

    By default it uses the cluster that this machine belongs to, or starts Ray on this machine alone.
    """

    kind: ClassVar[str] = "ray"
    address: str | None = (
        None  # auto: the cluster that this machine belongs to; HOST:PORT of its head; local: a new one
    )
    num_cpus: float = 1.0  # of each worker
    num_gpus: float = 0.0
    every: float = 10.0  # seconds between the states of an arm that the driver saves: a lost node costs so much work
    problem: str | Callable[[], Any] | None = None  # makes the problem on each worker; None: it is sent to each node
    code: tuple[str, ...] | list[str] = ()  # modules (folders or .py files) that are sent to the workers

    def __post_init__(self) -> None:
        if self.address is not None and (not isinstance(self.address, str) or not self.address.strip()):
            raise SpecError(
                f"address = {brief(self.address)}, but must be auto, local or HOST:PORT of a cluster's head"
            )
        if self.problem is not None and not isinstance(self.problem, str):
            checks.function("problem", self.problem, ", or the name of one: 'package.module:function'")
        if isinstance(self.code, str) or not all(isinstance(name, str) for name in self.code):
            raise SpecError(f"code = {brief(self.code)}, but must be a list of folders and .py files")
        cpus, gpus = (checks.number(name, getattr(self, name), 0, 1024) for name in ("num_cpus", "num_gpus"))
        if cpus + gpus == 0:
            raise SpecError("num_cpus = 0 and num_gpus = 0, but a worker needs a part of one of them")
        checks.settle(
            self, num_cpus=cpus, num_gpus=gpus, code=tuple(self.code), every=checks.number("every", self.every, 0.1)
        )

    def __call__(self, round: Round, blobs: Blobs, workers: int | None) -> Executor:
        """Connect to the cluster and return the executor; ``workers`` bounds how many it hires."""
        from fedtuner.run.executors.on_ray.driver import Driver

        return Driver(round, blobs, self, workers)


ray = Ray

__all__ = ["Ray", "ray"]
