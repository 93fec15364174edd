"""Serial and in processes: the same bits, whoever dies on the way."""

from __future__ import annotations

import functools
import gc
import itertools
import multiprocessing
import os
import signal

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner import executors
from fedtuner import legs as legs_module
from fedtuner import worker as worker_module
from fedtuner.arm import Setting
from fedtuner.errors import ClientError, WorkerError
from fedtuner.executors import Processes, Serial, open_executor
from fedtuner.legs import Assessment, Leg, Place
from fedtuner.methods.base import Job
from fedtuner.store import pack

# Other tests may have left threads of libraries in this process; the workers do not use them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SETTING = Setting(toys.remembering, ft.FedEx(k=3, eps=0.3), cohort=3)


FOLDER = toys.TESTS / "nowhere"  # nothing here is large enough to be written


def place(problem=None):
    return Place(SETTING, problem or toys.problem(), FOLDER)


@functools.cache
def arm(i):
    return toys.tune().arm(i)


def legs(n=4, until=5):
    return [Leg(arm(i), None, until) for i in range(n)]


def never():
    return False


def collect(executor, todo, stop=never):
    """Return each arm's records in order (as a driver accepts them: no round twice) and its last state."""
    records, states = {}, {}
    for progress in executor.advance(todo, stop):
        done = records.setdefault(progress.arm, [])
        done += [r for r in progress.records if r.round == len(done) + 1]
        if progress.state is not None:
            states[progress.arm] = progress.state
    return records, {i: pack(state) for i, state in states.items()}


@pytest.fixture(scope="module")
def expected():
    return collect(Serial(place()), legs())


@pytest.fixture
def team():
    made = []

    def make(workers=2, problem=None):
        made.append(Processes(place(problem), workers))
        return made[-1]

    yield make
    for executor in made:
        executor.close()
    gc.collect()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_processes_give_the_bits_of_serial(team, workers, expected):
    assert collect(team(workers), legs()) == expected


def test_more_workers_than_legs(team, expected):
    records, states = collect(team(4), legs(1))
    assert records == {0: expected[0][0]}
    assert states == {0: expected[1][0]}


@pytest.mark.parametrize("worth", [0.0, 1e9])
def test_rounds_shared_among_workers_give_the_same_bits(team, monkeypatch, expected, worth):
    """With fewer legs than workers the clients of a round are shared, once a round is long enough."""
    monkeypatch.setattr(executors, "_WORTH_SHARING", worth)
    executor = team(3)
    shared = []
    real = executor._share
    monkeypatch.setattr(executor, "_share", lambda *a: shared.append(1) or real(*a))
    records, states = collect(executor, legs(2))
    assert records == {i: expected[0][i] for i in range(2)}
    assert states == {i: expected[1][i] for i in range(2)}
    assert len(shared) == (10 if worth == 0.0 else 0)


def test_the_leg_that_the_others_wait_for_is_shared(team, monkeypatch, expected):
    """Two legs, two workers: when one is done, the other is broken off and both workers go on with it."""
    monkeypatch.setattr(executors, "_WORTH_SHARING", 0.0)
    executor = team(2)
    shared = []
    real = executor._share
    monkeypatch.setattr(executor, "_share", lambda *a: shared.append(1) or real(*a))
    long, short = Leg(arm(0), None, 200), Leg(arm(1), None, 1)
    records, states = collect(executor, [long, short])
    assert 0 < len(shared) < 200
    assert [r.round for r in records[0]] == list(range(1, 201))
    assert (records[0], states[0]) == tuple(part[0] for part in collect(Serial(place()), [long]))


def test_a_worker_that_dies_on_its_share_of_a_round_is_replaced(team, monkeypatch, expected):
    monkeypatch.setattr(executors, "_WORTH_SHARING", 0.0)
    executor = team(2)
    records, states = {0: []}, {}
    for progress in executor.advance(legs(1), never):
        records[0] += progress.records
        states[0] = pack(progress.state)
        if len(records[0]) == 2:
            executor._team[0].process.kill()
            executor._team[0].process.join()
    assert records[0] == expected[0][0]
    assert states[0] == expected[1][0]


