"""A study that is killed or stopped continues to the same end, to the bit."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import safetensors.numpy

import fedtuner as ft
import toys
from crashes import Crash, Crashing, Evolving, Snapshots, assert_same
from fedtuner.core import memory
from fedtuner.core.schedule import Start
from fedtuner.core.store import Done
from fedtuner.errors import Interrupted, StoreError
from fedtuner.report.diff import differences
from fedtuner.run import saving, session, watch
from fedtuner.run.executors import Serial, worker
from fedtuner.run.reading import read
from fedtuner.run.store import Folder
from fedtuner.run.store.lines import decode

# Other tests may have left threads of libraries in this process; neither workers nor forks use them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study that nothing happened to."""
    path = tmp_path_factory.mktemp("finished") / "s"
    toys.tune(store=path).evaluate()
    return path


@pytest.fixture
def folder(tmp_path, finished):
    """A copy of the finished study, to be damaged."""
    shutil.copytree(finished, tmp_path / "s")
    return tmp_path / "s"


def go(path, workers=1):
    done = toys.tune(store=path, workers=workers)
    done.evaluate()
    return done


def journal_of(path):
    return read(Folder(path), str(path))


# Workers


@pytest.mark.slow
@pytest.mark.parametrize("several", [(2,), pytest.param((3, 4), marks=pytest.mark.slow)], ids=["2", "3 or 4"])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"fedex": None},
        {"method": ft.methods.fedavg, "cohorts": "shared", "target": "global"},
        pytest.param({"schedule": ft.hyperband(80, 8, eta=2, score="loss", discount=0.5)}, marks=pytest.mark.slow),
        {"space": ft.Space(client={"lr": 0.5}, server={"lr": [1.0, 3e38]}), "schedule": ft.random_search(30, 5)},
        {"schedule": Evolving()},
        {"tuner": ft.tuners.Kernel(k=4, eps=0.5)},
        {"tuner": ft.tuners.Gaussian(), "schedule": Evolving()},
    ],
    ids=["memory", "plain", "shared", "hyperband", "diverging", "children", "kernel", "gaussian"],
)
def test_the_number_of_workers_changes_nothing(tmp_path, changed, several):
    studies = {n: toys.tune(store=tmp_path / str(n), workers=n, **changed) for n in (1, *several)}
    for s in studies.values():
        s.evaluate("test")
        s.evaluate("valid", "sample", "loss")
    for n in several:
        assert studies[n].history == studies[1].history
        assert studies[n].winner == studies[1].winner
        assert studies[n].best.model.tobytes() == studies[1].best.model.tobytes()
        assert_same(tmp_path / str(n), tmp_path / "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule", [toys.SCHEDULE, pytest.param(Evolving(), marks=pytest.mark.slow)], ids=["halving", "children"]
)
def test_where_memory_is_kept_changes_nothing(tmp_path, monkeypatch, schedule):
    """In the states or in files, with or without a store, for any number of workers."""
    whole = toys.tune(schedule=schedule)
    expected = whole.history, whole.evaluate(), whole.best.model.tobytes()
    monkeypatch.setattr(memory, "LIMIT", 0)
    for workers in (1, 2):
        for path in (None, tmp_path / str(workers)):
            spilled = toys.tune(store=path, workers=workers, schedule=schedule)
            assert (spilled.history, spilled.evaluate(), spilled.best.model.tobytes()) == expected
    assert_same(tmp_path / "2", tmp_path / "1")
    kept = [name for name in toys.files(tmp_path / "1") if name.startswith("memory/")]
    needed = {winner := whole.winner[0], *(whole.journal.arms[winner].parent or ())[:1]}
    assert {int(name.split("/")[1]) for name in kept} == needed  # of those that are out nothing is left
    assert len(kept) == 6  # one file a client


