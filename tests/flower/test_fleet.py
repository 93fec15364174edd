"""A fleet in this process: the same bits as a Simulation, and every fault an ordinary event."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_grid import MemoryGrid

import fedtuner as ft
import toys
from fedtuner.core.executor import Advance
from fedtuner.core.method import defaults
from fedtuner.core.privacy import Gaussian
from fedtuner.core.records import Arm, Record, State
from fedtuner.core.round import Round
from fedtuner.core.schedule import outline
from fedtuner.core.screens import Norm, Values, Weights
from fedtuner.errors import FleetError, SpecError
from fedtuner.flower import dispatch
from fedtuner.flower.handshake import client_number, natural
from fedtuner.run.executors import serial
from fedtuner.run.reading import read
from fedtuner.run.store import Folder, InMemory
from fedtuner.testing import FederationLaws
from fedtuner.testing.toys import quadratics

CLIENTS = toys.clients(6)
SHORT = ft.halving(budget=14, longest=5, eta=2, eliminations=2)
ROUNDS = outline(SHORT).cost


def grid_of(clients: Any = CLIENTS, task: Any = None, method: Any = None) -> MemoryGrid:
    grid = MemoryGrid()
    for client in clients:
        grid.add(ft.flower.client_app(task or toys.Softmax(), lambda context, c=client: c, method=method))
    return grid


def fleet_of(grid: MemoryGrid, **changed: Any) -> ft.flower.Fleet:
    return ft.flower.Fleet(grid, toys.Softmax(), **({"least": 6, "deadline": 30.0, "clock": grid.clock} | changed))


def tune(grid: MemoryGrid, problem: Any = None, **changed: Any) -> ft.Study:
    return simulate(problem=problem or fleet_of(grid), **changed)


def simulate(**changed: Any) -> ft.Study:
    """A study; in a Simulation, too, with the screens that a Fleet has by default."""
    problem = changed.get("problem")
    model = toys.Softmax() if problem is None else problem.model
    screens = (Values(model.metric.worst), Weights(), Norm(trainable=model.trainable))
    given = isinstance(problem, ft.flower.Fleet) or "privacy" in changed  # privacy has no screens
    usual = {"method": ft.methods.fedavg, "schedule": SHORT} | ({} if given else {"screens": screens})
    return toys.tune(**(usual | changed))


@functools.cache
def simulated() -> ft.Study:
    return simulate()


def states(study: ft.Study) -> dict[int, State]:
    """The latest states of all arms."""
    return {arm: study.state((arm, study.journal.saved_round(arm) or 0)) for arm in study.journal.arms}


def same(one: ft.Study, other: ft.Study) -> None:
    """All that a study found is equal to the bit: rounds, scores, weights, slots, theta, what clients remember.

    But for the names of devices whose replies could not be used: a simulation has none.
    """
    assert repr(anonymous(one)) == repr(anonymous(other))  # NaN is equal to itself in text
    assert one.journal.won == other.journal.won
    assert one.journal.candidates == other.journal.candidates
    assert states(one).keys() == states(other).keys()
    for arm, a in states(one).items():
        b = states(other)[arm]
        assert (a.round, a.w.tobytes(), a.ended) == (b.round, b.w.tobytes(), b.ended)
        assert packed(one, a) == packed(other, b)
        assert {k: v.tobytes() for k, v in a.slots.items()} == {k: v.tobytes() for k, v in b.slots.items()}
        assert remembered(one, a) == remembered(other, b)


def anonymous(study: ft.Study, **changed: Any) -> list[Record]:
    """The rounds of a study, without the names of devices whose replies could not be used."""
    return [replace(r, unusable=(), **changed) for r in study.history]


def packed(study: ft.Study, state: State) -> dict[str, bytes]:
    return {name: v.tobytes() for name, v in study.setup.tuner.pack(state.belief).items()}


def remembered(study: ft.Study, state: State) -> dict[Any, dict[str, bytes]]:
    memory: Any = state.memory
    return {study.problem.id_of(i): {k: v.tobytes() for k, v in kept.items()} for i, kept in memory.items()}


# Equality


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["fedavg", "scaffold", *(pytest.param(name, marks=pytest.mark.slow) for name in ("feddyn", "ditto", "fedpa"))],
)
def test_a_fleet_gives_the_bits_of_a_simulation(name):
    method = getattr(ft.methods, name)
    here = simulate(method=method)
    there = tune(grid_of(), method=method)
    same(here, there)
    for config in ("mode", "sample"):
        assert here.evaluate("test", config) == there.evaluate("test", config)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"schedule": ft.random_search(budget=12, longest=4)},
        pytest.param({"schedule": ft.hyperband(budget=40, longest=9)}, marks=pytest.mark.slow),
        {"fedex": None, "target": "global"},
        {"method": ft.methods.fedavg, "privacy": Gaussian(50.0), "schedule": ft.random_search(budget=4, longest=2)},
        {"cohorts": "shared", "fedex": ft.FedEx(k=4, eps=1, step="adaptive", metric="loss", signal="improvement")},
        {"fedex": ft.FedEx(k=3, eps=0.5, tries="all")},
        {"fedex": ft.FedEx(k=4, eps=0.5, tries=2)},
        {"tuner": ft.tuners.Kernel(k=4, eps=0.5)},
        {"tuner": ft.tuners.Gaussian()},
        {"seed": 2**62, "cohort": 6, "schedule": ft.random_search(budget=4, longest=2)},
    ],
    ids=lambda changed: " ".join(changed),
)
def test_so_do_all_settings(changed):
    settings = {"method": ft.methods.scaffold, **changed}
    same(simulate(**settings), tune(grid_of(), **settings))


@pytest.mark.slow
def test_a_method_and_a_task_of_ones_own():
    same(simulate(method=toys.remembering), tune(grid_of(method=toys.remembering), method=toys.remembering))
    problem = quadratics(clients=12)  # ids 0..11: in the order of numbers, not of texts
    grid = grid_of(problem.clients, problem.task)
    spread = ft.flower.Fleet(grid, problem.task, least=12, clock=grid.clock)
    same(simulate(problem=problem), tune(grid, spread))


@pytest.mark.slow
def test_so_does_torch():
    torch = pytest.importorskip("torch")

    def build() -> Any:
        layers = torch.nn
        return layers.Sequential(layers.Linear(3, 8), layers.BatchNorm1d(8), layers.ReLU(), layers.Linear(8, 3))

    task = ft.pytorch.Task(build, torch.nn.functional.cross_entropy)
    clients = [
        replace(c, **{s: tuple(np.asarray(p, t) for p, t in zip(getattr(c, s), ("f4", "i8"), strict=True))
                      for s in ("train", "valid", "test")})
        for c in CLIENTS
    ]  # fmt: skip
    here = simulate(problem=ft.Simulation(task, clients), method=ft.methods.scaffold, engine="sequential")
    grid = grid_of(clients, task)
    same(here, tune(grid, ft.flower.Fleet(grid, task, least=6, clock=grid.clock), method=ft.methods.scaffold))


def test_clients_stand_in_the_natural_order_of_their_ids():
    assert sorted(["b", 10, "a10", 9, "a2", "a", "10"], key=natural) == [9, 10, "10", "a", "a2", "a10", "b"]
    grid = grid_of([CLIENTS[i] for i in (3, 0, 5, 1, 4, 2)])  # the order in which nodes appear does not matter
    same(simulated(), tune(grid))


@pytest.mark.slow
def test_what_clients_remember_may_be_in_files(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtuner.core.memory.LIMIT", 100)
    here = simulate(method=toys.remembering, store=tmp_path / "here")
    there = tune(grid_of(method=toys.remembering), method=toys.remembering, store=tmp_path / "there")
    assert repr(here.history) == repr(there.history)
    assert here.best.model.tobytes() == there.best.model.tobytes()
    assert here.evaluate("test") == there.evaluate("test")


# Many arms at once


def test_the_arms_of_a_rung_are_sent_together_and_a_paused_one_is_not_sent():
    grid = grid_of()
    study = tune(grid)
    assert grid.batches[0] == 6  # handshakes
    assert max(grid.batches) == 4 * 3  # four arms of three clients in one batch
    sent = grid.count()
    reached = {arm: state.round for arm, state in states(study).items()}
    for arm, last in reached.items():
        assert [sent[arm, t] for t in range(12)] == [3 if t < last else 0 for t in range(12)]
    assert sum(reached.values()) == study.rounds_used == ROUNDS


def test_an_arm_does_not_wait_for_another():
    """Arm 0's clients answer when all the other arms have sent their second round."""
    grid = grid_of()
    grid.faults = dict.fromkeys(grid.apps, holding(grid, lambda arm, round: (arm, round) == (0, 0)))
    grid.on_push = lambda message: release(grid) if sum(grid.count()[a, 1] for a in (1, 2, 3)) == 9 else None
    study = tune(grid, schedule=ft.random_search(budget=8, longest=2))
    assert not study.problem.faults
    assert {r.dropped for r in study.history} == {0}


