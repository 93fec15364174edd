"""A SuperExec that starts the apps' programs as forks of itself: Flower need not be imported again for each message."""

import ctypes
import os
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from importlib.metadata import entry_points

from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec.executor import subprocess_executor


class Forks:
    """In place of the module ``subprocess``, of which the executor uses this much."""

    DEVNULL = subprocess.DEVNULL

    @staticmethod
    def Popen(command: list[str], stdout: int | None = None, stderr: int | None = None) -> None:  # noqa: N802
        (program,) = entry_points(group="console_scripts", name=command[0])
        main = program.load()  # the next forks have it
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # one that has ended
                pass
        if os.fork():
            return
        code = 1
        try:
            become(command, quiet=(stdout, stderr))
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def become(command: list[str], quiet: tuple[int | None, int | None]) -> None:
    """Make this process, a fork, one that has just been started."""
    sys.argv = list(command)
    exit_handler.registered_exit_handlers.clear()
    for number in (signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, wanted in enumerate(quiet, start=1):
        if wanted == Forks.DEVNULL:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, which the SuperExec takes off: by /proc/PID/environ we find it


def begin() -> None:
    """Let the SuperExec of this process fork."""
    if sys.platform == "linux":
        subprocess_executor.subprocess = Forks
