"""Learners: models that are trained by code of their own, in a simulation."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from learners import SCHEDULE, SPACE, Logistic, Sklearn, problem

import fedtuner as ft
from fedtuner.core.model import Hyper
from fedtuner.errors import ClientError, FedtunerError, SpecError
from fedtuner.rng import number
from fedtuner.run import spec
from fedtuner.testing.rounds import a_round, an_arm, reported

LEARNERS = pytest.mark.parametrize("learner", [Logistic, Sklearn])


def study(made, **changed):
    usual = {"space": SPACE, "schedule": SCHEDULE, "fedex": ft.FedEx(k=3), "cohort": 3, "workers": 1}
    return ft.tune(made, **(usual | changed))


@pytest.mark.slow
@LEARNERS
def test_a_learner_is_tuned(learner):
    made = problem(learner)
    found = study(made, target="global")
    assert set(found.best.client) == {"rate", "passes"}
    assert found.setup.engine == "sequential"
    start = np.mean([made.model.evaluate(made.model.initial(0), made.data(i, "test"), {}).error for i in range(6)])
    assert found.evaluate("test")["global"] < 0.7 * start


@pytest.mark.slow
@LEARNERS
def test_the_result_does_not_depend_on_the_workers(learner):
    one, two = (study(problem(learner), workers=workers) for workers in (1, 2))
    assert one.history == two.history
    assert one.best.model.tobytes() == two.best.model.tobytes()
    assert one.evaluate("test") == two.evaluate("test")


@LEARNERS
def test_a_problem_with_a_learner_can_be_pickled(learner):
    """Spawned workers get it this way."""
    made = problem(learner)
    copy = pickle.loads(pickle.dumps(made))
    arm = an_arm(ft.methods.fedavg, {"rate": 0.1, "passes": 2})
    first, second = (reported(a_round(ft.methods.fedavg, p), arm, a_round(ft.methods.fedavg, p).begin(arm))
                     for p in (made, copy))  # fmt: skip
    for one, other in zip(first[1], second[1], strict=True):
        assert one.change.tobytes() == other.change.tobytes()
        assert one.tried == other.tried


@LEARNERS
def test_its_code_may_work_in_place_and_keep_what_it_made(learner):
    """The plan's w stays, reports stay, and what the learner keeps is not touched."""
    made, arm = problem(learner), an_arm(ft.methods.fedavg, {"rate": 0.1, "passes": 1})
    round = a_round(ft.methods.fedavg, made)
    state = round.begin(arm)
    kept = state.w.copy()
    plan, reports = reported(round, arm, state)
    assert np.array_equal(plan.w, kept)
    for job, report in zip(plan.jobs, reports, strict=True):
        seed = number(0, "work", "valid", 0, 0, made.id_of(job.client))
        alone = made.model.fit(kept.copy(), made.data(job.client, "train"), job.config, seed)
        assert np.array_equal(report.change, np.asarray(alone, np.float32) - kept)
        assert np.abs(report.change).max() > 0
    if learner is Sklearn:
        round.work(plan, plan.jobs[0])
        assert np.array_equal(np.asarray(made.model.last, np.float32) - kept, reports[0].change)


def test_its_code_gets_every_value_and_a_seed_of_its_own():
    made = problem()
    study(made, fedex=ft.FedEx(k=3), schedule=ft.random_search(4, 2))
    configs, seeds = zip(*made.model.seen, strict=True)
    assert len(set(seeds)) == len(seeds) == 12
    assert all(0.01 <= c["rate"] <= 1 and c["passes"] in (1, 2, 3, 4) for c in configs)
    assert len({tuple(c.values()) for c in configs}) > 2


@pytest.mark.parametrize("method", [m for m in ft.methods.ALL.values() if not m.plain], ids=lambda m: m.name)
def test_methods_with_local_training_of_their_own_are_refused(method):
    words = rf"method = {method.name}, but these clients train by code of their own: use fedavg or reptile"
    with pytest.raises(SpecError, match=words):
        study(problem(), method=method)


@pytest.mark.parametrize("method", [m for m in ft.methods.ALL.values() if m.plain], ids=lambda m: m.name)
def test_plain_methods_are_not(method):
    assert study(problem(), method=method).finished


class Tempered(Logistic):
    def evaluate(self, w, data, config):
        return super().evaluate(w * np.float32(config["temperature"]), data, config)


def test_its_evaluation_may_read_the_configuration_too():
    """Also in the check before the work, with a value of the space."""
    client = {"rate": 0.1, "passes": 1, "temperature": ft.Float(0.5, 2.0)}
    assert 0.5 <= study(problem(Tempered), space=ft.Space(client)).best.client["temperature"] <= 2.0


