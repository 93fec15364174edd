"""SCAFFOLD's control variates are gradients of the data's loss: over all rows, whatever their number, without decay."""

import numpy as np
import pytest

from fedtuner import methods
from fedtuner.core.method import Local
from fedtuner.federations import Client, Simulation
from fedtuner.rng import stream
from fedtuner.testing.rounds import a_round, advance, an_arm, reported
from fedtuner.testing.toys import optimum, quadratics


class Counting:
    """A trainer whose gradient is the mean of the rows' numbers; like batch-norm it refuses batches of one row."""

    def __init__(self, smallest):
        self.smallest, self.sizes, self.rows = smallest, [], []

    def gradient(self, w, rows, key=None):
        assert rows.size >= self.smallest
        self.sizes.append(rows.size)
        self.rows += rows.tolist()
        return np.full(2, rows.mean(), np.float32)


@pytest.mark.parametrize("smallest", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 5, 1023, 1024, 1025, 2049, 3073])
def test_the_full_gradient_takes_every_row_once_in_chunks_that_can_be_trained_on(n, smallest):
    trainer = Counting(smallest)
    client = Local(trainer, range(n), range(0), 2, smallest, stream(0))
    found = client.full_gradient(np.zeros(2, np.float32))
    if n < smallest:
        assert found.tolist() == [0.0, 0.0]
        return
    assert trainer.rows == list(range(n))
    assert max(trainer.sizes) <= 1024
    np.testing.assert_allclose(found, (n - 1) / 2, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 1025])
@pytest.mark.parametrize("option", ["I", "II"])
def test_a_network_with_batch_norm(option, n):
    torch = pytest.importorskip("torch")
    from fedtuner.tasks.pytorch import Task

    def net():
        return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))

    def data(i, n):
        rng = np.random.default_rng(i)
        return rng.standard_normal((n, 2)).astype(np.float32), rng.integers(0, 2, n)

    problem = Simulation(Task(net), [Client(i, data(i, size), data(9, 4)) for i, size in enumerate((n, 40))])
    round = a_round(methods.scaffold, problem, cohort=2)
    state = advance(round, an_arm(methods.scaffold, {"option": option, "batch": 512}), 2)
    assert np.isfinite(state.w).all()
    assert state.memory[0]["control"].any() == (n > 1)  # of one row there is no gradient, so it stays zero


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_second_option_is_the_papers_quotient_less_what_decay_adds(decay):
    """w_t - w_i = lr sum (g + c - c_i + decay w): mean g = c_i - c + (w_t - w_i) / (K lr) - decay mean(w)."""
    client = {"lr": 0.2, "epochs": 1, "batch": 12, "weight_decay": decay}  # one step: its w is w_t
    round, arm = a_round(methods.scaffold, quadratics()), an_arm(methods.scaffold, client)
    plan, reports = reported(round, arm, advance(round, arm, 6))
    for job, report in zip(plan.jobs, reports, strict=True):
        x, curvature = round.federation.clients[report.client].train
        ours = job.memory.get("control", np.zeros_like(plan.w))
        quotient = ours - plan.slots["control"] - report.change / 0.2 - decay * plan.w
        np.testing.assert_allclose(report.memory["control"], quotient, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(
            report.memory["control"], curvature * (plan.w - x.mean(axis=0)), rtol=1e-3, atol=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("option", ["I", "II"])
def test_with_decay_the_fixed_point_is_the_optimum_of_the_penalised_loss(option):
    """grad F(w) + decay w = 0; curvatures add up, so w = sum a x / sum (a + decay)."""
    problem, decay = quadratics(noise=0.0), 0.2
    a = np.mean([np.asarray(client.train[1], float) for client in problem.clients], axis=0)
    client = {"lr": 0.1, "epochs": 5, "batch": 12, "weight_decay": decay, "option": option}
    state = advance(a_round(methods.scaffold, problem), an_arm(methods.scaffold, client), 200)
    np.testing.assert_allclose(state.w, a * optimum(problem) / (a + decay), atol=1e-3)
