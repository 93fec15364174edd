"""Rounds over a fleet: stragglers, vectors that cannot be aggregated, evaluations with gaps, signals."""

from __future__ import annotations

import json
import signal
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import Array, ArrayRecord, Message
from memory_grid import FakeClock
from test_fleet import CLIENTS, error, fleet_of, grid_of, simulate, states, tune

import fedtuner as ft
import toys
from fedtuner import cli
from fedtuner.core.store import Evaluated
from fedtuner.errors import FleetError
from fedtuner.run.reading import read
from fedtuner.run.store import Folder

SHORT = ft.random_search(budget=6, longest=3)


def with_extra(**vectors: Any) -> Any:
    def fault(reply: Message) -> Message:
        reply.content["extra"] = ArrayRecord({name: Array(np.asarray(v, np.float32)) for name, v in vectors.items()})
        return reply

    return fault


@dataclass(frozen=True)
class Picky:
    """A screen that leaves out the clients with the most examples."""

    most: int = 18

    def __call__(self, plan: Any, reports: Any) -> Any:
        return [None if r is not None and r.examples > self.most else r for r in reports]


BAD = {
    "no vectors": with_extra(),
    "another name": with_extra(contrl=np.zeros(12)),
    "too short": with_extra(control=np.zeros(3)),
    "a matrix": with_extra(control=np.zeros((12, 12))),
}


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("liars", [1, 4])
def test_vectors_that_cannot_be_aggregated_are_malformed_however_many_send_them(bad, liars):
    """Four of six are the majority: it is not they who are believed."""
    grid = grid_of()
    grid.faults = dict.fromkeys(range(1000, 1000 + liars), BAD[bad])
    study = tune(grid, method=ft.methods.scaffold, cohort=6, schedule=SHORT)
    assert study.problem.faults["malformed"] == liars * study.rounds_used
    assert set(study.problem.faults) == {"malformed", "failing"}
    assert {r.dropped for r in study.history} == {liars}


def test_what_a_screen_leaves_out_is_noted():
    study = tune(grid_of(), cohort=6, schedule=SHORT, screens=(Picky(),))
    assert study.problem.faults["screened"] == 2 * study.rounds_used
    assert set(study.problem.faults) == {"screened", "failing"}
    assert {(r.clients, r.dropped) for r in study.history} == {(6, 2)}


def test_where_nobody_else_reports_the_study_ends_with_the_reason():
    grid = grid_of(CLIENTS[:1])
    grid.faults[1000] = BAD["no vectors"]
    why = r"no client reported in 3 tries; the last: .*extra has \[\], but the method declares \['control', 'weight'\]"
    with pytest.raises(FleetError, match=why):
        tune(grid, fleet_of(grid, least=1), method=ft.methods.scaffold, cohort=1, schedule=SHORT)


def test_what_a_client_remembers_keeps_its_shape():
    grid = grid_of()
    replies = [0]

    def shorter(reply: Message) -> Message:
        replies[0] += 1
        if replies[0] > 2:
            reply.content["memory"] = ArrayRecord({"control": Array(np.zeros(3, np.float32))})
        return reply

    grid.faults[1002] = shorter
    study = tune(grid, method=ft.methods.scaffold, cohort=6, schedule=SHORT)
    assert study.problem.faults == {"malformed": study.rounds_used - 2}
    assert {m["control"].shape for s in states(study).values() for m in s.memory.values()} == {(12,)}


