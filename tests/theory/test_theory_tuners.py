"""FedEx on many runs at once is FedEx as it tunes a federation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedtuner.rng import stream
from fedtuner.theory.experiment import check
from fedtuner.theory.theorem import Setting
from fedtuner.theory.tuners import play, replay

ODD = Setting(m=4, similarities=(0.0, 0.15), diameter=2.0, lipschitz=3.0, dimensions=3)  # no constant is 1


@pytest.mark.parametrize("setting", [Setting(), ODD, Setting(m=1, k=7)], ids=["default", "odd", "k"])
def test_fedex_s_own_functions_give_the_same_theta(setting):
    assert check(setting, tau=400, seed=1) < 1e-12


def test_the_check_would_see_another_step():
    values = stream(0, "values").uniform(0, 1, (200, 4))
    draws = stream(0, "draws").random((1, 200))
    log_theta, _, _ = play(np.full((1, 4), -math.log(4)), values[None], values[None], draws, 0.02)
    assert np.abs(np.exp(log_theta[0]) - replay(values, stream(0, "draws"), 0.02)).max() < 1e-12
    assert np.abs(np.exp(log_theta[0]) - replay(values, stream(0, "draws"), 0.03)).max() > 1e-3
    assert np.abs(np.exp(log_theta[0]) - replay(values, stream(1, "draws"), 0.02)).max() > 1e-3


def test_fedex_finds_the_best_of_steps_that_differ():
    costs = np.tile([0.9, 0.1, 0.9], (2, 2000, 1))
    log_theta, paid, lowest = play(
        np.full((2, 3), -math.log(3)), costs, costs, stream(0, "draws").random((2, 2000)), 0.05
    )
    assert (np.exp(log_theta)[:, 1] > 0.99).all()
    assert (paid / 2000 < 0.2).all()
    assert (lowest == 0).all()  # no negative value was reported
