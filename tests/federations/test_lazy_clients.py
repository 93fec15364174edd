"""Clients known by ids and sizes: the same study as with a list of them, and a million cost what a thousand do."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner.errors import FedtunerError, SpecError, StoreError
from fedtuner.rng import stream

SPACE = ft.Space({"pace": ft.Float(0.1, 1.0)})


def make(id: Any, split: str) -> np.ndarray:
    return stream(0, "lazy", id, split).normal(id % 5, 1.0, (4 if split == "train" else 2, 2))


def fit(arrays, split, config, seed):
    return {"centre": arrays["centre"] + config["pace"] * (split.mean(axis=0) - arrays["centre"])}


def evaluate(arrays, split, config):
    far = float(((split - arrays["centre"]) ** 2).mean())
    return far, min(1.0, far / 10)


class Counted(ft.LazyClients):
    """Clients that count how often one of them is asked for."""

    asked = made = 0

    def __getitem__(self, i):
        self.asked += 1
        return super().__getitem__(i)

    def counting(self, id, split):
        self.made += 1
        return make(id, split)


def counted(n: int) -> Counted:
    clients = Counted(n, (4, 2, 2), make)
    clients.make = clients.counting
    return clients


def study_of(clients: Any, **settings: Any) -> ft.Study:
    problem = ft.Simulation(ft.Learner({"centre": np.zeros(2)}, fit, evaluate), clients)
    schedule = ft.halving(60, longest=12, eta=2, eliminations=2)
    settings = {"fedex": ft.FedEx(k=3), "schedule": schedule, "cohort": 5, "workers": 1, **settings}
    return ft.tune(problem, SPACE, **settings)


def test_a_study_is_that_of_a_list_of_the_same_clients():
    found = [
        toys.tune(problem=ft.Simulation(toys.Softmax(), clients, "toy"))
        for clients in (toys.clients(), toys.lazy_clients())
    ]
    assert repr(found[0].history) == repr(found[1].history)
    assert np.array_equal(found[0].best.model, found[1].best.model)
    assert found[0].evaluate("test") == found[1].evaluate("test")


@pytest.mark.slow
def test_the_same_for_any_number_of_workers(tmp_path):
    studies = [study_of(ft.LazyClients(200, (4, 2, 2), make), workers=n) for n in (1, 2)]
    assert repr(studies[0].history) == repr(studies[1].history)
    assert studies[0].evaluate("test", sample=50) == studies[1].evaluate("test", sample=50)


@pytest.mark.slow
def test_a_million_clients_are_asked_for_as_often_as_a_thousand(tmp_path):
    """Counted, not timed: drawing, planning, working, journaling, and a sampled evaluation."""
    asked, made, sizes = set(), set(), []
    for n in (1_000, 1_000_000):
        clients = counted(n)
        study = study_of(clients, store=tmp_path / str(n))
        asked.add(clients.asked)
        made.add(clients.made)
        sizes.append((tmp_path / str(n) / "journal.jsonl").stat().st_size)
        before = clients.asked
        drawn = study.evaluate("test", sample=40)["clients"]
        assert clients.asked - before <= 40 * drawn
    assert len(asked) == len(made) == 1
    assert sizes[1] < 1.1 * sizes[0]  # ids of more digits


@pytest.mark.slow
def test_a_million_clients_take_little_memory():
    clients = ft.LazyClients(1_000_000, (4, 2, 2), make)
    study_of(ft.LazyClients(1_000, (4, 2, 2), make))  # what is imported and cached once
    tracemalloc.start()
    try:
        study_of(clients)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 10e6
    assert peak < 40e6  # columns of sizes are added up, once


def test_clients_are_made_when_asked_for():
    clients = ft.LazyClients(["a", "b", "c"], ([4, 5, 0], [2, 2, 2], 0), lambda id, split: split)
    assert [client.id for client in clients] == ["a", "b", "c"] == [c.id for c in clients[:]]
    assert clients[-1].id == "c"
    assert [len(clients[1].train), len(clients[1].valid), len(clients[1].test)] == [5, 2, 0]
    assert clients[0].train.load() == "train"
    assert clients[2].train.load() is None  # no examples: make is not asked
    with pytest.raises(IndexError):
        clients[3]
    assert type(ft.LazyClients(np.arange(3), (1, 1, 1), make)[1].id) is int
    assert ft.LazyClients(np.array(["x", "y"]), (1, 1, 1), make)[1].id == "y"


def test_ids_sizes_and_data_are_what_a_study_is_known_by(tmp_path):
    study_of(ft.LazyClients(50, (4, 2, 2), make), store=tmp_path)
    study_of(ft.LazyClients(list(range(50)), ([4] * 50, 2, np.full(50, 2)), make), store=tmp_path)  # said otherwise
    others = {
        "clients": ft.LazyClients(51, (4, 2, 2), make),
        "ids": ft.LazyClients(range(1, 51), (4, 2, 2), make),
        "sizes": ft.LazyClients(50, (4, 2, [2] * 49 + [1]), make),
        "fingerprint": ft.LazyClients(50, (4, 2, 2), make, fingerprint="of today"),
    }
    for clients in others.values():
        with pytest.raises(StoreError, match="holds another study"):
            study_of(clients, store=tmp_path)
    with pytest.raises(StoreError, match="data: its code, or what it holds, has changed"):
        study_of(ft.LazyClients(50, (4, 2, 2), lambda id, split: make(id, split) + 1), store=tmp_path)


def test_what_make_returns_must_be_as_large_as_it_was_said():
    with pytest.raises(FedtunerError, match="4 examples were loaded, but its size is 5"):
        study_of(ft.LazyClients(50, (5, 2, 2), make))


@pytest.mark.parametrize(
    ("ids", "sizes", "message"),
    [
        (0, (1, 1, 1), "ids = 0, but must be a whole number >= 1"),
        ("phones", (1, 1, 1), "ids = 'phones', but must be a list of ids, or how many clients there are"),
        (["a", "a"], (1, 1, 1), "must be distinct ids"),
        (np.array([3, 3]), (1, 1, 1), "must be distinct ids"),
        ([], (1, 1, 1), "at least one"),
        ([1.5], (1, 1, 1), "a client has the id 1.5"),
        (2, 10, "sizes = 10, but must be three"),
        (2, (1, 1), "but must be three"),
        (2, (1.5, 1, 1), "sizes of train = 1.5, but must be a whole number, or one for each of 2 clients"),
        (2, (1, [1, 1, 1], 1), "sizes of valid"),
        (2, (1, 1, [0, -1]), "sizes of test has -1, but must be at least 0"),
    ],
)
def test_what_is_no_population_is_refused(ids, sizes, message):
    with pytest.raises(SpecError, match=message):
        ft.LazyClients(ids, sizes, make)


def test_clients_without_examples_are_named():
    with pytest.raises(SpecError, match="client 1 has no examples at all"):
        study_of(ft.LazyClients(3, ([4, 0, 4], [2, 0, 2], [2, 0, 2]), make), cohort=2)
    with pytest.raises(SpecError, match="no client has any valid examples"):
        study_of(ft.LazyClients(3, (4, 0, 2), make), cohort=2)
    with pytest.raises(SpecError, match="make = 3, but must be a function"):
        ft.LazyClients(3, (4, 2, 2), 3)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="fingerprint = 3, but must be a string"):
        ft.LazyClients(3, (4, 2, 2), make, fingerprint=3)  # type: ignore[arg-type]


def test_groups_and_devices_know_them_too():
    problem = ft.Simulation(toys.Softmax(), toys.lazy_clients(), groups={"phone0": "rural"})
    assert problem.groups == {"phone0": "rural"}
    with pytest.raises(SpecError, match="no client has that id"):
        ft.Simulation(toys.Softmax(), toys.lazy_clients(), groups={"phone9": "rural"})
