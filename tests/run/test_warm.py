"""What one study has found is where another begins."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner import cli
from fedtuner.core.records import Arm
from fedtuner.core.screens import Norm, Weights
from fedtuner.errors import FedtunerError, SpecError, StoreError
from fedtuner.tuners.fedex_settings import DOUBT


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A study with FedEx, and its export."""
    folder = tmp_path_factory.mktemp("source")
    study = toys.tune(store=folder / "s", method=ft.methods.fedavg)
    study.export(folder / "to")
    return study


def ways(source):
    """The ways to name a study, and an export of it."""
    exported = source.path.parent / "to"
    return [source, ft.load(source.path), source.path, str(source.path), exported, exported / "configuration.json"]


@pytest.mark.slow
def test_the_best_arms_are_the_first_arms_and_their_theta_a_prior(source):
    """In the order of how far they came; the rest of the arms is drawn as without them, but for their numbers."""
    for way in ways(source):
        study = toys.tune(method="fedavg", start_from=way)
        first, candidates = study.journal.arms[0], study.journal.candidates[0]
        assert (first.client, first.server) == (source.best.client, source.best.server)
        ranked = sorted(zip(-source.best.theta, range(3), strict=True))
        assert candidates == tuple(source.best.candidates[j] for _, j in ranked)
        began = study.setup.tuner.begin(first, study.setup.space, 0, None)
        expected = (1 - DOUBT) * -np.array([p for p, _ in ranked]) + DOUBT / 3
        np.testing.assert_allclose(began.theta.p, expected)
    arms = toys.tune(method="fedavg", start_from=source).journal.arms
    by_reach = sorted(source.arms(), key=lambda row: (row["status"] != "won", -row["rounds"], row["score"]))
    assert [arms[n].server["lr"] for n in range(3)] == [row["server.lr"] for row in by_reach[:3]]
    assert arms[3].client == toys.tune(method="fedavg").journal.arms[0].client


def test_a_study_that_is_continued_has_the_same_setup(source, tmp_path):
    one = toys.tune(method="fedavg", start_from=source, store=tmp_path / "s")
    again = toys.tune(method="fedavg", start_from=source.path, store=tmp_path / "s")
    assert again.journal.setup["tuner"]["prior"] == json.loads(json.dumps(one.journal.setup["tuner"]["prior"]))
    assert again.best.model.tobytes() == one.best.model.tobytes()


def test_arms_that_a_prior_does_not_know_begin_as_without_it(source):
    plain, space = ft.FedEx(k=3), source.setup.space
    warm = ft.FedEx(k=3, prior=({"candidates": source.best.candidates, "theta": source.best.theta.tolist()},))
    arm = Arm(7, {**source.best.client, "lr": 0.123}, source.best.server)
    one, other = (tuner.begin(arm, space, 0, None) for tuner in (plain, warm))
    assert (one.candidates, one.gamma, one.theta.p.tolist()) == (other.candidates, other.gamma, other.theta.p.tolist())
    more = ft.FedEx(k=5, prior=warm.prior).begin(Arm(7, source.best.client, {}), space, 0, None)
    assert (len(more.candidates), len(more.theta.p)) == (5, 5)
    assert more.theta.p[3:].tolist() == pytest.approx([DOUBT / 5] * 2)
    fewer = ft.FedEx(k=2, prior=warm.prior).begin(Arm(7, source.best.client, {}), space, 0, None)
    assert fewer.theta.p.sum() == pytest.approx(1)
    assert fewer.theta.mode == 0


def test_a_budget_begins_with_what_was_found_and_still_tries_the_default(source):
    study = ft.tune(toys.problem(), budget=70, cohort=3, workers=1, start_from=source)
    arms = study.journal.arms
    assert arms[0].client["lr"] == source.best.client["lr"]
    assert arms[1].client == study.describe()["defaults"]["client"]
    assert ft.untuned(study).best.client == arms[1].client