def holding(grid: MemoryGrid, which: Callable[[int, int], bool]) -> Any:
    """A fault that keeps the answers of some arms and rounds back until they are released."""

    def hold(reply: Message) -> Message | None:
        asked = next(m for m in grid.sent if m.metadata.message_id == reply.metadata.reply_to_message_id)
        about: Any = asked.content.config_records["fedtuner"]
        if not which(about["arm"], about["round"]):
            return reply
        held = grid.__dict__.setdefault("held", [])
        held.append((about["arm"], about["round"], reply))
        return None

    return hold


def release(grid: MemoryGrid, which: Callable[[int, int], bool] = lambda arm, round: True) -> None:
    held = grid.__dict__.setdefault("held", [])
    for arm, round, reply in [h for h in held if which(h[0], h[1])]:
        held.remove((arm, round, reply))
        grid.replies.setdefault(reply.metadata.reply_to_message_id, deque()).append((0.0, reply))


# Faults


def delayed(reply: Message, seconds: float) -> Message:
    reply.delay = seconds  # type: ignore[attr-defined]
    return reply


def error(reply: Message) -> Message:
    wrong = Message(Error(2, "Traceback (most recent call last):\nMemoryError: the phone is full\n"), reply_to=reply)
    wrong.metadata.__dict__.update(reply.metadata.__dict__)
    return wrong


