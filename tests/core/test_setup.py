"""What a study is: every argument is checked before any work, against its own rule and against the others."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner import methods, samplers, tables, tuners
from fedtuner.core.federation import Federation
from fedtuner.core.method import Optimiser, default_space
from fedtuner.core.model import Hyper, Metrics, Model, ModelDefaults, Part
from fedtuner.core.robust import Median, Trimmed
from fedtuner.core.schedule import Evidence, Schedule, Scoring, Start, Step
from fedtuner.core.screens import Weights
from fedtuner.core.setup import PLAIN, Setup, resolve, with_named_optimiser
from fedtuner.core.tally import mean
from fedtuner.errors import FedtunerError, SpecError, StoreError
from fedtuner.methods.momentum import sgd
from fedtuner.run import spec


def resolved(federation: Federation | None = None, **changed: object) -> Setup:
    usual = {
        "method": methods.fedavg,
        "tuner": tuners.none,
        "schedule": toys.SCHEDULE,
        "sampler": samplers.uniform,
        "cohort": 3,
    }
    return resolve(toys.problem() if federation is None else federation, **{**usual, **changed})


OTHER = {
    "cohort": 2, "cohorts": "shared", "target": "global", "weights": "shared", "across": "worst tenth",
    "cooling": 0.5, "engine": "batched", "seed": 7, "failing": "end",
}  # fmt: skip


def test_a_setting_that_is_one_value_is_a_field_and_nothing_else():
    """A new field can stand in a study.toml and, once it is not the default, in the journal: no list names it again."""
    assert OTHER.keys() == PLAIN.keys()
    usual = replace(resolved(), engine="sequential")
    for name, other in OTHER.items():
        assert spec.parse({"problem": "digits", name: other}).settings[name] == other
        assert replace(usual, **{name: other}).describe()[name] == other


@dataclass(frozen=True)
class OneArm:
    """A schedule of one's own: its budget is no field of it."""

    rounds: int = 4
    needs: ClassVar[frozenset[str]] = frozenset()
    scoring: ClassVar[Scoring] = Scoring("loss", 0.5)

    @property
    def budget(self) -> int:
        return self.rounds

    @property
    def longest(self) -> int:
        return self.rounds

    def steps(self) -> Generator[Step, Evidence, tuple[int, int]]:
        yield Step({0: self.rounds}, {0: Start()})
        return 0, self.rounds


class Unnamed(OneArm):
    """A schedule that says itself what stands for it in a table."""

    def describe(self) -> str:
        return "unnamed"


@dataclass(frozen=True)
class Curious(OneArm):
    needs: ClassVar[frozenset[str]] = frozenset({"rows"})


@dataclass(frozen=True)
class Untellable(OneArm):
    source: object = field(default_factory=object)


class Half:
    budget = 3


class Normed(toys.Softmax):
    smallest_batch = 2


class Sums(ft.Simulation):
    """A federation of which the server sees only sums."""

    shows = "sums"


class Elsewhere(ft.Simulation):
    """A federation whose rounds are computed by somebody else."""

    @staticmethod
    def executor(*_: object) -> None:
        raise AssertionError


class Learner(ModelDefaults):
    """A model that clients train by code of their own."""

    size = trainable = 2
    own_training = True

    def layout(self) -> list[Part]:
        return [Part("w", (2,))]

    def initial(self, seed: int) -> np.ndarray:
        return np.zeros(2, np.float32)

    def prepare(self, split: object) -> object:
        return split or []

    def fit(self, w: np.ndarray, data: object, config: object, seed: int) -> np.ndarray:
        return w

    def evaluate(self, w: np.ndarray, data: object, config: object) -> Metrics:
        return Metrics(1.0, 1.0, 1)


def learning() -> ft.Simulation:
    return ft.Simulation(Learner(), [ft.Client(i, [1], [1]) for i in range(3)])


# Each argument by itself


