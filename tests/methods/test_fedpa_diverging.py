"""FedPA where local training diverges: a broken update, whenever it happens."""

import pytest

from fedtuner import methods
from fedtuner.testing.rounds import a_round, an_arm, reported, settle
from fedtuner.testing.toys import quadratics


@pytest.mark.parametrize("burn_in", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("lr", [20.0, 1e3, 1e30])
def test_training_that_diverges_is_a_broken_update(lr, burn_in):
    """Before the first sample, after some, or in the last steps: 120 steps, looked at every 16."""
    client = {"lr": lr, "epochs": 10, "batch": 1, "momentum": 0.999, "burn_in": burn_in, "samples": 10}
    round, arm = a_round(methods.fedpa, quadratics()), an_arm(methods.fedpa, client)
    state = round.begin(arm)
    _, reports = reported(round, arm, state)
    assert not any(r.finite for r in reports)
    following, record = settle(round, arm, state, *reports)
    assert record.broken == len(reports)
    assert following.w.tobytes() == state.w.tobytes()
