"""Devices that send what no honest device sends, through real messages: at worst their reply is malformed."""

from __future__ import annotations

import io
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_grid import MemoryGrid
from test_fleet import (
    CLIENTS,
    anonymous,
    deaf,
    dropping,
    fleet_of,
    grid_of,
    same,
    simulate,
    simulated,
    states,
    tune,
    with_w,
)
from test_messages import job, plan, reader

import fedtuner as ft
import toys
from fedtuner import methods
from fedtuner.core.records import Report
from fedtuner.errors import FleetError
from fedtuner.flower import handshake
from fedtuner.flower.handshake import Requirements, client_number
from fedtuner.flower.messages import VERSION, lineage_of, plan_of
from fedtuner.flower.wire import Arrays, MalformedError

EVERYONE: Any = {"schedule": ft.random_search(budget=4, longest=2), "cohort": 6}
MEGABYTES = "x" * 2_000_000


def npz(**arrays: Any) -> bytes:
    """The bytes of a zip file of arrays."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: Any) -> bytes:
    return Array(np.asarray(array)).data


def raw(data: bytes, shape: tuple[int, ...] = (13,), kind: str = "numpy.ndarray") -> Array:
    return Array("float32", shape, kind, data)


def record(name: str, made: Any) -> Any:
    """A fault that puts a record into the reply."""

    def fault(reply: Message) -> Message:
        reply.content[name] = made
        return reply

    return fault


def numbers(**changed: Any) -> Any:
    """A fault that changes numbers of the report."""

    def fault(reply: Message) -> Message:
        reply.content["report"] = MetricRecord({**reply.content["report"], **changed})
        return reply

    return fault


def beside_w(reply: Message) -> Message:
    reply.content["arrays"]["more"] = Array(np.zeros(1_000_000, np.float32))
    return reply


MALFORMED = {
    "zip of arrays": record("arrays", ArrayRecord({"w": raw(npz(w=np.zeros(13, np.float32)))})),
    "another encoding": record("arrays", ArrayRecord({"w": raw(b"", kind="torch")})),
    "a header of 10^15 entries": record(
        "arrays", ArrayRecord({"w": raw(npy(np.zeros(13, np.float32)).replace(b"(13,), }  ", b"(10**15,)}"))})
    ),
    "more bytes than the model": record("arrays", ArrayRecord({"w": raw(npy(np.zeros(10**6, np.float32)))})),
    "more arrays than the model": beside_w,
    "memory, where the method has none": record("memory", ArrayRecord({"m": Array(np.zeros(10**6, np.float32))})),
    "extra of 2 MB names": record("extra", ArrayRecord({MEGABYTES: Array(np.zeros(1, np.float32))})),
    "300,000 losses": numbers(loss_after=[0.5] * 300_000),
    "text for a report": record("report", ConfigRecord({"examples": MEGABYTES})),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MALFORMED)
def test_whatever_a_device_sends_is_at_worst_a_malformed_reply(name, tmp_path):
    grid = grid_of()
    grid.faults[1002] = MALFORMED[name]
    study = tune(grid, store=tmp_path, **EVERYONE)
    assert study.problem.faults == {"malformed": study.rounds_used}
    same(study, deaf(**EVERYONE))
    assert largest(tmp_path) < 20_000


def largest(store: Path) -> int:
    """The size of the largest file in a store."""
    return max(file.stat().st_size for file in store.rglob("*") if file.is_file())


def stranger(**about: Any) -> ClientApp:
    """An app that answers a handshake with whatever it likes."""
    app = ClientApp()

    @app.query("fedtuner")
    def answer(message: Message, context: Any) -> Message:
        honest = {"version": VERSION, "own_training": False, "secure": False, "size": 13, "id": "stranger"}
        return Message(RecordDict({"fedtuner": ConfigRecord({**honest, **about})}), reply_to=message)

    return app


@pytest.mark.slow
@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"id": "1" * 5000}, "its id has 5000 characters, but may have at most 200"),
        ({"id": MEGABYTES}, "its id has 2000000 characters"),
        ({"id": ""}, "its id is ''"),
        ({"id": [1, 2]}, "its id is"),
        ({"version": MEGABYTES}, "its messages are of version 'xxx"),
        ({"version": 2}, "its messages are of version 2, the server's of 3: install one fedtuner on both sides"),
        ({"size": [MEGABYTES]}, "its model has"),
        ({"size": math.nan}, "its model has nan entries"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_whatever_a_handshake_says_the_node_is_refused_in_a_short_line(about, why, tmp_path):
    grid = grid_of()
    grid.add(stranger(**about))
    study = tune(grid, store=tmp_path)
    assert study.problem.faults == {"refused": 1}
    [line] = (tmp_path / "log.jsonl").read_text().splitlines()
    assert why in json.loads(line)["text"]
    assert len(line) < 1000
    same(study, simulated())


def test_an_id_of_many_digits_stands_in_its_order():
    grid = grid_of(CLIENTS[:2])
    grid.add(stranger(id="phone" + "0" * 150 + "1"))
    problem = fleet_of(grid, least=3)
    problem.everyone()
    assert [problem.id_of(i) for i in problem.present()] == ["phone0", "phone" + "0" * 150 + "1", "phone1"]


def test_log_lines_are_short_however_long_a_reason_is(tmp_path, caplog):
    grid = grid_of()

    def fail(message: Message, context: Any) -> Message:
        raise ValueError("\n".join([MEGABYTES, MEGABYTES, "it is " + MEGABYTES]))

    honest = grid.apps[1002]
    grid.apps[1002] = lambda m, c: honest(m, c) if m.metadata.message_type == "query.fedtuner" else fail(m, c)  # type: ignore[assignment]
    study = tune(grid, store=tmp_path, **EVERYONE)
    assert study.problem.faults["error"] == study.rounds_used
    assert max(map(len, (tmp_path / "log.jsonl").read_text().splitlines())) < 1000
    assert max(len(record.getMessage()) for record in caplog.records) < 1000


def test_a_reply_that_cannot_be_decoded_is_malformed_and_the_round_goes_on():
    """Flower decodes replies when they are fetched, and raises whatever it meets then."""
    grid = grid_of()
    pull, broken = grid.pull_messages, []

    def decode(ids: Any) -> Any:
        arrived = list(pull(ids))
        if any(m.metadata.src_node_id == 1002 for m in arrived) and grid.work_sent():
            broken.append(True)
            for m in arrived:  # those of the same batch that were read before it are there again
                if m.metadata.src_node_id != 1002:
                    grid.replies[m.metadata.reply_to_message_id].append((0.0, m))
            raise ValueError("Mismatch in children object IDs " + MEGABYTES)
        return arrived

    grid.pull_messages = decode  # type: ignore[method-assign]
    study = tune(grid, **EVERYONE)
    assert broken == [True]  # the replies to both arms were fetched together
    assert study.problem.faults == {"undecodable": 1, "timeout": 2}
    assert [(r.clients, r.dropped) for r in study.history] == [(6, 1), (5, 0)] * 2


# Numbers and updates that lie


IMPOSSIBLE = {
    "error above 1": numbers(error_after=[17.0]),
    "negative error": numbers(error_after=[-0.5]),
    "NaN error": numbers(error_before=[math.nan]),
    "negative loss": numbers(loss_after=[-0.001]),
    "the best loss there is": numbers(loss_before=[-1e308]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_report_of_what_cannot_be_is_left_out(name, tmp_path):
    grid = grid_of()
    grid.faults[1002] = IMPOSSIBLE[name]
    study = tune(grid, store=tmp_path, **EVERYONE)
    assert study.problem.faults == {"screened": study.rounds_used}
    assert {(r.dropped, r.bounded) for r in study.history} == {(1, 1)}
    assert anonymous(study, bounded=0) == deaf(**EVERYONE).history
    line = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert (line["kind"], line["client"]) == ("screened", "phone2")
    assert "its report is left out: losses" in line["text"]


def test_where_all_losses_are_negative_the_study_ends_and_says_what_to_set():
    grid = grid_of()
    grid.faults = dict.fromkeys(grid.apps, numbers(loss_before=[-1.0], loss_after=[-2.0]))
    with pytest.raises(FleetError, match=r"no client reported in 3 tries; .*losses -1, -2 .*Fleet\(least_loss=\)"):
        tune(grid, **EVERYONE)
    study = tune(grid, fleet_of(grid, least_loss=-math.inf), **EVERYONE)
    assert {r.loss for r in study.history} == {-2.0}


@pytest.mark.parametrize("lie", [math.nan, math.inf, 1e308])
def test_one_device_does_not_make_an_arms_loss_infinite(lie, tmp_path):
    grid = grid_of()
    grid.faults[1002] = numbers(loss_before=[lie], loss_after=[lie])
    study = tune(grid, store=tmp_path, **EVERYONE)
    assert all(0 < r.loss < 100 and r.bounded == 1 and not r.dropped for r in study.history)
    assert study.problem.faults == {"bounded": study.rounds_used}
    line = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert "client 'phone2': losses" in line["text"]


def test_one_device_does_not_decide_which_arm_is_best_by_loss():
    """Its lie, always the same, moves the losses of all arms alike: the order of arms is that of the others."""
    grid, by_loss = grid_of(), ft.random_search(budget=12, longest=3, score="loss")
    grid.faults[1002] = numbers(loss_before=[1e308], loss_after=[1e308])
    study = tune(grid, cohort=6, schedule=by_loss)
    assert study.best.arm == deaf(cohort=6, schedule=by_loss).best.arm


@pytest.mark.slow
@pytest.mark.parametrize("lie", [1e6, 3e38, -3e38])
def test_an_update_of_huge_numbers_is_left_out(lie, tmp_path):
    """The model is that of the others' updates."""
    grid, once = grid_of(), {"cohort": 6, "schedule": ft.random_search(budget=10, longest=10), "fedex": None}
    grid.faults[1002] = with_w(lambda w: np.full_like(w, lie))
    attacked, honest = tune(grid, store=tmp_path, **once), deaf(**once)
    assert {(r.bounded, r.dropped, r.broken, r.unusable) for r in attacked.history} == {(1, 0, 0, ("phone2",))}
    assert [r.examples for r in attacked.history] == [r.examples for r in honest.history]
    assert np.array_equal(attacked.best.model, honest.best.model)
    assert attacked.problem.faults == {"shortened": 10, "failing": 1}
    line = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert re.search(r"client 'phone2': an update of length [\d.e+]+ counts as 0$", line["text"])


