"""Two Flower networks, insecure and with TLS, as docs/flower.md starts them: all apps run on them; parts are killed.

A round of a trivial app takes seconds (a SuperNode starts a process for each message, and Flower is large). So all runs
go through two networks, several at a time; the tests are one file, among the first (tests/conftest.py).
watch/sitecustomize.py shortens Flower's own pauses, and has the processes forked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from attacker import Attacker
from deployed import CLIENTS, TOY, check, outcome, records, tune
from memory_grid import MemoryGrid
from network import Network, free_port

import fedtuner as ft
from toys import Softmax, remembering

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower-network")]


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Network, Network]]:
    """Both networks. What can run without a test's doing begins at once."""
    folders = [tmp_path_factory.mktemp(name) for name in ("insecure", "tls")]
    with (
        Network(folders[0], "flower-superlink --insecure") as insecure,
        Network(folders[1], "--enable-supernode-auth") as tls,
    ):
        for net in (insecure, tls):
            net.start_link()
        for net in (insecure, tls):
            net.start_nodes()
        insecure.wait_for_nodes()
        insecure.launch(TOY, "first", store=str(folders[0] / "toy"))
        tls.wait_for_nodes()
        tls.start_printed("run")
        attack = {"attack": True, "arms": 1, "cohort": 2, "least": 2, "evaluate": False}
        tls.launch(TOY, "attacked", store=str(folders[1] / "attacked"), **attack)
        yield insecure, tls


@pytest.fixture(scope="module")
def insecure(networks: tuple[Network, Network]) -> Network:
    return networks[0]


@pytest.fixture(scope="module")
def tls(networks: tuple[Network, Network]) -> Network:
    return networks[1]


@pytest.fixture(scope="module")
def restarted(insecure: Network) -> Network:
    """The insecure network after its SuperLink was killed during a run, and started again: two runs are under way."""
    store = insecure.folder / "toy"
    insecure.wait(lambda: len(records(store)) >= 1 or not insecure.alive("first"), "no round was finished")
    insecure.kill("link")  # and with it the ServerApp
    insecure.kill("first")
    assert 1 <= len(records(store)) < 3
    insecure.start_link()
    insecure.start_printed("run")
    insecure.launch(TOY, "second", store=str(store))
    return insecure


def test_the_superlink_dies_and_the_next_run_continues_to_the_same_bits(restarted: Network, tmp_path: Path) -> None:
    restarted.finish("second")
    tune(ft.Simulation(Softmax(), CLIENTS), 2, 2, tmp_path / "here").evaluate("test")
    assert outcome(restarted.folder / "toy") == outcome(tmp_path / "here")


def test_the_printed_commands_tune_the_quickstart(restarted: Network) -> None:
    log = restarted.finish("run")
    check(log, restarted.folder / "runs" / "devices")  # a relative store lies where the SuperLink was started
    assert "flwr-clientapp" in restarted.imported_torch()


def test_during_a_run_one_supernode_is_killed_and_another_restarts(restarted: Network) -> None:
    for name in ("second", "run"):  # they need all SuperNodes
        restarted.finish(name)
    store = restarted.folder / "killed"
    restarted.launch(TOY, "killed", store=str(store), arms=1, cohort=3, least=2, deadline=30.0, evaluate=False)
    restarted.wait(lambda: len(records(store)) >= 1 or not restarted.alive("killed"), "no round was finished")
    restarted.kill("node-1")
    restarted.kill("node-2")
    restarted.start_printed("node-1")
    restarted.finish("killed")
    assert [(record.clients, record.dropped) for record in records(store)] == [(3, 0), (3, 1)]
    faults = [json.loads(line) for line in (store / "log.jsonl").read_text().splitlines()]
    # Where Flower sees before the deadline that the node is gone, it answers with an error in its place.
    assert {("timeout", "phone2"), ("error", "phone2")} & {(fault["kind"], fault["client"]) for fault in faults}
    assert any(fault["kind"] == "moved" and "phone1" in fault["text"] for fault in faults)


def test_the_printed_commands_tune_the_example_with_sklearn_over_tls(tls: Network) -> None:
    check(tls.finish("run"), tls.folder / "runs" / "tls")


def test_the_worst_attacks_on_a_real_superlink(tls: Network, tmp_path: Path) -> None:
    """Bytes of a zip file and a greeting of 5000 digits had ended the server; 3e38 with the best loss had won.

    What honest devices send gives the bits of a grid in this process, also over TLS.
    """
    tls.finish("attacked")
    store = tls.folder / "attacked"
    assert [(r.clients, r.dropped, r.bounded) for r in records(store)] == [(2, 1, 0), (2, 1, 1)]
    assert [r.unusable for r in records(store)] == [("phone1",)] * 2
    lines = [json.loads(line) for line in (store / "log.jsonl").read_text().splitlines()]
    first = {(line["kind"], line["client"]): line for line in reversed(lines)}  # a node that was refused is asked again
    assert set(first) == {("screened", "phone1"), ("malformed", "phone1"), ("refused", None)}
    found = [first["refused", None], first["malformed", "phone1"], first["screened", "phone1"]]
    for line, why in zip(found, ["id has 5000 characters", "cannot be read: it is a NpzFile", "-1e+308"], strict=True):
        assert why in line["text"]
        assert len(line["text"]) < 500
    grid = attacked_grid()
    fleet = ft.flower.Fleet(grid, Softmax(), least=2, clock=grid.clock)
    tune(fleet, 1, 2, tmp_path / "here")
    assert outcome(store) == outcome(tmp_path / "here")


def attacked_grid() -> MemoryGrid:
    """The same devices in this process."""
    grid = MemoryGrid()
    for n, client in enumerate(CLIENTS):
        app = ft.flower.client_app(Softmax(), lambda context, c=client: c, method=remembering)
        grid.contexts[grid.add(Attacker(app), partition=n)].run_config["attack"] = True
    return grid


def test_neither_sklearn_nor_numpy_apps_import_torch(tls: Network) -> None:
    for name in ("run", "attacked"):
        tls.finish(name)
    assert not tls.imported_torch()  # the test of the quickstart shows that it would be seen


def test_only_registered_supernodes_are_let_in(tls: Network) -> None:
    command = list(tls.printed["node-0"])
    at = command.index("--auth-supernode-private-key")
    del command[at : at + 2]  # it then makes a key of its own
    command[command.index("--port") + 1] = str(free_port())
    tls.start("stranger", *command)
    tls.wait(lambda: tls.running["stranger"].poll() is not None, "the stranger was let in")
    assert "must be registered" in tls.log("stranger")