BAD = {
    "no method": (
        {"method": 3},
        "method = 3, but must be a Method such as fedtuner.methods.fedavg",
    ),
    "a space as a dict": ({"space": {"client": {"lr": 0.1}}}, "space = .*, but must be a fedtuner.Space"),
    "a tuner's name": ({"tuner": "fedex"}, r"tuner = 'fedex', but must be a tuner such as fedtuner.FedEx\(k=27\)$"),
    "no tuner at all": ({"tuner": None}, "tuner = None, but must be a tuner"),
    "a schedule as a dict": ({"schedule": {"budget": 3}}, r"schedule = .*, but must be a schedule .*\(budget=2000\)$"),
    "a schedule of one's own": ({"schedule": Half()}, "schedule = .*: Half has no longest, scoring, needs, steps"),
    "a schedule's class": ({"schedule": ft.halving}, r"schedule = <class.*: call it, Halving\(\.\.\.\)"),
    "a tuner's class": ({"tuner": ft.FedEx}, r"tuner = <class.*: call it, FedEx\(\.\.\.\)"),
    "a sampler's name": (
        {"sampler": "tpe"},
        r"sampler = 'tpe', but must be a sampler such as fedtuner.samplers.optuna\('tpe'\)",
    ),
    "a sampler of one's own": ({"sampler": Half()}, "sampler = .*: Half has no learns, propose, check"),
    "no sampler": ({"sampler": "none"}, "sampler = 'none', but must be a sampler such as"),
    "a mean's name": (
        {"combine": "median"},
        r"combine = 'median', but must be such as fedtuner.core.robust.Median\(\)",
    ),
    "a privacy that is none": ({"privacy": 0.5}, "privacy = 0.5, but must be such as fedtuner.core.privacy.Gaussian"),
    "too many clients": ({"cohort": 7}, "cohort = 7, but the problem has 6 clients: lower cohort"),
    "no client": ({"cohort": 0}, "cohort = 0, but must be a whole number >= 1"),
    "a cohort in words": ({"cohort": "3"}, "cohort = '3', but must be a whole number"),
    "a cohort that is yes": ({"cohort": True}, "cohort = True, but must be a whole number"),
    "half a seed": ({"seed": 0.5}, "seed = 0.5, but must be a whole number"),
    "a seed that is yes": ({"seed": True}, "seed = True, but must be a whole number"),
    "a target": ({"target": "personalised"}, "target = 'personalised', .*did you mean 'personalized'"),
    "cohorts": ({"cohorts": "sharde"}, "cohorts = 'sharde', .*did you mean 'shared'"),
    "weights": ({"weights": "sharde"}, "weights = 'sharde', .*did you mean 'shared'"),
    "cooling": ({"cooling": 1.5}, r"cooling = 1.5, but must be in \[0, 1\]"),
    "an engine": ({"engine": "batch"}, "engine = 'batch', but must be one of .*did you mean 'batched'"),
    "a misspelt name": ({"space": ft.Space({"leraning_rate": 0.1})}, "no client hyperparameter 'leraning_rate'.*'lr'"),
    "a negative rate": ({"space": ft.Space({"lr": -0.1})}, "client.lr = -0.1, but must be >= 0"),
    "one of several": ({"space": ft.Space(server={"momentum": [0.0, 1.5]})}, "server.momentum = 1.5, but must be <= 1"),
    "half an epoch": ({"space": ft.Space({"epochs": 1.5})}, "client.epochs = 1.5, but must be a whole number"),
    "dropout": ({"space": ft.Space({"dropout": 0.5})}, "the model has no dropout layer"),
    "an optimiser": ({"space": ft.Space(server={"optimiser": "sdg"})}, "server.optimiser = 'sdg', but must be one of"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_argument_that_is_wrong_is_named_with_its_rule(name: str) -> None:
    changed, said = BAD[name]
    with pytest.raises(FedtunerError, match=said):
        resolved(**changed)


# tune(tuner=None) leaves tuning out, and tune(method="fedavg") is fedavg, as tune(combine="median") is the median.
@pytest.mark.parametrize("name", sorted(BAD.keys() - {"no tuner at all", "a method's name", "a mean's name"}))
def test_a_mistake_is_told_before_a_store_is_made(tmp_path, name) -> None:
    changed, said = BAD[name]
    with pytest.raises(FedtunerError, match=said):
        ft.tune(toys.problem(), store=tmp_path / "s", workers=1, progress=False, **{"cohort": 3, **changed})
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("federation", [toys.clients(), None, toys.Softmax()], ids=lambda v: type(v).__name__)
def test_a_problem_that_is_none(federation: object) -> None:
    with pytest.raises(SpecError, match=rf"problem is {type(federation).__name__}, but must be a Simulation\("):
        ft.prepare(federation)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 0}, "workers = 0, but must be a whole number >= 1"),
        ({"workers": 1.5}, "workers = 1.5, but must be a whole number"),
        ({"workers": True}, "workers = True, but must be a whole number"),
        ({"fedex": 9}, "fedex = 9, but must be a fedtuner.FedEx, or None"),
        ({"fedex": ft.FedEx(), "tuner": tuners.none}, "fedex and tuner are both given, .*: give one of them"),
        ({"cohrot": 3}, "no setting 'cohrot'; did you mean 'cohort'?"),
    ],
)
def test_arguments_of_prepare_alone(given: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said.replace("?", r"\?")):
        ft.prepare(toys.problem(), **given)  # type: ignore[arg-type]


