"""Where clients live: what a study asks of it, and clients that fedtuner does not reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner.core.federation import Federation, FederationDefaults
from fedtuner.core.model import Metric
from fedtuner.core.store import Done
from fedtuner.errors import SpecError
from fedtuner.run.executors import Serial
from fedtuner.testing import FederationLaws

ARRAYS = {"weight": np.arange(6.0).reshape(2, 3), "bias": np.zeros(3), "scale": np.array(7.0)}


class LazySplit:
    """A split that is read from somewhere when its client is visited."""

    def __init__(self, given: Any) -> None:
        self.given, self.loads = given, 0

    def __len__(self) -> int:
        return len(self.given[1])

    def load(self) -> Any:
        self.loads += 1
        return self.given

    def fingerprint(self) -> str:
        return f"{len(self)} examples"


def lazily(client: ft.Client) -> ft.Client:
    return replace(client, **{split: LazySplit(getattr(client, split)) for split in ("train", "valid", "test")})


MEMBERS = {
    "simulation": toys.problem,
    "lazy clients": lambda: ft.Simulation(toys.Softmax(), map(lazily, toys.clients())),
    "clients by columns": lambda: ft.Simulation(toys.Softmax(), toys.lazy_clients()),
    "clients without data": lambda: ft.Simulation(toys.Softmax(), [*toys.clients(2), ft.Client("new", None, None)]),
    "outside, by id": lambda: ft.Outside(ARRAYS, ["phone", "tablet", 3, "3"]),
    "outside, by number": lambda: ft.Outside(ARRAYS, 12, "anonymous", Metric("mean squared error", worst=np.inf)),
}


@pytest.mark.parametrize("member", MEMBERS)
class TestEveryFederation(FederationLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, member):
        self.member = member

    def federation(self):
        return MEMBERS[self.member]()


def test_the_hook_must_be_overridden():
    with pytest.raises(NotImplementedError, match=r"override federation\(\)"):
        FederationLaws().test_ids_are_distinct()


def test_a_simulation_is_a_federation_in_which_everybody_is_present():
    problem = toys.problem()
    assert isinstance(problem, Federation)
    assert list(problem.present()) == list(problem.everyone()) == [0, 1, 2, 3, 4, 5]
    assert problem.population() == 6
    assert [problem.id_of(i) for i in problem.present()] == [c.id for c in problem.clients]
    assert problem.executor is None
    described = problem.describe()
    assert (described["name"], described["clients"]) == ("toy", 6)
    assert described["fingerprint"] == problem.fingerprint()


def test_the_fingerprint_is_that_of_the_data():
    usual = toys.problem().fingerprint()
    first, *others = toys.clients()
    x, y = first.train
    for changed in (
        replace(first, id="another"),
        replace(first, train=(x + 1e-6, y)),
        replace(first, test=None),
        replace(first, train=first.valid, valid=first.train),
    ):
        assert ft.Simulation(toys.Softmax(), [changed, *others]).fingerprint() != usual
    assert ft.Simulation(toys.Softmax(), [first, *others], "another name").fingerprint() == usual


def test_a_lazy_split_is_loaded_once_a_visit_and_let_go():
    problem = MEMBERS["lazy clients"]()
    first = problem.clients[0].train
    assert problem.size(0, "train") == 12
    assert first.loads == 0
    for _ in range(3):
        problem.data(0, "train")
    assert first.loads == 1
    problem.data(1, "train")
    problem.data(0, "train")
    assert first.loads == 2


def test_lazy_clients_give_the_same_study():
    plain, lazy = toys.tune(), toys.tune(problem=MEMBERS["lazy clients"]())
    assert repr(plain.history) == repr(lazy.history)


def test_clients_who_are_away_are_not_asked():
    class Some(ft.Simulation):
        """A simulation some of whose clients are away."""

        def present(self) -> Any:
            return (5, 1, 4)

    study = toys.tune(problem=Some(toys.Softmax(), toys.clients()), cohort=2)
    met = {row.client for record in study.history for row in record.rows}
    assert met == {"phone5", "phone1", "phone4"}
    assert {record.clients for record in study.history} == {2}


def test_a_federation_may_bring_its_own_executor(tmp_path):
    made = []

    class Away(ft.Simulation):
        def executor(self, round: Any, blobs: Any, workers: int | None) -> Any:
            made.append(workers)
            return Serial(round, blobs)

    here = toys.tune()
    away = toys.tune(problem=Away(toys.Softmax(), toys.clients(), "toy"), store=tmp_path, workers=2)
    assert made == [2]
    assert np.array_equal(here.best.model, away.best.model)
    assert here.evaluate("test") == away.evaluate("test")
    assert len(made) == 2


def test_what_is_no_federation_is_refused():
    with pytest.raises(SpecError, match=r"problem is list, but must be a Simulation\(task, clients\)"):
        toys.tune(problem=[])

    class Half(FederationDefaults):
        name = "half"

    with pytest.raises(SpecError, match=r"problem is Half, but must be"):
        toys.tune(problem=Half())


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "at least one client"),
        ([ft.Client("a", None, None), ft.Client("a", None, None)], "two clients have the id 'a': ids must differ"),
        ([("a", None, None)], r"is no Client: give Client\(id, train, valid, test\)"),
    ],
)
def test_wrong_clients_are_refused(clients, message):
    with pytest.raises(SpecError, match=message):
        ft.Simulation(toys.Softmax(), clients)


@pytest.mark.parametrize("save_every_round", [False, True])
def test_where_each_round_is_saved(save_every_round, tmp_path):
    problem = toys.problem()
    problem.save_every_round = save_every_round
    events = []
    study = toys.tune(problem=problem, store=tmp_path, watch=events.append, progress=False)
    done = [event for event in events if isinstance(event, Done)]
    flushes = [event.record.round for event in done if event.state]
    assert len(done) == study.rounds_used == 30
    assert (len(flushes) == 30) == save_every_round


# Outside


def test_arrays_and_vectors_are_the_same_numbers():
    model = ft.Outside(ARRAYS, 3).model
    assert (model.size, model.trainable) == (10, 10)
    w = model.initial(0)
    assert w.tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 7]
    back = model.arrays(w)
    assert all(np.array_equal(back[name], ARRAYS[name]) for name in ARRAYS)
    assert model.vector(back).tobytes() == w.tobytes()
    w[0] = 99.0
    assert model.initial(1)[0] == 0.0  # every arm begins from the arrays as they were given


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ft.Outside({}, 3), "the model has no arrays"),
        (lambda: ft.Outside({"a": np.array(["x"])}, 3), "array 'a' is of type <U1, but must be of numbers"),
        (lambda: ft.Outside(ARRAYS, 0), "clients = 0, but must be a whole number >= 1"),
        (lambda: ft.Outside(ARRAYS, []), r"clients = \[\], but must be distinct ids, at least one"),
        (lambda: ft.Outside(ARRAYS, ["a", "b", "a"]), r"clients = \['a', 'b', 'a'\], but must be distinct ids"),
        (lambda: ft.Outside(ARRAYS, 3).model.vector(ARRAYS | {"weight": np.zeros(6)}), "'weight'"),
        (lambda: ft.Outside(ARRAYS, 3).model.vector({"weight": np.zeros((2, 3))}), "'bias'"),
        (lambda: outside_study(cohort=9), r"cohort = 9, but there are 4 clients: lower cohort"),
        (lambda: outside_study(method=ft.methods.scaffold), r"method = scaffold, but these clients train by code"),
        (lambda: outside_study(space=None), "give space= with the hyperparameters that it reads"),
        (lambda: outside_study().run(False), r"ask\(\) for rounds and tell\(\) their reports"),
    ],
)
def test_mistakes_are_told(make, message):
    with pytest.raises(SpecError, match=message):
        make()


def outside_study(**changed: Any) -> ft.Study:
    usual = {"space": ft.Space({"rate": ft.Float(0.1, 1.0)}), "schedule": ft.random_search(2, 1), "cohort": 2}
    settings = usual | changed
    return ft.prepare(ft.Outside(ARRAYS, ["a", "b", "c", "d"]), settings.pop("space"), **settings)
