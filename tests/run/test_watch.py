"""Watchers see every line of the journal once, in its order; a person sees how far a study is."""

from __future__ import annotations

import io
import math
import os
import re
import signal
import sys
import types
from collections import Counter
from dataclasses import replace

import pytest

import fedtuner as ft
import toys
from crashes import Evolving
from fedtuner.core import schedule
from fedtuner.core.store import Begun, Done, Eliminated, Evaluated, Joined, Note, Started, Won
from fedtuner.errors import Interrupted
from fedtuner.run import saving, watch
from fedtuner.run.executors import worker
from fedtuner.run.store import Folder, InMemory
from fedtuner.run.watch import Status, showing, stoppable
from fedtuner.run.words import duration

# Other tests may have left threads of libraries in this process; the workers do not use them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Crowd(ft.Simulation):
    """Clients that come one by one, whenever somebody looks; and one thing goes wrong for each of them."""

    def __init__(self) -> None:
        super().__init__(toys.Softmax(), toys.clients(), "crowd")
        self.came: list[str | int] = []
        self.wrong: list[Note] = []

    def met(self):
        if len(self.came) < len(self.clients):
            self.came.append(self.clients[len(self.came)].id)
            self.wrong.append(Note("late", "too late", client=self.came[-1]))
        return self.came

    def recall(self, ids, codes=None):
        self.came = list(ids)

    def notes(self):
        wrong, self.wrong = self.wrong, []
        return wrong


def lines(store):
    return list(map(repr, store.events()))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("save", [-1.0, 2.0], ids=["often", "rarely"])
@pytest.mark.parametrize("schedule", [toys.SCHEDULE, Evolving()], ids=["halving", "children"])
@pytest.mark.parametrize("stores", [Folder, lambda path: InMemory()], ids=["folder", "memory"])
def test_watchers_are_told_the_lines_of_the_journal(tmp_path, monkeypatch, workers, save, schedule, stores):
    monkeypatch.setattr(saving, "_SAVE", save)
    monkeypatch.setattr(worker, "_SHIP", save)
    seen, store = [], stores(tmp_path / "s")
    study = toys.tune(problem=Crowd(), store=store, watch=seen.append, workers=workers, schedule=schedule)
    study.evaluate()
    assert list(map(repr, seen)) == lines(store)
    counted = Counter(type(event) for event in seen)
    arms, rounds = len(study.journal.arms), study.rounds_used
    assert counted == {Begun: 1, Started: arms, Done: rounds, Eliminated: arms - 1, Won: 1, Evaluated: 1, Joined: 6}
    assert isinstance(seen[0], Begun)
    assert [type(event) for event in seen if isinstance(event, (Won, Evaluated))] == [Won, Evaluated]
    done = {}
    for event in seen:
        if isinstance(event, Started):
            done[event.arm.id] = (event.arm.parent or (0, 0))[1]
        elif isinstance(event, Done):
            done[event.record.arm] += 1
            assert event.record.round == done[event.record.arm]
        elif isinstance(event, Eliminated):
            assert event.round == done[event.arm]
    assert [event.ids for event in seen if isinstance(event, Joined)] == [(f"phone{i}",) for i in range(6)]