def test_every_message_names_something_that_exists() -> None:
    """Names such as ``fedtuner.halving`` in messages are there."""
    import inspect
    import pkgutil
    import re

    from fedtuner.core import setup
    from fedtuner.run import study, tuning

    sources = map(inspect.getsource, (setup, study, tuning))
    names = {name for source in sources for name in re.findall(r"fedtuner(?:\.\w+)+", source)}
    assert len(names) > 10
    for name in names:
        pkgutil.resolve_name(name)


# Defaults


def test_what_is_not_given_comes_from_the_method_the_model_and_the_federation() -> None:
    problem = ft.Simulation(toys.Softmax(hyperparameters={"bend": Hyper(ft.Float(0.0, 1.0), 0.5)}), toys.clients())
    setup = resolved(problem)
    assert setup.space == default_space(methods.fedavg, problem.model.hyperparameters)
    assert setup.space.client["bend"] == ft.Float(0.0, 1.0)
    assert (setup.cohorts, setup.target, setup.weights) == ("independent", "personalized", "independent")
    assert (setup.screens, setup.combine, setup.privacy) == ((), mean, None)
    assert (setup.cooling, setup.engine, setup.seed) == (0.0, "sequential", 0)


def test_a_federations_screens_are_used_unless_others_are_given() -> None:
    problem = toys.problem()
    problem.screens = (Weights(5),)
    assert resolved(problem).screens == (Weights(5),)
    assert resolved(problem, screens=()).screens == ()


def test_clients_that_are_elsewhere_work_one_by_one() -> None:
    class Batching(toys.Softmax):
        def engine(self, name: str) -> object:
            return replace(super().engine("sequential"), name=name)  # type: ignore[type-var]

    assert resolved(ft.Simulation(Batching(), toys.clients()), engine="batched").engine == "batched"
    assert resolved(Elsewhere(Batching(), toys.clients()), engine="batched").engine == "sequential"


# Between arguments


def test_a_name_that_model_and_method_share() -> None:
    problem = ft.Simulation(toys.Softmax(hyperparameters={"lr": Hyper(None, 0.5)}), toys.clients())
    with pytest.raises(SpecError, match="the model and fedavg both have a client hyperparameter 'lr': rename"):
        resolved(problem)


@pytest.mark.parametrize("batch", [1, [4, 1], ft.PowerOfTwo(1, 8), ft.Int(1, 3)])
def test_batches_that_batch_norm_cannot_train_on(batch: object) -> None:
    problem = ft.Simulation(Normed(), toys.clients())
    with pytest.raises(SpecError, match=r"client.batch = 1, but a model with batch-norm cannot train on fewer than 2"):
        resolved(problem, space=ft.Space({"batch": batch}))
    resolved(problem, space=ft.Space({"batch": 2}))


