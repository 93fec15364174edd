"""Ctrl-C at any moment of a command or a script: a line that says how to go on, and exit code 3."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import toys

# The command, with a Ctrl-C as a module is imported.
COMMAND = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "MODULE":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from fedtuner.cli import main
sys.exit(main(["list"]))
"""
# A script of one's own, with a Ctrl-C after the first round.
SCRIPT = """
import os, signal
import fedtuner as ft
import toys
from fedtuner.core.store import Done

def watch(event):
    if isinstance(event, Done) and (event.record.arm, event.record.round) == (0, 1):
        os.kill(os.getpid(), signal.SIGINT)

ft.tune(toys.problem(), schedule=ft.random_search(6, 2), cohort=3, workers=1, watch=watch, store=STORE)
print("not here")
"""


# A shell starts background jobs without Python's handler of SIGINT.
HANDLING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def run(code, folder):
    command = [sys.executable, "-c", HANDLING + code]
    return subprocess.run(command, cwd=folder, env=toys.environment(), capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["fedtuner.errors", "numpy", "fedtuner.report.listing"])
def test_a_command_while_it_is_imported(module, tmp_path):
    done = run(COMMAND.replace("MODULE", module), tmp_path)
    said = "fedtuner: stopped at once; run the same command again to continue\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "said"),
    [(None, "There is no store, so nothing is kept: give store= to be able to continue."),
     ("s", "Everything is kept in s: run the same command again to continue.")],
)  # fmt: skip
def test_a_script(store, said, tmp_path):
    done = run(SCRIPT.replace("STORE", repr(store)), tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(rf"fedtuner: stopped after \d of 6 rounds. {re.escape(said)}\n", done.stderr)