def test_a_store_changes_nothing(finished):
    kept, free = go(finished), toys.tune()
    assert free.history == kept.history
    assert free.winner == kept.winner
    assert free.best.model.tobytes() == kept.best.model.tobytes()
    assert free.evaluate() == kept.evaluate()


def test_a_finished_study_is_not_run_again(folder, monkeypatch):
    """No file of its folder changes, not even its time."""
    before, times = toys.files(folder), modified(folder)
    monkeypatch.setattr(session, "open_executor", pytest.fail)
    again = go(folder, workers=2)
    assert again.rounds_used == 30
    assert again.ask() is None
    assert toys.files(folder) == before
    assert modified(folder) == times


def modified(folder):
    return {str(f.relative_to(folder)): f.stat().st_mtime_ns for f in folder.rglob("*") if f.name != "lock"}


def test_a_finished_study_with_large_memory_is_not_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "LIMIT", 0)
    toys.tune(store=tmp_path / "s", schedule=Evolving())
    before, times = toys.files(tmp_path / "s"), modified(tmp_path / "s")
    toys.tune(store=tmp_path / "s", schedule=Evolving())
    assert toys.files(tmp_path / "s") == before
    assert modified(tmp_path / "s") == times


# Killed at any change of the folder


HALVING = {"schedule": ft.halving(budget=6, longest=3, eta=2, eliminations=1)}  # two arms of three rounds
CHILDREN = {"schedule": Evolving(1)}  # five arms, ten rounds
OFTEN, RARELY = -1.0, 2.0  # seconds between saves


@pytest.fixture
def spilled(request, monkeypatch):
    """Keep what clients remember in files."""
    if request.param:
        monkeypatch.setattr(memory, "LIMIT", 0)
    return request.param


WAYS = pytest.mark.parametrize(
    ("spilled", "save", "changed"),
    [
        (False, OFTEN, HALVING),
        (False, RARELY, HALVING),
        (True, OFTEN, HALVING),
        (False, RARELY, CHILDREN),
        pytest.param(True, OFTEN, CHILDREN, marks=pytest.mark.slow),
    ],
    ids=["often", "rarely", "in files", "children", "children in files"],
    indirect=["spilled"],
)


def run(store, **changed):
    """A whole study, and its evaluation."""
    toys.tune(store=store, **changed).evaluate()


@pytest.mark.slow
@WAYS
def test_killed_at_any_change_of_the_folder(tmp_path, monkeypatch, spilled, save, changed):
    """What a kill leaves behind at each change of the folder is continued to the same end."""
    monkeypatch.setattr(saving, "_SAVE", save)
    whole, copies = tmp_path / "whole", tmp_path / "copies"
    files = Snapshots(whole, copies)
    run(Folder(whole, files), **changed)
    assert any(name.startswith("memory/") for name in toys.files(whole)) == spilled
    left = sorted(copies.iterdir())
    assert files.changes >= len(left) > 20
    for path in left:
        watched = []
        run(path, watch=watched.append, **changed)
        assert_same(path, whole)
        redone = [(e.record.arm, e.record.round) for e in watched if isinstance(e, Done)]
        assert len(redone) == len(set(redone)), path.name
        shutil.rmtree(path)


@pytest.mark.slow
def test_failing_at_any_change_of_the_folder(tmp_path, monkeypatch):
    """As when killed, but the process lives on: nothing more is written, and the folder is free."""
    run(tmp_path / "whole", **HALVING)
    for n in itertools.count(1):
        try:
            run(Folder(tmp_path / str(n), Crashing(n)), **HALVING)
        except Crash:
            run(tmp_path / str(n), **HALVING)
            assert_same(tmp_path / str(n), tmp_path / "whole")
        else:
            break
    assert n > 25


