"""The seam at which clients live: what a study asks of it, and cohorts of those who are there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner.arm import Setting, begin, cohort, fold, plan, work
from fedtuner.errors import SpecError
from fedtuner.executors import Elsewhere, Serial, open_executor
from fedtuner.federation import Federation
from fedtuner.legs import Place
from fedtuner.rng import stream

SETTING = Setting(ft.methods.fedavg, ft.FedEx(k=3), cohort=4)


class Some(ft.Simulation):
    """A simulation some of whose clients are away."""

    there: tuple[int, ...] = (5, 1, 4)

    def available(self) -> Any:
        return self.there


def arm() -> Any:
    return toys.tune(schedule=ft.random_search(budget=1, longest=1)).arm(0)


def test_a_simulation_is_a_federation_in_which_everybody_is_there():
    problem = toys.problem()
    assert isinstance(problem, Federation)
    assert list(problem.available()) == list(problem.gather()) == [0, 1, 2, 3, 4, 5]
    assert problem.population == 6
    assert [problem.id_of(i) for i in problem.available()] == [c.id for c in problem.clients]
    assert not isinstance(problem, Elsewhere)
    assert problem.describe() == {"name": "toy", "clients": 6, "fingerprint": problem.fingerprint()}


def test_the_cohort_of_all_is_the_draw_that_it_was():
    """The numbers of stores and documents from before there were other federations."""
    drawn = stream(0, "cohort", "arm", 0, 7).choice(6, 4, replace=False)
    assert cohort(SETTING, toys.problem(), arm(), 7) == drawn.tolist()
    shared = replace(SETTING, cohorts="shared")
    assert cohort(shared, toys.problem(), arm(), 7) == stream(0, "cohort", "shared", 7).choice(6, 4, False).tolist()


def test_a_cohort_is_drawn_from_those_who_are_there():
    problem, first = Some(toys.Softmax(), toys.clients()), arm()
    two = replace(SETTING, cohort=2)
    met = {i for t in range(30) for i in cohort(two, problem, first, t)}
    assert met == {5, 1, 4}
    assert all(len(set(cohort(two, problem, first, t))) == 2 for t in range(30))
    jobs = plan(SETTING, problem, first, begin(SETTING, problem, first))
    assert sorted(job.client for job in jobs) == [1, 4, 5]  # four were asked for
    state, record = fold(
        SETTING, problem, first, begin(SETTING, problem, first), [work(SETTING.method, problem, j) for j in jobs]
    )
    assert (record.clients, record.dropped, state.round) == (3, 0, 1)


def test_a_federation_may_bring_its_own_executor(tmp_path):
    made = []

    class Away(ft.Simulation):
        def executor(self, setting: Setting, folder: Any) -> Any:
            made.append(folder)
            return Serial(Place(setting, self, folder))

    problem = Away(toys.Softmax(), toys.clients())
    assert isinstance(problem, Elsewhere)
    here, away = toys.tune(), toys.tune(problem=problem, store=tmp_path, workers=2)
    assert made == [tmp_path]
    assert np.array_equal(here.best.model, away.best.model)
    assert here.evaluate("test") == away.evaluate("test")
    assert len(made) == 2


def test_what_is_no_federation_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"problem is list, but must be a Simulation\(task, clients\)"):
        toys.tune(problem=[])

    class Nowhere:
        """It has all that a federation has, and nobody to do the work."""

        def __getattr__(self, name: str) -> Any:
            if name == "executor":
                raise AttributeError(name)
            return getattr(toys.problem(), name)

    with pytest.raises(SpecError, match="Nowhere is no Simulation and brings no executor"):
        open_executor(SETTING, Nowhere(), tmp_path, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("dear", [False, True])
def test_where_rounds_are_dear_each_is_saved(dear, tmp_path, monkeypatch):
    from fedtuner.store import Store

    kept = []
    keep = Store.keep
    monkeypatch.setattr(
        Store, "keep", lambda self, arm, state, records: kept.append(len(records)) or keep(self, arm, state, records)
    )
    problem = toys.problem()
    problem.dear = dear
    study = toys.tune(problem=problem, store=tmp_path)
    assert sum(kept) == study.rounds_used == 30
    assert (max(kept) == 1) == dear
