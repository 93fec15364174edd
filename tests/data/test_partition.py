"""Splits and partitions: every example is in one, at any seed; the paper's 80/10/10."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtuner import data
from fedtuner.data import digits, partition
from fedtuner.errors import SpecError
from fedtuner.rng import stream

LABELS = np.repeat(np.arange(10), 30)

DEALS = {
    "iid": lambda seed: data.iid(300, 20, seed),
    "by_label": lambda seed: data.by_label(LABELS, 20, 2, seed),
    "dirichlet": lambda seed: data.dirichlet(LABELS, 20, 0.3, seed),
    "by_size": lambda seed: data.by_size(300, 20, 0.5, seed),
    "exchange": lambda seed: partition.exchange(np.array_split(np.arange(300), 20), stream(seed, "test")),
}


@given(st.integers(0, 300), st.sampled_from(data.ORDERS))
def test_every_example_is_in_one_split(n, order):
    train, valid, test = partition.three(n, "a", order)
    assert sorted(np.concatenate([train, valid, test]).tolist()) == list(range(n))
    assert len(valid) == len(test)
    if n >= 3:
        assert min(len(train), len(valid)) >= 1
    if n >= 10:
        assert abs(len(valid) - 0.1 * n) <= 0.5


def test_in_order_is_tested_on_what_came_last():
    train, valid, test = partition.three(50, "a", "in-order")
    assert train[-1] < valid[0] <= valid[-1] < test[0]


def test_digits_are_split_as_they_always_were():
    made = digits.clients()[5]
    n = sum(len(part[1]) for part in (made.train, made.valid, made.test))
    start = 130 + np.array_split(np.arange(126), 4)[1][0]
    rows = start + stream(0, "split", made.id).permutation(n)
    whole = np.concatenate([made.train[1], made.valid[1], made.test[1]])
    from sklearn.datasets import load_digits

    assert made.id == "form01-1"
    assert np.array_equal(whole, load_digits().target[rows])
    assert len(made.valid[1]) == round(0.1 * n)


def test_an_unknown_order_is_named():
    with pytest.raises(SpecError, match=r"order = 'in_order'.*did you mean 'in-order'"):
        data.split("a", np.zeros((5, 1)), np.zeros(5), order="in_order")


@pytest.mark.parametrize("deal", DEALS.values(), ids=DEALS)
def test_every_example_has_one_device(deal):
    for seed in range(3):
        dealt = deal(seed)
        assert len(dealt) == 20
        assert sorted(np.concatenate(dealt).tolist()) == list(range(300))
    assert all(np.array_equal(a, b) for a, b in zip(deal(1), deal(1), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(deal(1), deal(2), strict=True))


def test_by_label_gives_a_device_few_labels():
    assert all(len(np.unique(LABELS[rows])) <= 4 for rows in data.by_label(LABELS, 20, 2))  # a shard spans 2 at most
    assert all(len(np.unique(LABELS[rows])) == 1 for rows in data.by_label(LABELS, 10, 1))


def test_dirichlet_goes_from_even_to_lopsided():
    def largest(alpha):
        return np.mean([np.bincount(LABELS[r]).max() / max(len(r), 1) for r in data.dirichlet(LABELS, 5, alpha)])

    assert largest(1000.0) < 0.15 < 0.4 < largest(0.05)


def test_dirichlet_shares_do_not_depend_on_the_number_of_examples():
    few, many = (data.dirichlet(np.repeat(np.arange(4), n), 3, 0.5) for n in (100, 10_000))
    for a, b in zip(few, many, strict=True):
        assert len(a) / 400 == pytest.approx(len(b) / 40_000, abs=0.02)


def test_by_size_differs_in_size_not_in_labels():
    sizes = sorted(len(rows) for rows in data.by_size(10_000, 10, 0.5))
    assert sizes[-1] > 5 * max(sizes[0], 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: data.iid(5, 6), r"devices = 6, but must be in 1\.\.5"),
        (lambda: data.by_label([0, 1, 2], 2, 2), r"devices \* shards = 4, but must be in 1\.\.3"),
        (lambda: data.dirichlet(LABELS, 5, 0.0), "alpha = 0.0, but must be > 0"),
        (lambda: data.by_size(10, 2, -1.0), "alpha = -1.0"),
        (lambda: data.dirichlet(np.zeros((5, 2)), 2, 1.0), r"labels have shape \(5, 2\)"),
        (lambda: partition.subset([1, 2, 3], 0), "limit = 0"),
    ],
)
def test_what_cannot_be_dealt_is_said(call, words):
    with pytest.raises(SpecError, match=words):
        call()


def test_a_subset_keeps_the_order():
    picked = partition.subset(list(range(100)), 10)
    assert picked == sorted(picked)
    assert len(set(picked)) == 10
    assert partition.subset([1, 2], 5) == partition.subset([1, 2], None) == [1, 2]
