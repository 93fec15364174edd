"""The workers of a study on a cluster: hired where it has room, also on nodes that come later; replaced if they die."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtuner.core.federation import described
from fedtuner.core.records import Key
from fedtuner.core.round import Round
from fedtuner.core.store import Blobs
from fedtuner.errors import ClusterError, FedtunerWarning, SpecError, WorkerError, one_line
from fedtuner.run.executors import policy
from fedtuner.run.executors.on_ray import Ray, keeper
from fedtuner.run.executors.on_ray.pool import connection, pool
from fedtuner.run.executors.on_ray.wire import Wire
from fedtuner.run.executors.on_ray.worker import Study
from fedtuner.run.versions import versions

_LOOK = 1.0  # seconds between looks at the cluster
_WAIT = 30.0  # seconds without a worker after which a warning says so
_MOST_FAILED_STARTS = 5  # workers in a row that die before they begin; if there is no other, it is an error


@dataclass(eq=False)
class Member:
    """A worker as the driver knows it."""

    number: int
    actor: Any
    node: str = ""
    woken: bool = False  # it has rested since an earlier session
    holds: Key | None = None  # the state that it has in its memory
    busy: bool = False  # with calls that nobody waits for any more


class Team:
    """All workers of one study."""

    def __init__(self, wire: Wire, round: Round, blobs: Blobs, settings: Ray, most: int | None) -> None:
        self._wire = wire
        self.members: list[Member] = []  # those that are ready
        self._hired: dict[Any, Member] = {}  # by their first call: those that are not ready yet
        self._settings, self._most = settings, most
        self._need = {"CPU": settings.num_cpus, "GPU": settings.num_gpus}
        self._kept = keeper.hire(blobs) if round.setup.method.memory else None
        self._study = _sent(wire, round, settings)
        self._folder = str(Path.cwd())
        self._paths = [path or self._folder for path in sys.path]
        needs = (settings.num_cpus, settings.num_gpus, settings.code)
        self._kind = (connection(), *needs, self._folder, *self._paths)
        self._versions = versions()
        self._numbers = self._failed_starts = 0
        self._looked = -math.inf
        self._idle_since = self._wire.now()
        self._warned: set[str] = set()

    @property
    def hired(self) -> Sequence[Any]:
        """The first calls of workers that are not ready yet."""
        return list(self._hired)

    def staff(self, useful: int) -> list[Member]:
        """Look at the cluster now and then: hire as many as are useful and fit; return those whose node is gone."""
        now = self._wire.now()
        if now - self._looked < _LOOK:
            return []
        self._looked, there = now, self._wire.nodes()
        gone = [member for member in self.members if member.node not in there]
        for member in gone:
            self.discard(member)
        places = policy.places(list(there.values()), self._need)
        if not places and not self.members and not self._hired:
            has = {name: sum(node.get(name, 0) for node in there.values()) for name in self._need}
            raise ClusterError(
                f"no node of the cluster has room for a worker of {self._needs()}: all nodes together have "
                f"{has['CPU']:g} CPUs and {has['GPU']:g} GPUs"
            )
        for _ in range(min(places, useful, self._most or places) - len(self.members) - len(self._hired)):
            self._hire()
        if self.members:
            self._idle_since = now
        elif now - self._idle_since > _WAIT:
            self._warn(f"waiting for a place of {self._needs()} in the cluster: others use all of it")
        return gone

    def _needs(self) -> str:
        return " and ".join(f"{amount:g} {name}" for name, amount in self._need.items() if amount)

    def _hire(self) -> None:
        woken = actor = pool.wake(self._kind)
        if actor is None:
            actor = self._wire.hire(self._settings, self._paths, self._folder)
        self._numbers += 1
        call = actor.begin.remote(self._study, self._kept)
        self._hired[call] = Member(self._numbers, actor, woken=woken is not None)

    def add(self, call: Any) -> None:
        """Take a worker on whose first call has been answered."""
        member = self._hired.pop(call)
        try:
            member.node, found = self._wire.get(call)
        except self._wire.lost as error:
            if member.woken:  # it died while it rested in the pool
                self.discard(member)
            else:
                self._failed_to_start(member, error)
            return
        self._failed_starts = 0
        self._compare(found)
        self.members.append(member)

    def _compare(self, found: dict[str, str]) -> None:
        """Refuse a worker with another fedtuner; warn of other versions that results depend on."""
        others = [
            f"{name} {found.get(name, 'missing')}, here {v}"
            for name, v in self._versions.items()
            if found.get(name) != v
        ]
        if found.get("fedtuner") != self._versions["fedtuner"]:
            raise ClusterError(f"a node has another version of fedtuner ({others[0]}): install the same on all nodes")
        if others:
            self._warn(f"a node has other versions ({'; '.join(others)}): numbers may differ from those of one machine")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, FedtunerWarning, stacklevel=2)

    def _failed_to_start(self, member: Member, error: Exception) -> None:
        """Take note that a worker died before it began; after several in a row, with no other there, it is an error."""
        looked = self._looked
        self.discard(member)
        self._looked = looked  # the next one not at once: there may be a node on which all of them die
        self._failed_starts += 1
        if self._failed_starts >= _MOST_FAILED_STARTS:
            said = f"{_MOST_FAILED_STARTS} workers died before they began: is fedtuner installed on all nodes?"
            if not self.members:
                raise WorkerError(f"{said} ({one_line(str(error), 300)})")
            self._warn(said)

    def discard(self, member: Member) -> None:
        """Let go of a worker that has died, or whose node cannot be reached."""
        if member in self.members:
            self.members.remove(member)
        self._wire.kill(member.actor)
        self._looked = -math.inf  # hire another one now

    def close(self) -> None:
        """Let the workers rest; those that are not idle end."""
        resting = [member for member in self.members if not member.busy]
        for member in {*self.members, *self._hired.values()} - set(resting):
            self._wire.kill(member.actor)
        if resting:
            pool.rest(self._kind, [member.actor for member in resting])
        self.members, self._hired = [], {}
        if self._kept is not None:
            keeper.dismiss(self._kept)
            self._kept = None


def _sent(wire: Wire, round: Round, settings: Ray) -> Study:
    """Return what workers begin with. The round is put into the object store once, and fetched once per node."""
    if settings.problem is not None:
        return Study(None, round.setup, settings.problem, described(round.federation))
    try:
        return Study([wire.put(round)])
    except wire.lost:
        raise
    except Exception as error:
        raise SpecError(
            f"the problem cannot be sent to a cluster ({one_line(f'{type(error).__name__}: {error}', 200)}): give what "
            "makes it there, ray(problem='package.module:function')"
        ) from error