def test_a_watcher_is_told_what_is_on_disk(tmp_path):
    """When it is called, the line is written: a kill cannot take back what it saw."""
    count = 0

    def look(event):
        nonlocal count
        count += 1
        assert repr(event) in lines(Folder(tmp_path / "s"))

    toys.tune(store=tmp_path / "s", watch=look)
    assert count > 30


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_after_a_resume_only_new_events_are_told(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(watch, "_MOMENT", 0.0)
    lives = []
    for at in (4, 13, 22, None):
        lives.append([])
        asked = []

        def stop(status, at=at, asked=asked):
            if at is not None and status.used >= at and not asked:
                asked.append(True)
                os.kill(os.getpid(), signal.SIGINT)

        try:
            toys.tune(store=tmp_path / "s", watch=lives[-1].append, workers=workers, progress=stop)
        except Interrupted:
            assert at is not None
    assert len(lives[0]) < sum(map(len, lives))
    assert [repr(event) for life in lives for event in life] == lines(Folder(tmp_path / "s"))
    again = []
    toys.tune(store=tmp_path / "s", watch=again.append)
    assert again == []  # it is finished


def test_a_watcher_that_fails_stops_the_study_and_loses_nothing(tmp_path):
    seen = []

    def look(event):
        seen.append(event)
        if len(seen) == 12:
            raise ZeroDivisionError("in the watcher")

    for _ in range(2):
        seen.clear()
        with pytest.raises(ZeroDivisionError, match="in the watcher"):
            toys.tune(store=tmp_path / "s", watch=look)
    expected = toys.tune()
    assert toys.tune(store=tmp_path / "s").history == expected.history


def test_the_untuned_default_is_not_watched():
    seen = []
    study = toys.tune(watch=seen.append)
    count = len(seen)
    ft.untuned(study, progress=False)
    assert len(seen) == count


def test_notes_go_to_the_log_and_not_to_watchers(tmp_path):
    seen, store = [], InMemory()
    toys.tune(problem=Crowd(), store=store, watch=seen.append)
    assert [note.client for note in store.notes] == [f"phone{i}" for i in range(6)]
    assert not any(isinstance(event, Note) for event in seen)


def test_who_came_is_recalled_when_a_study_is_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "_MOMENT", 0.0)

    def stop(status):
        if status.used == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        toys.tune(problem=Crowd(), store=tmp_path / "s", progress=stop)
    crowd, seen = Crowd(), []
    toys.tune(problem=crowd, store=tmp_path / "s", watch=seen.append)
    assert 0 < sum(isinstance(event, Joined) for event in seen) < 6
    assert crowd.came == [f"phone{i}" for i in range(6)]


# What a person sees


@pytest.mark.slow
@pytest.mark.parametrize("discount", [0.0, 0.9])
def test_what_a_status_costs_does_not_grow_with_the_rounds(monkeypatch, discount):
    """A status after every round: four times the rounds are four times the records that are read, not sixteen."""
    monkeypatch.setattr(watch, "_MOMENT", 0.0)
    read, really, shown = [], schedule.value_of, []
    monkeypatch.setattr(schedule, "value_of", lambda *a: read.append(a) or really(*a))

    def reads(rounds):
        read.clear()
        toys.tune(schedule=ft.random_search(rounds, rounds, discount=discount), progress=shown.append)
        return len(read)

    few, many = reads(30), reads(120)
    assert len(shown) >= 150
    assert few >= 30
    assert many <= 5 * few


@pytest.mark.slow
@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("target", ["global", "personalized"])
def test_a_running_score_is_the_score(discount, target):
    """Also where nobody validated, where a loss was infinite, and where an arm has diverged and recovered."""
    records = list(toys.tune().history[:8])
    records[1] = replace(records[1], loss_before=math.inf, loss_after=math.inf)
    records[3] = replace(
        records[3], loss_before=math.nan, loss_after=math.nan, error_before=math.nan, error_after=math.nan
    )
    records[5] = replace(records[5], diverged=True)
    for metric in schedule.METRICS:
        scoring, at = schedule.Scoring(metric, discount), 0
        running = schedule.RunningScore(scoring, target)
        assert running.value == math.inf
        for until in (1, 2, 3, 4, 6, 8):
            running.add(records[at:until])
            at = running.rounds
            assert at == until
            assert running.value == pytest.approx(scoring.score(records[:until], target)[0])


STATUS = Status(used=7, planned=30, alive=2, arms=4, best=0.25, left=75.0)


def test_a_status_in_words():
    assert str(STATUS) == "7/30 rounds, 2 of 4 arms alive, best error 0.25, 1 min 15 s left"
    assert str(Status(0, 30, 4, 4, None, None)) == "0/30 rounds, 4 of 4 arms alive, ? left"
    told = replace(STATUS, arm=3, metric="personalized error", rate=True)
    assert str(told) == "7/30 rounds, 2 of 4 arms alive, best personalized error 25.0 % (arm 3), 1 min 15 s left"


def test_the_best_so_far_stays_when_an_arm_becomes_worse(monkeypatch):
    monkeypatch.setattr(watch, "_MOMENT", 0.0)
    statuses = []
    study = toys.tune(fedex=None, schedule=ft.random_search(12, 12), progress=statuses.append)
    errors = [r.error for r in study.history]
    assert errors != sorted(errors, reverse=True)  # it does become worse
    best = [s.best for s in statuses if s.best is not None]
    assert best == sorted(best, reverse=True)
    assert best[-1] == min(errors)


