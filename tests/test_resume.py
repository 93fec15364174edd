"""A study that is killed, stopped or damaged continues to the same end, byte for byte."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedtuner as ft
import toys
from fedtuner import driver, memory, progress, store, worker
from fedtuner.errors import Interrupted, StoreError

# Other tests may have left threads of libraries in this process; neither workers nor forks use them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def _unflushed(monkeypatch):
    """Only a power cut could tell whether data was flushed to the disk, and flushing is what takes the time here."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


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


def unfinish(path):
    for name in ("result.json", "evaluations.json"):
        (path / name).unlink(missing_ok=True)


# Workers


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"fedex": None},
        {"method": ft.methods.fedavg, "cohorts": "shared", "target": "global"},
        {"schedule": ft.hyperband(budget=80, longest=8, eta=2, score="loss", discount=0.5)},
        {"space": ft.Space(client={"lr": 0.5}, server={"lr": [1.0, 3e38]}), "schedule": ft.random_search(30, 5)},
    ],
    ids=["memory", "plain", "shared", "hyperband", "diverging"],
)
def test_the_number_of_workers_changes_nothing(tmp_path, changed, workers):
    studies = [toys.tune(store=tmp_path / str(n), workers=n, **changed) for n in (1, workers)]
    for s in studies:
        s.evaluate("test")
        s.evaluate("valid", "sample", "loss")
    one, many = studies
    assert many.records == one.records
    assert many.winner == one.winner
    assert {i: store.pack(s) for i, s in many.states.items()} == {i: store.pack(s) for i, s in one.states.items()}
    assert toys.files(tmp_path / str(workers)) == toys.files(tmp_path / "1")


def test_where_memory_is_kept_changes_nothing(tmp_path, monkeypatch):
    """In the states or in files, with or without a store, for any number of workers."""
    whole = toys.tune()
    expected = whole.history, whole.evaluate(), whole.best.model.tobytes()
    monkeypatch.setattr(memory, "LIMIT", 0)
    for workers in (1, 2):
        for path in (None, tmp_path / str(workers)):
            spilled = toys.tune(store=path, workers=workers)
            assert (spilled.history, spilled.evaluate(), spilled.best.model.tobytes()) == expected
    assert toys.files(tmp_path / "2") == toys.files(tmp_path / "1")
    kept = [name for name in toys.files(tmp_path / "1") if name.startswith("memory/")]
    assert kept
    assert all(name.startswith(f"memory/{whole.winner}/") for name in kept)  # of those that are out nothing is left
    assert len(kept) <= 6  # one file a client


def test_a_store_changes_nothing(finished):
    kept, free = go(finished), toys.tune()
    assert free.records == kept.records
    assert free.result() == kept.result()
    assert free.evaluate() == kept.evaluate()


def test_a_finished_study_is_not_run_again(folder, monkeypatch):
    before = toys.files(folder)
    monkeypatch.setattr(driver, "open_executor", pytest.fail)
    again = go(folder, workers=2)
    assert again.rounds_used == 30
    assert toys.files(folder) == before


# kill -9


class Crash:
    """Kills this process just before the n-th thing that a store does to the disk."""

    def __init__(self, n):
        self.n, self.count = n, 0

    def around(self, function):
        def called(*args, **kwargs):
            self.count += 1
            if self.count == self.n:
                toys.die()
            return function(*args, **kwargs)

        return called


SMALL = {"schedule": ft.halving(budget=6, longest=3, eta=2, eliminations=1)}  # two arms of three rounds


def crashing_study(path, n, save):
    crash = Crash(n)
    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "open"), (Path, "unlink"), (Path, "mkdir")):
        setattr(owner, name, crash.around(getattr(owner, name)))
    driver._SAVE = save
    toys.tune(store=path, **SMALL).evaluate()


@pytest.fixture(params=["in the state", "in files"])
def small(request, tmp_path, monkeypatch):
    """The files of a small study that nothing happened to; what clients remember is kept in one of two ways."""
    if request.param == "in files":
        monkeypatch.setattr(memory, "LIMIT", 0)
    toys.tune(store=tmp_path / "whole", **SMALL).evaluate()
    files = toys.files(tmp_path / "whole")
    assert any(name.startswith("memory/") for name in files) == (request.param == "in files")
    return files


@pytest.mark.slow
@pytest.mark.parametrize(
    ("small", "save"), [("in the state", -1.0), ("in the state", 2.0), ("in files", 2.0)], indirect=["small"]
)
def test_killed_at_any_touch_of_the_disk(tmp_path, small, save):
    """Every point at which a kill can leave another folder behind, for a study that saves often or rarely."""
    n, code = 0, None
    while code != 0:
        n += 1
        path = tmp_path / str(n)
        code = toys.forked(lambda path=path, n=n: crashing_study(path, n, save))
        assert code in (0, -signal.SIGKILL)
        toys.tune(store=path, **SMALL).evaluate()
        assert toys.files(path) == small, f"killed at touch {n}"
    assert n > 20


