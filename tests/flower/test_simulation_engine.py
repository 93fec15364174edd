"""The examples in Flower's simulation engine, which has an environment of its own: it pins another Ray.

All runs go through the SuperLink that the command in docs/flower.md starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from deployed import CLIENTS, QUICKSTART, SECURE, TOY, check, outcome, records, tune
from network import Network, free_port

import fedtuner as ft
from toys import TESTS, Softmax

ENVIRONMENT = TESTS.parent / ".venv-flower"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("flower-simulation"),
    pytest.mark.skipif(
        not (ENVIRONMENT / ".ready").exists(),
        reason="Flower's simulation engine is not set up: make flower-simulation",
    ),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """The SuperLink that the printed command starts; two runs at a time, as there are two cores."""
    with (
        pytest.MonkeyPatch.context() as patch,
        Network(tmp_path_factory.mktemp("engine"), "num-supernodes=", ENVIRONMENT) as net,
    ):
        activate, (_, setting) = net.preparation
        assert activate == [".", ".venv-flower/bin/activate"]  # what the Network does with its environment
        patch.setenv(*setting.split("="))
        patch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(free_port()))
        patch.setenv("FLWR_LOCAL_CONTROL_API_PORT", str(free_port()))
        net.start_printed("run")
        net.wait(lambda: "started run" in net.log("run"), "the printed run did not start")
        net.launch(TOY, "toy", store=str(net.folder / "toy"))
        yield net


def test_the_printed_command_tunes_the_quickstart(engine: Network) -> None:
    check(engine.finish("run"), engine.folder / "runs" / "simulated")


@pytest.fixture(scope="module")
def later(engine: Network) -> Network:
    """The same SuperLink with its next two runs under way."""
    for name in ("run", "toy"):
        engine.finish(name)
    engine.launch(QUICKSTART / "before", "before", **{"num-server-rounds": 2})
    engine.launch(SECURE, "secure", store=str(engine.folder / "secure"))
    return engine


def test_theta_scores_and_weights_equal_those_of_a_simulation(engine: Network, tmp_path: Path) -> None:
    engine.finish("toy")
    tune(ft.Simulation(Softmax(), CLIENTS), 2, 2, tmp_path / "here").evaluate("test")
    assert outcome(engine.folder / "toy") == outcome(tmp_path / "here")


def test_secure_aggregation(later: Network) -> None:
    later.finish("secure")
    rounds = records(later.folder / "secure")
    assert [(r.clients, r.dropped, r.broken) for r in rounds] == [(3, 0, 0)] * 3
    sizes = [[len(getattr(client, split)[1]) for client in CLIENTS] for split in ("train", "valid")]
    assert {(r.examples, r.validated) for r in rounds} == {(sum(sizes[0]), sum(sizes[1]))}
    assert all(0 <= r.error <= 1 and 0 < r.loss_before < 10 for r in rounds)
    assert all(r.entropy < math.log(3) - 1e-6 for r in rounds)  # theta moves


def test_the_quickstart_before_it_is_tuned(later: Network) -> None:
    assert "accuracy: 0." in later.finish("before")