@pytest.mark.slow
@pytest.mark.parametrize("times", [-20.0, 15.0])
def test_a_long_update_is_shortened_and_does_not_win(times):
    """The model's length is near that of the honest one, and it does as well."""
    grid, study = grid_of(), ft.random_search(budget=10, longest=10)
    grid.faults[1002] = with_w(lambda w: np.float32(times) * w)
    attacked, honest = tune(grid, cohort=6, schedule=study), deaf(cohort=6, schedule=study)
    assert {(r.dropped, r.broken) for r in attacked.history} == {(0, 0)}
    assert all(r.bounded for r in attacked.history)
    assert attacked.problem.faults.keys() == {"shortened"}
    assert np.linalg.norm(attacked.best.model[:12]) < 3 * np.linalg.norm(honest.best.model[:12])
    assert attacked.history[-1].error < honest.history[-1].error + 0.15


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
@pytest.mark.parametrize("lie", [1e30, 100.0])
def test_what_a_device_keeps_is_shortened_before_it_is_in_a_sum(name, lie):
    method, grid = getattr(methods, name), grid_of()
    vector, weight = next(iter(method.extra)), Array(np.array([16], np.float32))
    grid.faults[1002] = record("memory", ArrayRecord({vector: Array(np.full(12, lie, np.float32)), "weight": weight}))
    once: Any = {"method": method, "cohort": 6, "schedule": ft.random_search(budget=4, longest=4)}
    study = tune(grid, **once)
    assert study.problem.faults["shortened"] >= 4
    [state] = states(study).values()
    lengths = {i: float(np.linalg.norm(m[vector])) for i, m in state.memory.items()}  # type: ignore[call-overload]
    liar = lengths.pop(client_number("phone2"))
    assert liar <= 3.01 * max(lengths.values())
    whole = sum(m["weight"][0] for m in state.memory.values())  # type: ignore[call-overload]
    total = sum(m["weight"][0] * m[vector] for m in state.memory.values())  # type: ignore[call-overload]
    assert state.slots[vector] == pytest.approx(total / whole, rel=1e-3, abs=1e-5)


