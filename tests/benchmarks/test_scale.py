"""What a federation's size costs is measured as it is said. The simulated cluster: tests/run/executors."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

SCALE = Path(__file__).parents[2] / "benchmarks" / "scale"


@pytest.fixture
def scale(monkeypatch):
    """The modules of benchmarks/scale, by name."""
    monkeypatch.syspath_prepend(str(SCALE))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == SCALE:
            del sys.modules[name]


@pytest.mark.slow
def test_what_a_federations_size_costs_is_measured(scale):
    found = scale("clients").measure(500, True)
    assert (found["clients"], found["rounds"]) == (500, 200)
    assert found["sampled"] == found["all"]  # of no more clients than the sample
    assert found["tune"] > found["resume"] > 0
    assert 500 < found["journal_bytes"] / found["rounds"] < 5_000
