"""States that are kept beside the arms' latest: whole, with what clients remember, until nobody wants them."""

from __future__ import annotations

import pytest

import fedtuner as ft
import toys
from fedtuner.core.schedule import Start
from fedtuner.run.session import Session

SETTINGS = {key: value for key, value in toys.settings().items() if key not in ("problem", "progress", "workers")}


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A way to open the same study again; what clients remember is in blobs."""
    monkeypatch.setattr("fedtuner.core.memory.LIMIT", 0)

    def opened(store=tmp_path / "study"):
        study = ft.prepare(toys.problem(), store=store, workers=1, **SETTINGS)
        return Session(study.setup, study.problem, study.where)

    return opened


def kept(folder):
    return sorted(file.name.removesuffix(".safetensors") for file in (folder / "states").iterdir())


def test_a_kept_state_is_evaluated_as_it_was(session):
    with session(None) as short:
        short.start({0: Start(), 1: Start()})
        short.advance({0: 2, 1: 2})
        expected = short.evaluate((0, 2), "test")
    with session(None) as long:
        long.start({0: Start(), 1: Start()})
        long.keep = {(0, 2)}
        for until in (2, 6):  # a state is saved where an advance ends
            long.advance({0: until, 1: until})
        assert long.evaluate((0, 2), "test") == expected != long.evaluate((0, 6), "test")


def test_sweeping_leaves_the_latest_and_the_kept(session, tmp_path):
    folder = tmp_path / "study"
    with session() as one:
        one.start({0: Start(), 1: Start()})
        one.keep = {(0, 2), (1, 2), (0, 4)}
        for until in (2, 4, 6):
            one.advance({0: until, 1: until})
        assert kept(folder) == ["0-2", "0-4", "0-6", "1-2", "1-6"]
        before = toys.files(folder / "memory")
        one.keep = {(0, 4)}
        one.sweep()
        assert kept(folder) == ["0-4", "0-6", "1-6"]
        assert 0 < len(toys.files(folder / "memory")) < len(before)
        one.keep = ()
        one.sweep()
        assert kept(folder) == ["0-6", "1-6"]


def test_a_state_that_has_gone_may_be_kept_again(session, tmp_path):
    """A continued study is replayed from its beginning, where states were wanted that later ones did not want."""
    with session() as one:
        one.start({0: Start()})
        one.keep = {(0, 2)}
        one.advance({0: 2})
        one.keep = ()
        one.advance({0: 4})
    with session() as two:
        two.start({0: Start()})
        two.keep = {(0, 2)}
        two.advance({0: 2})
        two.advance({0: 6})
        two.sweep()
    assert kept(tmp_path / "study") == ["0-6"]