def test_a_lie_about_the_examples_has_a_share_of_the_round_below_half():
    grid = grid_of(toys.clients(10))
    grid.faults[1002] = numbers(examples=10**9, validated=10**9)
    study = tune(grid, fleet_of(grid, least=10), schedule=ft.random_search(budget=4, longest=4), cohort=10)
    for r in study.history:
        of = {row.client: row for row in r.rows}["phone2"]
        assert 0.17 < of.examples / r.examples <= 2 / 11
        assert 0.17 < of.validated / r.validated <= 2 / 11


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
@pytest.mark.parametrize("weight", [(1e9, 1.0), (-1e9, 0.0), (0.0, 1e9)], ids=str)
def test_by_how_much_a_weight_has_changed_is_not_for_a_device_to_say(name, weight):
    """The server finds it, and the sum that it is for, from |T| and from what the client remembers."""
    method, grid = getattr(methods, name), grid_of()
    vector = next(iter(method.extra))
    lie = {vector: Array(np.full(12, 3e38, np.float32)), "weight": Array(np.array(weight, np.float32))}
    grid.faults[1002] = record("extra", ArrayRecord(lie))
    once: Any = {"method": method, "cohort": 6, "schedule": ft.random_search(budget=4, longest=4)}
    study = tune(grid, **once)
    assert not study.problem.faults
    same(study, simulate(**once))


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_a_client_without_what_it_must_remember_is_malformed(name):
    method, grid = getattr(methods, name), grid_of()
    grid.faults[1002] = record("memory", ArrayRecord())
    once: Any = {"method": method, "cohort": 6, "schedule": ft.random_search(budget=4, longest=4)}
    study = tune(grid, **once)
    assert study.problem.faults == {"malformed": 4, "failing": 1}
    same(study, dropping(2, **once))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_a_lie_about_the_examples_counts_as_little_in_the_mean_of_what_clients_keep(name):
    """And they telescope: in each round the bound is another, and the server's total is that of the last one."""
    grid = grid_of(toys.clients(10))
    lies = iter(range(10**9, 2 * 10**9))
    grid.faults[1002] = lambda reply: numbers(examples=next(lies))(remembering_so_many(reply, 1e9))
    once: Any = {"method": getattr(methods, name), "schedule": ft.random_search(budget=4, longest=4), "cohort": 10}
    study = tune(grid, fleet_of(grid, least=10), **once)
    assert study.problem.faults["capped"] == 4
    [state] = states(study).values()
    assert state.slots["weight"][:2].tolist() == [study.history[-1].examples, 10]
    liar: Any = state.memory[client_number("phone2")]
    assert 0.17 < liar["weight"][0] / study.history[-1].examples <= 2 / 11


