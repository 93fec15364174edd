"""What several tests need."""

import gc
import os

import pytest
from hypothesis import settings

from fedtuner import cli

settings.register_profile("fedtuner", deadline=None)  # a busy machine is no failure
settings.load_profile("fedtuner")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Flower's networks first: they wait most of the time, and meanwhile another process computes."""
    items.sort(key=lambda item: item.path.stem != "test_deployment")


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
