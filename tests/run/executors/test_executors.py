"""Serial and in processes: the same bits, whoever dies on the way."""

from __future__ import annotations

import functools
import gc
import itertools
import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import fedtuner as ft
import toys
from fedtuner.core import memory
from fedtuner.core import survey as surveys
from fedtuner.core.executor import Advance
from fedtuner.core.records import Plan, State
from fedtuner.core.round import Round
from fedtuner.errors import ClientError, WorkerError
from fedtuner.run.executors import Processes, Serial, open_executor, processes, worker
from fedtuner.run.store.states import FileBlobs, pack

# Other tests may have left threads of libraries in this process; the workers do not use them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

NOWHERE = FileBlobs(toys.TESTS / "nowhere")  # nothing here is large enough to be written


@functools.cache
def study() -> ft.Study:
    return toys.tune()


def rounds(problem: ft.Simulation | None = None) -> Round:
    return Round(study().setup, problem or toys.problem())


def arm(i):
    return study().journal.arms[i]


def beginning(i: int, state: State | None, until: int) -> Advance:
    return Advance(arm(i), state or rounds().begin(arm(i)), until)


def work(n=4, until=5):
    return [beginning(i, None, until) for i in range(n)]


def never():
    return False


def packed(state: State) -> bytes:
    return pack(state, study().setup.tuner.pack(state.belief))


def collect(executor, todo, stop=never):
    """Return each arm's records in order (as a session accepts them: no round twice) and its last state."""
    records, states = {}, {}
    for progress in executor.advance(todo, stop):
        done = records.setdefault(progress.arm, [])
        done += [r for r in progress.records if r.round == len(done) + 1]
        if progress.state is not None:
            states[progress.arm] = progress.state
    return records, {i: packed(state) for i, state in states.items()}


@pytest.fixture(scope="module")
def expected():
    return collect(Serial(rounds(), NOWHERE), work())


@pytest.fixture
def team():
    made, opened = [], descriptors()

    def make(workers=2, problem=None, blobs=NOWHERE):
        made.append(Processes(rounds(problem), blobs, workers))
        return made[-1]

    yield make
    for executor in made:
        executor.close()
    made.clear()
    if not descriptors() <= opened:
        gc.collect()
    assert not multiprocessing.active_children()
    assert descriptors() <= opened  # pipes and shared memory


def descriptors() -> set[str]:
    """What this process has open, but for files that others may open meanwhile."""
    opened = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(("pipe:", "socket:", "/memfd:")):
            opened.add(f"{entry.name} {target}")
    return opened


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_processes_give_the_bits_of_serial(team, workers, expected):
    assert collect(team(workers), work()) == expected


def test_more_workers_than_arms(team, expected):
    records, states = collect(team(4), work(1))
    assert records == {0: expected[0][0]}
    assert states == {0: expected[1][0]}


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_arms_of_uneven_length(team, workers):
    """Arms that begin and end at different rounds, some with nothing to do."""
    serial = Serial(rounds(), NOWHERE)
    ahead = {p.arm: p.state for p in serial.advance([beginning(1, None, 3), beginning(3, None, 6)], never)}
    todo = [beginning(0, None, 1), beginning(1, ahead[1], 11), beginning(2, None, 4), beginning(3, ahead[3], 6)]
    expected = {p.arm: packed(p.state) for p in serial.advance(todo, never)}
    assert expected.keys() == {0, 1, 2}
    states = {p.arm: p.state for p in team(workers).advance(todo, never) if p.state is not None}
    assert {i: packed(state) for i, state in states.items()} == expected
    assert {i: state.round for i, state in states.items()} == {0: 1, 1: 11, 2: 4}


@pytest.fixture
def shared(monkeypatch):
    """Count the rounds that are shared."""
    count, really = [], Processes._share
    monkeypatch.setattr(Processes, "_share", lambda *a, **k: count.append(1) or really(*a, **k))
    return count