def with_w(change: Any) -> Any:
    def fault(reply: Message) -> Message:
        reply.content["arrays"] = ArrayRecord({"w": Array(change(reply.content["arrays"]["w"].numpy()))})
        return reply

    return fault


def with_numbers(**numbers: Any) -> Any:
    def fault(reply: Message) -> Message:
        reply.content["report"] = MetricRecord({**reply.content["report"], **numbers})
        return reply

    return fault


def without(name: str) -> Any:
    def fault(reply: Message) -> Message:
        del reply.content[name]
        return reply

    return fault


def without_number(name: str) -> Any:
    def fault(reply: Message) -> Message:
        reply.content["report"] = MetricRecord({k: v for k, v in reply.content["report"].items() if k != name})
        return reply

    return fault


def with_extra(reply: Message) -> Message:
    reply.content["extra"] = ArrayRecord({"surprise": Array(np.zeros(12, np.float32))})
    return reply


def garbage(reply: Message) -> Message:
    reply.content["arrays"] = ArrayRecord({"w": Array("float32", (13,), "numpy.ndarray", b"no array at all")})
    return reply


def nonsense(reply: Message) -> Message:
    reply.content = RecordDict()
    return reply


MALFORMED = {
    "longer": with_w(lambda w: np.append(w, np.float32(0))),
    "matrix": with_w(lambda w: w.reshape(1, -1)),
    "double": with_w(lambda w: w.astype(np.float64)),
    "garbage": garbage,
    "empty": nonsense,
    "no report": without("report"),
    "no arrays": without("arrays"),
    "negative |T|": with_numbers(examples=-3),
    "|V| that is not whole": with_numbers(validated=2.5),
    "a loss that is no list": with_numbers(loss_after=0.1),
    "tried what was not asked": with_numbers(loss_before=[0.1, 0.2], loss_after=[0.3, 0.4]),
    "no losses": without_number("loss_before"),
    "a vector that nobody asked for": with_extra,
}