def test_legs_can_be_cut_anywhere(team, expected):
    """Advancing to 2, then to 5, is advancing to 5: in whichever process."""
    executor, serial = team(2), Serial(place())
    states = {}
    for until, where in ((2, executor), (3, serial), (5, executor)):
        todo = [Leg(arm(i), states.get(i), until) for i in range(4)]
        for progress in where.advance(todo, never):
            if progress.state is not None:
                states[progress.arm] = progress.state
    assert {i: pack(s) for i, s in states.items()} == expected[1]


@pytest.mark.parametrize("ship", [0.0, 1e9])
def test_how_often_states_are_sent_changes_nothing(team, monkeypatch, expected, ship):
    monkeypatch.setattr(worker_module, "_SHIP", ship)
    executor = team(2)
    sent = [p for p in executor.advance(legs(), never) if p.state is not None]
    if ship:  # the last alone; and each round of the leg that the others were waiting for
        assert 4 <= len(sent) <= 10
    else:  # each round and the beginning; and, once more, a leg that was broken off
        assert 24 <= len(sent) <= 26
    assert {p.arm: pack(p.state) for p in sent} == expected[1]


def test_the_last_progress_of_a_leg_has_its_state(team):
    for executor in (Serial(place()), team(2)):
        last = {p.arm: p for p in executor.advance(legs(), never)}
        assert all(p.state is not None and p.state.round == 5 for p in last.values())


def test_one_worker_is_this_process():
    assert isinstance(open_executor(SETTING, toys.problem(), FOLDER, 1), Serial)


def jobs(problem, n=6):
    """Each client's work with its own memory and candidate."""
    a, w = arm(0), problem.task.initial(1)
    made = [Job(0, 0, 3, i, i % 3, a.candidates[i % 3], a.server, w, split="test") for i in range(n)]
    return [Assessment(job, {"last": np.full(12, job.client, np.float32)}) for job in made]


@pytest.mark.parametrize("workers", [2, 4])
def test_assessments_come_back_in_order(team, workers):
    problem = toys.problem()
    serial = Serial(place(problem)).assess(jobs(problem))
    assert team(workers, problem).assess(jobs(problem)) == serial
    assert len({after.loss for _, after in serial}) == 6
    bare = [Assessment(a.job, {}) for a in jobs(problem)]
    assert Serial(place(problem)).assess(bare) != serial  # what clients remember arrives


def test_no_work_is_no_work(team):
    assert team(2).assess([]) == []
    assert not list(team(2).advance([], never))


# Death


def kill(process):
    os.kill(process.pid, signal.SIGKILL)


def test_a_worker_killed_on_its_way_is_replaced(team, expected):
    executor = team(2)
    records, states, killed = {}, {}, 0
    for progress in executor.advance(legs(), never):
        done = records.setdefault(progress.arm, [])
        fresh = [r for r in progress.records if r.round == len(done) + 1]
        done += fresh
        if killed < 2 and fresh and fresh[0].round == 3:  # in the middle of a leg, twice
            busy = [w.process for w in executor._team if w.process.is_alive()]
            kill(busy[killed % len(busy)])
            killed += 1
        if progress.state is not None:
            states[progress.arm] = pack(progress.state)
    assert killed == 2
    assert (records, states) == expected


@pytest.mark.parametrize("ship", [0.0, 2.0])
def test_all_workers_killed_again_and_again(team, monkeypatch, expected, ship):
    monkeypatch.setattr(worker_module, "_SHIP", ship)
    monkeypatch.setattr(executors, "_TRIES", 100)
    executor, records, states = team(2), {}, {}
    for count, progress in enumerate(executor.advance(legs(), never), start=1):
        done = records.setdefault(progress.arm, [])
        done += [r for r in progress.records if r.round == len(done) + 1]
        if progress.state is not None:
            states[progress.arm] = pack(progress.state)
        if count % 10 == 9 and count < 40:
            for worker in executor._team:
                kill(worker.process)
    assert (records, states) == expected


def test_workers_killed_while_idle_are_replaced(team, expected):
    executor = team(2)
    for worker in executor._team:
        kill(worker.process)
        worker.process.join()
    assert collect(executor, legs()) == expected
    for worker in executor._team:
        kill(worker.process)
        worker.process.join()
    problem = toys.problem()
    assert executor.assess(jobs(problem)) == Serial(place(problem)).assess(jobs(problem))


