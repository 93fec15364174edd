"""Scikit-learn's estimators with partial_fit, tuned in a simulation."""

from __future__ import annotations

import copy
import math
import pickle
import runpy

import numpy as np
import pytest

import fedtuner as ft
from fedtuner import metrics
from fedtuner.errors import ClientError, SpecError, TaskError
from fedtuner.rng import stream

linear_model = pytest.importorskip("sklearn.linear_model")
neural_network = pytest.importorskip("sklearn.neural_network")


def split(i, labels=(0, 1, 2)):
    rng = stream(0, "estimators", i)
    y = rng.integers(0, len(labels), 30)
    return np.eye(3)[y] + 0.3 * rng.normal(size=(30, 3)), np.asarray(labels)[y]


def clients(make=split):
    return [ft.Client(i, make(i), make(i + 50), make(i + 90)) for i in range(6)]


def sgd(**settings):
    settings = {"loss": "log_loss", "learning_rate": "constant", "eta0": 0.1, **settings}
    return linear_model.SGDClassifier(**settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "labels", "tuned"),
    [
        (sgd(), (0, 1, 2), {"eta0", "alpha", "epochs"}),
        (sgd(loss="hinge"), ("a", "b"), {"eta0", "alpha", "epochs"}),
        (neural_network.MLPClassifier((4,)), (3, 5, 9), {"learning_rate_init", "alpha", "epochs"}),
    ],
    ids=["linear", "hinge", "perceptron"],
)
def test_an_estimator_is_tuned_over_its_own_parameters(estimator, labels, tuned):
    model = ft.sklearn.Estimator(estimator, 3, labels)
    problem = ft.Simulation(model, clients(lambda i: split(i, labels)))
    study = ft.tune(problem, fedex=ft.FedEx(k=3), schedule=ft.random_search(6, 6), cohort=4, workers=1)
    assert set(study.setup.space.client) == tuned
    assert study.history[-1].loss_after < study.history[0].loss_before
    again = ft.tune(problem, fedex=ft.FedEx(k=3), schedule=ft.random_search(6, 6), cohort=4, workers=1)
    assert np.array_equal(again.best.model, study.best.model)
    made = model.estimator(study.best.model)
    x, y = split(90, labels)
    wrong = model.evaluate(study.best.model, model.prepare((x, y)), {}).error
    assert np.mean(made.predict(x) != y) == pytest.approx(wrong)
    assert ft.untuned(study, rounds=1).best.client["alpha"] == estimator.alpha


def test_fitting_is_the_estimators_own():
    model = ft.sklearn.Estimator(sgd(shuffle=False), 3, 3)
    x, y = split(0)
    w = model.fit(model.initial(0), model.prepare((x, y)), {"eta0": 0.05, "epochs": 2}, 0)
    own = sgd(shuffle=False, eta0=0.05)
    for _ in range(2):
        own.partial_fit(x, y, classes=[0, 1, 2])
    np.testing.assert_allclose(w, np.concatenate([own.coef_.ravel(), own.intercept_]), rtol=1e-6)


def test_a_step_that_is_too_long_is_a_broken_update_and_no_error():
    problem = ft.Simulation(ft.sklearn.Estimator(linear_model.SGDRegressor(learning_rate="constant"), 3), regressions())
    data = problem.data(0, "train")
    assert np.isnan(problem.model.fit(problem.model.initial(0), data, {"eta0": 1e300, "epochs": 5}, 0)).all()
    space = ft.Space({"eta0": [1e30], "epochs": 5})
    study = ft.tune(problem, space, fedex=None, schedule=ft.random_search(2, 2), cohort=3, workers=1)
    assert [r.broken for r in study.history] == [3, 3]


def test_values_that_the_estimator_refuses_are_told_and_its_seed_is_no_hyperparameter():
    """Scikit-learn checks parameters before the first fit alone."""
    model = ft.sklearn.Estimator(linear_model.Perceptron(), 3, 3)
    assert "random_state" not in model.hyperparameters  # it is the client's own, whatever the parameter says
    given = {"space": ft.Space({"alpha": ft.Float(-1.0, -0.5)}), "schedule": ft.random_search(2, 1), "cohort": 3}
    with pytest.raises(ClientError, match=r"'alpha' parameter of Perceptron must be .*Got -0\.\d+ instead"):
        ft.tune(ft.Simulation(model, clients()), fedex=None, workers=1, **given)