def dropping(client: int, **changed: Any) -> ft.Study:
    """The same study in a Simulation in which one client's reports never arrive."""

    class Deaf(serial.Serial):
        def advance(self, work: Any, stop: Any) -> Any:
            def work_all(plan: Any) -> Any:
                return [None if job.client == client else self._round.work(plan, job) for job in plan.jobs]

            for one in work:
                yield from serial.advance(self._round, self._blobs, one, stop, work_all)

    return simulate(executor=lambda round, blobs, workers: Deaf(round, blobs), **changed)


@functools.cache
def deaf(**changed: Any) -> ft.Study:
    return dropping(2, **changed)


@pytest.mark.slow
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_reply_is_a_dropped_client(name):
    grid = grid_of()
    grid.faults[1002] = MALFORMED[name]
    everyone: Any = {"schedule": ft.random_search(budget=4, longest=2), "cohort": 6}
    study = tune(grid, **everyone)
    assert study.problem.faults == {"malformed": study.rounds_used}
    assert {r.dropped for r in study.history} == {1}
    same(study, deaf(**everyone))


@pytest.mark.slow
def test_an_error_reply_is_a_dropped_client_and_its_reason_is_logged(tmp_path, caplog):
    grid = grid_of()
    grid.faults[1002] = error
    once = ft.random_search(budget=18, longest=2)
    study = tune(grid, store=tmp_path, schedule=once)
    same(study, deaf(schedule=once))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(lines) == study.problem.faults["error"] == sum(r.dropped for r in study.history) > 4
    assert {(line["kind"], line["client"]) for line in lines} == {("error", "phone2")}
    assert {(line["arm"], line["round"]) for line in lines} == {(r.arm, r.round) for r in study.history if r.dropped}
    assert lines[0]["text"].endswith("client 'phone2': MemoryError: the phone is full")
    logged = [r.getMessage() for r in caplog.records if "phone is full" in r.getMessage()]
    assert len(logged) == 5
    assert "more of these are counted in silence, and noted in the store's log.jsonl" in logged[-1]


def test_a_client_that_never_answers_is_dropped_at_the_deadline():
    grid = grid_of()
    grid.faults[1002] = lambda reply: None
    study = tune(grid, fleet_of(grid, deadline=10.0))
    asked = sum(m.metadata.dst_node_id == 1002 for m in grid.work_sent())
    assert study.problem.faults == {"timeout": sum(r.dropped for r in study.history)}
    assert 0 < asked == study.problem.faults["timeout"] <= 4  # once by each arm: it owes these answers
    assert study.rounds_used == ROUNDS


def test_a_late_reply_is_dropped_and_counted():
    """The answers of one client come when its arm has gone on without them."""
    grid = grid_of()
    grid.faults[1002] = holding(grid, lambda arm, round: True)

    def next_round(message: Message) -> None:
        if message.metadata.message_type == "train.fedtuner":
            now: Any = message.content.config_records["fedtuner"]
            release(grid, lambda arm, round: arm == now["arm"] and round < now["round"])

    grid.on_push = next_round
    study = tune(grid, fleet_of(grid, deadline=8.0))
    assert study.rounds_used == ROUNDS
    assert study.problem.faults["timeout"] == sum(r.dropped for r in study.history)
    assert 0 < study.problem.faults["late"] <= study.problem.faults["timeout"]


def test_an_update_that_is_not_finite_is_broken_whatever_it_says():
    grid = grid_of()
    grid.faults[1002] = with_w(lambda w: np.full_like(w, np.nan))  # its report still boasts a good error
    study = tune(grid)
    asked = sum(1 for m in grid.work_sent() if m.metadata.dst_node_id == 1002)
    assert sum(r.broken for r in study.history) == asked > 0
    assert not any(r.dropped or r.diverged for r in study.history)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 25])