@pytest.mark.slow
def test_killed_again_and_again(tmp_path, monkeypatch):
    """Now and then a little further, in files and in states, and still the same end."""
    monkeypatch.setattr(memory, "LIMIT", 0)
    monkeypatch.setattr(saving, "_SAVE", OFTEN)
    run(tmp_path / "whole", **CHILDREN)
    for seed in range(3):
        rng, crashed, path = random.Random(seed), 0, tmp_path / str(seed)
        while True:
            try:
                run(Folder(path, Crashing(rng.randint(1, 60))), **CHILDREN)
            except Crash:
                crashed += 1
            else:
                break
        assert crashed > 5
        assert_same(path, tmp_path / "whole")


def test_a_cut_is_noted_in_the_log(tmp_path):
    with pytest.raises(Crash):
        run(Folder(tmp_path / "s", Crashing(9, "within journal")), **HALVING)
    assert not (tmp_path / "s" / "log.jsonl").exists()
    run(tmp_path / "s", **HALVING)
    [note] = map(json.loads, (tmp_path / "s" / "log.jsonl").read_text().splitlines())
    assert note["kind"] == "cut"
    assert re.fullmatch(r"an unfinished flush of \d+ bytes was cut off the journal's end", note["text"])
    assert note["time"] == pytest.approx(time.time(), abs=60)


def test_states_that_no_line_names_are_deleted_and_files_of_others_are_not(folder):
    stray = ["9-5.safetensors", "2-7.safetensors", "1-10.safetensors.123.part"]
    for name in (*stray, "notes.txt", "best.safetensors"):
        (folder / "states" / name).write_text("stray")
    go(folder)
    left = {f.name for f in (folder / "states").iterdir()}
    assert {"notes.txt", "best.safetensors"} <= left
    assert not left & set(stray)


# SIGKILL


def unnamed(path):
    """The states that no line names."""
    events = list(Folder(path).events())
    named = {f"{e.record.arm}-{e.record.round}.safetensors" for e in events if isinstance(e, Done) and e.state}
    return {f.name for f in (path / "states").iterdir()} - named


def half_written(path):
    return [name for name in unnamed(path) if name.endswith(".part")]


def unfinished(path):
    data = (path / "journal.jsonl").read_bytes()
    return len(data) - decode(data, str(path))[1]


def superseded(path):
    kept = journal_of(path)
    return [arm for arm in kept.arms if len(list((path / "states").glob(f"{arm}-*"))) > 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "change", "left"),
    [
        (1, "within journal", unfinished),
        (3, r"within \d+-\d+\.safetensors", half_written),
        (4, r"before \d+-\d+\.safetensors", journal_of),
        (8, "before journal", unnamed),
        (12, "within journal", unfinished),
        (3, "remove", superseded),
    ],
    ids=["the first line", "within a state", "before a state", "between state and line", "within a line", "old states"],
)
def test_killed(tmp_path, finished, n, change, left):
    files = Crashing(n, change, toys.die)
    assert toys.forked(lambda: often(lambda: run(Folder(tmp_path / "s", files)))) == -signal.SIGKILL
    assert left(tmp_path / "s")
    go(tmp_path / "s")
    assert_same(tmp_path / "s", finished)


def often(work):
    """Do something in a fork that saves each round."""
    saving._SAVE = OFTEN
    work()


DRIVER = """
import sys, toys
from fedtuner.core import memory
from fedtuner.report.diff import differences
from fedtuner.run import saving
from fedtuner.run.executors import Serial, worker
worker._SHIP = saving._SAVE = 0.05
if len(sys.argv) > 4:
    worker.end_with_parent = lambda: None  # as where there is no Linux
memory.LIMIT = int(sys.argv[3])
print("begun", flush=True)
toys.tune(store=sys.argv[1], workers=int(sys.argv[2])).evaluate()
"""


def drive(path, workers, limit=memory.LIMIT, *more, **environment):
    command = [sys.executable, "-c", DRIVER, str(path), str(workers), str(limit), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=toys.environment(**environment))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_the_driver_is_killed_at_a_random_moment(tmp_path, finished, seed, workers):
    rng = random.Random(seed)
    for _ in range(3):
        with drive(tmp_path / "s", workers, TOY_NAP="0.01") as driver:
            driver.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.6))  # the study takes about a second
            driver.kill()
    go(tmp_path / "s", workers)
    assert_same(tmp_path / "s", finished)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("elsewhere",)], ids=["Linux", "elsewhere"])
