"""What several tests need."""

import os

import pytest
from hypothesis import settings

from fedtuner import cli

settings.register_profile("fedtuner", deadline=None)  # a busy machine is no failure
settings.load_profile("fedtuner")


@pytest.fixture
def unflushed(monkeypatch):
    """Flush nothing to the disk: only a power cut could tell, and flushing is what takes the time."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def fedtuner(capsys):
    """Run a command in this process; return its exit code and what it printed."""

    def run(*arguments):
        code = cli.main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