def regressions():
    def make(i):
        x, _ = split(i)
        return x, 0.1 * x[:, 0]

    return clients(make)


def test_a_regressor_has_its_mean_square_as_metric_and_pooled_ones_of_its_predictions():
    model = ft.sklearn.Estimator(linear_model.SGDRegressor(learning_rate="constant", eta0=0.05), 3)
    assert (model.metric.name, model.metric.rate, model.metric.worst) == ("mse", False, math.inf)
    problem = ft.Simulation(model, regressions())
    study = ft.tune(problem, fedex=None, schedule=ft.random_search(4, 4), cohort=4, workers=1)
    assert study.evaluate("test") == study.evaluate("test", metric="loss")


@pytest.mark.parametrize("made", [sgd(), neural_network.MLPClassifier((4,))], ids=["linear", "perceptron"])
def test_an_exported_estimator_is_loaded_by_its_script(made, tmp_path):
    model = ft.sklearn.Estimator(made, 3, 3)
    study = ft.tune(ft.Simulation(model, clients()), fedex=None, schedule=ft.random_search(2, 1), cohort=3, workers=1)
    study.export(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "state_dict" not in card
    assert "of a scikit-learn estimator" in card
    x, y = split(0)
    fitted = copy.deepcopy(made).partial_fit(x, y, classes=[0, 1, 2])
    found = runpy.run_path(str(tmp_path / "load.py"))["load"](fitted)
    np.testing.assert_array_equal(found.predict(x), model.estimator(study.best.model).predict(x))


def test_metrics_of_classifiers_and_copies():
    model = pickle.loads(pickle.dumps(ft.sklearn.Estimator(sgd(), 3, 2, metric=metrics.auc())))
    assert repr(model) == "<Estimator: SGDClassifier, 4 coefficients, auc>"
    x, y = split(0, (0, 1))
    w = model.fit(model.initial(0), model.prepare((x, y)), {"epochs": 2}, 0)
    found = model.evaluate(w, model.prepare((x, y)), {})
    assert found.error < 0.05
    assert len(found.sums) == 2000
    assert model.evaluate(w, model.prepare((x, np.zeros(30, int))), {}).undefined
    assert model.evaluate(w, model.prepare(None), {}).count == 0
    assert model.fit(w, model.prepare(None), {}, 0) is w


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ft.sklearn.Estimator(linear_model.LogisticRegression(), 3, 2), r"must be one with partial_fit"),
        (lambda: ft.sklearn.Estimator(linear_model.SGDClassifier, 3, 2), r"must be one with partial_fit"),
        (lambda: ft.sklearn.Estimator(sgd(), 3, 2).prepare((np.zeros((4, 2)), np.zeros(4))), r"rows of 3 features"),
        (
            lambda: ft.sklearn.Estimator(sgd(), 1, 2).prepare(([[1.0]], [7])),
            r"y has the label 7.*, but the classes are",
        ),
        (lambda: ft.sklearn.Estimator(sgd(eta0=-1.0), 3, 2), r"SGDClassifier.partial_fit failed on zeros: .*eta0"),
        (lambda: ft.sklearn.Estimator(sgd(), 3), r"SGDClassifier is a classifier, but classes is not given: give"),
        (
            lambda: ft.sklearn.Estimator(linear_model.SGDRegressor(), 3, 2),
            r"SGDRegressor is a regressor, but classes = 2 is given: leave it out",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, said):
    with pytest.raises(TaskError, match=said):
        make()


def test_names_that_the_estimator_does_not_have_are_refused():
    with pytest.raises(SpecError, match="no client hyperparameter 'lr' in fedavg"):
        ft.prepare(ft.Simulation(ft.sklearn.Estimator(sgd(), 3, 3), clients()), ft.Space({"lr": 0.1}), cohort=3)
