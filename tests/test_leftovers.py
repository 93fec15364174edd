"""No process of the tests is left behind, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import leftovers
import toys

pytestmark = pytest.mark.skipif(
    not leftovers.POSSIBLE, reason="processes are found by their environment, which is Linux's to show"
)

# A study whose clients take an hour, in two workers; beside it a program that has left its session.
SUITE = """
import os, subprocess
import pytest, toys

@pytest.mark.parametrize("n", range(2))
def test_that_does_not_end(n, tmp_path):
    subprocess.Popen(["setsid", "sleep", "1000"])
    toys.tune(store=tmp_path / "s", workers=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "workers"), [(signal.SIGTERM, ()), (signal.SIGKILL, ("-n", "2"))])
def test_a_killed_pytest_leaves_no_process(how: signal.Signals, workers: tuple[str, ...], tmp_path: Path) -> None:
    """The clients' processes are in the middle of their work. SIGTERM comes twice: a study stops after its round."""
    suite = tmp_path / "suite"
    suite.mkdir()
    for name in ("conftest.py", "leftovers.py", "toys.py"):
        (suite / name).symlink_to(toys.TESTS / name)
    (suite / "test_suite.py").write_text(SUITE)
    pids = tmp_path / "pids"
    pids.mkdir()
    name, mark = "FEDTUNER_TEST_OF_LEFTOVERS", leftovers.new_mark()
    environment = toys.environment(**{name: mark}, TOY_NAP="3600", TOY_PIDS=str(pids))
    environment.pop(leftovers.RUN, None)  # it has a mark and a watchdog of its own
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, *workers, str(suite)]
    with (tmp_path / "log").open("wb") as log:
        master = subprocess.Popen(command, env=environment, cwd=suite, stdout=log, stderr=log)
    try:
        toys.until(lambda: len(list(pids.iterdir())) == (4 if workers else 2), 60)
        master.send_signal(how)
        if how == signal.SIGTERM and not workers:
            toys.until(lambda: _asked(master.pid))
            master.send_signal(how)
        master.wait(30)
    finally:
        master.kill()
        master.wait()
    toys.until(lambda: not leftovers.marked(name, mark))
    toys.until(lambda: not any(toys.running(int(file.name)) for file in pids.iterdir()))


def _asked(pid: int) -> bool:
    """Whether the first signal has been taken."""
    with Path(f"/proc/{pid}/status").open() as file:
        pending = [int(line.split()[1], 16) for line in file if line.startswith(("SigPnd", "ShdPnd"))]
    return not any(pending)