@pytest.mark.parametrize("worth", [0.0, 1e9])
def test_rounds_shared_among_workers_give_the_same_bits(team, monkeypatch, expected, shared, worth):
    """With fewer arms than workers the clients of a round are shared, once a round is long enough."""
    monkeypatch.setattr(processes, "_WORTH_SHARING", worth)
    records, states = collect(team(3), work(2))
    assert records == {i: expected[0][i] for i in range(2)}
    assert states == {i: expected[1][i] for i in range(2)}
    assert len(shared) == (10 if worth == 0.0 else 0)


@pytest.mark.slow
def test_the_arm_that_the_others_wait_for_is_shared(team, monkeypatch, shared):
    """Two arms, two workers: when one is done, the other stops after its round, and both workers share its rounds."""
    monkeypatch.setattr(processes, "_WORTH_SHARING", 0.0)
    long, short = beginning(0, None, 200), beginning(1, None, 1)
    records, states = collect(team(2), [long, short])
    assert 0 < len(shared) < 200
    assert [r.round for r in records[0]] == list(range(1, 201))
    assert (records[0], states[0]) == tuple(part[0] for part in collect(Serial(rounds(), NOWHERE), [long]))


def test_a_round_that_cannot_be_divided_stays_on_one_worker(team, monkeypatch, expected, shared):
    monkeypatch.setattr(processes, "_WORTH_SHARING", 0.0)
    problem = toys.problem()
    whole = replace(problem.model.engine("sequential"), divisible=False)
    monkeypatch.setattr(toys.Softmax, "engine", lambda self, name: whole)
    assert collect(team(3, problem), work()) == expected
    assert not shared


def test_a_worker_that_dies_on_its_share_of_a_round_is_replaced(team, monkeypatch, expected):
    monkeypatch.setattr(processes, "_WORTH_SHARING", 0.0)
    executor = team(2)
    records, states = {0: []}, {}
    for progress in executor.advance(work(1), never):
        records[0] += progress.records
        states[0] = packed(progress.state)
        if len(records[0]) == 2:
            executor._team[0].process.kill()
            executor._team[0].process.join()
    assert records[0] == expected[0][0]
    assert states[0] == expected[1][0]


def test_work_can_be_cut_anywhere(team, expected):
    """Advancing to 2, then to 5, is advancing to 5: in whichever process."""
    executor, serial = team(2), Serial(rounds(), NOWHERE)
    states = {}
    for until, where in ((2, executor), (3, serial), (5, executor)):
        todo = [beginning(i, states.get(i), until) for i in range(4)]
        for progress in where.advance(todo, never):
            if progress.state is not None:
                states[progress.arm] = progress.state
    assert {i: packed(s) for i, s in states.items()} == expected[1]


@pytest.mark.parametrize("ship", [0.0, 1e9])
def test_how_often_states_are_sent_changes_nothing(team, monkeypatch, expected, ship):
    monkeypatch.setattr(worker, "_SHIP", ship)
    sent = [p for p in team(2).advance(work(), never) if p.state is not None]
    if ship:  # the last alone; and each round of the arm that the others were waiting for
        assert 4 <= len(sent) <= 10
    else:  # each round; and, once more, that of an arm that was stopped to be shared
        assert 20 <= len(sent) <= 22
    assert {p.arm: packed(p.state) for p in sent} == expected[1]


def test_the_last_progress_of_an_arm_has_its_state(team):
    for executor in (Serial(rounds(), NOWHERE), team(2)):
        last = {p.arm: p for p in executor.advance(work(), never)}
        assert all(p.state is not None and p.state.round == 5 for p in last.values())


def test_one_worker_is_this_process():
    assert isinstance(open_executor(rounds(), NOWHERE, 1), Serial)


