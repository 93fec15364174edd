"""The examples in Flower's simulation engine, which has an environment of its own: it pins another Ray."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from deployed import CLIENTS, EXAMPLES, PAGE, QUICKSTART, check, outcome, tune
from network import Network, free_port, marked, network

import fedtuner as ft
from test_docs import blocks
from toys import TESTS, Softmax

ENVIRONMENT = TESTS.parent / ".venv-flower"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ENVIRONMENT / ".ready").exists(),
        reason="Flower's simulation engine is not set up: make flower-simulation",
    ),
]


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    paths = (TESTS, TESTS / "flower")
    folder = tmp_path_factory.mktemp("simulation")
    with network(folder, nodes=3, simulation=True, bin=ENVIRONMENT / "bin", paths=paths) as made:
        yield made
    assert not marked(made.mark), "processes of the network are left"


def test_quickstart_before(net: Network) -> None:
    assert "accuracy: 0." in net.run(QUICKSTART / "before", rounds=2)


def test_sklearn(net: Network, tmp_path: Path) -> None:
    check(net.run(EXAMPLES / "flower-sklearn", rounds=2, store=str(tmp_path / "store")), tmp_path / "store")


def test_quickstart_by_the_printed_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [text for text in blocks(PAGE, "sh") if "num-supernodes=" in text]
    activate, export, run = (shlex.split(line) for line in block.splitlines())
    assert activate == [".", ".venv-flower/bin/activate"]  # what bin= does here
    name, _, value = export[1].partition("=")
    net = Network(tmp_path, 3, None, True, ENVIRONMENT / "bin", ())
    net.connection = "local"  # a SuperLink that ``flwr run`` starts by itself
    net.port = free_port()
    for key, text in (
        (name, value),
        ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(net.port)),
        ("FLWR_LOCAL_CONTROL_API_PORT", str(free_port())),
    ):
        monkeypatch.setenv(key, text)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    try:
        net.start("run", *run, home="user")
        check(net.finish(), tmp_path / "runs" / "simulated")
    finally:
        net.stop()
    assert not marked(net.mark), "processes of the network are left"


def test_theta_scores_and_weights_equal_those_of_a_simulation(net: Network, tmp_path: Path) -> None:
    net.run(TESTS / "flower" / "toyapp", store=str(tmp_path / "flower"))
    tune(ft.Simulation(Softmax(), CLIENTS), 3, 2, 2, tmp_path / "here").evaluate("test")
    assert outcome(tmp_path / "flower") == outcome(tmp_path / "here")


def test_secure_aggregation(net: Network, tmp_path: Path) -> None:
    store = tmp_path / "store"
    net.run(TESTS / "flower" / "secureapp", store=str(store))
    rounds = [json.loads(line) for line in (store / "journal.jsonl").read_text().splitlines()]
    assert [(r["clients"], r["dropped"], r["broken"]) for r in rounds] == [(3, 0, 0)] * 3
    sizes = [[len(getattr(client, split)[1]) for client in CLIENTS] for split in ("train", "valid")]
    assert {(r["examples"], r["validated"]) for r in rounds} == {(sum(sizes[0]), sum(sizes[1]))}
    assert all(0 <= r["error"] <= 1 and 0 < r["loss_before"] < 10 for r in rounds)
    assert all(r["entropy"] < math.log(3) - 1e-6 for r in rounds)  # theta moves
