"""A study that opens in Optuna: read back with Optuna, it says what the study's own folder says."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

import fedtuner as ft
import toys
from fedtuner import cli, samplers
from fedtuner.core.schedule import Evidence, Scoring, Start, Step
from fedtuner.errors import SpecError, StoreError
from fedtuner.report import to_optuna

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SPACE = toys.MIXED
DIVERGING = ft.Space(client={"lr": ft.Float(0.5, 1.0)}, server={"lr": [1.0, 3e38]})
State = optuna.trial.TrialState


@dataclass(frozen=True)
class GoesBack:
    """Its winner is taken at an earlier round than its last, and no arm has as many rounds as one may have."""

    needs: ClassVar[frozenset[str]] = frozenset()
    scoring: ClassVar[Scoring] = Scoring()
    budget: int = 16
    longest: int = 8

    def steps(self) -> Generator[Step, Evidence, tuple[int, int]]:
        yield Step({0: 4, 1: 4}, {0: Start(), 1: Start()})
        yield Step({1: 7}, {}, (0,), ((1, 4),))
        return 1, 4


@pytest.fixture
def study(tmp_path):
    """A finished study: 4 arms to round 5, 2 of them to round 10."""
    return toys.tune(space=SPACE, method=ft.methods.fedavg, store=tmp_path / "mine")


def score(study, arm, until):
    """An arm's score after a round, as the schedule gets it."""
    return study.schedule.scoring.score(study.journal.records(arm, until), study.setup.target)[0]


def read(url, name="mine"):
    kept = url if "://" in url else optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(url))
    return optuna.load_study(study_name=name, storage=kept)


def run(*words):
    return cli.main(["export", *map(str, words)])


@pytest.mark.slow
@pytest.mark.parametrize("file", ["sqlite:///{}/studies.db", "{}/journal.log"])
def test_what_optuna_reads_is_what_the_study_says(tmp_path, study, capsys, file):
    url = file.format(tmp_path)
    assert run(study.path, "--to", "optuna", url) == 0
    assert "study 'mine' with 4 trials" in capsys.readouterr().out
    there = read(url)
    assert there.direction == optuna.study.StudyDirection.MINIMIZE
    assert there.user_attrs["problem"]["name"] == "toy"
    assert [t.user_attrs["arm"] for t in there.trials] == [0, 1, 2, 3]
    assert there.user_attrs["fedex"]["k"] == there.user_attrs["tuner"]["k"] == 3
    assert [t.user_attrs["arm"] for t in there.trials if t.user_attrs["winner"]] == [study.winner[0]]
    for trial in there.trials:
        arm = study.journal.arms[trial.number]
        state = study.state((arm.id, study.journal.round_of(arm.id)))
        client = study.setup.tuner.best(state.belief)
        assert trial.params == {f"client.{n}": client[n] for n in SPACE.client} | {
            f"server.{n}": arm.server[n] for n in SPACE.server
        }
        assert trial.state == (State.COMPLETE if state.round == 10 else State.PRUNED)
        assert set(trial.intermediate_values) == set(range(1, state.round + 1))
        for rung in (5, 10)[: state.round // 5]:
            assert trial.intermediate_values[rung] == score(study, arm.id, rung)
        assert trial.value == score(study, arm.id, state.round)
        assert trial.user_attrs["confidence"] == state.belief.theta.p.max()
        assert (trial.user_attrs["rounds"], trial.user_attrs["candidates"]) == (state.round, 3)
    assert there.best_value == study.best.score
    best = there.trials[study.winner[0]].params
    assert {n: best[f"client.{n}"] for n in SPACE.client} == {n: study.best.client[n] for n in SPACE.client}


@pytest.mark.slow
def test_distributions_are_those_of_the_space(tmp_path, study):
    url = f"sqlite:///{tmp_path}/studies.db"
    to_optuna.export(study.path, url)
    kinds = optuna.distributions
    found = read(url).trials[0].distributions
    assert found["client.lr"] == kinds.FloatDistribution(1e-3, 1.0, log=True)
    assert found["client.epochs"] == kinds.IntDistribution(1, 3)
    assert found["client.batch"] == kinds.CategoricalDistribution([2, 4, 8])
    assert found["client.optimiser"] == kinds.CategoricalDistribution(["sgd", "adam"])
    assert found["client.weight_decay"] == kinds.CategoricalDistribution([0.001])
    assert found["server.lr"] == kinds.FloatDistribution(0.5, 1.5)
    assert found["server.gamma"].low == pytest.approx(0.99)
    assert found["server.gamma"].high == pytest.approx(0.9999)


@pytest.mark.slow
def test_an_existing_study_is_not_touched(tmp_path, study, capsys):
    url = f"sqlite:///{tmp_path}/studies.db"
    to_optuna.export(study.path, url)
    before = [t.params for t in read(url).trials]
    assert run(study.path, "--to", "optuna", url) == 2
    assert "already has a study 'mine': give it another --name" in capsys.readouterr().err
    assert [t.params for t in read(url).trials] == before
    assert run(study.path, "--to", "optuna", url, "--name", "other") == 0
    assert len(read(url, "other").trials) == len(read(url).trials) == 4


def test_diverged_arms_have_failed(tmp_path):
    study = toys.tune(space=DIVERGING, schedule=ft.random_search(40, 5), fedex=None, store=tmp_path / "mine")
    diverged = {arm for arm, why in study.journal.ended.items() if why == "diverged"}
    assert 0 < len(diverged) < 8
    to_optuna.export(study.path, f"{tmp_path}/journal.log")
    trials = read(f"{tmp_path}/journal.log").trials
    assert {t.number for t in trials if t.state == State.FAIL} == diverged
    assert all(math.isfinite(v) for t in trials for v in t.intermediate_values.values())
    assert all(t.state == State.COMPLETE for t in trials if t.number not in diverged)


@pytest.mark.slow
def test_arms_by_optuna_and_methods_of_ones_own_are_read_from_the_folder_alone(tmp_path):
    own = replace(ft.methods.fedavg.with_defaults(client={"epochs": 2}), name="mine alone")
    learned = {"method": own, "schedule": ft.random_search(21, 3, together=1), "space": SPACE}
    for sampler in (samplers.optuna("tpe", startup=2), samplers.optuna("random"), samplers.uniform):
        name = str(sampler.describe())
        study = toys.tune(**learned, sampler=sampler, store=tmp_path / name)
        to_optuna.export(study.path, f"{tmp_path}/journal.log")
        for trial in read(f"{tmp_path}/journal.log", name).trials:
            arm = study.journal.arms[trial.number]
            client = study.setup.tuner.best(study.state((arm.id, 3)).belief)
            assert trial.params == {f"client.{n}": client[n] for n in SPACE.client} | {
                f"server.{n}": arm.server[n] for n in SPACE.server
            }


def test_the_winner_is_complete_however_many_rounds_it_has(tmp_path):
    study = toys.tune(schedule=GoesBack(), store=tmp_path / "mine")
    to_optuna.export(study.path, f"{tmp_path}/journal.log")
    there = read(f"{tmp_path}/journal.log")
    assert [trial.state for trial in there.trials] == [State.PRUNED, State.COMPLETE]
    best = there.best_trial
    assert (best.user_attrs["arm"], best.user_attrs["rounds"]) == study.winner == (1, 4)
    assert best.value == study.best.score == score(study, 1, 4)
    assert set(best.intermediate_values) == {1, 2, 3, 4}
    assert best.user_attrs["confidence"] == study.best.theta.max()


def test_scores_with_a_discount_and_by_loss(tmp_path):
    schedule = ft.hyperband(budget=80, longest=8, eta=2, score="loss", discount=0.5)
    study = toys.tune(schedule=schedule, store=tmp_path / "mine")
    to_optuna.export(study.path, f"{tmp_path}/journal.log")
    for trial in read(f"{tmp_path}/journal.log").trials:
        for t, value in trial.intermediate_values.items():
            assert value == score(study, trial.number, t)


def test_what_cannot_be_exported_is_told(tmp_path, study, monkeypatch, capsys):
    with pytest.raises(StoreError, match=r"cannot write to sqlite:////no/such/folder"):
        to_optuna.export(study.path, "sqlite:////no/such/folder/studies.db")
    with pytest.raises(StoreError, match=r"cannot write to nonsense://"):
        to_optuna.export(study.path, "nonsense://x")
    for words in ((study.path, "--to", "optuna"), (study.path, "--to", "a", "b"), ()):
        assert run(*words) == 2
        assert "STORE --to optuna URL" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SpecError, match=r"pip install 'fedtuner\[optuna\]'"):
        to_optuna.export(study.path, "x.log")
    journal = study.path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if b'"event":"winner"' not in line))
    with pytest.raises(SpecError, match=r"is not finished"):
        to_optuna.export(study.path, "x.log")