def remembering_so_many(reply: Message, examples: float) -> Message:
    reply.content["memory"]["weight"] = Array(np.array([examples], np.float32))
    return reply


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_honest_devices_are_hardly_touched(name):
    study = tune(grid_of(), method=getattr(methods, name), fedex=ft.FedEx(k=4, eps=1.0))
    assert study.problem.faults.keys() <= {"shortened"}
    assert sum(r.bounded for r in study.history) < 0.05 * sum(r.clients for r in study.history)


# Fuzzing

FUZZ = int(os.environ.get("FUZZ", "300"))  # more by ``make fuzz``

texts = st.text(max_size=8)
scalars = st.integers(-(2**63), 2**63 - 1) | st.floats()
metric_values = scalars | st.lists(st.floats(), max_size=3) | st.lists(st.integers(-5, 5), max_size=3)
config_values = metric_values | texts | st.booleans() | st.binary(max_size=5) | st.lists(texts, max_size=3)
SAMPLES = [
    np.zeros(4, np.float32), np.full(4, np.nan, np.float32), np.zeros(4), np.zeros((2, 2), np.float32), np.zeros(0),
    np.array("text"), np.array([1, 2, 3, 4]), np.zeros(4, [("a", "f4")]), np.zeros(4, "c8"), np.zeros(4, "M8[s]"),
    np.zeros(4, ">f4"), np.array(3.0, np.float32), np.zeros(4, bool),
]  # fmt: skip
contents = st.one_of(
    st.sampled_from([npy(sample) for sample in SAMPLES]),
    st.sampled_from(SAMPLES[:2]).map(lambda a: npz(w=a)),
    st.binary(max_size=40),
    st.integers(0, 130).map(lambda n: npy(SAMPLES[0])[:n]),
    st.tuples(st.integers(0, 127), st.integers(0, 255)).map(
        lambda change: npy(SAMPLES[0])[: change[0]] + bytes([change[1]]) + npy(SAMPLES[0])[change[0] + 1 :]
    ),
)
arrays = st.builds(raw, contents, st.sampled_from([(4,), (), (-1,), (2**40,)]), st.sampled_from(["numpy.ndarray", ""]))
array_names = st.sampled_from(["w", "control", "last", "0", "1"]) | texts
array_records = st.dictionaries(array_names, arrays, max_size=3).map(ArrayRecord)
number_names = st.sampled_from(
    ["examples", "validated", "loss_before", "error_before", "loss_after", "error_after", "x"]
)
counts = st.integers(-1, 2**63 - 1)
reports = st.one_of(
    st.dictionaries(number_names, metric_values, max_size=7),
    st.fixed_dictionaries(
        {"examples": counts, "validated": counts}
        | {
            name: st.lists(st.floats(), min_size=1, max_size=1)
            for name in ("loss_before", "error_before", "loss_after", "error_after")
        }
    ),
).map(MetricRecord)
records = array_records | reports | st.dictionaries(texts, config_values, max_size=3).map(ConfigRecord)
honest_arrays = st.just(ArrayRecord({"w": Array(np.zeros(4, np.float32))}))
one_array = st.dictionaries(st.just("w"), arrays, min_size=1).map(ArrayRecord)
replies = st.dictionaries(
    st.sampled_from(["arrays", "report", "extra", "memory", "fedtuner"]) | texts, records, max_size=4
) | st.fixed_dictionaries({"arrays": honest_arrays | one_array | array_records, "report": reports})
READERS = [
    reader(),
    reader(method=methods.scaffold),
    reader(worst=math.inf),
    reader(plan(w=np.zeros(4, np.float32), jobs=(job(),)), wire=Arrays([np.zeros(3), np.array(1)])),
]


