"""What comes after a study: it goes on, its winner trains on or again, it is exported and loaded."""

from __future__ import annotations

import json
import math
import runpy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from torch import nn

import fedtuner as ft
import toys
from crashes import Snapshots, assert_same
from fedtuner.core.store import Done, Extended
from fedtuner.errors import FedtunerWarning, SpecError, StoreError
from fedtuner.page.html import data
from fedtuner.report import differences, journal_of, summary
from fedtuner.run.result import Results
from fedtuner.run.store import Folder
from fedtuner.schedules import Longer

RANDOM = ft.random_search(budget=6, longest=3)
DUEL = {"fedex": None, "schedule": None, "budget": 60, "space": None, "method": ft.methods.fedavg}


def tune(store=None, **changed):
    return toys.tune(store=store, **{"schedule": RANDOM, **changed})


def test_a_random_search_that_is_extended_is_the_longer_search(tmp_path):
    """To the bit, with only the rounds that are missing; further arms have further numbers."""
    seen = []
    study = tune(tmp_path / "s", watch=seen.append)
    assert study.extend(12) is study
    assert study.rounds_used == sum(isinstance(event, Done) for event in seen) == 12
    whole = tune(tmp_path / "w", schedule=replace(RANDOM, budget=12))
    found = differences(journal_of(tmp_path / "s"), journal_of(tmp_path / "w"))
    assert {one.event for one in found} <= {"setup", "eliminated"}  # the first winner is eliminated later
    assert study.best.model.tobytes() == whole.best.model.tobytes()
    assert study.best.score == min(row["score"] for row in study.frame("arms"))


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{}, DUEL], ids=["random", "budget"])
def test_extensions_that_are_killed_at_any_change_of_the_folder_end_the_same(tmp_path, changed):
    first, further = (60, 75) if changed is DUEL else (6, 12)
    whole, copies = tmp_path / "whole", tmp_path / "copies"
    tune(whole, **changed)

    def go(store):
        study = tune(store, **changed)
        assert study.rounds_used >= first
        return study.extend(further).resume_winner(4)

    files = Snapshots(whole, copies)
    go(Folder(whole, files))
    left = sorted(copies.iterdir())
    for path in left[:: max(1, len(left) // 12)]:
        before = (path / "journal.jsonl").read_bytes()
        study = go(path)
        assert (path / "journal.jsonl").read_bytes().startswith(before[: before.rfind(b"\n", 0, len(before) // 2)])
        assert study.rounds_used == further + 4
        assert_same(path, whole)


def test_the_same_script_again_does_nothing(tmp_path):
    def script():
        seen = []
        study = tune(tmp_path / "s", watch=seen.append)
        study.extend(12)
        study.resume_winner(2)
        study.resume_winner(5)
        study.retrain(4)
        return study, seen

    study, seen = script()
    assert [e for e in seen if isinstance(e, Extended)] == [
        Extended(12, "schedule"), Extended(14, "winner"), Extended(17, "winner"),
    ]  # fmt: skip
    before = toys.files(tmp_path / "s")
    again, seen = script()
    assert toys.files(tmp_path / "s") == before
    assert seen == []
    assert again.rounds_used == 17
    assert again.best.model.tobytes() == study.best.model.tobytes()


def test_the_winner_trains_on_with_all_that_it_has(tmp_path):
    """Its model, momentum, clients' memory and theta: as if its schedule had been longer."""
    one = tune(schedule=ft.random_search(3, 3)).resume_winner(4)
    model, theta = one.best.model, one.best.theta
    assert one.best.rounds == 7
    parent = one.journal.arms[one.best.arm].parent
    assert parent == (0, 3)
    state, before = one.state(one.winner), one.state((0, 3))
    assert state.slots["momentum"].tobytes() != before.slots["momentum"].tobytes()
    assert state.memory.keys() >= before.memory.keys()
    assert not np.array_equal(model, before.w)
    assert theta.shape == (3,)
    assert one.best.candidates == one.journal.candidates[0]


def test_a_winner_that_diverges_as_it_trains_on_stays_as_it_was():
    study = tune(space=ft.Space(client={"lr": 0.5}, server={"lr": 5.0, "momentum": 0.999}), fedex=None, cohort=6)
    kept = study.winner
    study.setup = replace(study.setup, method=replace(study.setup.method, aggregate=_explode))
    study.resume_winner(3)
    assert study.winner == kept
    assert study.journal.ended == {2: "diverged"}


def _explode(server, b, tally):
    return server.w * np.float32(np.inf), {}


def test_what_cannot_be_extended_is_told(tmp_path):
    study = tune(tmp_path / "s").extend(12)
    with pytest.raises(
        SpecError, match="budget = 9, but the study has 12 rounds already, of which 12 are used: give more"
    ):
        study.extend(9)
    with pytest.raises(SpecError, match="budget = 13 leaves 1 rounds for a second RandomSearch: budget = 1 is less"):
        study.extend(13)
    with pytest.raises(SpecError, match="rounds = 0, but must be a whole number >= 1"):
        study.resume_winner(0)
    other = tune()
    other.where = replace(other.where, store=study.store)
    with pytest.raises(StoreError, match="was extended otherwise: to 12 rounds"):
        other.extend(15)


def test_a_larger_budget_in_the_same_store_is_told_how_to_go_on(tmp_path):
    tune(tmp_path / "s")
    with pytest.raises(
        StoreError,
        match=r"^budget = 6 in the store, 9 now: .*keep budget = 6 and give --extend 9 \(study\.extend\(9\)\)",
    ):
        tune(tmp_path / "s", schedule=replace(RANDOM, budget=9))
    for other in ({"schedule": replace(RANDOM, budget=3)}, {"schedule": replace(RANDOM, budget=9), "seed": 1}):
        with pytest.raises(StoreError) as error:
            tune(tmp_path / "s", **other)
        assert "extend" not in str(error.value)
    with pytest.raises(StoreError, match=r"\(problem\.fingerprint: the clients' data has changed\)"):
        tune(tmp_path / "s", problem=ft.Simulation(toys.Softmax(), toys.clients()[::-1], "toy"))


def test_longer_schedules_say_what_they_are():
    longer = Longer(Longer(ft.halving(30, 10, 2, 2), 60), 70, "winner")
    assert (longer.budget, longer.longest, longer.more, longer.scoring) == (70, 20, 10, longer.first.scoring)
    with pytest.raises(SpecError, match="budget = 60, but must be a whole number >= 61"):
        Longer(longer.first, 60)


def test_the_configuration_is_trained_from_new_weights(tmp_path):
    study = tune(tmp_path / "s")
    again = study.retrain(4)
    assert again.path == tmp_path / "s" / "retrained-4"
    assert (again.rounds_used, again.best.rounds) == (4, 4)
    assert (again.best.client, again.best.server) == (study.best.client, study.best.server)
    again.evaluate()
    assert "retrained-4" in summary(tmp_path / "s")["evaluations"]
    assert study.retrain(4).best.model.tobytes() == again.best.model.tobytes()
    assert study.retrain(2).rounds_used == 2


def test_the_untuned_default_of_an_extended_study_has_as_many_rounds(tmp_path):
    study = tune(tmp_path / "s")
    ft.untuned(study).evaluate()
    default = ft.untuned(study.extend(12))
    assert (default.path, default.rounds_used) == (tmp_path / "s" / "untuned-12", 12)
    default.evaluate()
    study.evaluate()
    assert summary(tmp_path / "s")["evaluations"]["untuned"]
    study.export(tmp_path / "to")
    assert "the untuned default, test, 6 clients" in (tmp_path / "to" / "README.md").read_text()


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_loaded_study_says_what_the_study_says(tmp_path, in_memory):
    study = tune(None if in_memory else tmp_path / "s")
    kept = ft.load(study.store if in_memory else tmp_path / "s")
    assert isinstance(kept, Results)
    assert not isinstance(kept, ft.Study)
    for name in ("finished", "rounds_used", "local_work", "examples_processed", "winner", "path"):
        assert getattr(kept, name) == getattr(study, name)
    assert repr(kept.history) == repr(study.history)
    assert repr(kept.frame()) == repr(study.frame())
    for name in ("client", "server", "candidates", "score", "fine_tune"):
        assert getattr(kept.best, name) == getattr(study.best, name)
    assert kept.best.theta.tolist() == study.state(study.winner).belief.theta.p.tolist()
    assert kept.arrays().keys() == {"weight", "bias", "batches"}
    assert np.concatenate([a.ravel() for a in kept.arrays().values()]).tobytes() == study.best.model.tobytes()
    kept.export(tmp_path / "to")
    loader = runpy.run_path(str(tmp_path / "to" / "load.py"))
    assert loader["arrays"]()["bias"].tobytes() == kept.arrays()["bias"].tobytes()
    assert loader["configuration"]()["client"] == json.loads(json.dumps(study.best.client))


def test_a_study_that_is_not_finished_can_be_loaded_but_not_exported(tmp_path):
    study = ft.prepare(**{k: v for k, v in toys.settings(store=tmp_path / "s").items() if k != "progress"})
    plan = study.ask()
    kept = ft.load(tmp_path / "s")
    assert (kept.finished, kept.rounds_used, kept.frame()) == (False, 0, [])
    assert repr(kept) == f"<Results: toy, remembering, 4 arms, 0 of 30 rounds, not finished, {tmp_path / 's'}>"
    with pytest.raises(SpecError, match="is not finished, so there is no winner"):
        kept.export(tmp_path / "to")
    assert plan is not None
    study.close()


def test_the_card_says_what_was_tuned_on_what_and_how_well(tmp_path):
    study = tune(tmp_path / "s")
    study.export(tmp_path / "before")
    assert "Not evaluated" in (tmp_path / "before" / "README.md").read_text()
    study.evaluate()
    card = study.export(tmp_path / "to")[3].read_text()
    for words in (
        "# toy, tuned with fedtuner", "(remembering) on toy: 6 clients, 3 a round", "`client.lr` in [0.001, 1.0] (log)",
        "used 6 of 6 communication rounds over 2 arms", "| this model, test, 6 clients,", "interval of 95 %",
    ):  # fmt: skip
        assert words in card
    [found] = study.journal.evaluated.values()
    low, high = (100 * (found.error_after + z * found.spread_after) for z in (-1.96, 1.96))
    assert f"{100 * found.error_after:.1f} % ({low:.1f} to {high:.1f}) |" in card


def test_the_card_of_a_budget_too_small_to_search_does_not_say_that_anything_was_tuned(tmp_path):
    study = toys.tune(store=tmp_path / "s", method=ft.methods.fedavg, space=None, schedule=None, fedex=None, budget=3)
    card = study.export(tmp_path / "to")[3].read_text()
    assert "# toy, trained with fedtuner" in card
    assert "Nothing was searched" in card
    assert "Tuned:" not in card


def test_the_card_says_ranges_in_words(tmp_path):
    fast = ft.When(ft.Float(0.9, 0.99), optimiser=["adam", "yogi"])
    decay = ft.space.OneMinus(ft.Float(0.001, 0.1, log=True))
    space = ft.Space({"lr": [0.1, 0.2]}, {"optimiser": ["sgd", "adam", "yogi"], "beta2": fast, "gamma": decay})
    study = toys.tune(store=tmp_path / "s", method=ft.methods.fedavg, space=space, schedule=ft.random_search(2, 1))
    card = study.export(tmp_path / "to")[3].read_text()
    assert "`server.gamma` in 1 - [0.001, 0.1] (log)" in card
    assert "`server.beta2` in [0.9, 0.99] where optimiser is adam or yogi" in card
    assert "`client.lr` in {0.1, 0.2}" in card
    with pytest.raises(
        SpecError, match=r"exists: give another folder \(--to\), or --force \(force=True\) to replace it"
    ):
        study.export(tmp_path / "to")
    with pytest.raises(SpecError, match=r"journal\.jsonl is a file, but must be a folder"):
        study.export(tmp_path / "s" / "journal.jsonl")


def test_the_spread_of_a_mean_over_clients_is_that_of_the_weighted_mean(tmp_path):
    """By hand: errors 0 (1 example) and 1 (3): mean 3/4; the sum of (n_i (e_i - m))^2 is 9/8; times 2, root, / 4."""
    from fedtuner.core.across import spread
    from fedtuner.core.records import Row

    rows = [Row("a", 0, 1, 1, 0, 0, 0, 0.0), Row("b", 0, 1, 3, 0, 0, 0, 1.0), Row("c", 0, 1, 0, 0, 0, 0, 9.0)]
    assert spread(rows, "error_after") == pytest.approx((2 * 9 / 8) ** 0.5 / 4)
    assert np.isnan(spread(rows[:1], "error_after"))


def test_short_representations(tmp_path):
    study = tune(tmp_path / "s")
    assert len(repr(study)) < 200
    assert len(repr(study.best)) < 600
    assert repr(study).startswith("<Study: toy, remembering, 2 arms, 6 of 6 rounds, won by arm ")
    task = ft.pytorch.Task(partial(nn.Linear, 3, 2), metric=ft.metrics.auc())
    assert repr(task) == "<Task: Linear, 8 parameters, auc>"
    assert repr(ft.Simulation(task, toys.clients(), "phones")) == "<Simulation: phones, 6 clients, Task, auc>"
    assert repr(toys.clients()[0]) == "Client(id='phone0')"  # without its arrays
    assert repr(ft.methods.fedprox) == "<Method: fedprox (Li et al. 2020)>"
    learner = ft.Learner({"centres": np.zeros((2, 3))}, len, len)
    assert repr(learner) == "<Learner: centres (2, 3), error>"


def test_clients_without_the_metric_are_counted_in_whole_numbers():
    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    splits = [(x, (x[:, 0] > 0).astype(int)), (x, np.ones(12, int))]
    clients = [ft.Client(n, splits[0], splits[n == 2], splits[n == 2]) for n in range(4)]
    task = ft.pytorch.Task(partial(nn.Linear, 3, 2), metric=ft.metrics.auc())
    study = ft.tune(ft.Simulation(task, clients), fedex=None, schedule=ft.random_search(2, 2), cohort=4, workers=1)
    assert [row["undefined"] for row in study.frame()] == [1, 1]
    assert repr(study.evaluate("test")["undefined"]) == "1"


def test_a_split_that_no_client_has_is_said_in_words(tmp_path):
    """Where an error would be NaN: in Python, after a retraining, on the card and on the page."""
    study = toys.tune(problem=toys.untested(), store=tmp_path / "s")
    said = "no client has test examples, so there is no test error"
    for one in (study, study.retrain(2)):
        with pytest.warns(FedtunerWarning, match=f"untested: {said}"):
            assert all(map(math.isnan, one.evaluate("test").values()))
        one.evaluate("valid")  # without a warning
    study.export(tmp_path / "e")
    card = (tmp_path / "e" / "README.md").read_text()
    assert "N" + said[1:] in card
    assert "nan" not in card
    [page] = data([tmp_path / "s"])["studies"]
    assert page["notes"] == ["N" + said[1:] + "."]
