"""What all tests of Flower are under."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_test_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet in a test's own process has the clock of its grid: real time would be waited for."""
    clock = pytest.importorskip("fedtuner.flower.clock", exc_type=ImportError)

    def sleep(self: object, seconds: float) -> None:
        raise AssertionError(f"a fleet sleeps {seconds:g} s of real time: give Fleet(clock=grid.clock)")

    monkeypatch.setattr(clock.RealClock, "sleep", sleep)
