"""The example of your own data, named in a study file."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_a_study_file_names_your_own_data(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    command = [sys.executable, "-m", "fedtuner.cli", "run", "own_data.toml", "--store", str(tmp_path / "s"), "--quiet"]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "s" / "journal.jsonl").exists()


def test_the_example_leaves_the_kiosk_out(monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import own_data

    problem = own_data.problem()
    problem.check()
    assert problem.left_out == ["kiosk"]
    assert len(problem.clients) == 10
