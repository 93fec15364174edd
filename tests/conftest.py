"""What several tests need."""

import gc
import os
import subprocess
import time
from collections import Counter

import pytest
from hypothesis import settings

import leftovers
from fedtuner import cli

# Threads of torch that wait for each other sleep, here and in every process that is started. By default they spin: a
# step of an LSTM takes thirty times as much CPU then, where two tests share two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A busy machine is no failure.
settings.register_profile("all", deadline=None, database=None)
settings.register_profile("quick", settings.get_profile("all"), max_examples=10)

LONG = ("test_deployment", "test_simulation_engine", "test_examples", "test_docs")  # Flower; the docs' own studies

_MARK = pytest.StashKey[str]()
_WATCHDOG: pytest.StashKey[subprocess.Popen[bytes]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Without the slow tests, fewer inputs by chance."""
    settings.load_profile("quick" if config.option.markexpr == "not slow" else "all")
    if leftovers.POSSIBLE and leftovers.RUN not in os.environ:  # the first process: others inherit its mark
        os.environ[leftovers.RUN] = config.stash[_MARK] = leftovers.new_mark()
        config.stash[_WATCHDOG] = leftovers.watchdog(leftovers.RUN, config.stash[_MARK])


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End what is left of the run: the watchdog kills it when its pipe is closed."""
    if _WATCHDOG not in config.stash:
        return
    end = time.monotonic() + 5
    while (left := leftovers.marked(leftovers.RUN, config.stash[_MARK])) and time.monotonic() < end:
        time.sleep(0.05)
    if left:
        print(f"processes of the tests were left, and are killed: {left}")
    config.stash[_WATCHDOG].communicate()
    del os.environ[leftovers.RUN]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take a minute or more first, then those with the most slow tests.

    So the last ones are short, and all processes end together.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (item.path.stem not in LONG, -slow[item.path]))


def pytest_collection_finish() -> None:
    """What is imported by now stays: collections of garbage need not look at it again, nor need forks copy it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _unflushed():
    """Flush nothing to the disk: only a power cut could tell, and flushing takes time. Subprocesses do flush."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture
def fedtuner(capsys):
    """Run a command in this process; return its exit code and what it printed."""

    def run(*arguments):
        code = cli.main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
