"""The benchmarks run on the package as it is: small measurements by their own functions."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch

import fedtuner as ft
from fedtuner.problems import digits

ROOT = Path(__file__).parents[2]
SPEED = ROOT / "benchmarks" / "speed"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


@pytest.fixture
def speed(monkeypatch):
    """The modules of benchmarks/speed, by name; other tests must not find them, nor their number of threads."""
    monkeypatch.syspath_prepend(str(SPEED))
    before, threads = set(sys.modules), torch.get_num_threads()
    torch.set_num_threads(1)  # beside other tests, more than one wait for each other
    yield importlib.import_module
    torch.set_num_threads(threads)
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == SPEED:
            del sys.modules[name]


def test_rates_of_both_engines_and_of_the_naive_loop(speed):
    run, naive = speed("run"), speed("naive")
    for engine, workers in (("sequential", 2), ("batched", 1)):
        assert run.our_rate("W4 MLP 64-64-10", 128, 0.1, engine, workers) > 0
    assert naive.rate("W4 MLP 64-64-10", 128, 0.1, "naive on tensors") > 0
    assert run.trivial_round() > 0
    assert run.many_arms("W4 MLP 64-64-10", 1, 2) > 0


def test_the_naive_study_is_the_same_schedule(speed):
    """Its rounds are those of the study that it is compared with, and it learns."""
    schedule = ft.halving(budget=6, longest=2, eta=2, eliminations=2)
    assert speed("naive").study(digits.problem(), schedule) == 6


def test_two_trees_are_compared_in_turns():
    command = [sys.executable, str(SPEED / "compare.py"), str(ROOT / "src"), str(ROOT / "src")]
    done = subprocess.run(
        [*command, "--cases", "trivial round with a", "W4 batched", "--turns", "2", "--processes", "1"],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.startswith("CPU ms a round")
    assert [row.endswith("same bits") for row in rows] == [True, True]


@pytest.mark.parametrize("name", ["methods", "architecture"])
def test_other_scripts_can_be_imported(name):
    found = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    assert module.parser().parse_args([]).seeds > 1