def test_orphaned_workers_end(tmp_path, finished, more):
    pids = tmp_path / "pids"
    pids.mkdir()
    with drive(tmp_path / "s", 2, memory.LIMIT, *more, TOY_NAP="0.02", TOY_PIDS=str(pids)) as driver:
        toys.until(lambda: len(list(pids.iterdir())) == 2)
        workers = [int(f.name) for f in pids.iterdir()]
        assert driver.pid not in workers
        assert all(map(toys.running, workers))
        driver.kill()
    toys.until(lambda: not any(map(toys.running, workers)))
    go(tmp_path / "s")
    assert_same(tmp_path / "s", finished)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker ends after its round")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_driver_in_the_middle_of_a_client(tmp_path, how):
    """A client that takes an hour; SIGTERM comes a second time, as the driver waits for the rounds under way."""
    pids = tmp_path / "pids"
    pids.mkdir()
    with drive(tmp_path / "s", 2, TOY_NAP="3600", TOY_PIDS=str(pids)) as driver:
        toys.until(lambda: len(list(pids.iterdir())) == 2)
        driver.send_signal(how)
        if how == signal.SIGTERM:
            time.sleep(0.2)
            driver.send_signal(how)
    toys.until(lambda: not any(toys.running(int(f.name)) for f in pids.iterdir()), 5)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [memory.LIMIT, 0], ids=["in states", "in files"])
def test_a_study_can_continue_while_orphans_still_work(tmp_path, finished, monkeypatch, limit):
    """Workers that have not noticed yet hold no lock; all they write is what clients remember, which is the same."""
    pids = tmp_path / "pids"
    pids.mkdir()
    with drive(tmp_path / "s", 2, limit, "elsewhere", TOY_NAP="0.5", TOY_PIDS=str(pids)) as driver:
        toys.until(lambda: len(list(pids.iterdir())) == 2)
        driver.kill()
    workers = [int(f.name) for f in pids.iterdir()]
    assert any(map(toys.running, workers))
    monkeypatch.setattr(memory, "LIMIT", limit)
    go(tmp_path / "s")
    toys.until(lambda: not any(map(toys.running, workers)))
    found = differences(journal_of(tmp_path / "s"), journal_of(finished))
    assert {one.event for one in found} <= ({"state"} if limit == 0 else set())  # states refer to files, or do not


@pytest.mark.parametrize("ship", [0.0, pytest.param(2.0, marks=pytest.mark.slow)])
def test_a_killed_worker_is_replaced(tmp_path, monkeypatch, finished, ship):
    monkeypatch.setattr(worker, "_SHIP", ship)
    monkeypatch.setattr(saving, "_SAVE", ship)
    monkeypatch.setattr(watch, "_MOMENT", 0.0)
    killed = []

    def show(status):
        if status.used in (3, 9, 22) and status.used not in killed:
            killed.append(status.used)
            os.kill(random.Random(status.used).choice(multiprocessing.active_children()).pid, signal.SIGKILL)

    toys.tune(store=tmp_path / "s", workers=2, progress=show).evaluate()
    assert len(killed) >= 2
    assert_same(tmp_path / "s", finished)


# Ctrl-C


@pytest.fixture
def _every_status(monkeypatch):
    monkeypatch.setattr(watch, "_MOMENT", 0.0)


def interrupt_at(n, number=signal.SIGINT, times=1):
    left = times

    def show(status):
        nonlocal left
        while left and status.used >= n:
            left -= 1
            os.kill(os.getpid(), number)

    return show