def test_its_hyperparameters_are_what_the_space_names():
    with pytest.raises(SpecError, match="give space= with the hyperparameters that it reads"):
        study(problem(), space=None)
    with pytest.raises(ClientError, match=r"client 'phone\d', configuration \{'rate': .*KeyError: 'passes'"):
        study(problem(), space=ft.Space({"rate": 0.1}))
    with pytest.raises(SpecError, match=r"no server hyperparameter 'rate' in fedavg"):
        study(problem(), space=ft.Space({"rate": 0.1, "passes": 1}, {"rate": 0.1}))


def test_a_study_file_names_its_hyperparameters():
    """Only ranges that are named are searched; those of the method's own local training are not its."""
    table = {"problem": "learners:problem", "cohort": 3, "client": {"rate": {"low": 0.1, "high": 1.0}, "passes": 2}}
    found = spec.parse(table).study(None, 1, problem())
    assert set(found.setup.space.client) == {"rate", "passes"}
    assert not found.setup.space.server


DECLARED = {
    "rate": Hyper(ft.Float(0.01, 1.0, log=True), 0.1, low=0.0, about="step size"),
    "passes": Hyper(None, 2, low=1, whole=True, about="passes over the data"),
}


def test_hyperparameters_that_it_declares_are_checked_and_have_defaults():
    """A space is then not needed, names and values are held to it, and there is an untuned configuration."""
    made = problem(Logistic, DECLARED)
    found = study(made, space=None)
    assert {c["passes"] for c, _ in made.model.seen} == {2}
    assert 0.01 <= found.best.client["rate"] <= 1.0
    plain = ft.untuned(found)
    assert plain.best.client == {"rate": 0.1, "passes": 2}
    assert plain.finished
    with pytest.raises(SpecError, match=r"no client hyperparameter 'passess' in fedavg; did you mean 'passes'"):
        study(made, space=ft.Space({"passess": 2}))
    with pytest.raises(SpecError, match=r"client\.passes = 0, but must be >= 1"):
        study(made, space=ft.Space({"passes": ft.Int(0, 3)}))


class Misshapen(Logistic):
    def fit(self, w, data, config, seed):
        return w[:5]


class Broken(Logistic):
    def fit(self, w, data, config, seed):
        return np.full_like(w, np.nan) if seed % 2 else super().fit(w, data, config, seed)


def test_what_its_code_returns_is_checked():
    with pytest.raises(ClientError, match=r"fit\(\) returned an array of shape \(5,\), but w is of shape \(12,\)"):
        study(problem(Misshapen))


def moved(arrays, split, config, seed):
    return {"w": arrays["w"] + config["rate"]}


def judged(arrays, split, config):
    return 0.5, 0.25


@pytest.mark.parametrize(
    ("fit", "evaluate", "metric", "said"),
    [
        (
            lambda a, s, c, seed: a["w"],
            judged,
            None,
            r"fit returned array.*, but must return a table of arrays by name",
        ),
        (lambda a, s, c, seed: {"v": 1}, judged, None, r"fit returned the arrays \['v'\], but must return \['w'\]"),
        (
            lambda a, s, c, seed: {"w": np.zeros(3)},
            judged,
            None,
            r"array 'w' is of shape \(3,\), but must be of \(2,\)",
        ),
        (moved, lambda a, s, c: 0.5, None, r"evaluate returned 0.5, but must return a loss and a value"),
        (moved, judged, ft.metrics.auc(), r"auc is pooled, .* Metrics\(loss, error, count, sums\).* pooled=False"),
    ],
)
def test_what_the_two_functions_return_is_checked(fit, evaluate, metric, said):
    made = ft.Learner({"w": np.zeros(2)}, fit, evaluate, metric=metric)
    with pytest.raises(FedtunerError, match=said):
        study(ft.Simulation(made, problem(Logistic).clients), space=ft.Space({"rate": ft.Float(0.1, 1.0)}))


def test_the_card_of_a_learner_does_not_speak_of_pytorch(tmp_path):
    card = study(problem(Logistic)).export(tmp_path)[3].read_text()
    assert "from load import arrays" in card
    assert "PyTorch" not in card


def test_a_fit_that_is_not_finite_is_an_ordinary_event():
    found = study(problem(Broken))
    assert sum(record.broken for record in found.history) > 0
    assert np.isfinite(found.best.model).all()


def test_engines_and_devices_are_not_its_own():
    assert study(problem(), engine="batched").setup.engine == "sequential"
    with pytest.raises(SpecError, match="device = 'cuda', but Logistic runs only where it is: on the CPU"):
        problem().on("cuda")