def test_a_client_that_lies_about_its_examples_does_not_dominate(limit, tmp_path):
    grid = grid_of()
    grid.faults[1002] = with_numbers(examples=10**9, validated=10**9)
    study = tune(grid, fleet_of(grid, most_examples=limit), cohort=6, store=tmp_path)
    honest = [len(c.train[1]) for c in CLIENTS]
    others = sum(n for i, n in enumerate(honest) if i != 2)
    most = limit or int(0.4 * others)  # 2 / 7 of a round of six: twice the mean of the others
    assert {r.examples for r in study.history} == {others + most}
    cut = study.problem.faults["capped"]
    assert cut == sum(r.bounded for r in study.history) >= study.rounds_used
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(lines) == cut
    liar = next(line for line in lines if line["client"] == "phone2")
    assert f"1000000000 and 1000000000 examples count as {most} and " in liar["text"]
    assert liar["text"].endswith("if they are true, set most_examples=")


def test_clients_of_honest_sizes_are_not_capped():
    study = tune(grid_of(), fleet_of(grid_of()))
    assert not study.problem.faults


@pytest.mark.slow
def test_vectors_unlike_the_others_are_left_out():
    grid = grid_of()

    def shorter(reply: Message) -> Message:
        reply.content["extra"] = ArrayRecord({"control": Array(np.zeros(3, np.float32))})
        return reply

    grid.faults[1002] = shorter
    study = tune(grid, method=ft.methods.scaffold, cohort=6)
    assert study.problem.faults["malformed"] == study.rounds_used
    same(study, dropping(2, method=ft.methods.scaffold, cohort=6))


def test_a_study_in_which_nobody_can_work_ends_and_says_why(tmp_path):
    grid = grid_of(task=toys.Raising())
    for app in list(grid.apps):
        grid.faults[app] = error
    with pytest.raises(FleetError, match=r"no client reported in 3 tries; the last: .*the phone is full"):
        tune(grid, store=tmp_path)
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert len(lines) > 9  # three tries of three clients, and what other arms met
    assert all("the phone is full" in line for line in lines)


def test_a_grid_that_fails_says_that_what_was_finished_is_kept(tmp_path):
    grid = grid_of()
    broken = iter(range(28))

    def fail(message: Message) -> None:
        if next(broken, None) is None:
            raise ConnectionError("the SuperLink is gone")

    grid.on_push = fail
    with pytest.raises(FleetError, match=r"the grid failed \(ConnectionError: the SuperLink is gone\).*run again"):
        tune(grid, store=tmp_path)
    assert read(Folder(tmp_path), "it").rounds_used >= 4
    grid.on_push = lambda message: None
    same(tune(grid, store=tmp_path), simulated())


FAULTS = {
    "error": error,
    "silence": lambda reply: None,
    "late": lambda reply: delayed(reply, 100.0),
    "nan": with_w(lambda w: np.full_like(w, np.nan)),
    "impossible": with_numbers(error_after=[17.0]),
    **MALFORMED,
}


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.integers(1000, 1003), st.lists(st.sampled_from(sorted(FAULTS)), min_size=1), max_size=4))
def test_whatever_goes_wrong_the_study_ends_and_its_records_say_so(faults):
    """One of six clients is well, one lies, and the others do something else, wrong or not, at every message."""
    grid = grid_of()
    grid.faults[1004] = with_numbers(examples=10**12, validated=10**12)
    for node, kinds in faults.items():
        turns = itertools.cycle([*kinds, None])

        def fault(reply: Message, turns: Any = turns) -> Message | None:
            kind = next(turns)
            return reply if kind is None else FAULTS[kind](reply)

        grid.faults[node] = fault
    study = tune(grid, fleet_of(grid, deadline=50.0), cohort=6)
    seen = study.problem.faults
    assert study.rounds_used == ROUNDS
    dropped = ("error", "timeout", "malformed", "screened")
    assert sum(r.dropped for r in study.history) == sum(seen[kind] for kind in dropped)
    assert all(
        np.isfinite(state.w).all() and abs(state.belief.theta.p.sum() - 1) < 1e-9 for state in states(study).values()
    )
    assert all(r.examples <= 5 * 22 + 10 * 22 for r in study.history)
    assert set(seen) <= {*dropped, "late", "capped", "bounded", "shortened", "failing"}


# Who is there


