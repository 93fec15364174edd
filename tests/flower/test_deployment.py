"""The real thing: a SuperLink and SuperNodes as processes that talk over the network, and are killed in mid-run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from deployed import CLIENTS, outcome, tune
from network import Certificates, Network, marked, network

import fedtuner as ft
from toys import TESTS, Softmax

pytestmark = pytest.mark.slow

APP = TESTS / "flower" / "toyapp"
PATHS = (TESTS, TESTS / "flower")
CERTIFICATES = TESTS.parent / "examples" / "flower-tls" / "certificates.py"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the study finds on the same clients in this process."""
    store = tmp_path_factory.mktemp("simulated") / "store"
    tune(ft.Simulation(Softmax(), CLIENTS), 3, 2, 2, store).evaluate("test")
    return outcome(store)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """A network that is encrypted and lets in only the SuperNodes that are registered."""
    folder = tmp_path_factory.mktemp("closed")
    keys = folder / "keys"
    subprocess.run([sys.executable, str(CERTIFICATES), str(keys), "--nodes", "3"], check=True, capture_output=True)
    pairs = tuple((keys / f"node-{i}", keys / f"node-{i}.pub") for i in range(3))
    tls = Certificates(keys / "ca.crt", keys / "server.crt", keys / "server.key", pairs)
    with network(folder, nodes=3, tls=tls, paths=PATHS) as net:
        yield net
    assert not marked(net.mark), "processes of the network are left"


def records(store: Path) -> list[dict[str, Any]]:
    """What the store knows of each round so far; the line that is being written is not whole yet."""
    journal = store / "journal.jsonl"
    lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
    return [json.loads(line) for line in lines]


def test_the_superlink_dies_and_the_next_run_goes_on_to_the_same_end(
    shared: Network, simulated: dict[str, bytes], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shared.launch(APP, "first", store=str(store))
    shared.wait(lambda: len(records(store)) >= 1, "no round was finished", 120)
    shared.kill("link")  # and with it the ServerApp
    shared.kill("first")
    done = records(store)
    assert 1 <= len(done) < 3
    assert not (store / "result.json").exists()

    shared.start_link()
    shared.wait_for_nodes(3)
    shared.run(APP, store=str(store))
    assert outcome(store) == simulated


def test_only_registered_supernodes_are_let_in(closed: Network) -> None:
    closed.start_node(3)  # with a key of its own making
    closed.wait(lambda: closed.processes["node-3"].poll() is not None, "the stranger was let in")
    assert "must be registered" in closed.log("node-3")


def test_over_tls_theta_scores_and_weights_equal_those_of_a_simulation(
    closed: Network, simulated: dict[str, bytes], tmp_path: Path
) -> None:
    closed.run(APP, store=str(tmp_path / "store"))
    assert outcome(tmp_path / "store") == simulated


def test_in_mid_run_one_supernode_is_killed_and_another_restarts(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with network(tmp_path, nodes=3, paths=PATHS) as net:
        net.launch(APP, store=str(store), cohort=3, least=2, deadline=40.0, evaluate=False)
        net.wait(lambda: len(records(store)) >= 1, "no round was finished", 120)
        net.kill("node-1")
        net.kill("node-2")
        net.start_node(1)
        net.finish()
    assert len(records(store)) == 3
    assert (3, 1) in [(record["clients"], record["dropped"]) for record in records(store)]
    faults = [json.loads(line) for line in (store / "fleet.jsonl").read_text().splitlines()]
    assert ("timeout", "phone2") in [(fault["kind"], fault.get("client")) for fault in faults]
    assert any(fault["kind"] == "moved" and "phone1" in fault["what"] for fault in faults)