def test_a_folder_is_still_where_the_model_goes(tmp_path, study):
    for words in ((study.path, "--to", tmp_path / "a"), ("--to", tmp_path / "b", study.path)):
        assert run(*words) == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


@pytest.mark.filterwarnings("ignore:.*outside of the space")
def test_included_arms_outside_of_the_ranges_are_exported_as_they_are(tmp_path):
    outside = {"lr": 5.0, "epochs": 9, "batch": 3, "weight_decay": 0.0}
    study = toys.tune(space=SPACE, method="fedavg", include=[{"client": outside}], store=tmp_path / "mine", workers=1)
    assert len(study.best.candidates) == 3  # FedEx draws around such an arm, too
    assert run(study.path, "--to", "optuna", f"{tmp_path}/log") == 0
    params = read(f"{tmp_path}/log").trials[0].params
    given = study.journal.arms[0].client
    assert {name: given[name] for name in outside} == outside
    assert params["client.lr"] >= 1.0


@pytest.mark.filterwarnings("ignore:.*outside of the space")
@pytest.mark.slow
@pytest.mark.parametrize("live", [False, True])
def test_a_database_takes_included_arms_outside_of_lists_and_logarithms(tmp_path, live):
    """There a hyperparameter must have the same choices, and the same scale, in every trial."""
    space = ft.Space({"lr": [0.01, 0.1], "batch": [4, 8], "weight_decay": ft.Float(1e-5, 1e-2, log=True)})
    include = [{"client": {"lr": 0.5, "batch": 6}}, {"client": {"weight_decay": 0.0}}]
    url = f"sqlite:///{tmp_path / 'all.db'}"
    watch = ft.watchers.Dashboard(url, "mine") if live else None
    study = toys.tune(
        space=space, method="fedavg", fedex=None, include=include, store=tmp_path / "s", workers=1, watch=watch
    )
    if not live:
        to_optuna.export(study.path, url, "mine")
    trials = {trial.user_attrs["arm"]: trial.params for trial in read(url).trials}
    for arm, known in study.journal.arms.items():
        assert trials[arm] == {f"client.{name}": known.client[name] for name in space.client}