def test_stopping_does_not_stumble_over_a_dead_worker(team, monkeypatch, tmp_path):
    monkeypatch.setenv("TOY_NAP", "0.05")
    executor, done, killed = team(2), [], []
    for progress in executor.advance(legs(), lambda: bool(killed)):
        done.append(progress)
        if not killed and progress.records:
            for worker in executor._team:
                kill(worker.process)
                worker.process.join()
                killed.append(worker)
    assert len(done) < 24


def test_work_that_kills_its_worker_every_time_is_an_error(team):
    executor = team(2, toys.deadly())
    with pytest.raises(WorkerError, match=r"a worker died 3 times on arm \d before round 5"):
        list(executor.advance(legs(), never))
    with pytest.raises(WorkerError, match="a worker died 3 times on an evaluation"):
        executor.assess(jobs(toys.deadly()))


def test_an_executor_can_be_used_after_an_error(team, expected):
    executor = team(2, toys.raising())
    with pytest.raises(ClientError):
        list(executor.advance(legs(), never))
    executor._place = place()  # what its next workers get
    for worker in list(executor._team):
        executor._replace(worker)
    assert collect(executor, legs()) == expected


def test_answers_to_nobody_are_not_heard(team, expected):
    """A caller that stops listening leaves no old answers behind for the next one."""
    executor = team(2)
    running = executor.advance(legs(), never)
    next(running)
    running.close()
    assert collect(executor, legs()) == expected


def test_stop_ends_early_with_states_that_fit(team, monkeypatch):
    monkeypatch.setenv("TOY_NAP", "0.01")
    for executor in (Serial(place()), team(2)):
        asked = itertools.count()
        records, states = collect(executor, legs(until=50), lambda asked=asked: next(asked) > 3)
        assert 0 < sum(map(len, records.values())) < 100
        for i, packed in states.items():
            again = collect(Serial(place()), [Leg(arm(i), None, len(records[i]))])
            assert packed == again[1][i]


# Errors


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_names_arm_round_client_and_configuration(workers):
    with pytest.raises(ClientError) as error:
        toys.tune(problem=toys.raising(), workers=workers)
    text = str(error.value)
    assert "client 'phone4'" in text
    assert "RuntimeError: the disk of this phone is broken" in text
    words = text.replace(",", "").split()
    met = arm(int(words[1]))
    assert words[0] == "arm"
    assert words[2] == "round"
    assert 1 <= int(words[3]) <= 5
    assert any(f"configuration {dict(c)}:" in text for c in met.candidates)


def test_an_error_in_a_worker_shows_its_traceback(team):
    with pytest.raises(ClientError) as error:
        list(team(2, toys.raising()).advance(legs(), never))
    assert "in a worker:" in str(error.value.__cause__)
    assert "toys.py" in str(error.value.__cause__)


def test_an_error_that_is_not_the_clients_says_what_it_was(team, monkeypatch):
    def broken(*args):
        raise ZeroDivisionError("in the aggregation")

    monkeypatch.setattr(legs_module, "rounds", broken)
    with pytest.raises(WorkerError, match=r"ZeroDivisionError\('in the aggregation'\)"):
        list(team(2).advance(legs(), never))


# The end


def test_closing_ends_the_workers_at_once():
    executor = Processes(place(), 4)
    processes = [w.process for w in executor._team]
    list(executor.advance(legs(), never))
    executor.close()
    assert [p.exitcode for p in processes] == [0] * 4  # they went by themselves
    executor.close()


def test_a_worker_born_an_orphan_goes(monkeypatch):
    """The driver may die while it starts a worker: before the worker first asks who its parent is."""
    monkeypatch.setattr(os, "getppid", lambda: 1)
    executor = Processes(place(), 1)
    process = executor._team[0].process
    process.join(timeout=10)
    assert process.exitcode == 0
    executor.close()


def test_workers_are_not_stopped_by_ctrl_c(team, expected):
    executor = team(2)
    for worker in executor._team:
        toys.until(lambda worker=worker: _ignores_interrupts(worker.process.pid))
        os.kill(worker.process.pid, signal.SIGINT)
    before = [w.process.pid for w in executor._team]
    assert collect(executor, legs()) == expected
    assert [w.process.pid for w in executor._team] == before


def _ignores_interrupts(pid):
    with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
        line = next(line for line in file if line.startswith("SigIgn"))
    return int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1
