"""The quadratic toys: they keep the laws of tasks, and their answers are known."""

import numpy as np
import pytest

from fedtuner import methods
from fedtuner.testing import TaskLaws
from fedtuner.testing.rounds import a_round, advance, an_arm
from fedtuner.testing.toys import optimum, quadratics


class TestQuadratics(TaskLaws):
    def task(self):
        return quadratics().model

    def split(self):
        return quadratics().clients[2].train


class TestQuadraticsWithStatistics(TestQuadratics):
    def task(self):
        return quadratics(statistics=3).model


def test_the_optimum_is_where_the_mean_gradient_is_zero():
    problem = quadratics()
    w = optimum(problem).astype(np.float32)
    slope = np.zeros(6)
    for i in problem.present():
        data = problem.data(i, "train")
        with problem.model.training(data, {}, 0) as trainer:
            slope += len(data) * trainer.gradient(w, np.arange(len(data)))
    assert np.abs(slope).max() < 1e-3


@pytest.mark.slow
def test_full_gradient_steps_of_everyone_reach_it():
    problem = quadratics()
    round = a_round(methods.fedavg, problem, cohort=8)
    state = advance(round, an_arm(methods.fedavg, {"lr": 0.5, "batch": 12}), 150)
    assert np.linalg.norm(state.w - optimum(problem)) < 1e-3


def test_without_noise_every_example_is_its_clients_optimum():
    for client in quadratics(noise=0.0).clients:
        x, _ = client.train
        assert np.ptp(x, axis=0).max() < 1e-6


@pytest.mark.parametrize(("hook", "law"), [("task", "test_its_layout_is_its_size")])
def test_the_hooks_must_be_overridden(hook, law):
    with pytest.raises(NotImplementedError, match=rf"override {hook}\(\)"):
        getattr(TaskLaws(), law)()