def test_too_few_are_waited_for_and_then_named(caplog):
    caplog.set_level("INFO", "flwr")
    grid = grid_of(CLIENTS[:2])
    with pytest.raises(FleetError, match=r"2 of the 3 clients that a round needs are there after 200 s \(2 nodes onl"):
        tune(grid, ft.flower.Fleet(grid, toys.Softmax(), wait=200.0, clock=grid.clock))
    assert any("waiting up to 200 s: 2 of the 3 clients" in r.getMessage() for r in caplog.records)
    empty = MemoryGrid()
    with pytest.raises(FleetError, match="0 of the 3 clients"):
        tune(empty, ft.flower.Fleet(empty, toys.Softmax(), wait=10.0, clock=empty.clock))


def test_nodes_that_have_not_answered_yet_are_not_said_to_be_missing(caplog):
    caplog.set_level("INFO", "flwr")
    grid = grid_of(CLIENTS[:3])
    grid.latency = 100.0
    with pytest.raises(FleetError, match="0 of the 3 clients"):
        tune(grid, ft.flower.Fleet(grid, toys.Softmax(), wait=50.0, clock=grid.clock))
    said = [r.getMessage() for r in caplog.records if "waiting up to" in r.getMessage()]
    assert said
    assert all("(3 nodes online): the others answer when" in text and "start more" not in text for text in said)


def test_a_cohort_that_is_too_large_is_named_at_once_with_its_remedy(caplog):
    caplog.set_level("INFO", "flwr")
    grid = grid_of(CLIENTS[:4])
    began, seen = grid.clock.now(), []
    sleep = grid.clock.sleep
    grid.clock.sleep = lambda seconds: (seen.append((grid.clock.now() - began, len(caplog.records))), sleep(seconds))
    with pytest.raises(FleetError, match=r"lower cohort= \(to 4, or a part such as 0.5\), start more SuperNodes or"):
        tune(grid, ft.flower.Fleet(grid, toys.Softmax(), clock=grid.clock), cohort=10)
    assert "4 of the 10 clients" in caplog.records[0].getMessage()
    assert "lower cohort= (to 4" in caplog.records[0].getMessage()
    assert min(time for time, lines in seen if lines) < 5  # of the 300 s that it waits for more
    caplog.clear()
    few = fleet_of(grid, least=7, wait=20.0)
    with pytest.raises(FleetError, match="lower least=, start more"):
        tune(grid, few, cohort=3)


def test_a_part_of_the_fleet_begins_with_whoever_is_there():
    grid = grid_of(CLIENTS[:4])
    study = tune(grid, ft.flower.Fleet(grid, toys.Softmax(), clock=grid.clock), cohort=0.5)
    assert {r.clients for r in study.history} == {2}


def test_a_node_that_comes_in_time_is_waited_for():
    grid = grid_of()
    ids, end = sorted(grid.online), grid.clock.now() + 100
    grid.get_node_ids = lambda: ids if grid.clock.now() > end else ids[:-1]  # type: ignore[method-assign]
    same(tune(grid), simulated())


def test_with_fewer_than_the_cohort_but_enough_the_round_is_smaller():
    grid = grid_of(CLIENTS[:4])
    study = tune(grid, fleet_of(grid, least=2), cohort=5)
    assert {r.clients for r in study.history} == {4}
    assert study.evaluate("test")


def test_who_leaves_is_asked_no_more_and_who_joins_is():
    grid = grid_of()
    late = grid.add(ft.flower.client_app(toys.Softmax(), lambda context: replace(CLIENTS[0], id="late")))
    grid.online -= {late}

    def churn(message: Message) -> None:
        if len(grid.work_sent()) == 18:
            grid.online -= {1002}
            grid.online |= {late}

    grid.on_push = churn
    study = tune(grid, fleet_of(grid, least=3, deadline=20.0), method=ft.methods.scaffold)
    places = [m.metadata.dst_node_id for m in grid.work_sent()]
    assert late not in places[:18]
    assert late in places
    assert 1002 in places[:18]
    assert 1002 not in places[30:]
    assert study.problem.population() == 7
    assert study.problem.faults["left"] == 1
    assert any(client_number("late") in state.memory for state in states(study).values())
    assert study.rounds_used == ROUNDS


