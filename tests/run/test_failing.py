"""Clients' code that raises: it stops the study, or ends its arm alone."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import fedtuner as ft
import toys
from crashes import Crash, assert_same
from fedtuner.core.schedule import Scoring, Start, Step
from fedtuner.errors import ClientError, SpecError
from fedtuner.run.reading import read
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
        assert journal.eliminated[arm].score[0] == float("inf")


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


# Where all arms of a step have failed


@dataclass(frozen=True)
class Bold:
    """One arm, then a child of it with a learning rate that its clients do not bear; the first one's state is kept."""

    kind: ClassVar[str] = "bold"
    needs: ClassVar[frozenset[str]] = frozenset()
    scoring: ClassVar[Scoring] = Scoring()
    budget: int = 6
    longest: int = 5
    score: str = "error"
    discount: float = 0.0

    def steps(self):
        yield Step({0: 3}, {0: Start()})
        yield Step({0: 4}, keep=((0, 3),))
        evidence = yield Step({1: 5}, {1: Start((0, 3), bold)}, keep=((0, 3),))
        return (0, 3) if 1 in evidence.ended else (1, 5)


def bold(space, arm, rng):
    return {**arm.client, "lr": 1.0}, arm.server


def going_on(store, **changed):
    space = ft.Space({"lr": ft.Float(0.05, 0.1)})
    return study(store, space=space, fedex=None, schedule=Bold(), **changed)


def test_a_step_whose_arms_have_all_failed_does_not_lose_the_model_of_another_arm(tmp_path):
    """The schedule is told that they have ended; what it has kept wins."""
    done = going_on(tmp_path)
    assert done.winner == (0, 3)
    assert list(done.journal.failed) == [1]
    assert done.best.client["lr"] <= 0.1
    before = toys.files(tmp_path)
    assert going_on(tmp_path).winner == (0, 3)
    assert toys.files(tmp_path) == before


@pytest.mark.parametrize("at", [2, 5, 6, 7])
def test_a_study_that_has_gone_on_without_them_can_be_stopped_and_continued(tmp_path, at):
    told = []

    def stop(event):
        told.append(event)
        if len(told) == at:
            raise Crash

    with pytest.raises(Crash):
        going_on(tmp_path / "study", watch=stop)
    going_on(tmp_path / "study")
    going_on(tmp_path / "whole")
    assert_same(tmp_path / "study", tmp_path / "whole")


class Tired(toys.Softmax):
    """Its training fails once the model has seen so many batches."""

    most = 7

    @contextmanager
    def training(self, data, config, seed):
        yield _TiredTrainer(self, data)


class _TiredTrainer(toys._Trainer):
    def gradient(self, w, rows, key=None):
        if w[-1] >= self._task.most:
            raise RuntimeError(f"{w[-1]:g} batches are enough")
        return super().gradient(w, rows, key)


def tired(most=7):
    model = Tired()
    model.most = most
    return ft.Simulation(model, toys.clients(), "tired")


SLOW = ft.Space({"lr": ft.Float(0.01, 0.1, log=True), "epochs": 1, "batch": 64})  # one batch a round


def wearing(schedule):
    """Return a study whose arms all fail in their eighth round."""
    settings = {"space": SLOW, "method": ft.methods.fedavg, "fedex": None, "failing": "end"}
    return toys.tune(problem=tired(), schedule=schedule, **settings)


def test_survivors_that_all_fail_leave_their_last_model():
    done = wearing(ft.halving(30, 10, 2, 2))
    assert len(done.journal.failed) == 2
    assert done.winner[0] in done.journal.failed
    assert done.winner[1] == 7
    assert done.best.score < 0.7
    assert np.isfinite(done.best.model).all()


@pytest.mark.parametrize("seed", range(4))
def test_of_survivors_that_all_fail_the_best_wins(seed):
    settings = {"space": SLOW, "method": ft.methods.fedavg, "fedex": None, "failing": "end", "seed": seed}
    done = toys.tune(problem=tired(), schedule=ft.halving(30, 10, 2, 2), **settings)
    last = {arm: done.journal.records(arm, 7)[-1].error_after for arm in done.journal.failed}
    assert len(last) == 2
    assert last[done.winner[0]] == min(last.values())


def test_where_there_is_no_other_arm_the_error_says_so():
    with pytest.raises(ClientError, match="every arm has failed; the first: arm 0, round 8"):
        wearing(ft.random_search(20, 10))


def test_a_budget_keeps_the_model_that_it_had():
    """Its only arm fails, and so does whatever goes on from its models."""
    settings = {"recipe": ft.auto(40, arms=1), "cohort": 3, "failing": "end", "workers": 1, "progress": False}
    done = ft.tune(tired(20), SLOW, include=[{"client": {"lr": 0.1, "epochs": 1, "batch": 64}}], **settings)
    assert set(done.journal.failed) == set(done.journal.arms)
    assert done.winner[1] > 15
    assert done.best.score < 0.5


def test_a_repeat_of_the_last_rounds_that_fails_does_not_end_a_budget(tmp_path, monkeypatch):
    """They are trained again with a third of the step, which these clients do not bear."""
    settings = {"recipe": ft.auto(60), "cohort": 3, "failing": "end", "workers": 1, "progress": False}
    include = [{"client": {"lr": 0.1, "epochs": 1, "batch": 64}}]
    for _ in range(2):
        done = ft.tune(timid(), SLOW, include=include, store=tmp_path, **settings)
        assert done.finished
        assert done.winner[0] not in done.journal.failed
        assert [done.journal.arms[arm].client["lr"] for arm in done.journal.failed] == [pytest.approx(0.1 / 3)]


def timid():
    return ft.Simulation(Timid(), toys.clients(), "timid")


class Timid(toys.Softmax):
    """Its training fails with small steps."""

    @contextmanager
    def training(self, data, config, seed):
        if config["lr"] < 0.05:
            raise RuntimeError(f"nothing moves with lr {config['lr']:.3f}")
        with super().training(data, config, seed) as trainer:
            yield trainer


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
