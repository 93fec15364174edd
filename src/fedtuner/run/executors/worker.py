"""A worker process: it receives tasks through a channel and sends answers."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fedtuner.core.executor import Advance
from fedtuner.core.records import Plan
from fedtuner.core.round import Round
from fedtuner.core.store import Blobs
from fedtuner.errors import FAILURES, FedtunerError, WorkerError
from fedtuner.run.executors.channel import Channel, pair
from fedtuner.run.executors.serial import advance, measure

_PR_SET_PDEATHSIG = 1  # Linux's prctl: the signal that a process receives when its parent dies
_SHIP = 2.0  # seconds between the states that a worker sends: a kill loses so much work, and the current round


@dataclass(frozen=True)
class Share:
    """Some jobs of a round's or an evaluation's plan, with their numbers in it."""

    plan: Plan
    numbers: tuple[int, ...]
    evaluation: bool = False


class Worker:
    """The parent's side of a worker."""

    def __init__(self, context: Any, round: Round, blobs: Blobs) -> None:
        self.connection, theirs = pair(context)
        arguments = (theirs, self.connection, os.getpid(), round, blobs)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.hang_up()

    def send(self, message: Any) -> bool:
        """Send a message; return False if the worker has died."""
        try:
            self.connection.send(message)
        except OSError:
            return False
        return True

    def dismiss(self) -> None:
        self.connection.close()
        self.process.join(timeout=0.2)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()


def one_thread() -> None:
    """Let torch, if the model has imported it, use one thread; with more, OpenMP would hang after a fork."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _serve(connection: Channel, parents: Channel, parent: int, round: Round, blobs: Blobs) -> None:
    """Do tasks until None comes or the parent has died. Ctrl-C reaches all processes; only the parent acts on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parents.hang_up()
    end_with_parent()
    one_thread()

    def orphaned() -> bool:
        return os.getppid() != parent

    connection.alive = lambda: not orphaned()

    try:
        while True:
            while not connection.poll(1.0):
                if orphaned():
                    return
            task = connection.recv()
            if task is None:
                return
            if task == "stop":  # the stop request was sent before the driver had read the last answer
                continue
            try:
                _do(connection, round, blobs, task, orphaned)
            except FedtunerError as error:
                connection.send(("error", (error, traceback.format_exc())))
            except FAILURES as error:
                connection.send(("error", (WorkerError(repr(error)), traceback.format_exc())))
            connection.send(("free", None))
    except (EOFError, OSError):
        return


def end_with_parent() -> None:
    """Let the kernel end this process when its parent dies, also in the middle of a client's code.

    That is Linux's; elsewhere a worker whose driver was killed ends after its round.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _do(connection: Channel, round: Round, blobs: Blobs, task: Share | Advance, orphaned: Callable[[], bool]) -> None:
    if isinstance(task, Share):
        plan = task.plan
        reports = measure(round, blobs, plan) if task.evaluation else [round.work(plan, job) for job in plan.jobs]
        connection.send(("answer", (task.numbers, reports)))
        return
    stopped = False

    def stop() -> bool:
        nonlocal stopped
        if connection.poll() and connection.recv() == "stop":
            stopped = True
        return stopped or orphaned()

    shipped, held = time.monotonic(), None
    for step in advance(round, blobs, task, stop):
        if step.error:
            connection.send(("answer", step))
            return
        held = step
        if time.monotonic() - shipped > _SHIP:
            connection.send(("answer", step))
            shipped, held = time.monotonic(), None
        else:
            connection.send(("answer", replace(step, state=None)))
    if held is not None:
        connection.send(("answer", replace(held, records=())))