def test_a_device_that_restarts_is_the_same_client_and_its_work_is_sent_again():
    """Client 2's node dies with a job in hand; under another node id it does that job: not a bit is different."""
    grid = grid_of(method=toys.remembering)
    reborn = grid.add(grid.apps[1002])
    grid.online -= {reborn}
    died = []

    def die(message: Message) -> None:
        if message.metadata.dst_node_id == 1002 and len(grid.work_sent()) > 12 and not died:
            died.append(message)
            grid.online -= {1002}
            grid.online |= {reborn}

    grid.on_push = die
    study = tune(grid, method=toys.remembering)
    assert died
    assert study.problem.faults == {"left": 1}
    assert any(m.metadata.dst_node_id == reborn for m in grid.work_sent())
    same(study, simulate(method=toys.remembering))


def test_two_nodes_with_one_id_are_one_client(caplog):
    grid = grid_of()
    grid.add(ft.flower.client_app(toys.Softmax(), lambda context: CLIENTS[2]))
    study = tune(grid)
    assert study.problem.faults["moved"] == 1
    assert "two with one id?" in caplog.text
    same(study, simulated())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("app", "why"),
    [
        (ClientApp(), "is its ClientApp made by fedtuner.flower"),
        (ft.flower.client_app(toys.Softmax(features=4), lambda context: CLIENTS[0]), "its model has 16 entries, the s"),
        (ft.flower.tuned(ClientApp()), "is made by tuned, but this server needs one made by client_app"),
        (ft.flower.client_app(toys.Softmax(), lambda context: replace(CLIENTS[0], id=2.5)), "the id 2.5"),
        (ft.flower.client_app(toys.Softmax(), lambda context: CLIENTS[0], secure=True), "client_app with no secure="),
        (ft.flower.client_app(toys.Softmax(), lambda context: None), "AttributeError"),  # type: ignore[arg-type,return-value]
    ],
)
def test_a_node_that_does_not_fit_is_refused_with_the_reason(app, why, caplog):
    grid = grid_of()
    stranger = grid.add(app)
    study = tune(grid)
    assert study.problem.faults == {"refused": 1}
    assert why in caplog.text
    assert not any(m.metadata.dst_node_id == stranger for m in grid.work_sent())
    same(study, simulated())
    alone = MemoryGrid()
    alone.add(app)
    with pytest.raises(FleetError, match=rf"0 of the 3 clients.*node {1000} was refused: .*{why[-20:]}"):
        tune(alone, ft.flower.Fleet(alone, toys.Softmax(), wait=10.0, clock=alone.clock))


def test_a_node_that_says_nothing_holds_up_nobody_for_long():
    grid = grid_of()
    mute = grid.add(ClientApp())
    deliver = grid._deliver
    grid._deliver = lambda message: None if message.metadata.dst_node_id == mute else deliver(message)  # type: ignore[method-assign]
    study = tune(grid, fleet_of(grid, deadline=30.0))
    assert study.problem.faults == {"refused": 1}
    same(study, simulated())


def test_a_node_whose_reply_to_a_handshake_is_late_joins_when_it_arrives():
    """It may have to install the app first: the reply counts however late it arrives."""
    grid = grid_of()
    problem, pull = fleet_of(grid), grid.pull_messages
    held: list[Message] = []

    def late(ids: Any) -> list[Message]:
        arrived = [*held, *pull(ids)]
        held[:] = [m for m in arrived if m.metadata.src_node_id == 1005 and not problem.faults["refused"]]
        return [m for m in arrived if m not in held]

    grid.pull_messages = late  # type: ignore[method-assign]
    study = tune(grid, problem)
    assert study.problem.faults == {"refused": 1}
    same(study, simulated())


# Checkpoints


