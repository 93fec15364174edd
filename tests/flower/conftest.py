"""The network that the tests share: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_test_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet in a test's own process has the clock of its grid: real time would be waited for."""
    clock = pytest.importorskip("fedtuner.flower.clock", exc_type=ImportError)

    def sleep(self: object, seconds: float) -> None:
        raise AssertionError(f"a fleet sleeps {seconds:g} s of real time: give Fleet(clock=grid.clock)")

    monkeypatch.setattr(clock.RealClock, "sleep", sleep)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A SuperLink and three SuperNodes; every test leaves it as it was."""
    from network import marked, network

    here = Path(__file__).parent
    with network(tmp_path_factory.mktemp("network"), nodes=3, paths=(here.parent, here, here / "watch")) as net:
        yield net
    assert not marked(net.mark), "processes of the network are left"
