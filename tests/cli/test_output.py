"""An output that is closed or full does not undo what is done and kept."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import toys

RUN = ("run", "study.toml", "--quiet", "--workers", "1", "--store", "s")
FULL = Path("/dev/full")
full = pytest.mark.skipif(not FULL.exists(), reason="there is no full device here")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    toys.write_study(tmp_path)
    return tmp_path


def command(*arguments, to=None, closed=()):
    """Run a command whose output goes to a file, or whose outputs of these numbers are closed."""
    words = [str(toys.FEDTUNER), *map(str, arguments)]
    if closed:
        words = ["sh", "-c", " ".join(['exec "$0" "$@"', *(f"{number}>&-" for number in closed)]), *words]
    with Path(to or os.devnull).open("w") as out:
        done = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, text=True, env=toys.environment(), check=False)
    return done.returncode, done.stderr


@pytest.mark.slow
@full
def test_a_study_whose_result_cannot_be_printed_is_finished(here, fedtuner):
    code, err = command(*RUN, to=FULL)
    assert code == 0
    assert err == "fedtuner: cannot print: No space left on device; it is kept: fedtuner show s\n"
    assert fedtuner("show", "s")[0] == 0


@full
@pytest.mark.slow  # many processes
def test_what_is_only_printed_has_failed_where_it_cannot_be(here, fedtuner):
    fedtuner(*RUN)
    for what in (("show", "s"), ("show", "s", "--json"), ("list",), ("diff", "s", "s")):
        code, err = command(*what, to=FULL)
        assert (code, err) == (2, "fedtuner: cannot print: No space left on device: send the output elsewhere\n")


@pytest.mark.slow
def test_closed_outputs_are_no_error(here, fedtuner):
    assert command(*RUN, closed=[1]) == (0, "")
    assert fedtuner("show", "s")[0] == 0
    assert command("run", "study.toml", "--workers", "1", "--store", "t", closed=[1, 2])[0] == 0
    assert command("diff", "s", "t", closed=[1]) == (0, "")


@full
@pytest.mark.slow
def test_progress_that_cannot_be_shown_is_no_error(here):
    words = ["sh", "-c", 'exec "$0" "$@" 2>/dev/full', str(toys.FEDTUNER), *(word for word in RUN if word != "--quiet")]
    done = subprocess.run(words, capture_output=True, text=True, env=toys.environment(), check=False)
    assert done.returncode == 0
    assert "Kept in s" in done.stdout


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_make_two_studies_equal(here, fedtuner):
    fedtuner(*RUN)
    fedtuner(*RUN[:-1], "t", "--seed", "1")
    reader, writer = os.pipe()
    os.close(reader)
    words = [toys.FEDTUNER, "diff", "s", "t"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, env=toys.environment(), check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