def test_killed_again_and_again(tmp_path, small):
    """Now and then a little further, and still the same end."""
    codes = [toys.forked(lambda n=n: crashing_study(tmp_path / "s", n, -1.0)) for n in (5, 16, 14, 20, 17, 14, 22, 30)]
    assert codes.count(-signal.SIGKILL) >= 5
    toys.tune(store=tmp_path / "s", **SMALL).evaluate()
    assert toys.files(tmp_path / "s") == small


DRIVER = """
import sys, toys
from fedtuner import driver, worker
worker._SHIP = driver._SAVE = 0.05
print("begun", flush=True)
done = toys.tune(store=sys.argv[1], workers=int(sys.argv[2]))
done.evaluate()
"""


def drive(path, workers, **environment):
    command = [sys.executable, "-c", DRIVER, str(path), str(workers)]
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
    assert toys.files(tmp_path / "s") == toys.files(finished)


def test_orphaned_workers_end(tmp_path, finished):
    pids = tmp_path / "pids"
    pids.mkdir()
    with drive(tmp_path / "s", 2, TOY_NAP="0.02", TOY_PIDS=str(pids)) as driver:
        toys.until(lambda: len(list(pids.iterdir())) == 2)
        workers = [int(f.name) for f in pids.iterdir()]
        assert driver.pid not in workers
        assert all(map(toys.running, workers))
        driver.kill()
    toys.until(lambda: not any(map(toys.running, workers)))
    go(tmp_path / "s")
    assert toys.files(tmp_path / "s") == toys.files(finished)


def test_a_study_can_continue_while_orphans_still_work(tmp_path, finished):
    """Workers that have not noticed yet hold no lock and write nothing."""
    pids = tmp_path / "pids"
    pids.mkdir()
    with drive(tmp_path / "s", 2, TOY_NAP="0.5", TOY_PIDS=str(pids)) as driver:
        toys.until(lambda: len(list(pids.iterdir())) == 2)
        driver.kill()
    workers = [int(f.name) for f in pids.iterdir()]
    assert any(map(toys.running, workers))
    go(tmp_path / "s")
    assert toys.files(tmp_path / "s") == toys.files(finished)
    toys.until(lambda: not any(map(toys.running, workers)))


@pytest.mark.parametrize("ship", [0.0, 2.0])
def test_a_killed_worker_is_replaced(tmp_path, monkeypatch, finished, ship):
    from multiprocessing import active_children

    monkeypatch.setattr(worker, "_SHIP", ship)
    monkeypatch.setattr(driver, "_SAVE", ship)
    killed = []

    def show(status):
        if status.used in (3, 9, 22) and status.used not in killed:
            killed.append(status.used)
            os.kill(random.Random(status.used).choice(active_children()).pid, signal.SIGKILL)

    toys.tune(store=tmp_path / "s", workers=2, progress=show).evaluate()
    assert len(killed) >= 2
    assert toys.files(tmp_path / "s") == toys.files(finished)


# Ctrl-C


def interrupt_at(n, number=signal.SIGINT, times=1):
    left = times

    def show(status):
        nonlocal left
        while left and status.used >= n:
            left -= 1
            os.kill(os.getpid(), number)

    return show


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("at", [1, 7, 20, 29])
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
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    _, states, records, _ = store.read(path) if path.exists() else (0, {}, {}, 0)
    assert sum(map(len, records.values())) >= (at if path.exists() else 0)  # nothing that was finished is lost
    assert all(len(records[arm]) == states[arm].round for arm in states)
    monkeypatch.delenv("TOY_NAP", raising=False)
    go(path, workers)
    assert toys.files(path) == toys.files(finished)


def test_the_serial_study_stops_after_the_round(tmp_path):
    with pytest.raises(Interrupted, match="stopped after 7 of 30 rounds"):
        toys.tune(store=tmp_path / "s", progress=interrupt_at(7))


def test_stopping_without_a_store_says_that_nothing_is_kept():
    with pytest.raises(Interrupted, match="There is no store, so nothing is kept: give store="):
        toys.tune(progress=interrupt_at(7))


def test_the_second_interrupt_is_at_once(tmp_path, finished):
    with pytest.raises(KeyboardInterrupt) as stop:
        toys.tune(store=tmp_path / "s", progress=interrupt_at(7, times=2))
    assert not isinstance(stop.value, Interrupted)
    go(tmp_path / "s")
    assert toys.files(tmp_path / "s") == toys.files(finished)


def test_stopping_after_the_last_round_is_not_an_interruption(tmp_path, finished):
    toys.tune(store=tmp_path / "s", progress=interrupt_at(30)).evaluate()
    assert toys.files(tmp_path / "s") == toys.files(finished)


