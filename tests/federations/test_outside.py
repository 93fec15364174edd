"""Training loops outside fedtuner: the same study as a simulation's, by reports or by a tally; and the example."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
from learners import SCHEDULE, SPACE, Logistic, problem

import fedtuner as ft
from fedtuner.core.method import Optimiser
from fedtuner.core.model import NOTHING, named
from fedtuner.errors import SpecError
from fedtuner.methods.momentum import HYPERS, step
from fedtuner.rng import number

SETTINGS = {"schedule": SCHEDULE, "fedex": ft.FedEx(k=3), "cohort": 3}
START = Logistic().initial(7)


class Started(Logistic):
    """A learner whose arms all begin from the same weights, as those of a model outside do."""

    start = START


def outside(**changed):
    simulation = problem(Logistic)
    arrays = named(START, simulation.model.layout())
    federation = ft.Outside(arrays, [client.id for client in simulation.clients])
    return simulation, ft.prepare(federation, SPACE, **(SETTINGS | changed))


def work(simulation, plan, job):
    """Do a client's work as a loop of one's own would; return w, |T| and the metrics."""
    data, model = {split: simulation.data(job.client, split) for split in ("train", "valid")}, simulation.model
    seed = number(plan.seed, "work", plan.split, plan.arm, plan.round, simulation.id_of(job.client))
    w = model.fit(plan.w.copy(), data["train"], job.config, seed)
    return w, len(data["train"]), (model.evaluate(plan.w, data["valid"], {}), model.evaluate(w, data["valid"], {}))


def by_reports(simulation, study):
    while plan := study.ask():
        study.tell(plan, [plan.report(job, *work(simulation, plan, job)) for job in plan.jobs])
    return study


@pytest.mark.slow
def test_a_loop_outside_gives_the_bits_of_a_simulation():
    inside = ft.tune(problem(Started), SPACE, workers=1, **SETTINGS)
    outer = by_reports(*outside())
    assert outer.history == inside.history
    assert outer.best.model.tobytes() == inside.best.model.tobytes()
    assert outer.best.theta.tobytes() == inside.best.theta.tobytes()


def mean(metrics):
    total = sum(m.count for m in metrics)
    return ft.Metrics(*(sum(m.count * getattr(m, name) for m in metrics) / total for name in ("loss", "error")), total)


def summed(study, plan, done):
    """Add up what clients did, as a server that shows only sums does."""
    examples = sum(n for _, n, _ in done)
    change = sum((w - plan.w).astype(np.float64) * n for w, n, _ in done) / examples
    values = {}
    for job, (_, _, measured) in zip(plan.jobs, done, strict=True):
        value, weight = study.setup.tuner.value(plan.tried(job, measured)[0]), measured[1].count
        old, before = values.get(job.choices[0].label, (0.0, 0))
        values[job.choices[0].label] = ((old * before + value * weight) / (before + weight), before + weight)
    before, after = (mean([measured[side] for _, _, measured in done]) for side in (0, 1))
    return plan.tally(change, examples, before, after, values)


@pytest.mark.slow
def test_a_tally_of_sums_is_as_good_as_the_reports():
    """Up to rounding, as sums by label are enough for FedEx."""
    simulation, study = outside()
    while plan := study.ask():
        study.tell(plan, summed(study, plan, [work(simulation, plan, job) for job in plan.jobs]))
    reported = by_reports(*outside())
    assert study.winner == reported.winner
    np.testing.assert_allclose(study.best.model, reported.best.model, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(study.best.theta, reported.best.theta, rtol=1e-3)
    for one, other in zip(study.history, reported.history, strict=True):
        assert (one.clients, one.dropped, one.examples, one.validated, one.trainings) == (
            other.clients, other.dropped, other.examples, other.validated, other.trainings
        )  # fmt: skip
        assert one.loss_after == pytest.approx(other.loss_after, rel=1e-3)


def test_metrics_that_are_not_numbers_count_as_the_worst():
    """As in a simulation: a client that has lost its way does not take the round's score with it."""
    simulation, study = outside(fedex=None)
    plan = study.ask()
    reports = [plan.report(job, *work(simulation, plan, job)) for job in plan.jobs]
    lost = ft.Metrics(math.nan, math.nan, 5)
    reports[0] = plan.report(plan.jobs[0], np.full_like(plan.w, np.nan), 9, (reports[0].before, lost))
    study.tell(plan, reports)
    [record] = study.history
    assert record.broken == 1
    assert record.loss_after == math.inf
    others = sum(r.after.count * r.after.error for r in reports[1:])
    assert record.error_after == pytest.approx((5 * 1.0 + others) / record.validated)
    study.close()


def squares(change):
    return {"squares": np.array([change @ change], np.float32)}


