"""Where arms run: in this process, or in worker processes. The results are the same to the bit."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedtuner.arm import Setting
from fedtuner.channel import Channel
from fedtuner.errors import SpecError, WorkerError
from fedtuner.federation import Federation, Report, Simulation
from fedtuner.legs import Assessment, Leg, Place, Progress, Share, advance, assess, work
from fedtuner.methods.base import Job
from fedtuner.task import Metrics
from fedtuner.worker import Worker

_WORTH_SHARING = 5e-3  # seconds: a round that is shorter is done sooner than it is sent
_STEP = 12  # examples: what a step of local training costs beside its examples, for small and large networks alike
_TRIES = 3  # how often a leg may take its worker down before it is the leg's fault


class Executor(Protocol):
    """Does work that has one answer, in any order."""

    workers: int

    def advance(self, legs: Sequence[Leg], stop: Callable[[], bool]) -> Iterator[Progress]:
        """Do the legs, yielding progress as it comes; a leg's last progress has its state. Ends early on ``stop``."""
        ...

    def assess(self, jobs: Sequence[Assessment]) -> list[tuple[Metrics, Metrics]]:
        """Do the jobs and return what their clients measured before and after local training, in order."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class Serial:
    """All work in this process, one thing after the other."""

    workers = 1

    def __init__(self, place: Place) -> None:
        self._place = place

    def advance(self, legs: Sequence[Leg], stop: Callable[[], bool]) -> Iterator[Progress]:
        """Do the legs one after the other."""
        for leg in legs:
            if not stop():
                yield from advance(self._place, leg, stop)

    def assess(self, jobs: Sequence[Assessment]) -> list[tuple[Metrics, Metrics]]:
        """Do the jobs one after the other."""
        return [assess(self._place, job) for job in jobs]

    def close(self) -> None:
        """Do nothing."""


class Processes:
    """Worker processes, each with the problem in its memory and one leg at a time.

    On Linux workers are forked: the problem need not be picklable and is not copied. Elsewhere they are spawned: the
    problem must be picklable, and a script that calls ``tune`` needs ``if __name__ == "__main__":``.
    """

    def __init__(self, place: Place, workers: int) -> None:
        self.workers = workers
        self._place = place
        self._round_takes = 0.0
        self._context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._team = [self._hire() for _ in range(workers)]

    def advance(self, legs: Sequence[Leg], stop: Callable[[], bool]) -> Iterator[Progress]:
        """Do the legs, longest first, each on the next free worker; the last few, all workers share round by round."""
        # The batched engine's bits depend on which clients are done together: it keeps a round in one place.
        few = (self.workers + 1) // 2 if self._place.setting.engine == "sequential" else 0
        left = {leg.arm.id: leg for leg in legs}
        if len(legs) > few:
            longest_first = sorted(legs, key=lambda leg: (leg.state.round if leg.state else 0) - leg.until)
            for progress in self._run(deque(longest_first), stop, few):
                if progress.state is not None:
                    left[progress.arm] = replace(left[progress.arm], state=progress.state)
                yield progress
        for leg in left.values():
            if not stop():
                yield from advance(self._place, leg, stop, self._work)

    def assess(self, jobs: Sequence[Assessment]) -> list[tuple[Metrics, Metrics]]:
        """Do the jobs in as many shares as there are workers; the model is sent once per share."""
        return self._share(assess, jobs, [1.0] * len(jobs))

    def _work(self, jobs: Sequence[Job]) -> list[Report]:
        """Do a round's jobs on one worker or, if they take long enough to be worth it, on all.

        Never here: a process that has trained cannot always fork (torch, where there is a GPU), and workers are forked.
        """
        if self._round_takes < _WORTH_SHARING:
            began = time.monotonic()
            share = Share(work, tuple(range(len(jobs))), tuple(jobs))
            [(_, reports)] = self._run(deque([share]), lambda: False)
            self._round_takes = time.monotonic() - began
            return list(reports)
        return self._share(work, jobs, [_cost(self._place.problem.size(job.client, "train"), job) for job in jobs])

    def _share(self, what: Callable[[Place, Any], Any], jobs: Sequence[Any], costs: Sequence[float]) -> list[Any]:
        """Do the jobs on the workers, the costliest first to whoever has least to do, and return what they give."""
        shares: list[list[int]] = [[] for _ in range(self.workers)]
        loads = [0.0] * self.workers
        for n in sorted(range(len(jobs)), key=lambda n: -costs[n]):
            least = loads.index(min(loads))
            shares[least].append(n)
            loads[least] += costs[n]
        tasks = [Share(what, tuple(share), tuple(jobs[n] for n in share)) for share in shares if share]
        done: dict[int, Any] = {}
        for numbers, results in self._run(deque(tasks), lambda: False):
            done |= dict(zip(numbers, results, strict=True))
        return [done[n] for n in range(len(jobs))]

    def close(self) -> None:
        """Ask the workers to end, and see that they do."""
        for worker in self._team:
            worker.tell(None)
        for worker in self._team:
            worker.dismiss()
        self._team = []

    def _hire(self) -> Worker:
        return Worker(self._context, self._place)

    def _run(self, todo: deque[Any], stop: Callable[[], bool], few: int = 0) -> Iterator[Any]:
        """Hand out tasks and yield the answers; a task whose worker dies goes on from where it last reported.

        Legs are broken off, with their states, once no more than ``few`` are left: the caller goes on with them.
        """
        busy: dict[Channel, tuple[Worker, Any, int]] = {}
        free = list(self._team)
        told: set[Channel] = set()  # who has been told to stop
        try:
            while busy or (todo and not stop()):
                while free and todo and not stop():
                    worker, task = free.pop(), todo.popleft()
                    task, tries = task if isinstance(task, _Again) else (task, 0)
                    while not worker.tell(task):  # it died while it was idle
                        worker = self._replace(worker)
                    busy[worker.connection] = (worker, task, tries)
                if stop() or (not todo and len(busy) <= few):
                    for worker, _, _ in busy.values():
                        if worker.connection not in told:
                            worker.tell("stop")
                    told |= busy.keys()
                for ready in wait(list(busy), timeout=0.1):  # type: ignore[arg-type]
                    connection: Channel = ready  # type: ignore[assignment]
                    worker, task, tries = busy[connection]
                    try:
                        kind, answer = connection.recv()
                    except (EOFError, OSError):
                        del busy[connection]
                        if tries + 1 >= _TRIES:
                            raise WorkerError(
                                f"a worker died {_TRIES} times on {_name(task)}: out of memory?"
                            ) from None
                        todo.appendleft(_Again((task, tries + 1)))
                        free.append(self._replace(worker))
                        continue
                    if kind == "error":
                        error, trace = answer
                        raise error from _RemoteError(trace)
                    if kind == "free":
                        del busy[connection]
                        free.append(worker)
                        continue
                    if isinstance(answer, Progress) and answer.state is not None:
                        busy[connection] = (worker, replace(task, state=answer.state), 0)
                    yield answer
        finally:
            if busy:  # an error, or a caller that stopped listening: what these workers still say must not be heard
                for worker, _, _ in busy.values():
                    self._replace(worker)

    def _replace(self, worker: Worker) -> Worker:
        worker.process.kill()
        worker.dismiss()
        fresh = self._hire()
        self._team[self._team.index(worker)] = fresh
        return fresh


def _cost(examples: int, job: Job) -> float:
    """Return about how long a client's work takes, in examples: a step costs as much as some examples more."""
    total = 0.0
    for config in (job.config, *(other for _, other in job.others)):
        batch, epochs = float(config.get("batch", examples)), float(config.get("epochs", 1))
        total += epochs * (examples + _STEP * math.ceil(examples / max(batch, 1.0)))
    return total


class _RemoteError(Exception):
    """The traceback of an error in a worker: shown as the cause of the error that it becomes here."""

    def __str__(self) -> str:
        return f"in a worker:\n{self.args[0]}"


class _Again(tuple[Any, int]):
    """A task with the number of workers that it has cost."""


def _name(task: Any) -> str:
    if isinstance(task, Leg):
        return f"arm {task.arm.id} before round {task.until}"
    return "an evaluation" if task.what is assess else "the clients of a round"


@runtime_checkable
class Elsewhere(Protocol):
    """A federation whose clients do not live here: it brings its own executor."""

    def executor(self, setting: Setting, folder: Path) -> Executor:
        """Return what advances arms where the clients are."""
        ...


def open_executor(setting: Setting, problem: Federation, folder: Path, workers: int) -> Executor:
    """Return an executor with this many workers; one worker is this process. Large client memory goes to ``folder``."""
    if isinstance(problem, Elsewhere):
        return problem.executor(setting, folder)
    if not isinstance(problem, Simulation):
        raise SpecError(f"{type(problem).__name__} is no Simulation and brings no executor")
    place = Place(setting, problem, folder)
    return Serial(place) if workers == 1 else Processes(place, workers)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