def test_clients_with_code_of_their_own() -> None:
    with pytest.raises(SpecError, match="method = ditto, but these clients train by code of their own: use fedavg or"):
        resolved(learning(), method=methods.ditto, space=ft.Space())
    with pytest.raises(SpecError, match="train by code of their own: give space= with the hyperparameters"):
        resolved(learning())
    for name in ("split", "server-round"):
        with pytest.raises(
            SpecError, match=f"client.{name}: clients that train by code of their own are sent '{name}'"
        ):
            resolved(learning(), space=ft.Space({name: 1}))
    with pytest.raises(SpecError, match=r"server.lr = -1.0, but must be >= 0"):
        resolved(learning(), space=ft.Space({"depth": ft.Int(1, 3)}, {"lr": -1.0}))
    setup = resolved(learning(), space=ft.Space({"depth": ft.Int(1, 3)}))
    assert setup.method.client == {}
    assert setup.space.client == {"depth": ft.Int(1, 3)}


def sums() -> Sums:
    return Sums(toys.Softmax(), toys.clients())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"method": methods.scaffold}, "method = scaffold, but with secure aggregation the server sees only sums of"),
        ({"method": toys.remembering}, "method = remembering, but .*: use one of fedavg, fedprox, reptile"),
        ({"combine": Median()}, "combine = .*median.* looks at single updates, but .*: use the mean"),
        ({"combine": Trimmed(0.2)}, "combine = .*trimmed.* looks at single updates"),
        (
            {"tuner": ft.FedEx(k=3, tries=2)},
            "fedex.tries = 2, but with secure aggregation a client tries one candidate",
        ),
        ({"schedule": Curious()}, "Curious reads single clients' values, but with secure aggregation"),
        ({"screens": (Weights(),)}, "screens compare single reports, but .*: leave them out"),
    ],
)
def test_what_secure_sums_cannot_carry(changed: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        resolved(sums(), **changed)
    resolved(**changed)  # it is no mistake where reports are seen


def test_what_secure_sums_carry() -> None:
    far = methods.fedavg.with_optimiser(Optimiser("far", "", sgd.step, sgd.hypers, lambda d: {"far": d}))
    by_fedexp = methods.fedavg.with_defaults(server={"optimiser": "fedexp"})
    for method in (methods.fedavg, methods.fedprox, methods.reptile, methods.fedpa, by_fedexp, far):
        assert resolved(sums(), method=method, tuner=ft.FedEx(k=3)).method is method


@dataclass(frozen=True)
class Unlabelled(ft.FedEx):
    labels: ClassVar[None] = None  # type: ignore[assignment]


def test_a_tuner_whose_values_cannot_be_summed() -> None:
    with pytest.raises(SpecError, match=r"Unlabelled cannot be summed by label, but .*: use FedEx"):
        resolved(sums(), tuner=Unlabelled(k=3))


def test_a_sampler_is_asked_whether_space_and_schedule_suit_it() -> None:
    pytest.importorskip("optuna")
    with pytest.raises(SpecError, match="sampler = 'tpe' learns from finished arms, but halving starts all 4 at once"):
        resolved(sampler=samplers.optuna("tpe"))


# As a table


def test_a_setup_is_a_table_of_plain_values_by_the_names_of_a_study_toml() -> None:
    setup = resolved(tuner=ft.FedEx(k=3), screens=(Weights(5),), combine=Trimmed(0.2), seed=4)
    table = tables.plain(setup.describe())
    assert json.loads(json.dumps(table)) == table
    assert table["method"] == "fedavg"
    assert table["schedule"] == {
        "kind": "halving", "budget": 30, "longest": 10, "eta": 2, "eliminations": 2, "discount": 0.0, "score": "error"
    }  # fmt: skip
    assert table["tuner"]["kind"] == "fedex"
    assert table["tuner"]["k"] == 3
    assert "gamma" not in table["tuner"]  # drawn per arm
    assert table["sampler"] == "uniform"
    assert table["combine"] == {"kind": "trimmed", "share": 0.2}
    assert table["screens"] == [{"kind": "weights", "most": 5, "share": 0.1}]
    assert "privacy" not in table
    assert table["seed"] == 4
    assert ft.Space(table["client"], table["server"]) == setup.space
    assert table["defaults"]["client"]["lr"] == methods.fedavg.client["lr"].default


def test_every_field_of_a_setup_is_in_its_table() -> None:
    """What is left out would not be compared when a study is continued."""
    table = resolved().describe()
    for name in Setup.__dataclass_fields__:
        assert name in table or name in ("space", "privacy", "across", "failing"), name
    assert resolved(across="worst tenth").describe()["across"] == "worst tenth"
    assert resolved(failing="end").describe()["failing"] == "end"


def test_what_every_schedule_has_is_said_by_the_same_names() -> None:
    common = {"budget": 4, "longest": 4, "discount": 0.5, "score": "loss"}
    assert tables.plain(resolved(schedule=OneArm()).describe())["schedule"] == {
        "kind": "test_setup:OneArm", "rounds": 4, **common
    }  # fmt: skip
    assert tables.plain(resolved(schedule=Unnamed()).describe())["schedule"] == {"kind": "unnamed", **common}
    assert isinstance(OneArm(), Schedule)


def test_what_cannot_stand_in_a_table_is_told_at_once() -> None:
    with pytest.raises(SpecError, match=r"object .* cannot stand in a table: it is no dataclass and has no describe"):
        resolved(schedule=Untellable())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cohort": 2}, "cohort: 3 in the store, 2 now"),
        ({"weights": "shared"}, "weights: 'independent' in the store, 'shared' now"),
        ({"cooling": 0.5}, "cooling: 0.0 in the store, 0.5 now"),
        ({"combine": Median()}, "combine: 'mean' in the store, {'kind': 'median'} now"),
        ({"fedex": ft.FedEx(k=3, eps=0.31)}, "tuner.eps: 0.3 in the store, 0.31 now"),
        ({"screens": (Weights(9),)}, r"screens: \[\] in the store, \[{'kind': 'weights', 'most': 9"),
    ],
)
def test_another_setup_is_refused_by_a_store(tmp_path, changed, said) -> None:
    toys.tune(store=tmp_path / "s")
    before = toys.files(tmp_path / "s")
    with pytest.raises(StoreError, match=said):
        toys.tune(store=tmp_path / "s", **changed)
    assert toys.files(tmp_path / "s") == before


