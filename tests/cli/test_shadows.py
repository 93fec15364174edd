"""Files of the current folder do not hide installed packages, unless a study names a module of one's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import toys

HIDING = ("json", "torch", "sklearn", "numpy", "rich", "safetensors", "colorsys")
TINY = ("--set", "schedule.budget=4", "--set", "schedule.longest=2", "--set", "schedule.eliminations=1", "--set",
        "schedule.eta=2", "--set", "cohort=2", "--set", "fedex.k=2", "--workers", "1", "--quiet")  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(tmp_path))])
    for name in HIDING:
        (tmp_path / f"{name}.py").write_text("raise ImportError('this is the file of the current folder')\n")
    return tmp_path


def searched(folder):
    return {"", ".", str(folder)} & set(sys.path)


def test_a_preset_does_not_search_the_current_folder(here, fedtuner):
    code, _, err = fedtuner("run", "digits", "--set", "cohorts=0")
    assert (code, err.startswith("fedtuner: cohorts = 0, but must be a string")) == (2, True)
    assert not searched(here)


def test_a_study_of_built_in_parts_does_not_search_its_folder(here, fedtuner):
    (here / "study.toml").write_text('problem = "digits"\ncohorts = 0\n[schedule]\nkind = "random_search"\n')
    assert fedtuner("run", "study.toml")[0] == 2
    assert not searched(here)


def test_a_suite_of_built_in_parts_does_not_search_its_folder(here, fedtuner):
    (here / "suite.toml").write_text('[base]\nproblem = "digits"\ncohorts = 0\n[axes.seeds]\none = { seed = 1 }\n')
    fedtuner("bench", "suite.toml", "--dry-run")
    assert not searched(here)


@pytest.mark.parametrize("named", ["problem=its_own:problem", "schedule.kind=its_own:Kind", "method=its_own:method"])
def test_modules_that_are_named_are_searched_for(here, fedtuner, named):
    (here / "its_own.py").write_text("from toys import problem\nKind = method = problem\n")
    assert fedtuner("run", "digits", "--set", "target=none", "--set", named)[0] == 2
    assert searched(here)
    assert sys.modules.pop("its_own").__file__ == str(here / "its_own.py")


@pytest.mark.slow  # a preset is run in a process of its own, twice
@pytest.mark.parametrize("command", [[str(toys.FEDTUNER)], [sys.executable, "-m", "fedtuner"]], ids=["script", "-m"])
def test_a_preset_runs_beside_files_that_are_called_like_packages(here, command):
    words = [*command, "run", "digits", "--store", "s", *TINY]
    done = subprocess.run(words, capture_output=True, text=True, env=toys.environment(), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("s/journal.jsonl").is_file()
