"""Processes of the tests are found by a mark in their environment, and a watchdog ends those that are left.

A process that dies cannot end what it has started, and some of that may have left its session, as Flower's and Ray's
processes do. So ``watchdog`` starts another process, whose program this module is: when the one that it was started by
is gone, it kills all processes that have the mark (Linux).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

RUN = "FEDTUNER_TEST_RUN"  # the mark of all processes that a run of pytest starts
POSSIBLE = Path("/proc/self/environ").exists()


def new_mark() -> str:
    return f"{os.getpid()}-{time.time_ns()}"


def watchdog(name: str, mark: str) -> subprocess.Popen[bytes]:
    """Start the process that kills those with this mark once this process is gone, or the watchdog's stdin closed."""
    environment = {k: v for k, v in os.environ.items() if k not in (name, RUN)}
    return subprocess.Popen(
        [sys.executable, "-S", __file__, name, mark], env=environment, stdin=subprocess.PIPE, start_new_session=True
    )


def marked(name: str, mark: str) -> list[int]:
    """Return the processes with this mark."""
    return [pid for pid, environment in _environments() if environment.get(name.encode()) == mark.encode()]


def _environments() -> Iterator[tuple[int, Mapping[bytes, bytes]]]:
    """Yield every process whose environment can be read (Linux), with its environment."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pairs = (entry / "environ").read_bytes().split(b"\0")
            yield int(entry.name), dict(p.split(b"=", 1) for p in pairs if b"=" in p)


def _watch_over(name: str, mark: str, parent: int) -> None:
    # A child that the parent has forked may hold the other end of the pipe, so that it stays open.
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], 0.2)[0]:  # closed: nothing is ever written to it
            break
    end = time.monotonic() + 20
    while (left := marked(name, mark)) and time.monotonic() < end:  # a process that ends may have started another
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    _watch_over(sys.argv[1], sys.argv[2], os.getppid())