def test_what_another_method_does_not_have_is_left_out(source):
    study = toys.tune(method="fedprox", start_from=source, fedex=None)
    assert study.journal.arms[0].client["mu"] == study.describe()["defaults"]["client"]["mu"]
    assert study.journal.arms[0].client["lr"] == source.best.client["lr"]
    prox = toys.tune(method="fedprox", fedex=None)
    assert "mu" not in toys.tune(method="fedavg", start_from=prox, fedex=None).journal.arms[0].client


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (7, SpecError, "start_from = 7, but must be a study, its store, or an exported folder"),
        ("nowhere", StoreError, "no study in nowhere"),
        ("bad.json", StoreError, "bad.json is no exported configuration .*'fedtuner export' writes one"),
    ],
)
def test_what_cannot_be_started_from_is_told(tmp_path, monkeypatch, given, error, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('{"candidates": []}')
    with pytest.raises(error, match=said):
        toys.tune(start_from=given)


def test_an_unfinished_study_and_a_wrong_prior_are_refused(tmp_path):
    study = ft.prepare(toys.problem(), schedule=toys.SCHEDULE, cohort=3, store=tmp_path / "s")
    study.ask()
    with pytest.raises(SpecError, match="but that study is not finished: run it to the end"):
        toys.tune(start_from=study)
    study.close()
    for prior in ({"theta": [1.0]}, {"candidates": [{}], "theta": [0.5, 0.5]}, {"candidates": [{}], "theta": [-1.0]}):
        with pytest.raises(SpecError, match=r"fedex\.prior has"):
            ft.FedEx(prior=(prior,))


def elsewhere():
    """The same task on other data."""
    return ft.Simulation(toys.Softmax(), toys.clients(8), "elsewhere")


@pytest.mark.slow
def test_show_leaves_out_what_was_taken_over_and_is_the_default(source, tmp_path, capsys):
    """All arms have what the first one has, unless they differ in it."""
    given = {"schedule": None, "budget": 70, "fedex": None, "method": ft.methods.fedavg, "space": None}
    toys.tune(**given, start_from=source, store=tmp_path / "s")
    assert cli.main(["show", str(tmp_path / "s")]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if " lr " in line]
    assert lines
    for line in lines:
        assert "beta2" not in line
        assert "tau" not in line
    assert "(cooled over the last 50 % of its rounds)" in out


@pytest.mark.slow
def test_a_proxy_is_tuned_and_what_it_finds_is_trained_for_real(tmp_path):
    study = toys.tune(proxy=elsewhere(), store=tmp_path / "s")
    found = ft.load(tmp_path / "s" / "proxy")
    assert (found.journal.begun.federation["name"], study.problem.name) == ("elsewhere", "toy")
    assert (found.rounds_used, study.rounds_used) == (30, 30)
    assert (study.best.client, study.best.server) == (found.best.client, found.best.server)
    assert len(study.journal.arms) == 1
    again = toys.tune(proxy=elsewhere(), store=tmp_path / "s")
    assert again.best.model.tobytes() == study.best.model.tobytes()
    assert toys.tune(proxy=elsewhere()).best.model.tobytes() == study.best.model.tobytes()
    assert ft.untuned(study).rounds_used == 30
    with pytest.raises(FedtunerError, match="proxy is int, but must be a Simulation"):
        toys.tune(proxy=3)


@pytest.mark.parametrize(
    ("given", "arms"), [({"budget": 20}, 1), ({"recipe": ft.auto(100, arms=3)}, 3), ({"budget": 70}, 3)]
)
def test_a_budget_has_as_many_arms_as_without_what_was_found(source, given, arms):
    setup = ft.prepare(toys.problem(), cohort=3, start_from=source, **given).setup
    assert setup.schedule.arms == arms
    assert len(setup.sampler.configs) <= arms
    assert setup.sampler.propose(setup.space, 0, 0, 0, ())[0].items() >= dict(source.best.client).items()


def test_the_usual_cohort_is_that_of_the_problem():
    small, large = (ft.Simulation(toys.Softmax(), toys.clients(n), f"{n} clients") for n in (6, 20))
    settings = {"budget": 12, "method": ft.methods.fedavg, "progress": False, "workers": 1}
    assert ft.tune(large, proxy=small, **settings).setup.cohort == 10
    assert ft.tune(small, proxy=large, **settings).setup.cohort == 6


def test_what_is_trained_for_real_has_the_settings_of_the_search():
    given = {"across": "worst tenth", "failing": "end", "screens": (Norm(),), "cohort": 4}
    study = toys.tune(proxy=elsewhere(), **given)
    assert {name: getattr(study.setup, name) for name in given} == given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cohort": 7}, "cohort = 7, but the problem has 6 clients"),
        ({"across": "worst group"}, "across = 'worst group', but clients have no groups"),
    ],
)
def test_what_the_real_clients_cannot_do_is_told_before_the_search(given, said, tmp_path):
    ids = [client.id for client in toys.clients(8)]
    proxy = ft.Simulation(toys.Softmax(), toys.clients(8), "proxy", groups=dict.fromkeys(ids, "all"))
    with pytest.raises(FedtunerError, match=said):
        ft.tune(
            toys.problem(), proxy=proxy, store=tmp_path / "s", schedule=ft.random_search(2, 1), workers=1,
            **{"cohort": 3, **given},
        )  # fmt: skip
    assert not (tmp_path / "s").exists()


def test_the_screens_that_are_given_hold_for_both_the_proxy_and_the_problem():
    """Those that are not given are each federation's own."""
    strict, usual = (Weights(most=1),), (Weights(),)
    problem = toys.problem()
    problem.screens = usual  # as a fleet has them
    once = {"proxy": elsewhere(), "problem": problem, "schedule": ft.random_search(2, 2)}
    assert toys.tune(**once, screens=strict).setup.screens == strict
    assert toys.tune(**once).setup.screens == usual
