"""A worker process: it is sent work and answers as it goes."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedtuner.channel import Channel, pair
from fedtuner.errors import FedtunerError, WorkerError
from fedtuner.legs import Place, Share, advance

_SHIP = 2.0  # seconds between the states that a worker sends; a kill loses so much work, and the round under way


class Worker:
    """The parent's side of a worker."""

    def __init__(self, context: Any, place: Place) -> None:
        self.connection, theirs = pair(context)
        arguments = (theirs, self.connection, os.getpid(), place)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.hang_up()

    def tell(self, message: Any) -> bool:
        """Send a message; return whether there is anyone to receive it."""
        try:
            self.connection.send(message)
        except OSError:
            return False
        return True

    def dismiss(self) -> None:
        """End it."""
        self.connection.close()
        self.process.join(timeout=0.2)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()


def _serve(connection: Channel, parents: Channel, parent: int, place: Place) -> None:
    """Do tasks until None comes or the parent is gone. Ctrl-C reaches the whole group: only the parent acts on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parents.hang_up()
    if "torch" in sys.modules:  # a fork of a process that has used several threads must not: OpenMP would wait forever
        sys.modules["torch"].set_num_threads(1)

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
            if task == "stop":  # it crossed the answer to the last task
                continue
            try:
                _do(connection, place, task, orphaned)
            except FedtunerError as error:
                connection.send(("error", (error, traceback.format_exc())))
            except Exception as error:
                connection.send(("error", (WorkerError(repr(error)), traceback.format_exc())))
            connection.send(("free", None))
    except (EOFError, OSError):
        return


def _do(connection: Channel, place: Place, task: Any, orphaned: Callable[[], bool]) -> None:
    if isinstance(task, Share):
        connection.send(("answer", (task.numbers, [task.what(place, job) for job in task.jobs])))
        return
    stopped = False

    def stop() -> bool:
        nonlocal stopped
        if connection.poll() and connection.recv() == "stop":
            stopped = True
        return stopped or orphaned()

    shipped, held = time.monotonic(), None
    for step in advance(place, task, stop):
        held = step
        if time.monotonic() - shipped > _SHIP:
            connection.send(("answer", step))
            shipped, held = time.monotonic(), None
        else:
            connection.send(("answer", replace(step, state=None)))
    if held is not None:
        connection.send(("answer", replace(held, records=())))