def test_what_the_servers_optimiser_wants_of_clients_is_added():
    """A loop outside need not know of it: it can be had from the change."""
    seen = []

    def reading(server, change, tally, b):
        seen.append(tally.extra["squares"])
        return step(server, change, tally, b)

    own = Optimiser("reading", "", reading, HYPERS, squares)
    simulation, study = outside(method=ft.methods.fedavg.with_optimiser(own), fedex=None)
    plan = study.ask()
    reports = [plan.report(job, *work(simulation, plan, job)) for job in plan.jobs]
    study.tell(plan, reports)
    total = sum(r.examples for r in reports)
    assert float(seen[0][0]) == pytest.approx(
        sum(r.examples / total * float(r.change @ r.change) for r in reports), rel=1e-5
    )
    study.close()


def test_clients_without_examples_say_nothing():
    simulation, study = outside(fedex=None)
    plan = study.ask()
    reports = [plan.report(job, *work(simulation, plan, job)) for job in plan.jobs]
    reports[1] = plan.report(plan.jobs[1], plan.w, 0, (NOTHING, NOTHING))
    study.tell(plan, reports)
    [record] = study.history
    assert (record.dropped, record.broken) == (0, 0)
    assert record.examples == reports[0].examples + reports[2].examples
    assert math.isfinite(record.loss_after)
    study.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda plan, job, w, n, pair: plan.report(job, w[:5], n, pair),
            r"w is of shape \(5,\), but must be of \(12,\)",
        ),
        (lambda plan, job, w, n, pair: plan.report(job, w, n), "0 pairs of metrics, but the job has 1 choices"),
        (lambda plan, job, w, n, pair: plan.report(job, w, n, pair, pair), "2 pairs of metrics"),
        (lambda plan, job, w, n, pair: plan.report(job, w, -1, pair), r"examples = -1, but must be .*>= 0"),
        (lambda plan, job, w, n, pair: plan.tally(w[:5], n, *pair, {}), r"change is of shape \(5,\)"),
        (lambda plan, job, w, n, pair: plan.tally(w, n, *pair, {99: (0.5, 3)}), r"values of the labels \[99\]"),
    ],
)
def test_mistakes_are_told(change, message):
    simulation, study = outside()
    plan = study.ask()
    with pytest.raises(SpecError, match=message):
        change(plan, plan.jobs[0], *work(simulation, plan, plan.jobs[0]))
    study.close()


def test_arrays_of_a_plan_may_be_trained_in_place():
    _, study = outside()
    plan, model = study.ask(), study.problem.model
    kept = plan.w.copy()
    for array in model.arrays(plan.w).values():
        array += 1
    assert np.array_equal(plan.w, kept)
    study.close()


def test_statistics_and_whole_numbers_come_back_as_they_were_given():
    given = {
        "norm.running_mean": np.zeros(2, np.float64), "layer.weight": np.ones((2, 3), np.float32),
        "norm.num_batches_tracked": np.array(4), "half": np.ones(2, np.float16),
    }  # fmt: skip
    model = ft.Outside(given, 3).model
    assert (model.size, model.trainable) == (11, 8)
    back = model.arrays(model.vector(given))
    assert list(back) == list(given)
    assert all(back[name].dtype == given[name].dtype and np.array_equal(back[name], given[name]) for name in given)
    with pytest.raises(SpecError, match="nothing to train"):
        ft.Outside({"steps": np.arange(3)}, 3)


@pytest.fixture
def example():
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    file = Path(__file__).parents[2] / "examples" / "ask_tell.py"
    found = importlib.util.spec_from_file_location("ask_tell", file)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.SCHEDULE = ft.halving(budget=12, longest=6, eta=2, eliminations=1)
    return module


@pytest.mark.slow
def test_the_example_continues_where_it_was_stopped(example, tmp_path, monkeypatch):
    """Its loop is stopped in the middle of a round: that round is asked for again, and those before it are kept."""
    calls, real = [], example.train

    def stopped(*arguments, **more):
        calls.append(1)
        if len(calls) == 45:
            raise KeyboardInterrupt
        real(*arguments, **more)

    monkeypatch.setattr(example, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        example.main(tmp_path)
    study, net = example.main(tmp_path)
    assert study.finished
    assert study.rounds_used == 12
    assert len(calls) == 45 + 120 - 40  # four whole rounds of ten clients were settled
    assert set(study.best.client) == {"lr", "epochs", "batch"}
    example.load(net, study.problem.model, study.best.model)
    assert np.array_equal(study.problem.model.vector(net.state_dict()), study.best.model)


def test_its_loop_is_short():
    """At most forty lines beside imports, data and the space."""
    text = (Path(__file__).parents[2] / "examples" / "ask_tell.py").read_text()
    lines = [line for line in text[text.index("def train(") :].splitlines() if line.strip()]
    assert len(lines) <= 40
