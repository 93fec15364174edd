"""Handshakes: which client a node is, which nodes are refused, and that a study keeps the ids of all its clients."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import ConfigRecord, Message
from memory_grid import MemoryGrid
from test_fleet import CLIENTS, fleet_of, grid_of, tune

import fedtuner as ft
import toys
from fedtuner.core.store import Done, Joined
from fedtuner.errors import FleetError
from fedtuner.run.store import Folder


def test_another_version_is_refused_and_says_so():
    app = ft.flower.client_app(toys.Softmax(), lambda context: CLIENTS[0])

    def older(message: Message, context: object, call_next: object) -> Message:
        reply = call_next(message, context)  # type: ignore[operator]
        known = dict(reply.content["fedtuner"]) | {"version": 0}
        reply.content["fedtuner"] = ConfigRecord(known)
        return reply

    grid = MemoryGrid()
    grid.add(ft.flower.client_app(toys.Softmax(), lambda context: CLIENTS[0], mods=[older]))
    with pytest.raises(FleetError, match="its messages are of version 0, the server's of 3: install one fedtuner on b"):
        tune(grid, fleet_of(grid, wait=10.0))
    grid.apps[1000] = app
    assert fleet_of(grid, least=1).everyone()


def test_a_node_that_left_is_forgotten_and_asked_again_when_it_returns():
    grid = grid_of(CLIENTS[:2])
    grid.add(toys_free())
    problem = fleet_of(grid, least=1)
    problem.everyone()
    assert problem.faults == {"refused": 1}
    assert (len(problem.roster._members), len(problem.roster._refused)) == (2, 1)
    grid.online = {1000}
    grid.clock.sleep(1)
    problem.everyone()
    assert (len(problem.roster._members), len(problem.roster._refused)) == (1, 0)
    grid.online = {1000, 1001}
    while len(problem.everyone()) < 2:
        grid.clock.sleep(1)
    assert [problem.id_of(i) for i in problem.present()] == ["phone0", "phone1"]
    assert problem.population() == 2


def toys_free() -> ft.flower.client_app:  # type: ignore[valid-type]
    return ft.flower.client_app(toys.Softmax(features=5), lambda context: CLIENTS[2])


@pytest.mark.slow
def test_a_run_that_continues_with_some_of_the_clients_knows_how_many_there_are(tmp_path):
    """SCAFFOLD's and FedDyn's server steps need |S| / N: N counts those who are away now."""

    def run() -> None:
        grid = grid_of()
        grid.on_push = lambda message: toys.die() if len(grid.work_sent()) == 20 else None
        tune(grid, method=ft.methods.scaffold, store=tmp_path)

    assert toys.forked(run) == -9
    assert met(tmp_path) == [c.id for c in CLIENTS]
    few = grid_of(CLIENTS[:3])
    study = tune(few, fleet_of(few, least=3), method=ft.methods.scaffold, store=tmp_path)
    assert study.problem.population() == 6
    assert met(tmp_path) == [c.id for c in CLIENTS]


def met(store: Path) -> list[str | int]:
    """The clients that a study has met, as its store has them: those that came first are first."""
    return [id for event in Folder(store).events() if isinstance(event, Joined) for id in event.ids]


def test_who_was_met_before_comes_first_and_is_not_met_again():
    grid = grid_of(CLIENTS[:2])
    problem = fleet_of(grid, least=2)
    problem.everyone()
    assert problem.met() == ["phone0", "phone1"]
    problem.recall(["phone1", 7, "gone"])
    assert problem.met() == ["phone1", 7, "gone", "phone0"]
    assert problem.population() == 4
    assert [problem.id_of(i) for i in problem.present()] == ["phone0", "phone1"]


def test_who_comes_on_the_way_is_written_down_before_the_round_that_counts_them(tmp_path):
    grid = grid_of()
    grid.online -= {1005}

    def join(message: Message) -> None:
        if len(grid.work_sent()) == 12:
            grid.online |= {1005}

    grid.on_push = join
    tune(grid, fleet_of(grid, least=3), store=tmp_path)
    events = list(Folder(tmp_path).events())
    joined = [n for n, event in enumerate(events) if isinstance(event, Joined)]
    first = next(
        n for n, e in enumerate(events) if isinstance(e, Done) and any(r.client == "phone5" for r in e.record.rows)
    )
    assert [events[n].ids for n in joined] == [tuple(c.id for c in CLIENTS[:5]), ("phone5",)]
    assert joined[1] < first


def passing(message: Message, context: object, call_next: object) -> Message:
    """A mod that does nothing: an app with it has other code."""
    return call_next(message, context)  # type: ignore[operator,no-any-return]


def test_apps_of_other_code_are_named(caplog):
    grid = grid_of(CLIENTS[:2])
    grid.add(ft.flower.client_app(toys.Softmax(), lambda context: CLIENTS[2], mods=[passing]))
    problem = fleet_of(grid, least=3)
    problem.everyone()
    assert problem.faults == {"code": 1}
    said = "the code of client 'phone2' is not that of client 'phone0': is the same app installed on both?"
    assert said in caplog.text


@pytest.mark.slow
def test_an_app_that_is_changed_between_two_runs_is_named(tmp_path):
    def run(mods: list[object]) -> list[str]:
        grid = MemoryGrid()
        for client in CLIENTS:
            grid.add(ft.flower.client_app(toys.Softmax(), lambda context, client=client: client, mods=mods))
        if not mods:
            grid.on_push = lambda message: toys.die() if len(grid.work_sent()) == 20 else None
        tune(grid, store=tmp_path)
        lines = (tmp_path / "log.jsonl").read_text().splitlines() if (tmp_path / "log.jsonl").exists() else []
        return [line for line in lines if '"code"' in line]

    assert toys.forked(lambda: run([])) == -9
    noted = run([passing])
    assert len(noted) == len(CLIENTS)
    assert all("is not what it was when the study met it" in line for line in noted)


def test_the_code_of_an_app_is_that_of_its_functions():
    """Also where Flower's mods wrap them, and where a client_fn makes a client."""

    def made(text: str) -> str:
        space: dict[str, object] = {"__name__": "app"}
        exec(compile(text, "app.py", "exec"), space)
        return ft.flower.tuned(space["app"])._code  # type: ignore[arg-type,attr-defined]

    plain = """
from flwr.clientapp import ClientApp
def mod(message, context, call_next):
    return call_next(message, context)
app = ClientApp(MODS)
@app.train()
def train(message, context):
    return message.content["lr"] * 2
"""
    older = """
from flwr.clientapp import ClientApp
from flwr.client import NumPyClient
class Mine(NumPyClient):
    def fit(self, parameters, config):
        return parameters, 2, {}
def client_fn(context):
    return Mine().to_client()
app = ClientApp(client_fn)
"""
    for text in (plain.replace("MODS", ""), plain.replace("MODS", "mods=[mod, mod]"), older):
        assert made(text) == made(text)
        assert made(text.replace(" 2", " 3")) != made(text)


@pytest.mark.parametrize("code", ["x" * 10_000_000, 7, [1.0, 2.0], b"x"])
def test_a_code_that_cannot_be_one_is_not_kept(code):
    def lying(message: Message, context: object, call_next: object) -> Message:
        reply = call_next(message, context)  # type: ignore[operator]
        reply.content["fedtuner"] = ConfigRecord({**reply.content["fedtuner"], "code": code})
        return reply  # type: ignore[no-any-return]

    grid = grid_of(CLIENTS[:1])
    grid.add(ft.flower.client_app(toys.Softmax(), lambda context: CLIENTS[1], mods=[lying]))
    problem = fleet_of(grid, least=2)
    problem.everyone()
    assert set(problem.codes) == {"phone0"}
    assert not problem.faults
