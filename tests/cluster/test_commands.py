"""The commands of docs/cluster.md, as they stand there: a cluster with a token, started by the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from cluster.conftest import end_all
from crashes import assert_same

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


def commands() -> list[str]:
    block = PAGE.read_text().partition("```sh\n")[2].partition("```")[0]
    return [line.partition("#")[0].strip() for line in block.splitlines()]


@pytest.fixture
def shell(tmp_path):
    """Run a line in a shell whose user has nothing yet. Ray's own files are in a folder with a short name."""
    short = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "HOME": str(tmp_path), "RAY_TMPDIR": short, "PATH": path}
    del environment["RAY_AUTH_MODE"]

    def run(line: str, **more: str) -> subprocess.CompletedProcess[str]:
        began = time.monotonic()
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, env={**environment, **more}, capture_output=True, text=True, timeout=300
        )
        print(f"{time.monotonic() - began:.1f} s: {line}")
        return done

    yield run
    end_all(short)
    shutil.rmtree(short, ignore_errors=True)


def test_five_commands(shell, tmp_path):
    install, token, head, node, study = (line.replace("HEAD", "127.0.0.1") for line in commands())
    assert install.startswith("pip install")  # it is
    for line in (token, head, node, study):
        done = shell(line)
        assert done.returncode == 0, done.stderr
    assert "Best: arm" in done.stdout
    # On a busy machine Ray's workers are late, and fedtuner says that it waits for them.
    told = ("digits: ", "tuning: ", "fedtuner: waiting for a place")
    noise = [line for line in done.stderr.splitlines() if not line.startswith(told)]
    assert not noise  # Ray says nothing
    [store] = (tmp_path / "runs").iterdir()
    alone = shell(f"{study.removeprefix('RAY_AUTH_MODE=token ').partition(' --executor')[0]} --store alone --quiet")
    assert alone.returncode == 0, alone.stderr
    assert_same(store, tmp_path / "alone")
    # Without the token nobody gets in.
    done = shell(f"{study} --store open", RAY_AUTH_TOKEN="another" * 9)
    assert done.returncode == 2
    assert "does not let this process in: if it asks for a token, give RAY_AUTH_MODE=token" in done.stderr
