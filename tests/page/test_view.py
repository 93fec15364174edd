"""What the page shows is what the journal has."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from shown import STUDIES, view

import fedtuner as ft
import toys
from fedtuner.core.store import Begun
from fedtuner.errors import StoreError
from fedtuner.page.curves import NORMAL, VALUES, curves, short
from fedtuner.page.history import History, Study
from fedtuner.page.importance import importance
from fedtuner.page.theta import Thetas
from fedtuner.page.view import Views
from fedtuner.run.store import Folder
from fedtuner.run.store.lines import encode


@pytest.mark.filterwarnings("ignore:.*outside of the space")
@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_view_has_the_journals_values(name, tmp_path):
    study = toys.tune(store=tmp_path / "s", **STUDIES[name])
    study.evaluate("test")
    shown = view(tmp_path / "s")
    json.dumps(shown, allow_nan=False)
    assert shown["winner"] == {"arm": study.winner[0], "round": study.winner[1]}
    assert shown["chosen"] == study.winner[0]
    assert shown["used"] == study.rounds_used
    assert [arm["id"] for arm in shown["arms"]] == sorted(study.journal.arms)
    for arm in shown["arms"]:
        own = study.journal.own_records[arm["id"]]
        assert arm["rounds"] == own[-1].round
        assert arm["out"] == (arm["id"] in study.journal.eliminated)
        for value in VALUES:
            raw = [math.inf if r.diverged else getattr(r, value) for r in own]
            assert arm[value]["raw"] == short(raw)
            assert len(arm[value]["mean"]) == len(arm[value]["half"]) == len(own)
    tested = {side: None if math.isinf(e) else e for side, e in study.evaluate("test").items()}
    assert shown["evaluations"]["tuned"]["test mode error"] == tested
    assert shown["health"]["clients"] == sum(r.clients for r in study.history)
    assert shown["health"]["broken"] == sum(r.broken for r in study.history)
    assert sum(bin[0] for bin in shown["health"]["bins"]) == shown["health"]["clients"]
    if name == "diverging":
        assert shown["health"]["diverged"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["halving", "children", "diverging", "a budget", "groups"])
def test_a_view_of_a_growing_study_is_that_of_one_who_comes_later(name, tmp_path):
    """What is kept of the arms without new rounds is what would be computed again."""
    study = toys.tune(store=tmp_path / "s", **STUDIES[name])
    study.evaluate("test")
    events = list(Folder(tmp_path / "s").events())
    growing, history = Views(), History(name="s")
    for n, event in enumerate(events):
        history.add([event])
        if n % 5 == 1 or n > len(events) - 4:
            fresh = Views().view(History(events[: n + 1], "s"), "s")
            assert json.dumps(growing.view(history, "s")) == json.dumps(fresh)
    other = History(events[: len(events) // 2], "s")  # the folder was replaced by a copy of an earlier state
    assert growing.view(other, "s")["used"] == other.journal.rounds_used < study.rounds_used
    assert json.dumps(growing.view(other, "s")) == json.dumps(Views().view(other, "s"))


@pytest.mark.parametrize("name", ["halving", "a kernel", "children", "a client in trouble"])
def test_theta_between_two_saves_is_computed_again(name, tmp_path):
    study = toys.tune(store=tmp_path / "s", **STUDIES[name])
    journal = Study(tmp_path / "s").history.journal
    for arm in journal.arms:
        found = Thetas().of(journal, arm)
        assert list(found) == [r.round for r in journal.own_records[arm]]
        for (id, round), saved in journal.beliefs.items():
            if id == arm:
                np.testing.assert_allclose(found[round], saved, atol=1e-9)
    assert study.best.theta == pytest.approx(Thetas().of(journal, study.best.arm)[study.best.rounds])


@pytest.mark.parametrize("name", ["a gaussian", "children of a gaussian"])
def test_a_belief_without_candidates_is_shown_by_its_mean(name, tmp_path):
    study = toys.tune(store=tmp_path / "s", **STUDIES[name])
    shown = view(tmp_path / "s")
    for arm in shown["arms"]:
        assert (arm["theta"], arm["candidates"], arm["entropy"]) == (None, [], [])
    winner = next(arm for arm in shown["arms"] if arm["id"] == study.best.arm)
    assert winner["client"]["lr"] == pytest.approx(study.best.client["lr"], rel=1e-3)
    assert winner["drawn"]
    assert not any(arm["drawn"] for arm in view_of("without FedEx", tmp_path)["arms"])


def view_of(name, folder):
    toys.tune(store=folder / name, **STUDIES[name])
    return view(folder / name)


def test_theta_of_rounds_that_cannot_be_computed_again_is_that_of_the_saves(tmp_path):
    toys.tune(store=tmp_path / "s", **STUDIES["two tries"])
    journal = Study(tmp_path / "s").history.journal
    for arm in journal.arms:
        saved = {round: p for (id, round), p in journal.beliefs.items() if id == arm}
        assert saved
        assert {t: tuple(p) for t, p in Thetas().of(journal, arm).items()} == saved


def test_a_band_is_the_interval_of_the_mean_over_clients(tmp_path):
    records = toys.tune(**STUDIES["halving"]).journal.records(0)
    found = curves(records, 2, len(records))["error_after"]
    rows = [row for record in records[3:5] for row in record.rows]
    v, x = (np.array([getattr(row, name) for row in rows]) for name in ("validated", "error_after"))
    mean = (v * x).sum() / v.sum()
    assert found.mean[4] == pytest.approx(mean)
    assert found.half[4] == pytest.approx(NORMAL * np.sqrt((v**2 * (x - mean) ** 2).sum()) / v.sum())


def test_a_round_of_which_only_sums_are_known_has_the_band_of_a_rate():
    records = [replace(r, rows=()) for r in toys.tune(**STUDIES["halving"]).journal.records(0)]
    found = curves(records, 1, len(records))
    p, n = records[2].error_after, records[2].validated
    assert found["error_after"].mean[2] == pytest.approx(p)
    assert found["error_after"].half[2] == pytest.approx(NORMAL * math.sqrt(p * (1 - p) / n))
    assert math.isnan(found["loss_after"].half[2])


def test_a_value_that_is_no_mean_over_clients_has_no_band():
    records = [replace(r, error_after=r.error_after / 2) for r in toys.tune(**STUDIES["halving"]).journal.records(0)]
    found = curves(records, 1, len(records))
    assert found["error_after"].raw[2] == found["error_after"].mean[2] == records[2].error_after
    assert math.isnan(found["error_after"].half[2])
    assert not math.isnan(found["error_before"].half[2])


def test_a_metric_of_which_higher_is_better_is_shown_as_itself(tmp_path):
    task = toys.Softmax()
    task.metric = ft.Metric("accuracy", rate=True, maximise=True)
    problem = ft.Simulation(task, toys.clients(), "toy")
    ours, theirs = (toys.tune(store=tmp_path / name, **made) for name, made in (("a", {"problem": problem}), ("b", {})))
    for study in (ours, theirs):
        study.evaluate("test")
    shown, errors = view(tmp_path / "a"), view(tmp_path / "b")
    assert shown["measure"] == {"name": "accuracy", "rate": True, "maximise": True, "pooled": False}
    for arm, one in shown["served"].items():
        for (who, n, *ours), (_, _, *theirs) in zip(one["whom"], errors["served"][arm]["whom"], strict=True):
            assert ours == pytest.approx([1 - e for e in theirs], abs=1e-4), (who, n)
        worst, of_errors = (found["served"][arm]["lines"]["after"]["worst tenth"] for found in (shown, errors))
        assert worst == pytest.approx([1 - e for e in of_errors], abs=1e-4)
    for one, other in zip(shown["arms"], errors["arms"], strict=True):
        assert one["error_after"]["raw"] == pytest.approx([1 - e for e in other["error_after"]["raw"]], abs=1e-4)
        assert one["loss_after"] == other["loss_after"]
    for side, e in errors["evaluations"]["tuned"]["test mode error"].items():
        assert shown["evaluations"]["tuned"]["test mode error"][side] == pytest.approx(1 - e, abs=1e-4)
    assert shown["clients"].keys() == errors["clients"].keys()
    row, other = (next(iter(one["clients"].values()))[0] for one in (shown, errors))
    assert row[4:6] == pytest.approx([1 - e for e in other[4:6]], abs=1e-3)
    assert row[6] == other[6]
    assert shown["incumbent"]["error_after"][-1] == pytest.approx(1 - errors["incumbent"]["error_after"][-1], abs=1e-3)


@pytest.mark.slow
def test_the_incumbent_ends_as_the_winner_after_all_rounds(tmp_path):
    for name in ("halving", "children", "a budget"):
        study = toys.tune(store=tmp_path / name, **STUDIES[name])
        shown = view(tmp_path / name)
        found, won = shown["incumbent"], shown["winner"]["arm"]
        assert found["used"][-1] == study.rounds_used
        assert found["used"] == sorted(set(found["used"]))
        assert found["arm"][-1] == won
        last = next(arm for arm in shown["arms"] if arm["id"] == won)["error_after"]["mean"][-1]
        assert found["error_after"][-1] == pytest.approx(last, rel=1e-3)


@pytest.mark.slow
def test_rounds_are_in_the_schedules_order_for_any_number_of_workers(tmp_path):
    for workers in (1, 2):
        toys.tune(store=tmp_path / str(workers), workers=workers)
    first, second = (view(tmp_path / name) for name in ("1", "2"))
    assert first["incumbent"] == second["incumbent"]
    assert first["health"] == second["health"]


def test_the_parts_of_a_budget(tmp_path):
    toys.tune(store=tmp_path / "s", **STUDIES["a budget"])
    shown = view(tmp_path / "s")
    stages = [arm["stage"] for arm in shown["arms"]]
    assert stages[:3] == ["rung"] * 3
    assert stages.count("run") == 1
    assert set(stages) <= {"rung", "duel", "run", "return", "last rounds again", "last round"}
    assert stages.count("last rounds again") == 1
    run = next(arm for arm in shown["arms"] if arm["stage"] == "run")
    assert run["parent"] is not None
    assert shown["parts"].startswith("A rung of 3 arms, a duel ")
    toys.tune(store=tmp_path / "other")
    assert view(tmp_path / "other")["parts"] == ""


def test_the_untuned_default_is_beside(tmp_path):
    study = toys.tune(store=tmp_path / "s")
    default = ft.untuned(study, progress=False)
    default.evaluate("test")
    shown = view(tmp_path / "s")
    assert shown["untuned"]["error_after"]["raw"] == pytest.approx([r.error_after for r in default.history], rel=1e-4)
    assert shown["evaluations"]["untuned"]["test mode error"] == pytest.approx(default.evaluate("test"))


def test_an_interrupted_study_is_shown_as_far_as_it_is(tmp_path):
    toys.tune(store=tmp_path / "s")
    events = list(Folder(tmp_path / "s").events())
    for n in (1, 2, 5, 14):
        shutil.rmtree(tmp_path / "part", ignore_errors=True)
        (tmp_path / "part").mkdir()
        (tmp_path / "part" / "journal.jsonl").write_bytes(encode(events[:n]))
        shown = view(tmp_path / "part")
        assert shown["winner"] is None
        assert shown["used"] <= n
        json.dumps(shown, allow_nan=False)


def test_what_is_followed_equals_what_is_read_at_once(tmp_path):
    toys.tune(store=tmp_path / "s")
    whole = (tmp_path / "s" / "journal.jsonl").read_bytes()
    grown = tmp_path / "grown" / "journal.jsonl"
    grown.parent.mkdir()
    grown.write_bytes(whole[:5000])
    study, views = Study(grown.parent), Views()
    for end in range(5000, len(whole) + 997, 997):
        grown.write_bytes(whole[:end])
        study.refresh()
        followed = views.view(study.history, "s", study.untuned)
    assert not study.refresh()
    at_once = Study(tmp_path / "s")
    assert followed == Views().view(at_once.history, "s", None)
    shutil.copy(tmp_path / "s" / "journal.jsonl", grown.with_name("other"))
    grown.with_name("other").replace(grown)  # another file: it is read from its beginning
    assert study.refresh()
    assert study.history.journal.rounds_used == at_once.history.journal.rounds_used


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(StoreError, match="no study in"):
        Study(tmp_path)


def test_importance_finds_the_hyperparameter_that_matters():
    axes = [{"name": "client.lr", "kind": "log", "low": 1e-3, "high": 1.0, "whole": False}]
    axes += [{"name": f"server.{n}", "kind": "linear", "low": 0.0, "high": 1.0, "whole": False} for n in "ab"]
    rng = np.random.default_rng(0)
    rows = [{"arm": n, "values": [10 ** rng.uniform(-3, 0), *rng.uniform(0, 1, 2)], "error": 0} for n in range(40)]
    for row in rows:
        row["early"] = abs(math.log10(row["values"][0]) + 1)
    shares = dict(importance({"axes": axes, "rows": rows})["shares"])
    assert shares["client.lr"] > 0.5
    assert sum(shares.values()) == pytest.approx(1)
    assert "too few" in importance({"axes": axes, "rows": rows[:3]})["why"]
    assert "nothing to compare" in importance({"axes": axes[:1], "rows": rows})["why"]


@pytest.mark.filterwarnings("ignore:.*outside of the space")
def test_an_axis_has_a_place_for_every_value_that_an_arm_has(tmp_path):
    toys.tune(store=tmp_path / "s", **STUDIES["values outside the ranges"])
    shown = view(tmp_path / "s")["configurations"]
    axes = {axis["name"]: axis for axis in shown["axes"]}
    assert axes["client.lr"]["choices"] == [0.01235, 0.1, 0.5]  # as the arms' values are shown
    assert axes["client.batch"]["choices"] == [4, 6, 8, 32]  # 32 is the default of the second arm
    assert (axes["client.weight_decay"]["low"], axes["client.weight_decay"]["high"]) == (1e-5, 0.1)
    for row in shown["rows"]:
        assert row["values"][0] in axes["client.lr"]["choices"]
        assert row["values"][1] in axes["client.batch"]["choices"]
    again = [{**row, "arm": len(shown["rows"]) * n + row["arm"]} for n in range(4) for row in shown["rows"]]
    assert "shares" in importance({**shown, "rows": again})  # 0 is not on a logarithmic scale


@pytest.mark.slow
def test_the_command_is_kept_with_a_study(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fedtuner", "run", "digits", "--set", "a b"])
    toys.tune(store=tmp_path / "s")
    assert view(tmp_path / "s")["command"] == "fedtuner run digits --set 'a b'"
    monkeypatch.setattr("sys.argv", ["tune.py", "--fast"])
    toys.tune(store=tmp_path / "script")
    assert view(tmp_path / "script")["command"] == "python tune.py --fast"
    monkeypatch.setattr("sys.argv", ["/usr/bin/flwr-serverapp", "--token", "secret"])
    toys.tune(store=tmp_path / "other")
    assert view(tmp_path / "other")["command"] == ""
    assert isinstance(next(iter(Folder(tmp_path / "other").events())), Begun)


def test_events_that_no_study_writes_are_refused(tmp_path):
    toys.tune(store=tmp_path / "s")
    events = list(Folder(tmp_path / "s").events())
    with pytest.raises(StoreError, match="line 2 of the journal"):
        History([events[0], events[-1]], "broken")
