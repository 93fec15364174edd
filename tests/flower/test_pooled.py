"""A pooled metric over devices: its sums are sent with the reports, or in the secure sum."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import MetricRecord
from memory_grid import MemoryGrid

import fedtuner as ft
import toys
from fedtuner import metrics
from fedtuner.core.method import defaults
from fedtuner.core.metric import NOTHING, Metrics
from fedtuner.core.privacy import Gaussian
from fedtuner.core.records import Choice, Job, Plan, Report, Tried
from fedtuner.core.round import Round
from fedtuner.core.screens import Values, Weights
from fedtuner.core.survey import measured, survey
from fedtuner.errors import SpecError
from fedtuner.flower import SecAgg
from fedtuner.flower.messages import REPORT, report_content
from fedtuner.flower.possible import Limits, impossible
from fedtuner.flower.replies import expected
from fedtuner.flower.secure import Scale, contribution, tally_of
from fedtuner.flower.wire import Flat, MalformedError

CLIENTS = toys.clients(6)


class Scored(toys.Softmax):
    """Softmax regression that is judged by the F1 of one class."""

    metric = metrics.f1(3, positive=2)

    def evaluate(self, w, data, config=None):
        if not len(data):
            return NOTHING
        loss = super().evaluate(w, data).loss
        return self.metric.measured(loss, [(self.probabilities(w, data.x), data.y)], len(data))


def evaluated(study):
    """The winner's errors on all clients, from their reports."""
    problem = ft.Simulation(Scored(), CLIENTS)
    round, key = Round(study.setup, problem), study.winner
    plan = survey(round, study.journal.arms[key[0]], study.state(key), range(6), "test")
    tally = round.tally(plan, [measured(round.work(plan, job)) for job in plan.jobs])
    return {"global": 1 - tally.before.error, "personalized": 1 - tally.after.error}


@pytest.mark.slow
@pytest.mark.parametrize("secure", [None, SecAgg(clip=4.0, most_examples=50)])
def test_the_value_is_that_of_all_data_together(secure):
    grid, how = MemoryGrid(), {"secure": True, "secret": "s"} if secure else {}
    for client in CLIENTS:
        grid.add(ft.flower.client_app(Scored(), lambda context, c=client: c, **how))
    fleet = ft.flower.Fleet(grid, Scored(), secure=secure, least=6, deadline=10.0, clock=grid.clock)
    schedule = ft.random_search(budget=1, longest=1)
    study = toys.tune(problem=fleet, method=ft.methods.fedavg, schedule=schedule, cohort=6, fedex=ft.FedEx(k=2))
    found = study.evaluate("test")
    assert {side: found[side] for side in ("global", "personalized")} == pytest.approx(evaluated(study), abs=1e-4)
    assert 0 <= study.history[-1].error_after <= 1


def test_groups_of_devices_and_an_apps_metric_have_names():
    grid = MemoryGrid()
    for client in CLIENTS:
        grid.add(ft.flower.client_app(toys.Softmax(), lambda context, c=client: c))
    groups = {client.id: "rural" if n < 2 else "urban" for n, client in enumerate(CLIENTS)}
    fleet = ft.flower.Fleet(grid, toys.Softmax(), groups=groups, least=6, deadline=10.0, clock=grid.clock)
    schedule = ft.random_search(budget=1, longest=1)
    study = toys.tune(
        problem=fleet, method="fedavg", schedule=schedule, cohort=6, fedex=None, across="worst group"
    )  # fmt: skip
    [record] = study.history
    means = []
    for name in ("rural", "urban"):
        rows = [row for row in record.rows if groups[row.client] == name]
        means.append(np.average([row.error_after for row in rows], weights=[row.validated for row in rows]))
    assert record.error_after == pytest.approx(max(means))
    own = ft.flower.Fleet(grid, {"w": np.zeros(2)}, metric=ft.Metric("f1", rate=True, maximise=True), clock=grid.clock)
    assert own.model.metric.text(0.25) == "75.0 %"
    assert own.screens[0].undefined


SCALE = Scale.of(SecAgg(clip=4.0, most_examples=50), "error", 1.0)