@pytest.mark.slow
@settings(max_examples=FUZZ, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(replies, st.sampled_from(READERS))
def test_any_reply_is_a_report_or_malformed(content, reads):
    read = outcome(reads.read, RecordDict(content), job())
    if not isinstance(read, str):
        assert isinstance(read, Report)
        assert (read.change.shape, read.change.dtype) == ((4,), np.float32)
        assert read.memory.keys() <= reads.memory.keys()
        assert not read.finite or np.isfinite(read.change).all()


def outcome(read: Any, *arguments: Any) -> Any:
    """What is read; why, in a short text, if it is malformed."""
    try:
        return read(*arguments)
    except MalformedError as error:
        why = str(error)
    assert len(why) <= 300
    return why


abouts = st.dictionaries(
    st.sampled_from(["id", "size", "version", "own_training", "secure"]) | texts, config_values, max_size=5
)
honest = st.fixed_dictionaries(
    {"version": st.just(VERSION), "own_training": st.just(False), "secure": st.just(False), "id": texts | config_values}
)


@pytest.mark.slow
@settings(max_examples=FUZZ, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["fedtuner", "x"]), (abouts | honest).map(ConfigRecord) | records, max_size=2))
def test_any_handshake_is_an_id_or_malformed(content):
    grid = MemoryGrid()  # sets up what messages need
    asked = Message(handshake.request(), grid.add(ClientApp()), "query.fedtuner")
    reply = Message(RecordDict(content), reply_to=asked)
    id = outcome(lambda: (handshake.client_id(reply, Requirements(4, False, False)),))
    if not isinstance(id, str):
        assert 0 < len(str(*id)) <= 200
        assert handshake.natural(*id) == handshake.natural(*id)
        assert handshake.client_number(*id) >= 0