# Server optimisers of one's own


def _step(server, change, tally, b):
    return server.w + np.float32(b["pull"]) * change, {}


puller = Optimiser("puller", "nobody", _step, {"pull": Hyper(ft.Float(0.1, 1.0), 0.5, low=0.0)})


def test_a_server_optimiser_is_named_by_its_place() -> None:
    given = ft.Space(server={"optimiser": ["sgd", "test_setup:puller"], "lr": 1.0})
    method, space = with_named_optimiser(methods.fedavg, given)
    assert method.optimisers["puller"] is puller
    assert method.server["pull"] is puller.hypers["pull"]
    assert method.server["optimiser"].default == "puller"
    assert space == ft.Space(server={"optimiser": ["sgd", "puller"], "lr": 1.0})
    assert with_named_optimiser(methods.fedavg, None) == (methods.fedavg, None)
    assert with_named_optimiser(methods.fedavg, ft.Space()) == (methods.fedavg, ft.Space())
    setup = resolved(space=given)
    assert setup.space == space
    assert setup.describe()["server"]["optimiser"] == ["sgd", "puller"]


def test_a_server_optimisers_own_hyperparameters_are_checked() -> None:
    named = {"optimiser": "test_setup:puller"}
    with pytest.raises(SpecError, match=r"server.pull = -1.0, but must be >= 0"):
        resolved(space=ft.Space(server={**named, "pull": -1.0}))
    with pytest.raises(SpecError, match="no server hyperparameter 'pulll' in fedavg; did you mean 'pull'"):
        resolved(space=ft.Space(server={**named, "pulll": 1.0}))
    with pytest.raises(SpecError, match="no server hyperparameter 'pull' in fedavg"):
        resolved(space=ft.Space(server={"pull": 1.0}))


def test_the_toys_are_models() -> None:
    """Protocols cannot be checked for by type: what is used here has what they ask for."""
    for made in (Learner(), Normed()):
        assert all(hasattr(made, name) for name in vars(Model) if not name.startswith("_"))
