"""Plans, jobs and reports arrive as they were sent, and what is not what it must be is refused."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from memory_grid import over_the_wire

import toys
from fedtuner import methods
from fedtuner.core.method import Optimiser
from fedtuner.core.model import NOTHING, Metric, Metrics
from fedtuner.core.records import Choice, Job, Plan, Report, Tried
from fedtuner.errors import SpecError
from fedtuner.flower import messages
from fedtuner.flower.messages import job_content, lineage_of, plan_of, plan_records, reason_of, report_content
from fedtuner.flower.replies import Expected, expected
from fedtuner.flower.wire import Arrays, Flat, MalformedError, Wire
from fedtuner.methods.momentum import sgd

WIRE = Flat(4)
NOTHING_SENT = np.zeros(0, np.float32)
floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
vectors = arrays(np.float32, 4, elements=floats)
values = st.one_of(st.floats(allow_nan=False), st.integers(-(2**62), 2**62), st.text(max_size=5), st.booleans())
configs = st.dictionaries(st.text(min_size=1, max_size=8), values, max_size=4)
numbers = st.floats(0, 1)
jobs = st.builds(
    Job,
    client=st.just(0),
    choices=st.lists(st.builds(Choice, st.integers(0, 80), configs), min_size=1, max_size=3).map(tuple),
    memory=st.dictionaries(st.sampled_from(["last", "visits"]), vectors),
)
plans = st.builds(
    Plan,
    seed=st.integers(-(2**90), 2**90),
    arm=st.integers(0, 10**6),
    round=st.integers(0, 10**6),
    split=st.sampled_from(["train", "valid", "test"]),
    server=configs,
    progress=st.floats(0, 1),
    w=vectors,
    slots=st.dictionaries(st.sampled_from(["momentum", "control"]), vectors),
    jobs=jobs.map(lambda job: (job,)),
)


def sent(content: RecordDict) -> RecordDict:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    message = Message(content, 1, "train")
    message.metadata.__dict__["_message_id"] = "1"
    return over_the_wire(message).content


def text(thing: Any) -> str:
    """A record with its arrays to the bit; NaN is equal to itself."""
    if isinstance(thing, np.ndarray):
        return repr((thing.dtype, thing.shape, thing.tobytes()))
    if is_dataclass(thing):
        return repr([(f.name, text(getattr(thing, f.name))) for f in fields(thing)])
    if isinstance(thing, dict):
        return repr(sorted((name, text(value)) for name, value in thing.items()))
    return repr([text(x) for x in thing]) if isinstance(thing, (tuple, list)) else repr((type(thing), thing))


@pytest.mark.slow
@given(plans)
def test_a_plan_and_a_job_arrive_as_they_were_sent(plan):
    """Every field of them: a field that is added and does not travel fails here."""
    arrived = sent(job_content(plan_records(plan, "fedavg", WIRE.record(plan.w)), plan.jobs[0]))
    name, there = plan_of(arrived)
    assert name == "fedavg"
    assert text(replace(there, w=WIRE.vector(arrived.array_records["arrays"]))) == text(plan)


def test_the_jobs_of_a_plan_share_what_all_clients_are_sent():
    made = plan(slots={"momentum": np.ones(4, np.float32)}, jobs=(job(), job(2)))
    shared = plan_records(made, "fedavg", WIRE.record(made.w))
    one, two = (job_content(shared, j) for j in made.jobs)
    assert {name for name in one if one[name] is two[name]} == {"fedtuner", "arrays", "slots"}
    assert set(one) == set(two) == {"fedtuner", "arrays", "slots", "job"}


metrics = st.builds(Metrics, loss=numbers, error=numbers, count=st.just(7))
finite = arrays(np.float32, 4, elements=st.floats(-1, 1, width=32))
remembering = replace(methods.fedavg, memory={"last": "all", "visits": (4,)}, extra={"control": "all"})


@pytest.mark.slow
@given(plans, st.data())
def test_a_report_arrives_as_it_was_sent(made, data):
    asked = made.jobs[0]
    tried = tuple(Tried(choice.label, data.draw(metrics), data.draw(metrics)) for choice in asked.choices)
    memory = data.draw(st.dictionaries(st.sampled_from(["last", "visits"]), vectors))
    report = Report(
        0, data.draw(finite), {"control": data.draw(finite)}, memory, data.draw(st.integers(0, 10**9)), tried, True
    )
    content = report_content(report, WIRE.record(report.change))
    reads = reader(made, remembering)
    assert text(reads.read(sent(content), asked)) == text(report)


class Four(toys.Softmax):
    """A model of four entries, of which three have gradients."""

    size, trainable = 4, 3

    def __init__(self, worst: float = 1.0) -> None:
        self.metric = Metric(worst=worst)


def job(tried: int = 1, **changed: Any) -> Job:
    return replace(Job(0, tuple(Choice(j, {"lr": 0.1}) for j in range(tried))), **changed)


def plan(**changed: Any) -> Plan:
    w = np.full(4, 2, np.float32)
    return replace(Plan(1, 2, 3, "valid", {"optimiser": "sgd"}, 0.5, w, {}, (job(),)), **changed)


def reader(made: Plan | None = None, method: Any = methods.fedavg, wire: Wire = WIRE, worst: float = 1.0) -> Expected:
    made = plan() if made is None else made
    return expected(replace(made, server={**made.server, "optimiser": "sgd"}), method, Four(worst), wire)


def reply(*measured: Metrics, change: Any = None, extra: Any = None, memory: Any = None) -> RecordDict:
    """A report with the same metrics before and after, one for each choice."""
    change = np.zeros(4, np.float32) if change is None else change
    tried = tuple(Tried(j, m, m) for j, m in enumerate(measured or (Metrics(0.5, 0.25, 3),)))
    made = Report(0, change, extra or {}, memory or {}, 5, tried, True)
    return report_content(made, WIRE.record(change))


def test_numbers_of_numpy_travel_too():
    config = {"lr": np.float64(0.1), "epochs": np.int64(3), "wide": np.bool_(True), "mu": np.float32(0.5)}
    made = plan(server=config, jobs=(job(choices=(Choice(0, config),)),))
    _, there = plan_of(sent(job_content(plan_records(made, "fedavg", WIRE.record(made.w)), made.jobs[0])))
    assert there.jobs[0].config == there.server == {"lr": 0.1, "epochs": 3, "wide": True, "mu": 0.5}
    assert [type(v) for v in there.jobs[0].config.values()] == [float, int, bool, float]


def test_a_message_of_another_version_is_refused(monkeypatch):
    content = job_content(plan_records(plan(), "fedavg", WIRE.record(plan().w)), job())
    monkeypatch.setattr(messages, "VERSION", 4)
    with pytest.raises(MalformedError, match="messages of version 3, but this side has 4: update fedtuner"):
        plan_of(content)
    with pytest.raises(MalformedError, match="messages of version None, but this side has 4: update fedtuner"):
        plan_of(RecordDict())


@pytest.mark.parametrize(
    ("record", "changed", "why"),
    [
        ("fedtuner", {"arm": "1"}, "arm = '1' in a message of fedtuner, but must be of type int"),
        ("fedtuner", {"round": True}, "round = True"),
        ("fedtuner", {"progress": 1}, "progress = 1 in a message of fedtuner, but must be of type float"),
        ("fedtuner", {"seed": "1e9"}, "seed = '1e9', but must be a whole number"),
        ("fedtuner", {"seed": "9" * 5000}, "seed = '999"),
        ("fedtuner", {"server": "[]"}, "server = \\[\\] in a message of fedtuner, but must be of type dict"),
        ("fedtuner", {"server": "{"}, "server cannot be read: Expecting property name"),
        ("fedtuner", {"server": "[" * 100_000}, "server cannot be read"),
        ("fedtuner", {"out": [0.5]}, "out = \\[0.5\\], but must be numbers of arms"),
        ("fedtuner", {"parent": "x"}, "parent = 'x'"),
        ("job", {"choices": "[]"}, "choices = \\[\\], but must be labels, each with a configuration"),
        ("job", {"choices": "[[0, {}], [1]]"}, "choices = "),
        ("job", {"choices": '[["a", {}]]'}, "choices = "),
    ],
)
def test_a_message_that_is_no_plan_is_refused_in_one_line(record, changed, why):
    content = job_content(plan_records(plan(), "fedavg", WIRE.record(plan().w)), job())
    content[record] = ConfigRecord({**content[record], **changed})
    with pytest.raises(MalformedError, match=why):
        (plan_of(content), lineage_of(content))
    for missing in ("job", "arrays"):
        content = job_content(plan_records(plan(), "fedavg", WIRE.record(plan().w)), job())
        del content[missing]
        with pytest.raises(MalformedError, match=f"no '{missing}' in a message of fedtuner"):
            plan_of(content)


def test_a_client_without_validation_data_says_nothing():
    arrived = reader().read(reply(NOTHING), job())
    assert (arrived.before.count, arrived.after.count, arrived.examples) == (0, 0, 5)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_infinite_and_the_error_the_worst(loss):
    arrived = reader().read(reply(Metrics(loss, 0.0, 3)), job())
    assert arrived.after == Metrics(math.inf, 1.0, 3)
    assert arrived.finite


def test_labels_are_those_of_the_job_whatever_a_client_says():
    asked = job(choices=(Choice(7, {}), Choice(2, {})))
    arrived = reader().read(reply(Metrics(0.5, 0.25, 3), Metrics(0.25, 0.5, 3)), asked)
    assert [(t.label, t.after.loss) for t in arrived.tried] == [(7, 0.5), (2, 0.25)]
    with pytest.raises(MalformedError, match=r"loss_before = \[0.5\], but must be a list of 2 numbers"):
        reader().read(reply(Metrics(0.5, 0.25, 3)), asked)


def test_a_change_that_is_not_finite_is_broken_and_only_its_own_value_the_worst():
    fine = Metrics(0.5, 0.25, 3)
    arrived = reader().read(reply(fine, fine, change=np.array([0, np.inf, 0, 0], np.float32)), job(2))
    assert not arrived.finite
    assert [t.after for t in arrived.tried] == [Metrics(math.inf, 1.0, 3), fine]
    assert arrived.before == fine


three, four = np.zeros(3, np.float32), np.zeros(4, np.float32)
declaring = replace(methods.scaffold, extra={"control": "trainable"}, memory={"control": "trainable"}, recount=None)


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({"extra": {}}, r"extra has \[\], but the method declares \['control'\]"),
        ({"extra": {"control": three, "more": three}}, r"extra has \['control', 'more'\], but the method declares"),
        ({"extra": {"control": four}}, r"extra: 'control' is of shape \(4,\) and type float32, but .* \(3,\)"),
        ({"extra": {"control": three.astype(np.float64)}}, r"type float64, but the method declares \(3,\) of float32"),
        ({"memory": {"contrl": three}}, r"memory has \['contrl'\], but the method declares \['control'\]"),
        ({"memory": {"control": four}}, r"memory: 'control' is of shape \(4,\)"),
    ],
)
def test_vectors_that_the_method_does_not_declare_are_refused(given_, why):
    reads, fine = reader(method=declaring), {"extra": {"control": three}, "memory": {"control": three}}
    assert reads.read(reply(**fine), job()).finite
    assert reads.read(reply(**{**fine, "memory": {}}), job()).memory == {}  # what is remembered may be nothing
    with pytest.raises(MalformedError, match=why):
        reads.read(reply(**{**fine, **given_}), job())


def test_what_the_servers_optimiser_asks_for_is_declared_by_it():
    own = Optimiser("own", "", sgd.step, sgd.hypers, lambda change: {"squares": np.array([change @ change])})
    method, made = declaring.with_optimiser(own), plan(server={"optimiser": "own"})
    assert expected(made, method, Four(), WIRE).extra == {"control": (3,), "squares": (1,)}
    assert expected(made, methods.fedavg.with_optimiser(own), Four(), Arrays([np.zeros(4)])).extra == {}


def test_the_reason_of_a_traceback_is_its_last_line():
    assert reason_of('Traceback:\n  File "x.py"\nValueError: no data\n\n') == "ValueError: no data"
    assert reason_of(None) == "no reason given"
    assert len(reason_of("x" * 5000)) == 300


# Arrays of an app


def test_arrays_come_back_in_their_names_order_shapes_and_types():
    given_ = {
        "steps": np.array(7, np.int64),
        "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "norm.running_mean": np.array([0.5, 1.5], np.float64),
        "half": np.array([1.0, 2.0], np.float16),
    }
    model = Arrays(given_)
    assert (model.size, model.trainable) == (11, 8)
    assert [part.name for part in model.layout()] == ["layer.weight", "half", "steps", "norm.running_mean"]
    w = model.initial(3)
    assert w.dtype == np.float32
    record = sent(RecordDict({"arrays": model.record(w)})).array_records["arrays"]
    assert list(record) == list(given_)
    for name, array in given_.items():
        back = record[name].numpy()
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert np.array_equal(back, array)
    assert not model.change(record, w).any()
    w[-3] = 7.6  # the mean of whole numbers is rounded
    assert model.record(w)["steps"].numpy() == 8
    assert model.initial(0)[-3] == 7


def test_a_list_of_arrays_and_an_array_record_are_the_same():
    weights = [np.ones((2, 2)), np.zeros(2)]
    assert Arrays(weights).layout() == Arrays(ArrayRecord(weights)).layout()
    assert Arrays(weights).trainable == 6


def test_the_change_of_an_apps_arrays_is_the_difference_in_float32():
    model = Arrays({"a": np.zeros(2), "n": np.array(3)})
    w = np.array([0.1, -0.2, 3], np.float32)
    returned = ArrayRecord({"a": Array(np.array([0.3, 1.7])), "n": Array(np.array(5))})
    expected_ = np.array([0.3, 1.7, 5], np.float32) - w
    assert model.change(returned, w).tobytes() == expected_.tobytes()
    huge = ArrayRecord({"a": Array(np.array([1e300, 0])), "n": Array(np.array(5))})
    assert not np.isfinite(model.change(huge, w)).all()  # and no warning
    arrived = reader(plan(w=w, jobs=(job(),)), wire=model).read(
        report_content(Report(0, NOTHING_SENT, {}, {}, 5, (Tried(0, NOTHING, NOTHING),), True), returned), job()
    )
    assert arrived.change.tobytes() == expected_.tobytes()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: r.pop("1"), r"arrays that only one side has: \['1'\]"),
        (lambda r: r.__setitem__("1", Array(np.zeros(3))), r"array '1' is of shape \(3,\), but must be of \(2,\)"),
        (lambda r: r.__setitem__("1", Array(np.array(["a", "b"]))), "type <U1"),
        (lambda r: r.__setitem__("1", Array("float64", (2,), "numpy.ndarray", b"junk")), "an array cannot be read"),
    ],
)  # fmt: skip
def test_arrays_that_are_not_the_models_are_refused(change, why):
    model = Arrays([np.ones((2, 2)), np.zeros(2)])
    record = model.record(model.initial(0))
    change(record)
    with pytest.raises(MalformedError, match=why):
        model.change(record, model.initial(0))


def test_a_model_without_arrays_is_refused():
    with pytest.raises(SpecError, match="the model has no arrays"):
        Arrays([])
    with pytest.raises(SpecError, match="array 'name' is of type"):
        Arrays({"name": "text"})


def test_arrays_are_a_model_that_clients_train():
    model = Arrays([np.zeros(2)], Metric(worst=math.inf))
    assert model.own_training
    assert model.metric.worst == math.inf
    assert model.start is not None
    assert not any(hasattr(model, name) for name in ("prepare", "training", "evaluate"))
