"""Clients' code that raises: it stops the study, or ends its arm alone."""

from __future__ import annotations

import json

import pytest

import fedtuner as ft
import toys
from crashes import Crash, assert_same
from fedtuner.errors import ClientError, SpecError
from fedtuner.run.journal import read
from fedtuner.run.store import Folder


def study(store, **changed):
    return toys.tune(problem=toys.picky(), failing="end", store=store, **changed)


def test_the_study_goes_on_without_the_arm(tmp_path):
    done = study(tmp_path / "study")
    journal = done.journal
    assert journal.failed
    assert journal.won.arm not in journal.failed
    assert len(journal.failed) < len(journal.arms)
    for arm, error in journal.failed.items():
        assert error.startswith(f"arm {arm}, round {journal.round_of(arm) + 1}, client 'phone")
        assert "RuntimeError: out of memory with lr" in error
        assert journal.ended[arm] == "failed"
        assert journal.eliminated[arm].score == (float("inf"), float("inf"))


def test_by_default_it_stops_the_study(tmp_path):
    with pytest.raises(ClientError, match="out of memory"):
        toys.tune(problem=toys.picky(), store=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 5])
def test_any_number_of_workers_gives_the_same_bits(tmp_path, workers):
    study(tmp_path / "one")
    study(tmp_path / "many", workers=workers)
    assert_same(tmp_path / "many", tmp_path / "one")


def test_what_failed_is_not_tried_again(tmp_path, monkeypatch):
    study(tmp_path / "study")
    lines = (tmp_path / "study" / "journal.jsonl").read_text()
    failed = [line for line in lines.splitlines() if '"event":"failed"' in line]
    study(tmp_path / "study")
    assert (tmp_path / "study" / "journal.jsonl").read_text() == lines
    kept = read(Folder(tmp_path / "study"), "study").failed
    assert {json.loads(line[9:])["arm"] for line in failed} == set(kept)


def test_a_study_that_is_stopped_and_continued_is_the_same(tmp_path):
    study(tmp_path / "whole")
    asked = []

    def watch(status):
        asked.append(status)
        if len(asked) == 2:
            raise Crash

    with pytest.raises(Crash):
        study(tmp_path / "study", progress=watch)
    study(tmp_path / "study")
    assert_same(tmp_path / "study", tmp_path / "whole")


def test_if_every_arm_fails_the_study_does(tmp_path):
    space = ft.Space({"lr": ft.Float(0.5, 1.0)})
    for _ in range(2):  # also if it is run again
        with pytest.raises(ClientError, match="every arm has failed; the first: arm 0, round 1"):
            study(tmp_path, space=space)


@pytest.mark.parametrize("highest", [0.2, 0.05])
def test_a_budget_goes_on_without_arms_that_fail(monkeypatch, highest):
    """Its recipe reads the rounds of its arms, of which some have none: in the second case the default, too."""
    monkeypatch.setattr(toys, "PICKY", highest)
    space, recipe = ft.Space({"lr": ft.Float(0.01, 1.0, log=True)}), ft.auto(120, arms=5)
    done = ft.tune(toys.picky(), space, recipe=recipe, cohort=3, failing="end", workers=1, progress=False)
    failed = [arm for arm in done.journal.failed if done.journal.round_of(arm) == 0]
    assert (0 in failed) == (highest < 0.1)
    assert failed
    assert done.best.client["lr"] <= highest


def test_the_report_has_the_error(tmp_path, fedtuner):
    failed = study(tmp_path / "study").journal.failed
    code, said, _ = fedtuner("show", tmp_path / "study")
    assert code == 0
    assert said.count("Failed: arm") == len(failed)
    assert "out of memory with lr" in said
    code, said, _ = fedtuner("show", tmp_path / "study", "--json")
    assert json.loads(said)["failed"] == {str(arm): error for arm, error in sorted(failed.items())}


def test_a_watcher_is_told(tmp_path):
    told = []

    class Watching(ft.watchers.Watcher):
        def on_failed(self, event):
            told.append(event.arm)

    done = study(tmp_path, watch=Watching())
    assert sorted(told) == sorted(done.journal.failed) != []


def test_another_word_is_refused():
    with pytest.raises(SpecError, match=r"failing = 'ignore', but must be one of \('stop', 'end'\)"):
        toys.tune(failing="ignore")