@pytest.mark.usefixtures("_every_status")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("at", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 20, 29))])
def test_a_stopped_study_continues_to_the_same_end(tmp_path, monkeypatch, finished, at, workers, number):
    if workers > 1:
        monkeypatch.setenv("TOY_NAP", "0.005")
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    path = tmp_path / "s"
    if at < 29 or workers == 1:
        with pytest.raises(Interrupted) as stop:
            toys.tune(store=path, workers=workers, progress=interrupt_at(at, number))
        assert "of 30 rounds" in str(stop.value)
        assert f"kept in {path}: run the same command again to continue" in str(stop.value)
        kept = journal_of(path)
        assert kept.rounds_used >= at  # nothing that was finished is lost
        assert f"stopped after {kept.rounds_used} of" in str(stop.value)
        assert all(kept.saved_round(arm) == kept.round_of(arm) for arm in kept.arms if kept.own_records[arm])
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    monkeypatch.delenv("TOY_NAP", raising=False)
    go(path, workers)
    assert_same(path, finished)


@pytest.mark.usefixtures("_every_status")
def test_the_serial_study_stops_after_the_round(tmp_path):
    with pytest.raises(Interrupted, match="stopped after 7 of 30 rounds"):
        toys.tune(store=tmp_path / "s", progress=interrupt_at(7))


@pytest.mark.usefixtures("_every_status")
def test_stopping_without_a_store_says_that_nothing_is_kept():
    with pytest.raises(Interrupted, match="There is no store, so nothing is kept: give store="):
        toys.tune(progress=interrupt_at(7))


@pytest.mark.slow
@pytest.mark.usefixtures("_every_status")
@pytest.mark.parametrize("workers", [1, 2])
def test_the_second_interrupt_is_at_once(tmp_path, finished, workers):
    with pytest.raises(Interrupted, match="stopped at once"):
        toys.tune(store=tmp_path / "s", workers=workers, progress=interrupt_at(7, times=2))
    assert not multiprocessing.active_children()
    go(tmp_path / "s")
    assert_same(tmp_path / "s", finished)


def test_stopping_after_the_last_round_is_not_an_interruption(tmp_path, finished):
    toys.tune(store=tmp_path / "s", progress=interrupt_at(30)).evaluate()
    assert_same(tmp_path / "s", finished)


@pytest.mark.slow
def test_a_worker_that_dies_while_the_study_stops_takes_no_state_with_it(tmp_path, monkeypatch, finished):
    """Its rounds came, their state did not: the study is not further than its states."""
    monkeypatch.setenv("TOY_NAP", "0.02")
    monkeypatch.setattr(watch, "_MOMENT", 0.0)

    stopped = []

    def show(status):
        if status.used == 29 and not stopped:
            stopped.append(True)
            os.kill(os.getpid(), signal.SIGINT)
            for process in multiprocessing.active_children():
                os.kill(process.pid, signal.SIGKILL)

    try:
        toys.tune(store=tmp_path / "s", workers=2, progress=show)
    except Interrupted:
        kept = journal_of(tmp_path / "s")
        assert all(kept.saved_round(arm) == kept.round_of(arm) for arm in kept.arms if kept.own_records[arm])
    monkeypatch.undo()
    go(tmp_path / "s")
    assert_same(tmp_path / "s", finished)


def test_a_study_is_not_further_than_its_states(tmp_path):
    """Rounds may come before the state after them; if that never comes, they were not done."""
    asked = []

    class Stateless(Serial):
        def advance(self, work, stop):
            for progress in super().advance(work, never):
                yield replace(progress, state=None)
            asked.append(True)

    def never():
        return False

    settings = toys.settings(store=tmp_path / "s", executor=lambda round, blobs, workers: Stateless(round, blobs))
    del settings["progress"]
    study = ft.prepare(**settings)
    with session.Session(study.setup, study.problem, study.where, lambda: bool(asked)) as opened:
        opened.start({0: Start(), 1: Start()})
        with pytest.raises(Interrupted):
            opened.advance({0: 5, 1: 5})
        assert opened.latest(0).round == 0
    assert journal_of(tmp_path / "s").rounds_used == 0


