"""Rounds in worker processes, each with the federation in its memory and one arm at a time."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any, cast

from fedtuner.core.executor import Advance, Progress, Stop
from fedtuner.core.federation import HasData
from fedtuner.core.records import Plan, Report, Tally
from fedtuner.core.round import Round
from fedtuner.core.store import Blobs
from fedtuner.errors import RemoteError, WorkerError
from fedtuner.run.executors import policy
from fedtuner.run.executors.channel import Channel
from fedtuner.run.executors.serial import advance
from fedtuner.run.executors.worker import Share, Worker

_WORTH_SHARING = 5e-3  # seconds; a shorter round takes less time to do than to send
_TRIES = 3  # workers that may die on a task; then it is an error
Task = Advance | Share


class Processes:
    """Worker processes.

    On Linux workers are forked: the federation need not be picklable and is not copied. Elsewhere they are spawned: the
    federation must be picklable, and a script that calls ``tune`` needs ``if __name__ == "__main__":``.
    """

    def __init__(self, round: Round, blobs: Blobs, workers: int) -> None:
        self.workers = workers
        self._round, self._blobs = round, blobs
        self._round_takes = 0.0
        self._context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._team = [self._hire() for _ in range(workers)]

    def advance(self, work: Sequence[Advance], stop: Stop) -> Iterator[Progress]:
        """Advance the arms, longest first, each on the next free worker; all workers share the rounds of the last few.

        When at most ``few`` arms are still running, workers stop after their round and return their states; the rounds
        of these arms are then split over all workers.
        """
        # The bits of the batched engine depend on which clients it trains together, so its rounds are not split.
        engine = self._round.federation.model.engine(self._round.setup.engine)
        few = policy.few(self.workers, engine.divisible)
        left = {one.arm.id: one for one in work}
        if len(work) > few:
            for progress in self._run(policy.longest_first(work), stop, few):
                if progress.error:
                    del left[progress.arm]
                elif progress.state is not None:
                    left[progress.arm] = replace(left[progress.arm], state=progress.state)
                yield progress
        for one in left.values():
            if not one.done and not stop():
                yield from advance(self._round, self._blobs, one, stop, self._work)

    def evaluate(self, plan: Plan) -> Tally:
        """Do the jobs in as many shares as there are workers; the model is sent once per share."""
        return self._round.tally(plan, self._share(plan, [1.0] * len(plan.jobs), evaluation=True))

    def _work(self, plan: Plan) -> list[Report]:
        """Do a round's jobs on one worker or, if they take long enough to be worth it, on all.

        Never in this process: one that has used a GPU cannot fork, and workers that replace others are forked.
        """
        if self._round_takes < _WORTH_SHARING:
            began = time.monotonic()
            [(_, reports)] = self._run([Share(plan, tuple(range(len(plan.jobs))))], lambda: False)
            self._round_takes = time.monotonic() - began
            return list(reports)
        federation = cast(HasData, self._round.federation)
        return self._share(plan, [policy.cost(federation.size(job.client, "train"), job) for job in plan.jobs])

    def _share(self, plan: Plan, costs: Sequence[float], evaluation: bool = False) -> list[Report]:
        """Do a plan's jobs on all workers and return their reports in order."""
        tasks = [
            Share(replace(plan, jobs=tuple(plan.jobs[n] for n in numbers)), tuple(numbers), evaluation)
            for numbers in policy.shares(costs, self.workers)
        ]
        done: dict[int, Report] = {}
        for numbers, reports in self._run(tasks, lambda: False):
            done |= dict(zip(numbers, reports, strict=True))
        return [done[n] for n in range(len(plan.jobs))]

    def close(self) -> None:
        """Ask the workers to end, and wait for them."""
        for worker in self._team:
            worker.send(None)
        for worker in self._team:
            worker.dismiss()
        self._team = []

    def _hire(self) -> Worker:
        return Worker(self._context, self._round, self._blobs)

    def _replace(self, worker: Worker) -> Worker:
        worker.process.kill()
        worker.dismiss()
        fresh = self._hire()
        self._team[self._team.index(worker)] = fresh
        return fresh

    def _run(self, tasks: Iterable[Task], stop: Stop, few: int = 0) -> Iterator[Any]:
        """Hand out tasks and yield the answers; if a worker dies, another continues from the task's last state.

        Once no task is waiting and at most ``few`` are left, their workers are asked to stop after their round.
        """
        todo = deque((task, 0) for task in tasks)  # each with the number of workers that have died on it
        free = list(self._team)
        busy: dict[Channel, _Busy] = {}
        try:
            while busy or (todo and not stop()):
                while free and todo and not stop():
                    one = self._hand_out(free.pop(), *todo.popleft())
                    busy[one.worker.connection] = one
                if stop() or (not todo and len(busy) <= few):
                    for one in busy.values():
                        one.stop()
                for ready in wait(list(busy), timeout=0.1):  # type: ignore[arg-type]
                    connection: Channel = ready  # type: ignore[assignment]
                    one = busy[connection]
                    try:
                        kind, answer = connection.recv()
                    except (EOFError, OSError):  # it has died
                        del busy[connection]
                        todo.appendleft((one.task, one.deaths + 1))
                        if one.deaths + 1 >= _TRIES:
                            died = f"a worker died {_TRIES} times on {_name(one.task)}"
                            raise WorkerError(f"{died}: out of memory?") from None
                        free.append(self._replace(one.worker))
                        continue
                    if kind == "error":
                        error, trace = answer
                        raise error from RemoteError(trace)
                    if kind == "free":
                        free.append(busy.pop(connection).worker)
                        continue
                    if isinstance(answer, Progress) and answer.state is not None:
                        one.task, one.deaths = replace(one.task, state=answer.state), 0
                    yield answer
        finally:
            # After an error, or if the caller stops iterating, the answers of these workers must not be read: others
            # replace them. After ``close`` they have ended, and are in no team.
            for one in busy.values():
                if one.worker in self._team:
                    self._replace(one.worker)

    def _hand_out(self, worker: Worker, task: Task, deaths: int) -> _Busy:
        while not worker.send(task):  # it died while it was idle
            worker = self._replace(worker)
        return _Busy(worker, task, deaths)


@dataclass
class _Busy:
    """A worker and its task."""

    worker: Worker
    task: Any
    deaths: int  # of workers at this task since it last reported a state
    stopped: bool = False

    def stop(self) -> None:
        """Ask the worker, once, to stop after its round."""
        if not self.stopped:
            self.worker.send("stop")
            self.stopped = True


def _name(task: Task) -> str:
    if isinstance(task, Advance):
        return f"arm {task.arm.id} before round {task.until}"
    return "an evaluation" if task.evaluation else "the clients of a round"
