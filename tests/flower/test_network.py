"""No process of the tests is left behind, however they end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from network import Processes, marked

from toys import until

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found by their environment, which is Linux's to show"
)

SUITE = """
import sys, time
from pathlib import Path
sys.path[:0] = {here!r}
from network import Processes, marked

def test_that_is_killed(tmp_path):
    with Processes(tmp_path, Path("/bin")) as started:
        started.start("shell", "sh", "-c", "setsid sleep 1000 & sleep 1000")
        while len(marked(started.mark)) < 3:
            time.sleep(0.01)
        Path({ready!r}).write_text(started.mark)
        time.sleep(1000)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_or_interrupted_pytest_leaves_no_process(how: signal.Signals, tmp_path: Path) -> None:
    """One process of the suite has left its session, as Flower's and Ray's do."""
    ready, file = tmp_path / "ready", tmp_path / "test_suite.py"
    file.write_text(SUITE.format(here=[str(Path(__file__).parents[n]) for n in (0, 1)], ready=str(ready)))
    command = [sys.executable, "-c", _HANDLING, "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(file)]
    with (tmp_path / "log").open("wb") as log:
        suite = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: ready.exists() and ready.read_text(), 60)
        until(lambda: len(marked(ready.read_text())) == 3)  # one that is just being replaced (exec) is not seen
        suite.send_signal(how)
        suite.wait(60)
    finally:
        suite.kill()
        suite.wait()
    until(lambda: not marked(ready.read_text()))


# A shell starts background jobs without Python's handler of SIGINT.
_HANDLING = (
    "import signal, sys, pytest; signal.signal(2, signal.default_int_handler); sys.exit(pytest.main(sys.argv[1:]))"
)


def test_an_error_leaves_no_process(tmp_path: Path) -> None:
    started = Processes(tmp_path, Path("/bin"))

    def fail() -> None:
        with started:
            started.start("shell", "sh", "-c", "setsid sleep 1000 & sleep 1000")
            until(lambda: len(marked(started.mark)) == 3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not marked(started.mark)