def test_elsewhere_than_in_the_main_thread_nothing_is_caught():
    seen = []

    def look():
        with watch.stoppable() as stop:
            seen.append((signal.getsignal(signal.SIGINT), stop()))

    thread = threading.Thread(target=look)
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join()
    assert seen == [(before, False)]


# Rounds


@pytest.mark.usefixtures("_every_status")
def test_rounds_are_counted_once_over_all_runs(tmp_path):
    statuses = []
    with pytest.raises(Interrupted):
        toys.tune(store=tmp_path / "s", progress=interrupt_at(13))
    toys.tune(store=tmp_path / "s", progress=statuses.append)
    used = [s.used for s in statuses]
    assert used[0] in (13, 14)
    assert used == sorted(used)
    assert used[-1] == 30
    done = [(r.arm, r.round) for r in journal_of(tmp_path / "s").history()]
    assert len(set(done)) == len(done) == 30


@pytest.mark.usefixtures("_every_status")
def test_only_what_is_missing_is_computed_again(tmp_path, finished, monkeypatch):
    trained, really = [], toys.Softmax.training
    monkeypatch.setattr(toys.Softmax, "training", lambda *a: trained.append(1) or really(*a))
    with pytest.raises(Interrupted):
        toys.tune(store=tmp_path / "s", progress=interrupt_at(13))
    assert len(trained) == 3 * 13
    toys.tune(store=tmp_path / "s")
    assert len(trained) == 3 * 30


@pytest.mark.slow
@pytest.mark.usefixtures("_every_status")
def test_the_untuned_default_continues_too(tmp_path):
    whole = toys.tune(store=tmp_path / "a")
    ft.untuned(whole, progress=False).evaluate()
    other = toys.tune(store=tmp_path / "b")
    with pytest.raises(Interrupted, match="untuned: run the same command again"):
        ft.untuned(other, progress=interrupt_at(4))
    ft.untuned(other, progress=False).evaluate()
    assert_same(tmp_path / "b", tmp_path / "a")
    assert_same(tmp_path / "b" / "untuned", tmp_path / "a" / "untuned")


# Damage


def lines(path):
    return (path / "journal.jsonl").read_bytes().splitlines(keepends=True)


def rewrite(change):
    return lambda path: (path / "journal.jsonl").write_bytes(b"".join(change(lines(path))))


