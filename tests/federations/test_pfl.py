"""pfl-research's own loop under a study, in the environment that ``make pfl`` makes."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-pfl" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="pfl-research is not here: make pfl sets it up")
def test_pfls_own_loop_is_tuned(tmp_path):
    """Every round of the study is an iteration of pfl's, and what it finds has learned; chance is 0.9."""
    script = ROOT / "examples" / "ask_tell_pfl" / "tune.py"
    done = subprocess.run([PYTHON, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.search(r"test error (\S+) after (\d+) rounds of pfl", done.stdout)
    assert found, done.stdout
    assert float(found[1]) < 0.5
    assert int(found[2]) == 90
