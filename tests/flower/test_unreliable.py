"""A device whose replies cannot be used again and again is named, counted and drawn less often."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

import test_secure
from flwr.app import Message
from memory_grid import MemoryGrid
from test_attacks import IMPOSSIBLE, MALFORMED
from test_fleet import fleet_of, grid_of, simulate, states, tune, with_w
from test_secure import error

import fedtuner as ft
import toys
from fedtuner.core.records import Tally
from fedtuner.flower.handshake import client_number
from fedtuner.report.show import print_summary
from fedtuner.report.summary import summary

LONG: Any = {"schedule": ft.random_search(budget=30, longest=30), "cohort": 3}
PHONE2 = client_number("phone2")
FAULTS = {
    "malformed": MALFORMED["zip of arrays"],
    "impossible": IMPOSSIBLE["error above 1"],
    "broken": with_w(lambda w: np.full_like(w, math.nan)),
    "error": error,
}


def drawn(grid: MemoryGrid, node: int = 1002) -> list[int]:
    """The rounds in which a node had work."""
    sent = [m for m in grid.work_sent() if m.metadata.dst_node_id == node]
    return [int(str(m.content.config_records["fedtuner"]["round"])) for m in sent]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["error", *(pytest.param(name, marks=pytest.mark.slow) for name in FAULTS if name != "error")]
)
def test_it_is_named_counted_and_drawn_less_often(name, tmp_path, capsys):
    honest, grid = grid_of(), grid_of()
    tune(honest, **LONG)
    grid.faults[1002] = FAULTS[name]
    study = tune(grid, store=tmp_path, **LONG)
    usual, found = drawn(honest), drawn(grid)
    assert found[:3] == usual[:3]  # nothing changes before
    assert 3 < len(found) < 0.7 * len(usual)  # it is still drawn now and then
    assert Counter(id for r in study.history for id in r.unusable) == {"phone2": len(found)}
    assert [r.round - 1 for r in study.history if r.unusable] == found
    assert states(study)[0].unusable == {PHONE2: len(found)}
    notes = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    [failing] = [note for note in notes if note["kind"] == "failing"]
    assert (failing["client"], failing["round"]) == ("phone2", found[2] + 1)
    assert "its last 3 replies could not be used: it is drawn less often until one can" in failing["text"]
    shown = summary(tmp_path)
    assert shown["unusable"] == {"phone2": len(found)}
    print_summary(shown)
    assert f"Replies that could not be used: {len(found)} of phone2." in capsys.readouterr().out


@pytest.mark.slow
def test_a_good_reply_is_enough_to_be_drawn_as_often_as_others_again():
    grid, broken = grid_of(), [True] * 4

    def recovers(reply: Message) -> Message | None:
        return MALFORMED["zip of arrays"](reply) if broken and broken.pop() else reply

    grid.faults[1002] = recovers
    study = tune(grid, **LONG)
    assert sum(len(r.unusable) for r in study.history) == 4
    assert states(study)[0].unusable == {}
    assert drawn(grid)[-1] > drawn(grid)[4]


@pytest.mark.slow
def test_it_is_so_after_a_study_was_continued(tmp_path):
    def attacked() -> MemoryGrid:
        grid = grid_of()
        grid.faults[1002] = FAULTS["malformed"]
        return grid

    def run() -> None:
        grid = attacked()
        grid.on_push = lambda message: toys.die() if len(grid.sent) == 40 else None
        tune(grid, store=tmp_path, **LONG)

    assert toys.forked(run) == -9
    continued, whole = tune(attacked(), store=tmp_path, **LONG), tune(attacked(), **LONG)
    assert repr(continued.history) == repr(whole.history)
    assert states(continued)[0].unusable == states(whole)[0].unusable


def test_updates_that_break_everywhere_are_the_configurations_fault():
    grid = grid_of()
    grid.faults = dict.fromkeys([1000, 1002, 1004], FAULTS["broken"])
    study = tune(grid, cohort=6, schedule=ft.random_search(budget=2, longest=2))
    assert {r.broken for r in study.history} == {3}
    assert {r.unusable for r in study.history} == {()}


def test_who_is_slow_is_not_broken():
    grid = grid_of()
    grid.faults[1002] = lambda reply: None
    study = tune(grid, fleet_of(grid, least=3), cohort=6, schedule=ft.random_search(budget=2, longest=2))
    assert study.problem.faults["timeout"]
    assert {r.unusable for r in study.history} == {()}


@dataclass(frozen=True)
class Quiet:
    """Privacy without noise: nothing of single clients is released."""

    def over(self, rounds: int) -> Quiet:
        return self

    def bound(self, plan: Any, reports: Any) -> list[Any]:
        return list(reports)

    def release(self, tally: Tally, key: Any, seed: int) -> Tally:
        return replace(tally, rows=())

    def spent(self, keys: Any) -> float:
        return 0.0


def test_with_privacy_only_what_the_transport_shows_counts():
    """Whether a screen dropped a report is not said of a single client."""
    grid = grid_of()
    grid.faults = {1002: FAULTS["impossible"], 1003: FAULTS["malformed"]}
    study = tune(grid, cohort=6, privacy=Quiet(), schedule=ft.random_search(budget=1, longest=1))
    assert [r.unusable for r in study.history] == [("phone3",)]


@pytest.mark.slow
def test_under_masks_who_fails_is_drawn_less_often():
    grid = test_secure.grid_of()
    grid.faults[1002] = error
    study = test_secure.tune(grid, cohort=4, schedule=ft.random_search(budget=8, longest=8))
    counted = sum(len(r.unusable) for r in study.history)
    assert {id for r in study.history for id in r.unusable} == {"phone2"}
    assert states(study)[0].unusable == {PHONE2: counted}
    assert study.problem.faults["failing"] == 1


def test_studies_of_simulations_know_of_no_such_replies():
    study = simulate(space=toys.DIVERGING, schedule=ft.random_search(budget=4, longest=4))
    assert {r.unusable for r in study.history} == {()}
