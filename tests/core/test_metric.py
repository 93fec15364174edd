"""Metrics by name: rates and other units, higher or lower, pooled from sums or as means of clients, or undefined."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtuner.core.across import across
from fedtuner.core.metric import NOTHING, Metric, Metrics, accuracy, auc, f1, mean_metrics
from fedtuner.errors import SpecError
from fedtuner.rng import stream


def outputs(n, classes=2, seed=0):
    rng = stream(seed, "outputs")
    y = rng.integers(0, classes, n)
    return rng.normal(size=(n, classes)) + np.eye(classes)[y], y


def split(metric, output, y, parts=4):
    """The metrics of clients that divide the examples between them."""
    pairs = zip(np.array_split(output, parts), np.array_split(y, parts), strict=True)
    return [metric.measured(1.0, [pair], len(pair[1])) for pair in pairs]


@pytest.mark.slow
def test_f1_of_two_classes_and_of_several_is_scikit_learns():
    from sklearn.metrics import f1_score

    output, y = outputs(200)
    assert f1().measured(0.0, [(output, y)], 200).error == pytest.approx(1 - f1_score(y, output.argmax(1)))
    output, y = outputs(300, 4)
    macro = f1_score(y, output.argmax(1), average="macro")
    assert f1(4).measured(0.0, [(output, y)], 300).error == pytest.approx(1 - macro)
    third = f1_score(y == 2, output.argmax(1) == 2)
    assert f1(4, positive=2).measured(0.0, [(output, y)], 300).error == pytest.approx(1 - third)


@pytest.mark.slow
@pytest.mark.parametrize("one_score", [False, True])
def test_auc_by_a_histogram_is_scikit_learns_up_to_its_bins(one_score):
    from sklearn.metrics import roc_auc_score

    output, y = outputs(500)
    score = output[:, 1] - output[:, 0]
    made = auc(bins=4000).measured(0.0, [(score if one_score else output, y)], 500)
    assert made.error == pytest.approx(1 - roc_auc_score(y, score), abs=2e-4)
    p = 1 / (1 + np.exp(-score))
    assert auc(bins=4000, logits=False).measured(0.0, [(p, y)], 500).error == pytest.approx(made.error, abs=1e-9)


@pytest.mark.parametrize("metric", [f1(), f1(positive=0), auc(), accuracy()], ids=lambda m: m.name)
def test_a_pooled_metric_is_that_of_all_data_whoever_has_it(metric):
    output, y = outputs(240)
    whole = metric.measured(1.0, [(output, y)], 240)
    clients = split(metric, output, y)
    pooled = metric.pool(clients, mean_metrics(clients))
    assert pooled.error == pytest.approx(whole.error)
    assert pooled.sums == whole.sums
    parts = [(output[:100], y[:100]), (output[100:], y[100:])]
    assert metric.measured(1.0, parts, 240) == whole


def test_the_mean_of_clients_is_beside_the_pooled_value():
    from sklearn.metrics import roc_auc_score

    output, y = outputs(240)
    made = across(split(auc(), output, y), ["a", "a", "b", ""], auc())
    clients = [
        roc_auc_score(b, a[:, 1] - a[:, 0])
        for a, b in zip(np.array_split(output, 4), np.array_split(y, 4), strict=True)
    ]
    assert 1 - made["mean of clients"].error == pytest.approx(np.mean(clients), abs=2e-3)
    assert 1 - made["clients"].error == pytest.approx(roc_auc_score(y, output[:, 1] - output[:, 0]), abs=2e-3)
    assert 1 - made["group a"].error == pytest.approx(
        roc_auc_score(y[:120], (output[:, 1] - output[:, 0])[:120]), abs=2e-3
    )
    assert made["worst group"].error == max(made["group a"].error, made["group b"].error)


def test_a_client_with_one_class_has_no_auc_and_is_left_out_of_the_mean():
    output, y = outputs(40)
    clients = [auc().measured(1.0, [(output, y)], 40), auc().measured(3.0, [(output, np.ones(40))], 40)]
    assert clients[1].undefined
    assert mean_metrics(clients) == Metrics(2.0, clients[0].error, 80)
    assert not auc().pool(clients, mean_metrics(clients)).undefined
    assert math.isnan(mean_metrics(clients[1:]).error)
    assert not NOTHING.undefined


def test_clients_whose_model_is_not_finite_count_as_the_worst():
    output, y = outputs(40)
    sound = f1().measured(1.0, [(output, y)], 40)
    broken = Metrics(math.inf, 1.0, 120)
    pooled = f1().pool([sound, broken], mean_metrics([sound, broken]))
    assert pooled.error == pytest.approx(0.25 * sound.error + 0.75)
    assert f1().pool([broken], mean_metrics([broken])).error == 1.0


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9)), min_size=1, max_size=35))
def test_the_worst_tenth_is_no_better_than_all(clients):
    metrics = [Metrics(1.0, error, count) for error, count in clients]
    made = across(metrics, ["g"] * len(metrics), Metric())
    n = -(-len(metrics) // 10)
    worst = sorted((error for error, _ in clients), reverse=True)[:n]
    assert min(worst) - 1e-12 <= made["worst tenth"].error <= max(worst) + 1e-12
    assert made["clients"].error <= made["worst tenth"].error + 1e-12
    assert made["group g"] == made["worst group"] == made["clients"] == mean_metrics(metrics)
    assert {m.count for m in made.values()} == {sum(count for _, count in clients)}


@pytest.mark.parametrize(
    ("metric", "error", "text"),
    [
        (Metric(), 0.03, "3.0 %"),
        (Metric("mse"), 0.03, "0.03"),
        (Metric("error", math.inf), 0.5, "0.5"),
        (Metric("accuracy", rate=True, maximise=True), 0.25, "75.0 %"),
        (Metric("reward", maximise=True), -12.5, "12.5"),
        (Metric("mse"), math.inf, "infinite"),
        (Metric(), math.nan, "none"),
    ],
)
def test_only_rates_are_shown_in_percent(metric, error, text):
    assert metric.text(error) == text
    assert metric.turned(metric.turned(0.3)) == pytest.approx(0.3)
    again = Metric.of({"metric": metric.table()})
    assert (again.table(), again.text(error)) == (metric.table(), text)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Metric(3), r"a metric has the name 3"),
        (lambda: Metric("f", value=3), r"f: value = 3, but must be a function"),
        (lambda: Metric("f", sums=len), r"f: sums are given, but not value\(sums\)"),
        (lambda: Metric("f", value=len, pooled=True), r"f: pooled = true, but there are no sums"),
        (lambda: Metric("f", "bad"), r"f: worst = 'bad', but must be a number"),
        (lambda: f1(1), r"classes = 1, but must be a whole number >= 2"),
        (lambda: f1(3, positive=3), r"positive = 3, but must be at most 2"),
        (lambda: auc(1), r"bins = 1, but must be"),
        (lambda: auc().measured(0.0, [(np.zeros((2, 3)), np.zeros(2))], 2), r"auc is for two classes, but .* has 3"),
        (lambda: Metric().measured(0.0, [(1, 2)], 1), r"error: the metric has no value"),
    ],
)
def test_what_is_no_metric_is_refused(make, said):
    with pytest.raises(SpecError, match=said):
        make()


@pytest.mark.parametrize("metric", [f1(3), f1(3, positive=1), accuracy()], ids=["f1", "f1 of one class", "accuracy"])
def test_labels_of_every_place_count_and_those_of_minus_100_do_not(metric):
    """Tokens, pixels: the value is that of all of them as examples of their own; -100 is passed over, as torch does."""
    output, y = outputs(60, 3)
    known = np.arange(60) % 4 > 0
    whole = metric.measured(0.0, [(output[known], y[known])], 45)
    places = np.moveaxis(output.reshape(15, 4, 3), -1, 1), np.where(known, y, -100).reshape(15, 4)
    assert metric.measured(0.0, [places], 15) == Metrics(0.0, whole.error, 15, whole.sums)
    assert metric.measured(0.0, [(output[:5], np.full(5, -100))], 5).undefined


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_one_score_of_two_classes_is_positive_above_0(shape):
    output, y = outputs(50)
    score = output[:, 1] - output[:, 0]
    for metric in (f1(), accuracy()):
        two = metric.measured(0.0, [(output, y)], 50)
        assert metric.measured(0.0, [(score.reshape(shape), y.reshape(shape))], 50) == two


@pytest.mark.parametrize("metric", [f1(), auc(), accuracy()], ids=lambda m: m.name)
@pytest.mark.parametrize(
    ("output", "y", "said"),
    [
        (np.zeros((3, 2)), np.array([0, 1, 2]), r"a client has the label 2, but .* whole numbers from 0 to 1"),
        (np.zeros((3, 2)), np.array([-1, 1, 1]), r"a client has the label -1, but"),
        (np.zeros(3), np.array([0.5, 1, 0]), r"a client has the label 0.5, but"),
        (np.zeros((3, 2)), np.zeros((3, 2), int), r"scores are of shape \(3, 2\) and labels of \(3, 2\)"),
        ((np.zeros((3, 2)), np.zeros(3)), np.zeros(3, int), r"reads one array .* give Metric\(value="),
    ],
)
def test_labels_and_outputs_that_are_no_classes_are_refused(metric, output, y, said):
    with pytest.raises(SpecError, match=f"{metric.name}.*{said}"):
        metric.measured(0.0, [(output, y)], 3)


@pytest.mark.parametrize("metric", [f1(), f1(4), f1(4, positive=2)], ids=["f1()", "f1(4)", "f1(4, positive=2)"])
def test_f1_of_another_number_of_classes_than_outputs_is_refused(metric):
    with pytest.raises(SpecError, match=r"f1 is for \d classes, but the output has 3: give f1\(classes=3\)"):
        metric.measured(0.0, [(np.zeros((5, 3)), np.zeros(5, int))], 5)