def test_elsewhere_than_in_the_main_thread_nothing_is_caught():
    import threading

    seen = []

    def look():
        with progress.stoppable() as stop:
            seen.append((signal.getsignal(signal.SIGINT), stop()))

    thread = threading.Thread(target=look)
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join()
    assert seen == [(before, False)]


# Folders that do not fit together


def entries(path):
    return (path / "journal.jsonl").read_text().splitlines(keepends=True)


def keep_lines(keep):
    def damage(path):
        (path / "journal.jsonl").write_text("".join(keep(entries(path))))

    return damage


def cut_tail(path):
    journal = path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-37])


def append(text):
    def damage(path):
        with (path / "journal.jsonl").open("a") as journal:
            journal.write(text)

    return damage


def remove(name):
    return lambda path: (path / name).unlink()


def old_state(path):
    """The state of an earlier save: the journal is ahead of it."""
    early = path.parent / "early"
    with pytest.raises(Interrupted):
        toys.tune(store=early, progress=interrupt_at(3))
    assert store.unpack((early / "arms" / "0.safetensors").read_bytes(), early).round == 3
    shutil.copy(early / "arms" / "0.safetensors", path / "arms" / "0.safetensors")


DAMAGES = {
    "half a line at the end": cut_tail,
    "half a line more": append('{"arm": 0, "round": 6, "cli'),
    "noise at the end": append("\x00\x00\x00\n\ufffd\n"),
    "not a record": append('17\n[]\n{"arm": 0}\n'),
    "a line twice": lambda path: append(entries(path)[3])(path),
    "shuffled": keep_lines(lambda lines: random.Random(0).sample(lines, len(lines))),
    "a line is missing": keep_lines(lambda lines: lines[:7] + lines[8:]),
    "the journal stops early": keep_lines(lambda lines: lines[:12]),
    "an empty journal": keep_lines(lambda lines: []),
    "no journal": remove("journal.jsonl"),
    "no state of one arm": remove("arms/2.safetensors"),
    "no states": lambda path: [f.unlink() for f in (path / "arms").iterdir()],
    "an older state": old_state,
    "a part beside a state": lambda path: (path / "arms" / "1.safetensors.part").write_bytes(b"half"),
    "a probe left behind": lambda path: (path / "arms" / "probe").write_bytes(b"\0"),
    "no lock": remove("lock"),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_fit_is_mended(folder, finished, damage, workers):
    unfinish(folder)
    DAMAGES[damage](folder)
    if damage == "a part beside a state":  # what a kill leaves: the arm itself is not there yet
        (folder / "arms" / "1.safetensors").unlink()
    go(folder, workers)
    assert toys.files(folder) == toys.files(finished)


def test_only_what_is_missing_is_computed_again(folder, monkeypatch):
    unfinish(folder)
    remove("arms/2.safetensors")(folder)
    trained = set()
    really = driver.Leg

    def spy(arm, state, until):
        trained.add(arm.id)
        return really(arm, state, until)

    monkeypatch.setattr(driver, "Leg", spy)
    go(folder)
    assert trained == {2}


@pytest.mark.parametrize("how", ["cut", "emptied", "noise", "other"])
def test_a_damaged_state_is_a_clear_error(folder, finished, how):
    unfinish(folder)
    file = folder / "arms" / "1.safetensors"
    whole = file.read_bytes()
    from safetensors.numpy import save

    damaged = {"cut": whole[:-9], "emptied": b"", "noise": bytes(len(whole)), "other": save({})}
    file.write_bytes(damaged[how])
    before = toys.files(folder)
    with pytest.raises(StoreError, match=r"1\.safetensors is damaged .*: delete it, and its arm is computed again"):
        go(folder)
    assert toys.files(folder) == before
    file.unlink()
    go(folder)
    assert toys.files(folder) == toys.files(finished)


def test_rounds_are_counted_once_over_all_runs(tmp_path):
    statuses = []
    with pytest.raises(Interrupted):
        toys.tune(store=tmp_path / "s", progress=interrupt_at(13))
    toys.tune(store=tmp_path / "s", progress=statuses.append)
    used = [s.used for s in statuses]
    assert used[0] in (13, 14)
    assert used == sorted(used)
    assert used[-1] == 30
    journal = [json.loads(line) for line in entries(tmp_path / "s")]
    assert len({(e["arm"], e["round"]) for e in journal}) == len(journal) == 30


def test_the_untuned_default_continues_too(tmp_path):
    whole = toys.tune(store=tmp_path / "a")
    ft.untuned(whole, progress=False).evaluate()
    other = toys.tune(store=tmp_path / "b")
    with pytest.raises(Interrupted, match="untuned: run the same command again"):
        ft.untuned(other, progress=interrupt_at(4))
    ft.untuned(other, progress=False).evaluate()
    assert toys.files(tmp_path / "b") == toys.files(tmp_path / "a")