def flip(path):
    journal = bytearray((path / "journal.jsonl").read_bytes())
    journal[len(journal) // 2] ^= 1
    (path / "journal.jsonl").write_bytes(journal)


def rounds_of(found, arm):
    """The numbers of the lines of an arm's rounds."""
    return [n for n, line in enumerate(found) if b'"event":"round"' in line and b'"arm":%d,' % arm in line]


def without(found, n):
    return found[:n] + found[n + 1 :]


UNFINISHED = {
    "half a line": rewrite(lambda found: [*found[:-1], found[-1][:-37]]),
    "half a line more": rewrite(lambda found: [*found, found[5][:40]]),
    "a line that is damaged at the end": rewrite(lambda found: [*found, b"\0\0\0\n"]),
    "rounds without a state": rewrite(lambda found: [*found[: rounds_of(found, 2)[7]]]),
    "rounds without a state, and half a line": rewrite(
        lambda found: [*found[: rounds_of(found, 2)[7]], found[rounds_of(found, 2)[7]][:50]]
    ),
}


@pytest.mark.parametrize("damage", UNFINISHED)
def test_an_unfinished_flush_is_cut_off(folder, finished, damage):
    UNFINISHED[damage](folder)
    size = (folder / "journal.jsonl").stat().st_size
    events = len(list(Folder(folder).events()))
    assert (folder / "journal.jsonl").stat().st_size == size  # reading changes nothing
    opened = Folder(folder)
    opened.open()
    assert len(list(opened.events())) == events
    opened.close()
    assert (folder / "journal.jsonl").stat().st_size < size
    assert b"an unfinished flush" in (folder / "log.jsonl").read_bytes()


WRONG = {
    "a flipped bit": (flip, r"journal.jsonl, line \d+ is damaged \(its checksum is another\): restore the file"),
    "noise": (rewrite(lambda found: [*found[:9], b"\xff\xfe\n", *found[9:]]), "line 10 is damaged"),
    "half a line": (rewrite(lambda found: [*found[:9], found[9][:-30] + b"\n", *found[10:]]), "line 10 is damaged"),
    "an empty line": (rewrite(lambda found: [*found[:9], b"\n", *found[9:]]), "line 10 is damaged"),
    "a line twice": (
        rewrite(lambda found: [*found[:7], found[6], *found[7:]]),
        r"line 8 of the journal: round 2 of arm 0 comes after its round 2",
    ),
    "a line is missing": (
        rewrite(lambda found: without(found, rounds_of(found, 1)[2])),
        r"line \d+ of the journal: round 4 of arm 1 comes after its round 2",
    ),
    "an arm that has not started": (
        rewrite(lambda found: without(found, 2)), r"line \d+ of the journal: round 1 of arm 1, which has not started"
    ),
    "an arm that starts twice": (rewrite(lambda found: [*found, found[2]]), "arm 1 starts a second time"),
    "no beginning": (rewrite(lambda found: found[1:]), "line 1 of the journal: a study begins once, with the first"),
    "two beginnings": (rewrite(lambda found: [*found, found[0]]), "a study begins once, with the first line"),
}  # fmt: skip


@pytest.mark.parametrize("damage", WRONG)
def test_what_is_damaged_is_a_clear_error_and_stays_as_it_is(folder, damage):
    change, said = WRONG[damage]
    change(folder)
    before = toys.files(folder)
    for attempt in (lambda: go(folder), lambda: journal_of(folder)):
        with pytest.raises(StoreError, match=said) as error:
            attempt()
        assert str(folder) in str(error.value)
        assert "\n" not in str(error.value)
        assert toys.files(folder) == before
    with pytest.raises(StoreError, match=said):  # the lock is free again
        go(folder)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "emptied", "noise", "other", "a flipped bit", "missing"])
def test_a_damaged_state_is_a_clear_error(tmp_path, monkeypatch, how):
    monkeypatch.setattr(watch, "_MOMENT", 0.0)
    with pytest.raises(Interrupted):
        toys.tune(store=tmp_path / "s", progress=interrupt_at(8))
    file = tmp_path / "s" / "states" / "1-3.safetensors"
    whole = file.read_bytes()
    damaged = {
        "cut": whole[:-9], "emptied": b"", "noise": bytes(len(whole)), "other": safetensors.numpy.save({}),
        "a flipped bit": whole[:-1] + bytes([whole[-1] ^ 1]),
    }  # fmt: skip
    file.unlink() if how == "missing" else file.write_bytes(damaged[how])
    before = toys.files(tmp_path / "s")
    with pytest.raises(StoreError, match=r"1-3\.safetensors is missing or damaged \(.*\): restore it, or use another"):
        toys.tune(store=tmp_path / "s")
    assert toys.files(tmp_path / "s") == before
    file.write_bytes(whole)
    toys.tune(store=tmp_path / "s")


def test_damaged_states_are_named_together(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "_MOMENT", 0.0)
    with pytest.raises(Interrupted):
        toys.tune(store=tmp_path / "s", method=ft.methods.fedavg, progress=interrupt_at(22))  # after an elimination
    out = journal_of(tmp_path / "s").eliminated
    one, other = sorted({0, 1, 2, 3} - out.keys())
    for file in (tmp_path / "s" / "states").iterdir():
        file.write_bytes(b"half")
    said = rf"the states of arms {one}, {other} cannot be read; the first: .*{one}-\d+\.safetensors is missing or dama"
    with pytest.raises(StoreError, match=said):
        toys.tune(store=tmp_path / "s", method=ft.methods.fedavg)


