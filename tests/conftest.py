"""What several tests need."""

import pytest

from fedtuner import cli


@pytest.fixture
def fedtuner(capsys):
    """Run a command in this process; return its exit code and what it printed."""

    def run(*arguments):
        code = cli.main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
