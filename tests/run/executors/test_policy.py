"""Who does what: pure decisions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtuner.core.executor import Advance
from fedtuner.core.records import Arm, Choice, Job, State
from fedtuner.run.executors import policy

COSTS = st.lists(st.floats(0.01, 100.0), max_size=40)


def work(arm: int, at: int, until: int) -> Advance:
    return Advance(Arm(arm, {}, {}), State(at, np.zeros(1, np.float32), None), until)


def test_the_longest_work_is_handed_out_first():
    made = [work(0, 0, 5), work(1, 2, 10), work(2, 9, 10), work(3, 0, 8), work(4, 5, 10)]
    assert [one.arm.id for one in policy.longest_first(made)] == [1, 3, 0, 4, 2]  # of equals the first


@pytest.mark.parametrize(("workers", "few"), [(1, 1), (2, 1), (3, 2), (4, 2), (8, 4)])
def test_the_rounds_of_the_last_arms_are_shared_when_half_of_the_workers_would_idle(workers, few):
    assert policy.few(workers, divisible=True) == few
    assert policy.few(workers, divisible=False) == 0


@given(COSTS, st.integers(1, 9))
def test_every_job_is_in_one_share_and_no_share_is_empty(costs, workers):
    shares = policy.shares(costs, workers)
    assert sorted(n for share in shares for n in share) == list(range(len(costs)))
    assert all(shares)
    assert len(shares) == min(workers, len(costs))


@given(COSTS, st.integers(1, 9))
def test_shares_are_balanced(costs, workers):
    """A worker that got a job had least to do before it, so without its last job it has no more than any other."""
    shares = policy.shares(costs, workers)
    loads = [sum(costs[n] for n in share) for share in shares]
    for share, load in zip(shares, loads, strict=True):
        assert load - min(costs[n] for n in share) <= min(loads) + 1e-9


def test_shares_by_hand():
    assert policy.shares([5.0, 1.0, 4.0, 2.0, 3.0], 2) == [[0, 3, 1], [2, 4]]  # loads: 5 + 2 + 1 and 4 + 3
    assert policy.shares([1.0, 1.0, 1.0], 3) == [[0], [1], [2]]
    assert policy.shares([], 3) == []


def job(*configs) -> Job:
    return Job(0, tuple(Choice(n, config) for n, config in enumerate(configs)))


def test_costs_count_examples_and_steps_of_every_choice():
    """A step costs twelve examples more: 20 examples in batches of 8 are 3 steps."""
    once = 20 + 12 * 3
    assert policy.cost(20, job({"batch": 8})) == once
    assert policy.cost(20, job({"batch": 8, "epochs": 4})) == 4 * once
    assert policy.cost(20, job({"batch": 8}, {"batch": 8, "epochs": 2})) == 3 * once
    assert policy.cost(20, job({})) == 20 + 12  # all examples at once
    assert policy.cost(0, job({"batch": 8})) == 0