@pytest.mark.slow
@pytest.mark.parametrize("after", [17, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 28))])
def test_a_server_that_is_killed_continues_to_the_same_end(after, tmp_path):
    """A kill in mid-rung; the next run has other nodes for the same clients."""

    def run() -> None:
        grid = grid_of(method=toys.remembering)
        grid.on_push = lambda message: toys.die() if len(grid.work_sent()) == after else None
        tune(grid, method=toys.remembering, store=tmp_path)

    assert toys.forked(run) == -9
    grid = grid_of(list(reversed(CLIENTS)), method=toys.remembering)
    study = tune(grid, method=toys.remembering, store=tmp_path)
    same(study, simulate(method=toys.remembering))
    again = len(grid.count())  # sent again: at most the rounds that were under way
    assert again <= ROUNDS - max(0, (after - 12) // 3)


def test_every_round_is_on_disk_before_the_next_of_its_arm_is_sent(tmp_path):
    grid = grid_of()
    seen = []

    def look(message: Message) -> None:
        if message.metadata.message_type == "train.fedtuner":
            about = message.content.config_records["fedtuner"]
            arm, round = about["arm"], about["round"]
            seen.append(round == 0 or (tmp_path / "states" / f"{arm}-{round}.safetensors").exists())
            seen.append(read(Folder(tmp_path), "it").round_of(arm) == round)

    grid.on_push = look
    tune(grid, store=tmp_path)
    assert len(seen) == 2 * 3 * ROUNDS
    assert all(seen)


def test_stopping_leaves_the_rounds_under_way_and_keeps_the_rest():
    grid = grid_of()
    study = ft.prepare(fleet_of(grid), toys.SPACE, cohort=3)
    round, blobs = Round(study.setup, study.problem), InMemory().blobs
    executor = study.problem.executor(round, blobs, None)
    assert isinstance(executor, dispatch.Dispatch)
    arm, steps = Arm(0, {**defaults(ft.methods.fedavg.client)}, {**defaults(ft.methods.fedavg.server)}), []
    for step in executor.advance([Advance(arm, round.begin(arm), 10)], lambda: len(steps) > 3):
        steps.append(step)
    assert [s.state.round for s in steps if s.state] == [1, 2, 3, 4]
    executor.close()


def test_a_finished_study_asks_no_device(tmp_path):
    first = tune(grid_of(), store=tmp_path)
    first.evaluate("test")
    nobody = MemoryGrid()
    again = tune(nobody, ft.flower.Fleet(nobody, toys.Softmax(), clock=nobody.clock), store=tmp_path)
    same(again, first)
    assert again.evaluate("test") == first.evaluate("test")
    assert nobody.sent == []


def test_an_evaluation_counts_those_who_answer():
    grid = grid_of()
    study = tune(grid)
    grid.faults[1002] = error
    some = study.evaluate("test")
    sizes = [len(c.test[1]) for c in CLIENTS]
    wrong = some["global"] * (sum(sizes) - sizes[2])
    assert wrong == pytest.approx(round(wrong))
    grid.faults = dict.fromkeys(grid.apps, error)
    with pytest.raises(FleetError, match=r"no client answered an evaluation: .*the phone is full"):
        study.evaluate("test")
    grid.faults.clear()
    assert study.evaluate("test") == simulated().evaluate("test") != some


class TestFleet(FederationLaws):
    """What every federation keeps to."""

    def federation(self) -> ft.flower.Fleet:
        grid = grid_of()
        problem = fleet_of(grid)
        problem.everyone()
        return problem


def test_a_look_at_who_is_present_waits_for_nobody_and_asks_nobody():
    grid = grid_of()
    problem = fleet_of(grid)
    assert list(problem.present()) == []
    assert (grid.sent, grid.clock.now(), problem.population()) == ([], 1000.0, 0)


# Settings


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"least": 0}, "least = 0"),
        ({"least": 2.5}, "least = 2.5"),
        ({"wait": -1}, "wait = -1"),
        ({"deadline": math.inf}, "deadline = inf"),
        ({"most_examples": 0}, "most_examples = 0"),
    ],
)
def test_settings_that_make_no_sense(changed, what):
    with pytest.raises(SpecError, match=what):
        fleet_of(MemoryGrid(), **changed)


def test_the_store_knows_the_model_and_not_the_clients(tmp_path):
    tune(grid_of(), store=tmp_path)
    begun = read(Folder(tmp_path), "it").begun
    assert begun.federation["name"] == "flower"
    assert begun.federation["clients"] == "a fleet of"
    few = grid_of(CLIENTS[:1])
    tune(few, fleet_of(few), store=tmp_path)  # finished: nobody is asked
    other = ft.flower.Fleet(grid_of(), toys.Softmax(features=4))
    with pytest.raises(ft.FedtunerError, match="holds another study"):
        tune(grid_of(), other, store=tmp_path)