class Slow:
    """A node that does one job after the other, each in so many seconds, however many wait for it."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self.clock, self.seconds, self.free = clock, seconds, 0.0

    def __call__(self, reply: Message) -> Message:
        now = self.clock.now()
        self.free = max(self.free, now) + self.seconds
        reply.delay = self.free - now  # type: ignore[attr-defined]
        return reply


def test_a_slow_device_gets_no_more_work_before_it_has_answered():
    """Its jobs take four deadlines: without the pause they would pile up, each later than the one before."""
    grid = grid_of()
    grid.latency = 30.0
    slow = Slow(grid.clock, 210.0)
    grid.faults[1002] = slow
    problem = fleet_of(grid, deadline=60.0)
    queue = []
    grid.on_push = lambda message: queue.append(slow.free - grid.clock.now())
    study = tune(grid, problem, cohort=6, schedule=ft.random_search(budget=10, longest=10))
    asked = sum(m.metadata.dst_node_id == 1002 for m in grid.work_sent())
    assert study.rounds_used == 10
    assert max(queue) <= slow.seconds
    # The first reply comes after 240 s: 60 s of the first round and six rounds of 30 s without the device.
    assert [(r.clients, r.dropped) for r in study.history] == [(6, 1)] + [(5, 0)] * 6 + [(6, 1)] + [(5, 0)] * 2
    assert asked == problem.faults["timeout"] == 2
    assert problem.faults["late"] == 1


def test_a_device_that_was_late_once_takes_part_again():
    grid = grid_of()
    replies = [0]

    def once(reply: Message) -> Message:
        replies[0] += 1
        reply.delay = 60.0 if replies[0] == 1 else 0.0  # type: ignore[attr-defined]
        return reply

    grid.faults[1002] = once
    grid.faults[1003] = Slow(grid.clock, 3.0)
    study = tune(grid, fleet_of(grid, deadline=40.0), cohort=6, schedule=ft.random_search(budget=12, longest=12))
    assert study.problem.faults == {"timeout": 1, "late": 1}
    rounds = [(r.clients, r.dropped) for r in study.history]
    assert (rounds[0], rounds[-1]) == ((6, 1), (6, 0))


def test_the_journal_tells_late_clients_from_silent_and_failing_ones(tmp_path):
    """phone2 answers its first job 20 s after the deadline, phone4 never its first, and phone5's app fails once."""
    grid = grid_of()
    grid.latency = 5.0
    jobs = Counter[int]()

    def first(node, change):
        def changed(reply: Message) -> Message | None:
            jobs[node] += 1
            return change(reply) if jobs[node] == 1 else reply

        return changed

    def delayed(reply: Message) -> Message:
        reply.delay = 60.0  # type: ignore[attr-defined]
        return reply

    grid.faults = {
        1002: first(1002, delayed),
        1004: first(1004, lambda reply: None),
        1005: first(1005, error),
    }
    study = tune(
        grid,
        fleet_of(grid, deadline=40.0),
        cohort=6,
        schedule=ft.random_search(budget=12, longest=12),
        store=tmp_path / "s",
    )
    assert study.problem.faults == {"timeout": 2, "late": 1, "error": 1}
    journal = read(Folder(tmp_path / "s"), "s")
    assert journal.late == {(0, 1): {"phone2"}}
    assert journal.late_by_client == {"phone2": 1}
    assert [journal.replies_of(r) for r in journal.history()] == [(1, 1, 1)] + [(0, 0, 0)] * 11
    notes = [json.loads(line) for line in (tmp_path / "s" / "log.jsonl").read_text().splitlines()]
    assert [(n["arm"], n["round"], n["client"]) for n in notes if n["kind"] == "late"] == [(0, 1, "phone2")]


def test_where_all_are_too_slow_the_study_waits_for_them_and_then_says_so():
    grid = grid_of()
    grid.faults = dict.fromkeys(grid.apps, lambda reply: Slow(grid.clock, 80.0)(reply))
    with pytest.raises(FleetError, match=r"no client reported in 3 tries; .* no answer in 50 s"):
        tune(grid, fleet_of(grid, deadline=50.0), cohort=6, schedule=SHORT)


def test_where_all_are_busy_for_good_the_study_says_so():
    grid = grid_of()
    grid.faults = dict.fromkeys(grid.apps, lambda reply: None)
    with pytest.raises(FleetError, match=r"all 6 clients are busy with rounds that have ended, after 100 s: raise"):
        tune(grid, fleet_of(grid, deadline=50.0, wait=100.0), cohort=6, schedule=SHORT)


@pytest.mark.slow
def test_an_evaluation_with_gaps_says_so_and_is_made_again(tmp_path, capsys):
    grid = grid_of()
    study = tune(grid, store=tmp_path)
    grid.faults[1002] = error
    some = study.evaluate("test")
    assert some["missing"] == 1
    assert [e.result.missing for e in Folder(tmp_path).events() if isinstance(e, Evaluated)] == [1]
    assert cli.main(["show", str(tmp_path)]) in (0, None)
    assert "missing clients: 1" in capsys.readouterr().out
    grid.faults.clear()
    whole = study.evaluate("test")
    assert whole == simulate().evaluate("test")
    grid.online.clear()
    assert study.evaluate("test") == whole  # now it is kept


def test_who_is_away_is_missing_from_an_evaluation():
    grid = grid_of()
    study = tune(grid, fleet_of(grid, least=3))
    grid.online -= {1001, 1004}
    assert study.evaluate("test")["missing"] == 2


def test_signals_are_left_to_flower():
    """Flower ends a ServerApp by signals of its own; a Simulation catches them while it runs."""
    grid, seen = grid_of(), []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(n) for n in numbers]
    grid.on_push = lambda message: seen.append([signal.getsignal(n) for n in numbers])
    tune(grid, schedule=SHORT)
    assert all(handlers == before for handlers in seen)

    def interrupt(message: Message) -> None:
        if len(grid.work_sent()) == 5:
            signal.raise_signal(signal.SIGINT)

    grid = grid_of()
    grid.on_push = interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs without it
    try:
        with pytest.raises(KeyboardInterrupt) as stopped:
            tune(grid, schedule=SHORT)
    finally:
        signal.signal(signal.SIGINT, before[0])
    assert stopped.type is KeyboardInterrupt  # at once, as Python's own handler does


@pytest.mark.parametrize(("progress", "lines"), [(None, True), (False, False)])
def test_progress_is_printed_in_lines_unless_it_is_switched_off(progress, lines, capsys):
    tune(grid_of(), schedule=SHORT, progress=progress)
    assert ("tuning: 6/6 rounds" in capsys.readouterr().err) == lines
    toys.tune(schedule=SHORT, progress=progress)
    assert capsys.readouterr().err == ""
