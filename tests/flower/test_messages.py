"""Jobs and reports arrive as they were sent, and what is not what it must be is refused."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from memory_grid import over_the_wire

from fedtuner.errors import SpecError, TaskError
from fedtuner.federation import Report, Try
from fedtuner.flower import messages
from fedtuner.flower.messages import (
    Flat,
    MalformedError,
    job_content,
    job_of,
    order_of,
    reason_of,
    report_content,
    report_of,
)
from fedtuner.flower.model import Arrays
from fedtuner.flower.replies import TIMES, Fitting, bounded
from fedtuner.methods.base import Job, Update
from fedtuner.task import Metrics

WIRE = Flat(4)
floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
vectors = arrays(np.float32, 4, elements=floats)
values = st.one_of(st.floats(allow_nan=False), st.integers(-(2**62), 2**62), st.text(max_size=5), st.booleans())
configs = st.dictionaries(st.text(min_size=1, max_size=8), values, max_size=4)
numbers = st.floats(0, 1)
jobs = st.builds(
    Job,
    seed=st.integers(-(2**90), 2**90),
    arm=st.integers(0, 10**6),
    round=st.integers(0, 10**6),
    client=st.just(0),
    candidate=st.integers(0, 80),
    config=configs,
    server=configs,
    w=vectors,
    slots=st.dictionaries(st.sampled_from(["momentum", "control"]), vectors),
    memory=st.dictionaries(st.sampled_from(["last", "visits"]), vectors),
    split=st.sampled_from(["train", "valid", "test"]),
    others=st.lists(st.tuples(st.integers(0, 80), configs), max_size=3).map(tuple),
)


def sent(content: RecordDict) -> RecordDict:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    message = Message(content, 1, "train")
    message.metadata.__dict__["_message_id"] = "1"
    return over_the_wire(message).content


def text(record: Any) -> str:
    """A record with its arrays to the bit; NaN is equal to itself."""
    plain = lambda v: (v.dtype, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else repr(v)  # noqa: E731
    found = {f.name: getattr(record, f.name) for f in fields(record)}
    return repr(
        {n: {k: plain(x) for k, x in sorted(v.items())} if isinstance(v, dict) else plain(v) for n, v in found.items()}
    )


@settings(max_examples=60, deadline=None)
@given(jobs)
def test_a_job_arrives_as_it_was_sent(job):
    """Every field of it: a field that is added and does not travel fails here."""
    arrived = job_of(sent(job_content(job, "fedavg", WIRE.record(job.w))), WIRE)
    assert text(arrived) == text(job)
    assert [type(v) for v in arrived.config.values()] == [type(v) for v in job.config.values()]


metrics = st.builds(Metrics, loss=numbers, error=numbers, count=st.just(7))


@settings(max_examples=60, deadline=None)
@given(jobs, st.data())
def test_a_report_arrives_as_it_was_sent(job, data):
    before, after = data.draw(metrics), data.draw(metrics)
    update = Update(
        data.draw(arrays(np.float32, 4, elements=st.floats(-1, 1, width=32))),
        {"control": data.draw(arrays(np.float32, 4, elements=st.floats(-1, 1, width=32)))},
        data.draw(st.dictionaries(st.sampled_from(["last", "visits"]), vectors)),
    )
    tried = tuple(Try(j, data.draw(metrics), data.draw(metrics)) for j, _ in job.others)
    report = Report(job.client, job.candidate, update, data.draw(st.integers(0, 10**9)), before, after, True, tried)
    content = report_content(WIRE.record(update.w), report.examples, before, after, update.extra, update.memory, tried)
    arrived = report_of(sent(content), job, WIRE, 1.0)
    assert text(arrived.update) == text(update)
    assert text(replace(arrived, update=update)) == text(report)


def job(**changed: Any) -> Job:
    return replace(Job(1, 2, 3, 0, 1, {"lr": 0.1}, {}, np.zeros(4, np.float32)), **changed)


def report(w: Any = None, examples: int = 5, count: int = 3, loss: float = 0.5, extra: Any = None) -> Report:
    measured = Metrics(loss, 0.25, count)
    update = Update(np.zeros(4, np.float32) if w is None else w, extra or {})
    return Report(0, 1, update, examples, measured, measured, True)


def test_numbers_of_numpy_travel_too():
    content = job_content(job(config={"lr": np.float64(0.1), "epochs": np.int64(3)}), "fedavg", WIRE.record(job().w))
    assert dict(sent(content).config_records["config"]) == {"lr": 0.1, "epochs": 3}


def test_a_message_of_another_version_is_refused(monkeypatch):
    content = job_content(job(), "fedavg", WIRE.record(job().w))
    monkeypatch.setattr(messages, "VERSION", 2)
    with pytest.raises(MalformedError, match="messages of version 1, but this side has 2: update fedtuner"):
        order_of(content)
    with pytest.raises(MalformedError, match="no 'fedtuner' in a message"):
        order_of(RecordDict())


def test_a_client_without_validation_data_says_nothing():
    nothing = Metrics(math.nan, math.nan, 0)
    arrived = report_of(report_content(WIRE.record(job().w), 5, nothing, nothing, {}, {}), job(), WIRE, 1.0)
    assert (arrived.before.count, arrived.after.count, arrived.examples) == (0, 0, 5)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_infinite_and_the_error_the_worst(loss):
    bad = Metrics(loss, 0.0, 3)
    arrived = report_of(report_content(WIRE.record(job().w), 5, bad, bad, {}, {}), job(), WIRE, 1.0)
    assert arrived.after == Metrics(math.inf, 1.0, 3)
    assert arrived.finite


def test_an_error_may_be_anything_where_it_is_no_rate():
    fine = Metrics(0.5, 300.0, 3)
    content = report_content(WIRE.record(job().w), 5, fine, fine, {}, {})
    assert report_of(content, job(), WIRE, math.inf).after == fine
    with pytest.raises(MalformedError, match=r"an error of 300.0, but it must be from 0 to 1"):
        report_of(content, job(), WIRE, 1.0)


def test_the_reason_of_a_traceback_is_its_last_line():
    assert reason_of('Traceback:\n  File "x.py"\nValueError: no data\n\n') == "ValueError: no data"
    assert reason_of(None) == "no reason given"
    assert len(reason_of("x" * 5000)) == 300


# What is believed


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 10**12)), min_size=1, max_size=9), st.none() | st.integers(1, 10**6)
)
def test_no_client_weighs_more_than_it_may(sizes, most):
    reports = [None if n is None else report(examples=n, count=n) for n in sizes]
    kept = bounded(reports, most)
    positive = sorted(n for n in sizes if n)
    limit = most if most is not None else TIMES * positive[(len(positive) - 1) // 2] if positive else 0
    for before, after in zip(reports, kept, strict=True):
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            assert after.examples == after.before.count == after.after.count == min(before.examples, limit)
            if before.examples <= limit:
                assert after is before


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=9), st.integers(10**6, 10**15))
def test_a_liar_among_honest_clients_weighs_at_most_ten_of_them(honest, lie):
    kept = bounded([report(examples=n) for n in [*honest, lie]], None)
    assert kept[-1] is not None
    assert kept[-1].examples <= TIMES * max(honest)


def test_vectors_that_differ_from_most_are_left_out():
    usual, odd = {"control": np.zeros(4, np.float32)}, {"control": np.zeros(3, np.float32)}
    reports = [report(extra=odd), None, report(extra=usual), report(extra=usual), report()]
    tried = []

    def aggregate(one: Report) -> None:
        tried.append(one)
        one.update.extra["control"]

    fitting = Fitting()
    kept, out = fitting(reports, {}, aggregate)
    assert kept == [None, None, reports[2], reports[3], None]
    assert list(out) == [0, 4]
    assert out[0] == "its vectors are unlike the other clients'"
    assert out[4] == "its vectors cannot be aggregated (KeyError: 'control')"
    assert len(tried) == 3  # one of each kind
    alike = [report(extra=usual), None]
    assert fitting(alike, {}, aggregate) == (alike, {})
    assert len(tried) == 3  # a kind is tried once, beside the same slots
    fitting(alike, usual, aggregate)
    assert len(tried) == 4


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
    assert np.array_equal(model.vector(record), w)
    w[-3] = 7.6  # the mean of whole numbers is rounded
    assert model.record(w)["steps"].numpy() == 8
    assert model.initial(0)[-3] == 7


def test_a_list_of_arrays_and_an_array_record_are_the_same():
    weights = [np.ones((2, 2)), np.zeros(2)]
    assert Arrays(weights).layout() == Arrays(ArrayRecord(weights)).layout()
    assert Arrays(weights).trainable == 6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: r.pop("1"), r"arrays that only one side has: \['1'\]"),
        (lambda r: r.__setitem__("1", Array(np.zeros(3))), r"array '1' has shape \(3,\) and type float64, but the"),
        (lambda r: r.__setitem__("1", Array(np.array(["a", "b"]))), "type <U1"),
        (lambda r: r.__setitem__("1", Array("float64", (2,), "numpy.ndarray", b"junk")), "an array cannot be read"),
    ],
)  # fmt: skip
def test_arrays_that_are_not_the_models_are_refused(change, why):
    model = Arrays([np.ones((2, 2)), np.zeros(2)])
    record = model.record(model.initial(0))
    change(record)
    with pytest.raises(MalformedError, match=why):
        model.vector(record)


def test_a_model_without_arrays_and_work_on_the_server_are_refused():
    with pytest.raises(SpecError, match="the model has no arrays"):
        Arrays([])
    with pytest.raises(SpecError, match="array 'name' is of type"):
        Arrays({"name": "text"})
    model = Arrays([np.zeros(2)])
    for act in (
        lambda: model.prepare(None),
        lambda: model.training(None, {}, 0),
        lambda: model.evaluate(model.first, 0),
    ):
        with pytest.raises(TaskError, match="code of their own"):
            act()