def test_workers_are_by_default_one_per_core(monkeypatch, team):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5})
    executor = open_executor(rounds(), NOWHERE, None)
    assert executor.workers == 3
    executor.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_large_memory_is_read_and_written_by_workers(team, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(memory, "LIMIT", 0)
    monkeypatch.setattr(processes, "_WORTH_SHARING", 0.0)
    one, many = FileBlobs(tmp_path / "one"), FileBlobs(tmp_path / "many")
    assert collect(team(workers, blobs=many), work()) == collect(Serial(rounds(), one), work())
    assert toys.files(tmp_path / "many") == toys.files(tmp_path / "one")
    assert len(toys.files(tmp_path / "one")) == 4 * 5 * 3  # arms, rounds, clients


# Evaluations


def survey(problem: ft.Simulation, split="test") -> Plan:
    """Each client with its own memory and candidate."""
    key = study().winner
    return surveys.survey(rounds(problem), arm(key[0]), study().state(key), range(6), split, "sample")


@pytest.mark.parametrize("workers", [2, 4])
def test_evaluations_give_the_bits_of_serial(team, workers):
    problem = toys.problem()
    alone = Serial(rounds(problem), NOWHERE).evaluate(survey(problem))
    assert team(workers, problem).evaluate(survey(problem)) == alone
    assert alone.reported == 6
    assert len({row.loss_after for row in alone.rows}) == 6
    assert [row.client for row in alone.rows] == [f"phone{i}" for i in range(6)]  # in order
    bare = replace(survey(problem), jobs=tuple(replace(job, memory={}) for job in survey(problem).jobs))
    assert Serial(rounds(problem), NOWHERE).evaluate(bare) != alone  # what clients remember arrives


def test_evaluations_send_no_models_back(team, monkeypatch):
    sent, problem = [], toys.problem()
    really = Processes._run

    def spy(self, *args):
        for numbers, reports in really(self, *args):
            sent.extend(reports)
            yield numbers, reports

    monkeypatch.setattr(Processes, "_run", spy)
    team(2, problem).evaluate(survey(problem))
    assert len(sent) == 6
    assert all(report.change.size == 0 and not report.memory for report in sent)


def test_no_work_is_no_work(team):
    nobody = replace(survey(toys.problem()), jobs=())
    assert team(2).evaluate(nobody).reported == 0
    assert not list(team(2).advance([], never))


# Death


def kill(process):
    with suppress(ProcessLookupError):  # it was killed before, and the executor has noticed
        os.kill(process.pid, signal.SIGKILL)


def test_a_worker_killed_on_its_way_is_replaced(team, expected):
    executor = team(2)
    records, states, killed = {}, {}, 0
    for progress in executor.advance(work(), never):
        done = records.setdefault(progress.arm, [])
        fresh = [r for r in progress.records if r.round == len(done) + 1]
        done += fresh
        if killed < 2 and fresh and fresh[0].round == 3:  # in the middle of its work, twice
            busy = [w.process for w in executor._team if w.process.is_alive()]
            kill(busy[killed % len(busy)])
            killed += 1
        if progress.state is not None:
            states[progress.arm] = packed(progress.state)
    assert killed == 2
    assert (records, states) == expected


@pytest.mark.slow
@pytest.mark.parametrize("ship", [0.0, 2.0])
def test_all_workers_killed_again_and_again(team, monkeypatch, expected, ship):
    monkeypatch.setattr(worker, "_SHIP", ship)
    monkeypatch.setattr(processes, "_TRIES", 100)
    executor, records, states = team(2), {}, {}
    for count, progress in enumerate(executor.advance(work(), never), start=1):
        done = records.setdefault(progress.arm, [])
        done += [r for r in progress.records if r.round == len(done) + 1]
        if progress.state is not None:
            states[progress.arm] = packed(progress.state)
        if count % 10 == 9 and count < 40:
            for one in executor._team:
                kill(one.process)
    assert (records, states) == expected


def test_workers_killed_while_idle_are_replaced(team, expected):
    executor = team(2)
    for one in executor._team:
        kill(one.process)
        one.process.join()
    assert collect(executor, work()) == expected
    for one in executor._team:
        kill(one.process)
        one.process.join()
    problem = toys.problem()
    assert executor.evaluate(survey(problem)) == Serial(rounds(problem), NOWHERE).evaluate(survey(problem))


def test_stopping_does_not_stumble_over_a_dead_worker(team, monkeypatch):
    monkeypatch.setenv("TOY_NAP", "0.05")
    executor, done, killed = team(2), [], []
    for progress in executor.advance(work(), lambda: bool(killed)):
        done.append(progress)
        if not killed and progress.records:
            for one in executor._team:
                kill(one.process)
                one.process.join()
                killed.append(one)
    assert len(done) < 20


def test_work_that_kills_its_worker_every_time_is_an_error(team):
    executor = team(2, toys.deadly())
    with pytest.raises(WorkerError, match=r"a worker died 3 times on arm \d before round 5: out of memory\?"):
        list(executor.advance(work(), never))
    with pytest.raises(WorkerError, match="a worker died 3 times on an evaluation"):
        executor.evaluate(survey(toys.deadly()))


def test_a_share_that_kills_its_worker_every_time_is_an_error(team):
    with pytest.raises(WorkerError, match="a worker died 3 times on the clients of a round"):
        list(team(4, toys.deadly()).advance(work(1), never))


@pytest.mark.slow
@pytest.mark.parametrize(("rounds_of_death", "enough"), [("0022", False), ("0222", True), ("000", True)])
def test_deaths_count_since_the_last_state(team, monkeypatch, rounds_of_death, enough, tmp_path, expected):
    """Work that has cost two workers goes on; three in a row, without a state between them, are an error."""
    monkeypatch.setattr(worker, "_SHIP", 0.0)
    left = tmp_path / "left"  # the rounds after which workers of arm 0 are still to die
    left.write_text(rounds_of_death)
    really = worker.advance

    def die_after(round):
        if left.read_text()[:1] == str(round):
            left.write_text(left.read_text()[1:])
            toys.die()

    def advance(round, blobs, task, stop):
        if task.arm.id != 0:
            yield from really(round, blobs, task, stop)
            return
        die_after(task.state.round)
        for progress in really(round, blobs, task, stop):
            yield progress
            die_after(progress.state.round)

    monkeypatch.setattr(worker, "advance", advance)
    todo = [*work(2), beginning(2, None, 300), beginning(3, None, 300)]  # none is shared while these are on their way
    if enough:
        with pytest.raises(WorkerError, match="a worker died 3 times on arm 0"):
            collect(team(4), todo)
    else:
        records, _ = collect(team(4), todo)
        assert {i: records[i] for i in range(2)} == {i: expected[0][i] for i in range(2)}
        assert left.read_text() == ""


def test_an_executor_can_be_used_after_an_error(team, expected):
    executor = team(2, toys.raising())
    with pytest.raises(ClientError):
        list(executor.advance(work(), never))
    executor._round = rounds()  # what its next workers get
    for one in list(executor._team):
        executor._replace(one)
    assert collect(executor, work()) == expected


def test_answers_to_nobody_are_not_heard(team, expected):
    """A caller that stops listening leaves no old answers behind for the next one."""
    executor = team(2)
    running = executor.advance(work(), never)
    next(running)
    running.close()
    assert collect(executor, work()) == expected


def test_stop_ends_early_with_states_that_fit(team, monkeypatch):
    monkeypatch.setenv("TOY_NAP", "0.01")
    for executor in (Serial(rounds(), NOWHERE), team(2)):
        asked = itertools.count()
        records, states = collect(executor, work(until=50), lambda asked=asked: next(asked) > 3)
        assert 0 < sum(map(len, records.values())) < 100
        assert states
        for i, state in states.items():
            again = collect(Serial(rounds(), NOWHERE), [beginning(i, None, len(records[i]))])
            assert state == again[1][i]


@pytest.mark.parametrize("workers", [2, 3])
def test_stopped_work_goes_on_to_the_same_end(team, monkeypatch, expected, workers):
    monkeypatch.setenv("TOY_NAP", "0.005")
    executor, asked, states = team(workers), itertools.count(), {}
    for progress in executor.advance(work(), lambda: next(asked) > 10):
        if progress.state is not None:
            states[progress.arm] = progress.state
    assert any(state.round < 5 for state in states.values()) or len(states) < 4
    _, rest = collect(executor, [one for i in range(4) if not (one := beginning(i, states.get(i), 5)).done])
    assert {i: packed(s) for i, s in states.items() if s.round == 5} | rest == expected[1]


# Errors


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_names_arm_round_client_and_configuration(workers):
    with pytest.raises(ClientError) as error:
        toys.tune(problem=toys.raising(), workers=workers)
    text = str(error.value)
    assert "client 'phone4'" in text
    assert "RuntimeError: the disk of this phone is broken" in text
    words = text.replace(",", "").split()
    candidates = study().journal.candidates[int(words[1])]
    assert words[0] == "arm"
    assert words[2] == "round"
    assert 1 <= int(words[3]) <= 5
    assert any(f"configuration {dict(c)}:" in text for c in candidates)


def test_an_error_in_a_worker_shows_its_traceback(team):
    with pytest.raises(ClientError) as error:
        list(team(2, toys.raising()).advance(work(), never))
    assert "in a worker:" in str(error.value.__cause__)
    assert "toys.py" in str(error.value.__cause__)


def test_an_error_in_a_share_shows_its_traceback(team, monkeypatch):
    monkeypatch.setattr(processes, "_WORTH_SHARING", 0.0)
    with pytest.raises(ClientError) as error:
        list(team(4, toys.raising()).advance(work(1), never))
    assert "toys.py" in str(error.value.__cause__)


def test_an_error_that_is_not_the_clients_says_what_it_was(team, monkeypatch):
    def broken(*args):
        raise ZeroDivisionError("in the aggregation")

    monkeypatch.setattr(worker, "advance", broken)
    with pytest.raises(WorkerError, match=r"ZeroDivisionError\('in the aggregation'\)") as error:
        list(team(2).advance(work(), never))
    assert "in broken" in str(error.value.__cause__)


# The end


def test_closing_ends_the_workers_at_once():
    executor = Processes(rounds(), NOWHERE, 4)
    ended = [one.process for one in executor._team]
    list(executor.advance(work(), never))
    executor.close()
    assert [p.exitcode for p in ended] == [0] * 4  # they went by themselves
    executor.close()


@pytest.mark.slow
def test_closing_in_the_middle_leaves_nothing_behind(team, monkeypatch):
    """The fixture looks for processes, pipes and shared memory that are left."""
    monkeypatch.setenv("TOY_NAP", "0.2")
    executor = team(3)
    running = executor.advance(work(), never)
    next(running)
    executor.close()
    del running


@pytest.mark.slow
def test_a_worker_born_an_orphan_goes(monkeypatch):
    """The driver may die while it starts a worker: before the worker first asks who its parent is."""
    monkeypatch.setattr(os, "getppid", lambda: 1)
    executor = Processes(rounds(), NOWHERE, 1)
    process = executor._team[0].process
    process.join(timeout=10)
    assert process.exitcode == 0
    executor.close()


def test_workers_are_not_stopped_by_ctrl_c(team, expected):
    executor = team(2)
    for one in executor._team:
        toys.until(lambda one=one: _ignores_interrupts(one.process.pid))
        os.kill(one.process.pid, signal.SIGINT)
    before = [one.process.pid for one in executor._team]
    assert collect(executor, work()) == expected
    assert [one.process.pid for one in executor._team] == before


def _ignores_interrupts(pid):
    with Path(f"/proc/{pid}/status").open() as file:
        line = next(line for line in file if line.startswith("SigIgn"))
    return int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1


@pytest.mark.slow
def test_workers_that_are_spawned_give_the_same_bits(monkeypatch, expected):
    """As where there is no fork: the round and all that it refers to are pickled."""
    context = multiprocessing.get_context("spawn")
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: context)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    executor = Processes(rounds(), NOWHERE, 2)
    try:
        assert collect(executor, work()) == expected
    finally:
        executor.close()