def test_damaged_lines_are_named_together(folder):
    rewrite(lambda found: [line if n not in (3, 5, 9) else b"half\n" for n, line in enumerate(found)])(folder)
    with pytest.raises(StoreError, match=r"journal\.jsonl, lines 4, 6, 10 are damaged \(.*\): restore the file from a"):
        go(folder)
    rewrite(lambda found: [found[0], *[b"half\n"] * 20, *found[1:]])(folder)
    with pytest.raises(StoreError, match=r"lines 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 13 more are damaged"):
        go(folder)


def test_without_its_journal_a_study_is_an_error_and_stays_as_it_is(folder):
    """What is left of it says neither of which study it is nor that it is this one."""
    (folder / "journal.jsonl").unlink()
    before = toys.files(folder)
    with pytest.raises(StoreError, match=r"has states of a study, but no journal .*: restore journal.jsonl, or use an"):
        go(folder)
    assert toys.files(folder) == before
    (folder / "journal.jsonl").write_bytes(b"")
    with pytest.raises(StoreError, match="has states of a study, but no journal"):
        go(folder)


def test_a_study_without_its_journal_is_known_by_what_clients_remember(tmp_path):
    (tmp_path / "s" / "memory" / "1").mkdir(parents=True)
    (tmp_path / "s" / "memory" / "1" / "0-1.safetensors").write_bytes(b"theirs")
    with pytest.raises(StoreError, match="has states of a study, but no journal"):
        go(tmp_path / "s")


def test_a_study_that_was_stopped_before_its_first_line_begins(tmp_path, finished):
    (tmp_path / "s" / "states").mkdir(parents=True)
    (tmp_path / "s" / "states" / "-1-0.safetensors").write_bytes(b"half")  # the weights that all arms begin from
    (tmp_path / "s" / "states" / "-1-0.safetensors.7.part").write_bytes(b"half")
    (tmp_path / "s" / "memory").mkdir()
    go(tmp_path / "s")
    assert_same(tmp_path / "s", finished)


def test_the_lock_file_may_go(folder, finished):
    (folder / "lock").unlink()
    go(folder)
    assert_same(folder, finished)


def test_memory_that_is_missing_or_damaged_is_named_in_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "LIMIT", 0)
    monkeypatch.setattr(watch, "_MOMENT", 0.0)
    with pytest.raises(Interrupted):
        toys.tune(store=tmp_path / "s", progress=interrupt_at(8))
    files = sorted((tmp_path / "s" / "memory" / "1").iterdir())
    whole = [file.read_bytes() for file in files]
    files[0].unlink()
    files[1].write_bytes(b"half")
    files[-1].write_bytes(whole[-1][:-1])
    wrong = ", ".join(f"{file.parent.name}/{file.name}" for file in (files[0], files[1], files[-1]))
    before = toys.files(tmp_path / "s")
    with pytest.raises(StoreError, match="s/memory: what clients remember is missing or damaged: ") as error:
        toys.tune(store=tmp_path / "s")
    assert f"damaged: {wrong} (" in str(error.value)
    assert str(error.value).endswith("): restore these files, or use another store")
    assert toys.files(tmp_path / "s") == before
    for file in files:
        file.write_bytes(b"half")
    monkeypatch.setattr("fedtuner.run.store.states._NAMED", 2)
    with pytest.raises(StoreError, match=rf"damaged: \S+, \S+ and {len(files) - 2} more \("):
        toys.tune(store=tmp_path / "s")
    for file, data in zip(files, whole, strict=True):
        file.write_bytes(data)
    assert toys.tune(store=tmp_path / "s").best