plans = st.fixed_dictionaries(
    {"version": st.just(VERSION)},
    optional={
        "arm": config_values | st.integers(0, 3),
        "round": config_values | st.integers(0, 3),
        "method": texts | config_values,
        "split": texts | config_values,
        "seed": texts | config_values | st.integers().map(str) | st.just("9" * 5000),
        "progress": st.floats() | config_values,
        "server": texts | config_values | st.sampled_from(["{}", '{"lr": 1}', "[]", "{", "[" * 100_000, "NaN"]),
        "parent": config_values,
        "out": config_values,
    },
)
choices = st.sampled_from(["[]", "[[0, {}]]", '[["a", {}]]', "[[0]]", '[[1, {"lr": 0.1}], [2, []]]', "[" * 9999, "0"])
jobs = st.dictionaries(st.sampled_from(["choices", "x"]), choices | config_values, max_size=2)
requests = st.fixed_dictionaries(
    {},
    optional={
        "fedtuner": plans.map(ConfigRecord) | records,
        "job": jobs.map(ConfigRecord) | records,
        "arrays": honest_arrays | array_records | records,
        "memory": array_records | records,
        "slots": array_records | records,
    },
)
whole = st.fixed_dictionaries(
    {name: st.just(str(name)) for name in ("method", "split")}
    | {"version": st.just(VERSION), "arm": st.just(1), "round": st.just(2), "seed": st.integers().map(str)}
    | {"progress": st.floats(0, 1), "server": st.sampled_from(["{}", "[]"])},
    optional={"parent": config_values, "out": config_values},
).map(ConfigRecord)
almost = st.fixed_dictionaries({"fedtuner": whole, "job": jobs.map(ConfigRecord), "arrays": honest_arrays})


@pytest.mark.slow
@settings(max_examples=FUZZ, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests | almost)
def test_any_message_is_a_plan_or_malformed(content):
    message = RecordDict(content)
    read = outcome(lambda: (plan_of(message), lineage_of(message)))
    if not isinstance(read, str):
        (method, made), lineage = read
        assert isinstance(method, str)
        assert [type(v) for v in (made.seed, made.arm, made.round, made.split)] == [int, int, int, str]
        assert isinstance(made.server, dict)
        assert all(type(c.label) is int and isinstance(c.config, dict) for c in made.jobs[0].choices)
        assert made.jobs[0].config is not None
        assert all(type(arm) is int for arm in lineage.out)
