"""Learners: models that are trained by code of their own, in a simulation."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner.core.model import NOTHING, Hyper, Metrics, ModelDefaults, Part
from fedtuner.errors import ClientError, SpecError
from fedtuner.rng import number
from fedtuner.testing.rounds import a_round, an_arm, reported

SPACE = ft.Space(
    client={"rate": ft.Float(0.01, 1.0, log=True), "passes": ft.Int(1, 4)}, server={"lr": ft.Float(0.5, 1.5)}
)
SCHEDULE = ft.halving(budget=30, longest=10, eta=2, eliminations=2)


@dataclass(frozen=True)
class Data:
    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


class Logistic(ModelDefaults):
    """Softmax regression by a loop of its own, one example at a time; ``passes`` and ``rate`` are its own names."""

    own_training = True
    features, classes = 3, 3
    size = trainable = 12

    def __init__(self, hyperparameters: Mapping[str, Hyper] | None = None) -> None:
        self.hyperparameters = hyperparameters or {}
        self.seen: list[tuple[dict[str, object], int]] = []

    def layout(self):
        return [Part("weight", (3, 3)), Part("bias", (3,))]

    def initial(self, seed):
        return np.random.default_rng(seed).normal(0, 0.1, self.size).astype(np.float32)

    def prepare(self, split):
        x, y = (np.zeros((0, 3)), np.zeros(0)) if split is None else split
        return Data(np.asarray(x, np.float32), np.asarray(y, np.int64))

    def fit(self, w, data, config, seed):
        self.seen.append((dict(config), seed))
        rng = np.random.default_rng(seed)
        weight, bias = w[:9].reshape(3, 3), w[9:]
        for _ in range(int(config["passes"])):
            for i in rng.permutation(len(data)):
                gap = self.probabilities(w, data.x[i : i + 1])[0]
                gap[data.y[i]] -= 1
                weight -= config["rate"] * np.outer(data.x[i], gap)  # in place: w is the learner's own
                bias -= config["rate"] * gap
        return w

    def evaluate(self, w, data, config):
        if not len(data):
            return NOTHING
        p = self.probabilities(w, data.x)
        right = p[np.arange(len(data)), data.y]
        wrong = p.argmax(1) != data.y
        return Metrics(float(-np.log(np.maximum(right, 1e-12)).mean()), float(wrong.mean()), len(data))

    @staticmethod
    def probabilities(w, x):
        z = x @ w[:9].reshape(3, 3) + w[9:]
        z = np.exp(z - z.max(1, keepdims=True))
        return z / z.sum(1, keepdims=True)


class Sklearn(Logistic):
    """The same by scikit-learn: ``partial_fit`` on one's own weights. It keeps what it has fitted last."""

    def fit(self, w, data, config, seed):
        from sklearn.linear_model import SGDClassifier

        made = SGDClassifier(
            loss="log_loss", learning_rate="constant", eta0=config["rate"], alpha=1e-4, random_state=seed % 2**32
        )
        made.classes_ = np.arange(3)
        made.coef_ = np.array(w[:9].reshape(3, 3).T, np.float64, order="C")
        made.intercept_ = w[9:].astype(np.float64)
        for _ in range(int(config["passes"])):
            if len(data):
                made.partial_fit(data.x.astype(np.float64), data.y, classes=np.arange(3))
        self.last = np.concatenate([made.coef_.T.ravel(), made.intercept_])  # of 64 bits
        return self.last


LEARNERS = pytest.mark.parametrize("learner", [Logistic, Sklearn])


def problem(learner=Logistic, *made):
    if learner is Sklearn:
        pytest.importorskip("sklearn")
    return ft.Simulation(learner(*made), toys.clients(), "learners")


def study(made, **changed):
    usual = {"space": SPACE, "schedule": SCHEDULE, "fedex": ft.FedEx(k=3), "cohort": 3, "workers": 1}
    return ft.tune(made, **(usual | changed))


@LEARNERS
def test_a_learner_is_tuned(learner):
    made = problem(learner)
    found = study(made, target="global")
    assert set(found.best.client) == {"rate", "passes"}
    assert found.setup.engine == "sequential"
    start = np.mean([made.model.evaluate(made.model.initial(0), made.data(i, "test"), {}).error for i in range(6)])
    assert found.evaluate("test")["global"] < 0.7 * start


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


def test_its_hyperparameters_are_what_the_space_names():
    with pytest.raises(SpecError, match="give space= with the hyperparameters that it reads"):
        study(problem(), space=None)
    with pytest.raises(ClientError, match=r"client 'phone\d', configuration \{'rate': .*KeyError: 'passes'"):
        study(problem(), space=ft.Space({"rate": 0.1}))
    with pytest.raises(SpecError, match=r"no server hyperparameter 'rate' in fedavg"):
        study(problem(), space=ft.Space({"rate": 0.1, "passes": 1}, {"rate": 0.1}))


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


def test_a_fit_that_is_not_finite_is_an_ordinary_event():
    found = study(problem(Broken))
    assert sum(record.broken for record in found.history) > 0
    assert np.isfinite(found.best.model).all()


def test_engines_and_devices_are_not_its_own():
    assert study(problem(), engine="batched").setup.engine == "sequential"
    with pytest.raises(SpecError, match="device = 'cuda', but Logistic runs only where it is: on the CPU"):
        problem().on("cuda")
