"""SCAFFOLD and FedDyn where clients are of unequal size and only some take part: what they keep adds up.

Their fixed point is the optimum of the |T|-weighted mean of the clients' losses, whatever cohorts were drawn.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedtuner import methods
from fedtuner.core.robust import Median, Trimmed
from fedtuner.errors import SpecError
from fedtuner.federations import Client, Simulation
from fedtuner.rng import stream
from fedtuner.run.tuning import prepare
from fedtuner.testing.rounds import a_round, advance, an_arm, reported, settle
from fedtuner.testing.toys import Quadratics, optimum

CLIENT = {"lr": 0.1, "batch": 256, "epochs": 5}  # full batches: every local step is exact
MEMBERS = {
    "scaffold, option I": (methods.scaffold, {"option": "I"}, {}, "control"),
    "scaffold, option II": (methods.scaffold, {"option": "II"}, {}, "control"),
    "feddyn": (methods.feddyn, {"epochs": 20}, {"alpha": 0.3}, "linear"),
}


def unequal(sizes=tuple(range(5, 200, 10)), empty=0):
    """Least squares of clients of these sizes and of ``empty`` ones without training examples."""
    made = []
    for i, n in enumerate((*sizes, *(0,) * empty)):
        rng = stream(0, "unequal", i)
        curvature = np.exp(rng.uniform(-1.0, 0.5, 2)).astype(np.float32)
        x = (2 * rng.standard_normal(2) + 0.3 * rng.standard_normal((max(n, 2), 2))).astype(np.float32)
        made.append(Client(i, (x[:n], curvature) if n else None, (x[:2], curvature)))
    return Simulation(Quadratics(2), made)


def mean_of_all(state, problem, name):
    """The |T|-weighted mean over all clients of what each keeps; who was not met keeps zero."""
    sizes = np.array([problem.size(i, "train") for i in range(problem.population())], float)
    kept = [state.memory.get(i, {}).get(name, np.zeros(2)) for i in range(problem.population())]
    return sizes @ np.array(kept, float) / sizes.sum()


def on(problem, member, seed=0):
    method, client, server, name = MEMBERS[member]
    return a_round(method, problem, seed=seed), an_arm(method, CLIENT | client, server), name


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("member", MEMBERS)
def test_the_fixed_point_is_the_optimum_of_the_weighted_losses(member, seed):
    """20 clients of 5 to 195 examples, 4 in a round: the cohorts' weights had moved it by 0.02 to 0.4."""
    problem = unequal()
    round, arm, _ = on(problem, member, seed)
    assert np.abs(advance(round, arm, 250).w - optimum(problem)).max() < 2e-3


def test_it_is_not_the_optimum_of_equally_weighted_losses():
    """So the test above tells one from the other."""
    problem = unequal()
    curvature = np.array([client.train[1] for client in problem.clients], float)
    centres = np.array([client.train[0].mean(axis=0) for client in problem.clients], float)
    equal = (curvature * centres).sum(axis=0) / curvature.sum(axis=0)
    assert np.abs(equal - optimum(problem)).max() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("member", MEMBERS)
def test_the_servers_vector_is_the_mean_of_all_clients(member, seed):
    """After any rounds with clients that do not answer, that break and that have no training examples."""
    problem = unequal(range(3, 36, 4), empty=2)
    round, arm, name = on(problem, member, seed)
    state, rng = round.begin(arm), stream(seed, "what goes wrong")
    for _ in range(40):
        plan, reports = reported(round, arm, state)
        sent = [wrong(r, rng.integers(5)) for r in reports]
        state, _ = settle(round, arm, state, *sent)
        for job, report in zip(plan.jobs, sent, strict=True):  # who broke remembers what it did before
            if report is None or not report.finite:
                assert state.memory.get(job.client, {}) == job.memory
        if len(state.memory) < problem.population():
            continue
        servers = state.slots[name]
        np.testing.assert_allclose(servers, mean_of_all(state, problem, name), rtol=1e-4, atol=1e-5)
    assert len(state.memory) == problem.population()


def wrong(report, how):
    """A report as it is, or what may come in its place."""
    bad = np.full_like(report.change, np.nan)
    if how == 1:
        return None
    if how == 2:
        return replace(report, finite=False, change=bad)
    if how == 3:
        return replace(report, finite=False, extra={n: np.full_like(v, np.inf) for n, v in report.extra.items()})
    return report


@pytest.mark.parametrize("member", MEMBERS)
def test_what_cannot_be_remembered_is_not_counted(member):
    """A change that is finite counts; what the client would keep is not finite, so neither side moves it."""
    problem = unequal((5, 20, 80, 9))
    round, arm, name = on(problem, member)
    state = advance(round, arm, 3)
    _, (first, *others) = reported(round, arm, state)
    lost = replace(first, memory={n: np.full_like(v, math.inf) for n, v in first.memory.items()})
    following, record = settle(round, arm, state, lost, *others)
    assert record.broken == 0
    assert following.memory[first.client] == state.memory[first.client]
    servers = following.slots[name]
    np.testing.assert_allclose(servers, mean_of_all(following, problem, name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("member", MEMBERS)
def test_before_all_are_met_the_others_count_as_they_are_expected_to(member):
    """The size of the federation is that of the clients met, times the clients there are."""
    problem = unequal()
    round, arm, name = on(problem, member)
    state = advance(round, arm, 1)
    sizes = {i: problem.size(i, "train") for i in state.memory}
    total = sum(sizes[i] * np.asarray(state.memory[i][name], float) for i in sizes)
    expected = total / (sum(sizes.values()) / len(sizes) * problem.population())
    servers = state.slots[name]
    np.testing.assert_allclose(servers, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("member", MEMBERS)
def test_a_round_in_which_nobody_trained_is_forgotten(member):
    """Clients without examples alone change neither the model nor what is remembered."""
    problem = unequal((5,), empty=3)
    round, arm, _ = on(problem, member)
    state = round.begin(arm)
    _, reports = reported(round, arm, state)
    following, _ = settle(round, arm, state, *(None if r.examples else r for r in reports))
    assert (following.memory, following.slots) == ({}, {})
    assert np.array_equal(following.w, state.w)


@pytest.mark.parametrize("combine", [Median(), Trimmed()], ids=lambda c: c.kind)
@pytest.mark.parametrize("method", [methods.scaffold, methods.feddyn], ids=lambda m: m.name)
def test_medians_do_not_add_up(method, combine):
    """A coordinate's median of what clients keep follows no mean: it is refused before the work."""
    with pytest.raises(SpecError, match=f"method = {method.name} adds up .* combine = "):
        prepare(unequal(), method=method, combine=combine)
