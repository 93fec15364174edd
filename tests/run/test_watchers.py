"""Watchers by kind of event; studies that end early."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import fedtuner as ft
import toys
from crashes import assert_same
from fedtuner.core.schedule import outline
from fedtuner.core.store import Done, Eliminated
from fedtuner.errors import Interrupted, SpecError
from fedtuner.run import watch
from fedtuner.schedules import Patient, duel
from fedtuner.testing import ScheduleLaws
from fedtuner.testing.schedules import constant, play


class Told(ft.watchers.Watcher):
    """Keeps all that it is told."""

    def __init__(self):
        self.opened, self.told = [], []

    def on_open(self, journal):
        self.opened.append(journal.rounds_used)

    def __getattribute__(self, name):
        if name.startswith("on_") and name != "on_open":
            return lambda event: self.told.append((name, event))
        return super().__getattribute__(name)


def test_a_watcher_is_told_by_kind(tmp_path):
    """In the order of the journal; a rung is what was eliminated together, told with the next event."""
    watcher, plain = Told(), []
    study = toys.tune(watch=[watcher, plain.append])
    study.evaluate()
    names = [name for name, _ in watcher.told]
    assert names[:2] == ["on_study", "on_arm"]
    assert names[-2:] == ["on_end", "on_evaluated"]
    assert [event for name, event in watcher.told if name != "on_rung"] == plain
    assert [event for name, event in watcher.told if name == "on_round"] == [e for e in plain if isinstance(e, Done)]
    rungs = [event for name, event in watcher.told if name == "on_rung"]
    assert [len(rung) for rung in rungs] == [2, 1]
    assert [event for rung in rungs for event in rung] == [e for e in plain if isinstance(e, Eliminated)]
    assert watcher.opened == [0, 30]


def test_a_watcher_with_nothing_to_say_hears_everything():
    silent = ft.watchers.Watcher()
    assert toys.tune(watch=silent).finished


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "watch = 3, but must be"),
        ("tensorboard", "watch = 'tensorboard', but must be"),
        ([print, 3], "watch = 3, but must be"),
        (Told, r"watch is the class Told, but must be an object: call it, Told\(\.\.\.\)"),
        ([print, Told], "watch is the class Told"),
    ],
)
def test_what_is_no_watcher_is_refused(given, said):
    with pytest.raises(SpecError, match=said):
        toys.tune(watch=given)


# Ends before the end


def test_after_a_timeout_the_best_arm_so_far_has_won(tmp_path, monkeypatch):
    """It is finished: the same call changes nothing, and extend goes on."""
    monkeypatch.setattr(watch, "_MOMENT", 0.0)
    clock = iter(range(10**6))
    monkeypatch.setattr(ft.run.study.time, "monotonic", lambda: next(clock))  # a second each time that it is asked
    study = toys.tune(store=tmp_path / "s", timeout=25)
    assert study.finished
    assert 0 < study.rounds_used < 30
    assert study.best.score == min(row["score"] for row in study.arms() if row["status"] == "won")
    before = toys.files(tmp_path / "s")
    again = toys.tune(store=tmp_path / "s")
    assert again.winner == study.winner
    assert toys.files(tmp_path / "s") == before
    assert again.resume_winner(2).rounds_used == 30 + 2  # the schedule is played to its end, then the winner goes on


@pytest.mark.slow
def test_after_a_timeout_the_rounds_that_were_left_can_be_had(tmp_path, monkeypatch):
    """Then it is the study that was never stopped; a study that has ended by itself stays as it is."""
    whole = toys.tune(store=tmp_path / "w")
    monkeypatch.setattr(watch, "_MOMENT", 0.0)
    clock = iter(range(10**6))
    with monkeypatch.context() as patched:
        patched.setattr(ft.run.study.time, "monotonic", lambda: next(clock))
        study = toys.tune(store=tmp_path / "s", timeout=25)
    assert study.rounds_used < 30
    assert study.extend(30).rounds_used == 30
    for one in (study, ft.load(tmp_path / "s"), toys.tune(store=tmp_path / "s")):
        assert one.winner == whole.winner
        assert one.best.model.tobytes() == whole.best.model.tobytes()
        assert one.arms() == whole.arms()
    before = toys.files(tmp_path / "s")
    assert study.extend(30).extend(30).winner == whole.winner
    assert toys.files(tmp_path / "s") == before
    before = toys.files(tmp_path / "w")
    assert whole.extend(30).rounds_used == 30
    assert toys.files(tmp_path / "w") == before
    assert study.extend(60).winner == whole.extend(60).winner


def test_a_timeout_before_the_first_round_interrupts():
    with pytest.raises(
        Interrupted, match="timeout = 0 was over before any round was done, so there is no winner: give"
    ):
        toys.tune(timeout=0)
    with pytest.raises(SpecError, match="timeout = -1, but must be"):
        toys.tune(timeout=-1)


@pytest.mark.slow
def test_a_study_ends_where_no_score_improves(tmp_path):
    """The same for any number of workers, and after a stop at any round."""
    whole = toys.tune(store=tmp_path / "w", patience=4)
    assert whole.rounds_used < 30
    assert whole.schedule == Patient(toys.SCHEDULE, 4)
    assert_same(toys.tune(store=tmp_path / "2", patience=4, workers=2).path, whole.path)
    for at in (3, 9):

        def stop(event, at=at, seen=[]):  # noqa: B006
            seen += [event] if isinstance(event, Done) else []
            if len(seen) == at:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            toys.tune(store=tmp_path / str(at), patience=4, watch=stop)
        assert_same(toys.tune(store=tmp_path / str(at), patience=4).path, whole.path)
    patient = toys.tune(patience=1000)
    plain = toys.tune()
    assert (patient.winner, patient.best.model.tobytes()) == (plain.winner, plain.best.model.tobytes())
    assert whole.extend(60).rounds_used <= 60


@pytest.mark.slow
class TestPatience(ScheduleLaws):
    def schedule(self):
        return Patient(duel(100), 1000)  # longer than the schedule: nothing changes


def test_patience_counts_rounds_of_all_arms():
    """Scores that never change improve once, at the first look; after six rounds more it ends."""
    schedule = Patient(ft.random_search(30, 10), 6)
    played = play(schedule, constant(0.5))
    assert played.spent == 12  # three arms, two rounds each at a look
    assert played.winner == (0, 4)
    assert play(schedule, constant(math.nan)).spent == 6
    assert outline(replace(schedule, patience=100)).cost == 30
    with pytest.raises(SpecError, match="patience = 0, but must be a whole number >= 1"):
        Patient(ft.halving(), 0)