def report(before, after, label=0):
    return Report(0, np.zeros(4, np.float32), {}, {}, 5, (Tried(label, before, after),), True)


def test_sums_add_up_through_secure_aggregation_and_undefined_values_say_nothing_of_their_label():
    sound = Metrics(0.5, 0.25, 10, (3.0, 1.0, 1.0))
    undefined = Metrics(0.7, math.nan, 20, (0.0, 0.0, 0.0))
    broken = Metrics(math.inf, 1.0, 10)
    reports = [report(sound, sound, 0), report(sound, undefined, 1), report(sound, broken, 0)]
    parts = [contribution(r, r.after.error, 2, SCALE, sums=3) for r in reports]
    mean = [np.mean([p[n] for p in parts], axis=0) for n in range(3)]
    tally = tally_of(mean, 3, SCALE, sums=3)
    assert tally.before.sums == pytest.approx((9.0, 3.0, 3.0))
    assert tally.after.sums == pytest.approx((3.0, 1.0, 1.0))
    assert {s.labels: s.weight for s in tally.seen} == {(0,): 20.0}
    limits = Limits.of(SCALE, 1.0, 0.0, ft.FedEx(k=2))
    assert not impossible(mean, 3, SCALE, limits, some=True)
    assert "|V| of all labels" in impossible(mean, 3, SCALE, limits)


def read(numbers):
    task, method, job = Scored(), ft.methods.fedavg, Job(0, (Choice(0, {}),))
    plan = Plan(0, 0, 0, "valid", defaults(method.server), 0.0, np.zeros(task.size, np.float32), {}, (job,))
    found = Metrics(0.5, 0.25, 10, (3.0, 1.0, 1.0))
    content = report_content(report(found, found), Flat(task.size).record(plan.w))
    if numbers is not None:
        content[REPORT] = MetricRecord({**content.metric_records[REPORT], "sums_after": numbers})
    return expected(plan, method, task, Flat(task.size)).read(content, job)


def test_a_report_has_its_sums_and_others_are_refused():
    assert read(None).after.sums == (3.0, 1.0, 1.0)
    for wrong in ([1.0], [1.0, 2.0, math.inf], [11.0, 0.0, 0.0]):
        with pytest.raises(MalformedError, match="sums_after"):
            read(wrong)


def test_screens_keep_what_is_undefined_and_cut_sums_with_their_counts():
    undefined = report(Metrics(0.5, 0.1, 10), Metrics(0.5, math.nan, 10))
    assert Values()(None, [undefined]) == [None]
    assert Values(undefined=True)(None, [undefined]) == [undefined]
    large = report(*[Metrics(0.5, 0.1, 100, (40.0, 20.0, 0.0))] * 2)
    [cut] = Weights(most=50, share=1.0)(None, [large])
    assert cut.after == Metrics(0.5, 0.1, 50, (20.0, 10.0, 0.0))


class Unsized(Scored):
    metric = ft.Metric("f1", rate=True, maximise=True, value=Scored.metric.value, sums=Scored.metric.sums)


class Whole(Scored):
    metric = ft.Metric("own", value=lambda output, y: 0.5)


@pytest.mark.parametrize(
    ("task", "secure", "said"),
    [
        (Unsized(), None, r"f1 is pooled over devices, but how many sums .*: give Metric\(size=\)"),
        (Whole(), SecAgg(), r"own may be undefined for a client, which secure sums cannot tell: give sums="),
    ],
)
def test_metrics_that_devices_cannot_carry_are_refused(task, secure, said):
    grid = MemoryGrid()
    fleet = ft.flower.Fleet(grid, task, secure=secure, least=3, clock=grid.clock)
    with pytest.raises(SpecError, match=said):
        ft.prepare(fleet, cohort=3)


def test_a_pooled_metric_and_noise_are_refused():
    with pytest.raises(SpecError, match=r"f1 is pooled, but privacy adds noise .*: give pooled=False"):
        ft.prepare(ft.Simulation(Scored(), CLIENTS), cohort=3, privacy=Gaussian())