@pytest.mark.parametrize(("changed", "rate"), [({}, True), ({"schedule": replace(toys.SCHEDULE, score="loss")}, False)])
def test_a_status_says_which_metric_and_the_best_so_far(monkeypatch, changed, rate):
    """Not the latest: the lowest of the scores that arms were compared by, and whose it is."""
    monkeypatch.setattr(watch, "_MOMENT", 0.0)
    told = []
    study = toys.tune(progress=told.append, **changed)
    assert {(status.metric, status.rate) for status in told} == {(f"personalized {study.schedule.score}", rate)}
    compared = [status.best for status in told if status.used >= 20]
    assert compared == sorted(compared, reverse=True)
    rungs = [e.score[0] for e in (*study.journal.eliminated.values(), study.journal.won)]
    assert told[-1].best <= min(rungs)
    assert told[-1].arm in study.journal.arms


def test_a_bar_in_a_notebook(monkeypatch):
    """One place below the cell, which changes; not before there is something to show."""
    shown = []

    class Place:
        def update(self, bar):
            shown.append(bar)

    def display(bar, display_id):
        shown.append(bar)
        return Place()

    notebook = types.ModuleType("IPython")
    notebook.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    notebook.display = types.ModuleType("IPython.display")
    notebook.display.HTML, notebook.display.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook.display)
    with showing(None, "tuning", io.StringIO()) as show:
        assert shown == []
        show(STATUS)
        show(replace(STATUS, used=8))
    bar = re.compile(r'<progress value="(\d+)" max="30"></progress> tuning: \d+/30 rounds, ')
    assert [bar.match(html)[1] for html in shown] == ["7", "8"]
    with showing(False, "tuning", io.StringIO()) as show:
        show(STATUS)
    assert len(shown) == 2


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599, "59 min 59 s"), (3600, "1 h 0 min"),
        (1e5, "27 h 46 min"),
    ],
)  # fmt: skip
def test_durations(seconds, said):
    assert duration(seconds) == said


def test_lines_are_few_and_the_last_is_the_end(monkeypatch):
    out, now = io.StringIO(), 0.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now)
    with showing(True, "tuning", out) as show:
        for used in range(31):
            show(Status(used, 30, 2, 4, 0.25, 1.0))
            now += 1.0
        show(Status(30, 30, 2, 4, 0.25, 0.0))
    assert [line.split("/")[0] for line in out.getvalue().splitlines()] == [
        f"tuning: {n}" for n in (0, 5, 10, 15, 20, 25, 30)
    ]


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (150, "123/2000 rounds, 27 of 27 arms alive, best personalized error 12.3 % (arm 17), 1 min 40 s left"),
        (90, "123/2000 rounds, best personalized error 12.3 % (arm 17), 1 min 40 s left"),
        (80, "123/2000 rounds, best personalized error 12.3 %, 1 min 40 s left"),
        (60, "123/2000 rounds, best 12.3 %, 1 min 40 s left"),
        (45, "123/2000 rounds, 1 min 40 s left"),
    ],
)
def test_a_line_fits_its_terminal(width, said, monkeypatch):
    """The label and the time left stay; the bar goes first."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", str(width))
    out, status = Terminal(), watch.Status(123, 2000, 27, 27, 0.123, 100, 17, "personalized error", True)
    with watch.showing(None, "retraining", out) as show:
        show(status)
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "\n")
    (line,) = {one.strip() for one in drawn.splitlines() if "123/2000" in one}
    assert line.startswith("retraining ")
    assert line.endswith(said)
    assert ("\u2501" in line) == (width > 100)


def test_a_bar_where_there_is_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    with showing(None, "tuning", out) as show:
        assert not out.getvalue()  # nothing before there is something to show
        show(STATUS)
    assert "tuning" in out.getvalue()


def test_the_first_signal_asks_and_the_second_interrupts(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with stoppable() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        with pytest.raises(Interrupted, match="stopped at once; run the same command again to continue"):
            os.kill(os.getpid(), signal.SIGINT)


def test_only_what_was_stopped_ends_without_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with stoppable():
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(SystemExit) as end:
        sys.excepthook(Interrupted, Interrupted("stopped"), None)
    assert (end.value.code, capsys.readouterr().err) == (3, "fedtuner: stopped\n")
    for error in (ValueError("wrong"), KeyboardInterrupt("elsewhere")):
        sys.excepthook(type(error), error, None)
        assert capsys.readouterr().err == f"{type(error).__name__}: {error}\n"


def test_a_hook_for_exceptions_of_ones_own_stays(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", print)
    with stoppable():
        os.kill(os.getpid(), signal.SIGINT)
    assert sys.excepthook is print


def test_signals_that_are_not_ours_are_left_alone():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stoppable(ours=False) as stop:
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        assert not stop()
