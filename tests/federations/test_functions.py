"""A learner that is two functions."""

from __future__ import annotations

import numpy as np
import pytest

import fedtuner as ft
from fedtuner.core.model import Hyper
from fedtuner.errors import ClientError, SpecError, TaskError
from fedtuner.rng import stream


def fit(arrays, split, config, seed):
    return {"centre": arrays["centre"] + config["pace"] * (split.mean(axis=0) - arrays["centre"])}


def evaluate(arrays, split, config):
    far = float(((split - arrays["centre"]) ** 2).mean())
    return far, None if far > 1e6 else -far


def clients():
    splits = [stream(0, "functions", i).normal(i, 1.0, (10, 2)) for i in range(5)]
    return [ft.Client(i, x, x, x if i else None) for i, x in enumerate(splits)]


def learner(**settings):
    settings = {"fit": fit, "evaluate": evaluate, "metric": ft.Metric("closeness", maximise=True), **settings}
    return ft.Learner({"centre": np.zeros(2)}, **settings)


SPACE = ft.Space({"pace": ft.Float(0.1, 1.0)})


def test_it_is_tuned_as_any_other_and_told_in_its_own_units():
    study = ft.tune(
        ft.Simulation(learner(), clients()), SPACE, fedex=ft.FedEx(k=2), schedule=ft.random_search(6, 3), cohort=3,
        workers=1,
    )  # fmt: skip
    found = study.evaluate("test")
    assert found["personalized"] == -study.evaluate("test", metric="loss")["personalized"]
    assert found["personalized"] > found["global"]
    assert "%" not in study.problem.model.metric.text(0.5)
    assert study.journal.evaluated[study.winner, "test", "mode"].validated == 40


def test_declared_hyperparameters_make_a_space_unnecessary():
    declared = {"pace": Hyper(ft.Float(0.1, 1.0), 0.5, low=0.0, role="step")}
    study = ft.tune(ft.Simulation(learner(hyperparameters=declared), clients()), budget=20, cohort=3, workers=1)
    assert study.best.client == {"pace": 0.5}


def test_what_its_functions_return_is_checked():
    with pytest.raises(SpecError, match="evaluate = None, but must be a function"):
        learner(evaluate=None)
    wrong = ft.Simulation(learner(evaluate=lambda *_: 3.0), clients())
    with pytest.raises(TaskError, match=r"evaluate returned 3.0, but must return a loss and a value"):
        ft.prepare(wrong, SPACE, cohort=3)
    wrong = ft.Simulation(learner(fit=lambda *_: {"centre": np.zeros(3)}), clients())
    with pytest.raises(ClientError, match=r"array 'centre' is of shape \(3,\), but must be of \(2,\)"):
        ft.tune(wrong, SPACE, fedex=None, schedule=ft.random_search(1, 1), cohort=3, workers=1)
