"""Bad arguments in Python: each is refused in one line that names the value and the rule, before any long work."""

# ruff: noqa: E501 (a row is a line)

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from answers import refused  # noqa: E402
from torch import nn  # noqa: E402

import fedtuner as ft  # noqa: E402
import toys  # noqa: E402
from fedtuner import samplers, tables  # noqa: E402
from fedtuner.core.model import Hyper  # noqa: E402
from fedtuner.core.robust import Trimmed  # noqa: E402
from fedtuner.pytorch import Task  # noqa: E402

X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
PAIR = (X, Y)


def linear() -> nn.Module:
    return nn.Linear(3, 2)


SHARED = linear()


class Bad:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


def study(problem: Any = None, **more: Any) -> ft.Study:
    """Prepare and run a study of one round."""
    usual = {"schedule": ft.random_search(1, 1), "cohort": 2, "workers": 1, "fedex": ft.FedEx(k=2), "progress": False}
    return ft.tune(toys.problem() if problem is None else problem, **{**usual, **more})


FINE = (ft.Metrics(0.5, 0.5, 3), ft.Metrics(0.4, 0.4, 3))


def told(call: Callable[[ft.Study, Any], Any]) -> Callable[[], Any]:
    """What is done with the first plan of a study that is asked and told."""

    def run() -> Any:
        with ft.prepare(toys.problem(), cohort=2, schedule=ft.random_search(1, 1)) as asked:
            return call(asked, asked.ask())

    return run


def simulation(
    build: Any = linear, train: Any = PAIR, valid: Any = PAIR, test: Any = PAIR, **more: Any
) -> ft.Simulation:
    """Three clients; the splits of the second are given."""
    clients = [ft.Client(0, PAIR, PAIR, PAIR), ft.Client("b", train, valid, test), ft.Client(2, PAIR, PAIR, PAIR)]
    return ft.Simulation(Task(build, **more), clients)


def split(given: Any) -> Callable[[], Any]:
    """A study whose second client has this training split."""
    return lambda: study(simulation(train=given))


def model(build: Any = linear, **more: Any) -> Callable[[], Any]:
    """A study with this model."""
    return lambda: study(simulation(build, **more))


def holes(shape: tuple[int, ...], value: float) -> Any:
    made = np.ones(shape, np.float32)
    made[-1] = value
    return made


def ragged() -> Any:
    made = np.empty(2, object)
    made[:] = [[1.0, 2.0], [3.0]]
    return made


class NoLength:
    def __getitem__(self, i: int) -> Any:
        return X[i], Y[i]


class Shrinking:
    """A data set that says it is longer than it is."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, i: int) -> Any:
        return X[i], Y[i]


class Moody(nn.Module):
    """A model that changes its shape."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Moody.made += 1
        self.layer = nn.Linear(3, 2 + Moody.made % 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Tuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x), None


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        raise KeyError("mask")


def boom(*_: Any) -> Any:
    raise RuntimeError("many\nlines\nof text " + "x" * 1000)


def lose(error: BaseException) -> Callable[..., Any]:
    def loss(output: Any, y: Any) -> Any:
        raise error

    return loss


def float_labels() -> Any:
    return X, Y.astype(np.float32)


SPACES = [
    ("float-turned", lambda: ft.Float(1.0, 0.0), r"Float\(1.0, 0.0\): low must not exceed high"),
    ("float-log-of-zero", lambda: ft.Float(0.0, 1.0, log=True), r"Float\(0.0, 1.0\): low must be > 0 on a logarithmic scale"),
    ("float-log-negative", lambda: ft.Float(-1.0, 1.0, log=True), r"Float\(-1.0, 1.0\): low must be > 0"),
    ("float-nan", lambda: ft.Float(math.nan, 1.0), r"Float\(nan, 1.0\): both ends must be finite numbers"),
    ("float-infinite", lambda: ft.Float(0.0, math.inf), r"Float\(0.0, inf\): both ends must be finite numbers"),
    ("float-none", lambda: ft.Float(None, 1.0), r"Float\(None, 1.0\): both ends must be finite numbers"),
    ("float-text", lambda: ft.Float("0.1", "1"), r"Float\('0.1', '1'\): both ends must be finite numbers"),
    ("float-complex", lambda: ft.Float(1j, 2.0), r"Float\(1j, 2.0\): both ends must be finite numbers"),
    ("float-true", lambda: ft.Float(False, True), r"Float\(False, True\): both ends must be finite numbers"),
    ("float-array", lambda: ft.Float(np.zeros(3), 1.0), r"Float\(.*, 1.0\): both ends must be finite numbers"),
    ("float-unshowable", lambda: ft.Float(Bad(), 1.0), r"Float\(a Bad, 1.0\): both ends must be finite numbers"),
    ("float-of-400-digits", lambda: ft.Float(0.0, 10**400), r"Float\(0.0, 10+ ?\.\.\.\): both ends must be finite numbers"),
    ("float-of-5000-digits", lambda: ft.Float(0.0, 10**5000), r"Float\(0.0, .*\): both ends must be finite numbers"),
    ("float-too-wide", lambda: ft.Float(-1.7e308, 1.7e308), r"Float\(-1.7e\+308, 1.7e\+308\): .*wide|finite"),
    ("float-log-a-text", lambda: ft.Float(0.1, 1.0, log="yes"), r"Float\(0.1, 1.0\): log = 'yes', but must be true or false"),
    ("int-beyond-64-bits", lambda: ft.Int(0, 2**70), r"Int\(0, 1180591620717411303424\): .*at most"),
    ("int-below-64-bits", lambda: ft.Int(-(2**70), 0), r"Int\(-1180591620717411303424, 0\): .*at"),
    ("int-halves", lambda: ft.Int(0.5, 3), r"Int\(0.5, 3\): both ends must be whole numbers"),
    ("int-turned", lambda: ft.Int(3, 1), r"Int\(3, 1\): low must not exceed high"),
    ("int-log-of-zero", lambda: ft.Int(0, 9, log=True), r"Int\(0, 9\): low must be > 0"),
    ("int-nan", lambda: ft.Int(0, math.nan), r"Int\(0, nan\): both ends must be finite numbers"),
    ("int-text", lambda: ft.Int("1", 3), r"Int\('1', 3\): both ends must be finite numbers"),
    ("power-of-three", lambda: ft.PowerOfTwo(3, 8), r"PowerOfTwo\(3, 8\): 3 is not a power of two"),
    ("power-of-zero", lambda: ft.PowerOfTwo(0, 8), r"PowerOfTwo\(0, 8\): low must be > 0|0 is not a power of two"),
    ("power-negative", lambda: ft.PowerOfTwo(-2, 8), r"PowerOfTwo\(-2, 8\)"),
    ("power-beyond-64-bits", lambda: ft.PowerOfTwo(1, 2**100), r"PowerOfTwo\(1, 12676.*\): .*at most"),
    ("choice-empty", lambda: ft.Choice([]), r"Choice\(\[\]\): give a list of at least one value"),
    ("choice-text", lambda: ft.Choice("abc"), r"Choice\('abc'\): give a list of at least one value"),
    ("choice-number", lambda: ft.Choice(3), r"Choice\(3\): give a list of at least one value"),
    ("choice-none", lambda: ft.Choice(None), r"Choice\(None\): give a list of at least one value"),
    ("choice-of-none", lambda: ft.Choice([None]), r"Choice\(\[None\]\): None is not a number, string or boolean"),
    ("choice-of-lists", lambda: ft.Choice([[1]]), r"Choice\(\[\[1\]\]\): \[1\] is not a number, string or boolean"),
    ("choice-of-a-set", lambda: ft.Choice({1, 2}), r"Choice\(\{1, 2\}\): give a list of at least one value"),
    ("choice-of-a-generator", lambda: ft.Choice(x for x in "ab"), r"Choice\(.*generator.*\): give a list"),
    ("choice-twice", lambda: ft.Choice([1, 2, 1]), r"Choice\(\[1, 2, 1\]\): 1 is there twice"),
    ("choice-one-and-true", lambda: ft.Choice([1, True]), r"Choice\(\[1, True\]\): True is there twice"),
    ("choice-nan", lambda: ft.Choice([0.1, math.nan]), r"Choice\(\[0.1, nan\]\): nan is not a number"),
    ("choice-of-bytes", lambda: ft.Choice([b"sgd"]), r"Choice\(\[b'sgd'\]\): b'sgd' is not a number, string or boolean"),
    ("choice-of-an-array", lambda: ft.Choice([np.zeros(2)]), r"Choice\(.*\): .* is not a number, string or boolean"),
    ("one-minus-a-number", lambda: ft.OneMinus(0.5), r"OneMinus\(0.5\): give a Float\(low, high\)"),
    ("space-a-list", lambda: ft.Space(["lr"]), r"client = \['lr'\], but must be a mapping"),
    ("space-a-text", lambda: ft.Space("lr"), r"client = 'lr', but must be a mapping"),
    ("space-server-a-number", lambda: ft.Space({}, 3), r"server = 3, but must be a mapping"),
    ("space-key-a-number", lambda: ft.Space({1: 0.1}), r"client.*1.* must be a string"),
    ("space-value-none", lambda: ft.Space({"lr": None}), r"client.lr = None is no domain: give Float"),
    ("space-value-a-set", lambda: ft.Space({"lr": {1, 2}}), r"client.lr = \{1, 2\} is no domain: give Float"),
    ("space-value-a-class", lambda: ft.Space({"lr": ft.Float}), r"client.lr = .*Float.* is no domain: give Float"),
    ("space-value-a-function", lambda: ft.Space({"lr": len}), r"client.lr = .*len.* is no domain: give Float"),
    ("space-value-an-array", lambda: ft.Space({"lr": np.zeros(3)}), r"client.lr = .* is no domain: give Float"),
    ("space-value-unshowable", lambda: ft.Space({"lr": Bad()}), r"client.lr = a Bad is no domain: give Float"),
]  # fmt: skip

SETTINGS = [
    ("problem-none", lambda: ft.tune(None), r"problem is NoneType, but must be a Simulation\(task, clients\)"),
    ("problem-a-task", lambda: ft.tune(Task(linear)), r"problem is Task, but must be a Simulation"),
    ("problem-a-text", lambda: ft.tune("digits"), r"problem is str, but must be a Simulation"),
    ("problem-a-class", lambda: ft.tune(ft.Simulation), r"problem is type, but must be a Simulation|Simulation.*call it"),
    ("problem-a-function", lambda: ft.tune(toys.problem), r"problem is function, but must be a Simulation"),
    ("setting-unknown", lambda: study(cohrot=3), r"no setting 'cohrot'; did you mean 'cohort'\?"),
    ("setting-of-toml", lambda: study(device="cuda"), r"no setting 'device'"),
    ("cohort-zero", lambda: study(cohort=0), r"cohort = 0, but must be a whole number >= 1"),
    ("cohort-a-numpy-real", lambda: study(cohort=np.float64(2)), r"cohort = .*2.0.*, but must be a whole number >= 1"),
    ("cohort-numpy-true", lambda: study(cohort=np.True_), r"cohort = .*True.*, but must be a whole number >= 1"),
    ("cohort-an-array", lambda: study(cohort=np.array([2])), r"cohort = .*, but must be a whole number >= 1"),
    ("cohort-too-large", lambda: study(cohort=np.int64(7)), r"cohort = 7, but the problem has 6 clients"),
    ("cohort-of-5000-digits", lambda: study(cohort=10**5000), r"cohort = .*, but the problem has 6 clients"),
    ("cohort-unshowable", lambda: study(cohort=Bad()), r"cohort = a Bad, but must be a whole number >= 1"),
    ("seed-none", lambda: study(seed=None), r"seed = None, but must be a whole number"),
    ("seed-real", lambda: study(seed=1.0), r"seed = 1.0, but must be a whole number"),
    ("seed-text", lambda: study(seed="1"), r"seed = '1', but must be a whole number"),
    ("workers-zero", lambda: study(workers=0), r"workers = 0, but must be a whole number >= 1"),
    ("workers-real", lambda: study(workers=1.5), r"workers = 1.5, but must be a whole number >= 1"),
    ("workers-text", lambda: study(workers="2"), r"workers = '2', but must be a whole number >= 1"),
    ("workers-huge", lambda: study(workers=10**9), r"workers = 1000000000, but must be at most"),
    ("target", lambda: study(target="local"), r"target = 'local', but must be one of"),
    ("target-none", lambda: study(target=None), r"target = None, but must be one of"),
    ("target-a-list", lambda: study(target=["global"]), r"target = \['global'\], but must be one of"),
    ("target-an-array", lambda: study(target=np.array(["global", "x"])), r"target = .*, but must be one of"),
    ("cohorts", lambda: study(cohorts=True), r"cohorts = True, but must be one of"),
    ("weights", lambda: study(weights=0), r"weights = 0, but must be one of"),
    ("cooling", lambda: study(cooling="a"), r"cooling = 'a', but must be in \[0, 1\]"),
    ("cooling-none", lambda: study(cooling=None), r"cooling = None, but must be in \[0, 1\]"),
    ("engine", lambda: study(engine="fast"), r"engine = 'fast', but must be one of"),
    ("engine-none", lambda: study(engine=None), r"engine = None, but must be one of"),
    ("method-text", lambda: study(method="fedavgg"), r"no method 'fedavgg'; did you mean 'fedavg'"),
    ("method-none", lambda: study(method=None), r"method = None, but must be a Method"),
    ("method-a-module", lambda: study(method=ft.methods), r"method = .*module.*, but must be a Method"),
    ("space-a-dict", lambda: study(space={"client": {}}), r"space = .*, but must be a fedtuner.Space"),
    ("space-a-class", lambda: study(space=ft.Space), r"space = .*, but must be a fedtuner.Space: call it, Space\(...\)"),
    ("space-misspelt", lambda: study(space=ft.Space({"learning_rate": 0.1})), r"no client hyperparameter .*did you mean 'lr'"),
    ("space-negative", lambda: study(space=ft.Space({"lr": -1.0})), r"client.lr = -1.0, but must be >= 0"),
    ("space-epochs-zero", lambda: study(space=ft.Space({"epochs": 0})), r"client.epochs = 0, but must be >= 1"),
    ("space-epochs-huge", lambda: study(space=ft.Space({"epochs": 10**12})), r"client.epochs = 10+, but must be <="),
    ("fedex-true", lambda: study(fedex=True), r"fedex = True, but must be a fedtuner.FedEx, or None"),
    ("fedex-a-dict", lambda: study(fedex={"k": 3}), r"fedex = \{'k': 3\}, but must be a fedtuner.FedEx"),
    ("fedex-a-class", lambda: study(fedex=ft.FedEx), r"fedex = .*FedEx.*, but must be a fedtuner.FedEx"),
    ("fedex-a-module", lambda: study(fedex=ft.fedex), r"fedex = .*, but must be a fedtuner.FedEx"),
    ("fedex-and-tuner", lambda: ft.prepare(toys.problem(), fedex=ft.FedEx(), tuner=ft.FedEx()), r"both given"),
    ("tuner-a-schedule", lambda: study(tuner=ft.halving()), r"tuner = .*, but must be a tuner such as fedtuner.FedEx"),
    ("schedule-a-tuner", lambda: study(schedule=ft.FedEx()), r"schedule = .*, but must be a schedule such as"),
    ("schedule-a-class", lambda: study(schedule=ft.halving), r"schedule = .*, but must be a schedule .*call it, Halving\("),
    ("schedule-a-dict", lambda: study(schedule={"budget": 3}), r"schedule = .*, but must be a schedule such as fedtuner.halv"),
    ("schedule-a-number", lambda: study(schedule=2000), r"schedule = 2000, but must be a schedule"),
    ("sampler-a-text", lambda: study(sampler="tpe"), r"sampler = 'tpe', but must be a sampler such as"),
    ("sampler-optunas-own", lambda: study(sampler=object()), r"sampler = .*object.*, but must be"),
    ("sampler-a-schedule", lambda: study(sampler=ft.halving()), r"sampler = .*, but must be"),
    ("combine-a-text", lambda: study(combine="medain"), r"combine.kind = 'medain', but must .*; did you mean 'median'\?"),
    ("combine-a-function", lambda: study(combine=np.median), r"combine = .*median.*, but must be such as"),
    ("combine-share", lambda: Trimmed(0.7), r"combine.share = 0.7, but must be in \[0, 0.49\]"),
    ("privacy-a-number", lambda: study(privacy=1.0), r"privacy = 1.0, but must be such as fedtuner.core.privacy"),
    ("screens-a-text", lambda: study(screens="norm"), r"screens = 'norm', but must be a tuple of"),
    ("screens-of-numbers", lambda: study(screens=(1,)), r"screens = \(1,\), but must be a tuple of"),
    ("screens-a-function", lambda: study(screens=len), r"screens = .*len.*, but must be a tuple of"),
    ("progress-a-text", lambda: study(progress="yes"), r"progress = 'yes', but must be"),
    ("executor-a-text", lambda: study(executor="ray"), r"executor = 'ray', but must be"),
    ("watch-a-number", lambda: study(watch=3), r"watch = 3, but must be"),
    ("store-a-number", lambda: study(store=3), r"store = 3, but must be"),
    ("store-empty", lambda: study(store=""), r"store = '', but must be"),
    ("store-bytes", lambda: study(store=b"x"), r"store = b'x', but must be"),
    ("store-with-nul", lambda: study(store="a\0b"), r"store = 'a\\x00b', but"),
    ("store-a-list", lambda: study(store=["a"]), r"store = \['a'\], but must be"),
    ("store-a-device", lambda: study(store="/dev/null"), r"/dev/null is a file, but a study.s store is a folder"),
    ("store-below-a-file", lambda: study(store="/dev/null/s"), r"/dev/null is a file, but a study's store is a folder: use"),
    ("store-unwritable", lambda: study(store="/proc/fedtuner"), r"cannot write to /proc/fedtuner: "),
    ("store-name-too-long", lambda: study(store="/tmp/" + "x" * 260), r"cannot write to /tmp/x.*: File name too long"),
    ("evaluate-split", lambda: study().evaluate("tset"), r"split = 'tset', but must be one of .*did you mean 'test'\?"),
    ("evaluate-config", lambda: study().evaluate("test", "best"), r"config = 'best', but must be one of"),
    ("evaluate-metric", lambda: study().evaluate(metric="accuracy"), r"metric = 'accuracy', but must be one of"),
    ("best-before-the-end", lambda: ft.prepare(toys.problem(), cohort=2).best, r"not finished, so it has no winner yet"),
    ("evaluate-before-the-end", lambda: ft.prepare(toys.problem(), cohort=2).evaluate(), r"not finished"),
    ("untuned-of-none", lambda: ft.untuned(None), r"study = None, but must be a Study|untuned.*Study"),
    ("tell-before-ask", lambda: ft.prepare(toys.problem(), cohort=2).tell(None, []), r"no round in flight: ask\(\)"),
    ("tell-no-plan", told(lambda s, plan: s.tell(None, [])), r"plan = None, but must be one that ask\(\) gave"),
    ("tell-a-number", told(lambda s, plan: s.tell(plan, 3)), r"arm 0, round 1: 3, but must be a list of reports, or a Tally"),
    ("report-halves", told(lambda s, plan: plan.report(plan.jobs[0], plan.w, 2.5, FINE)), r"examples = 2.5, but must be a whole number >= 0"),
    ("report-true", told(lambda s, plan: plan.report(plan.jobs[0], plan.w, True, FINE)), r"examples = True, but must be a whole number >= 0"),
    ("report-texts", told(lambda s, plan: plan.report(plan.jobs[0], ["a"] * plan.w.size, 3, FINE)), r"w is of type <U1, but must be of real numbers"),
    ("report-complex", told(lambda s, plan: plan.report(plan.jobs[0], plan.w + 1j, 3, FINE)), r"w is of type complex64, but must be of real numbers"),
    ("metrics-of-text", told(lambda s, plan: plan.report(plan.jobs[0], plan.w, 3, (ft.Metrics("a", 1.0, 3),) * 2)), r"Metrics\(loss='a'.*must be Metrics"),
    ("metrics-negative", told(lambda s, plan: plan.report(plan.jobs[0], plan.w, 3, (ft.Metrics(1.0, 1.0, -3),) * 2)), r"client \d: .*must be Metrics"),
    ("metrics-halves", told(lambda s, plan: plan.report(plan.jobs[0], plan.w, 3, (ft.Metrics(1.0, 1.0, 2.5),) * 2)), r"client \d: .*must be Metrics"),
    ("metrics-numbers", told(lambda s, plan: plan.report(plan.jobs[0], plan.w, 3, (1.0, 2.0))), r"client \d: \(1.0, 2.0\), but must be Metrics"),
    ("metric-rate", lambda: ft.Metric("a", rate="yes"), r"a: rate = 'yes', but must be true or false"),
    ("recipe-of-nothing", lambda: ft.tune(toys.problem(), recipe=lambda problem, given: None), r"recipe gave None, but must give the settings"),
    ("recipe-of-too-little", lambda: ft.tune(toys.problem(), recipe=lambda problem, given: {}), r"recipe gave \{\}, but must give the settings"),
    ("budget-huge", lambda: ft.tune(toys.problem(), budget=10**15), r"schedule.budget = 10+, but must be at most 1000000"),
    ("proxy-a-number", lambda: study(proxy=3), r"proxy is int, but must be a Simulation"),
    ("forecast-a-text", lambda: ft.prepare(toys.problem(), cohort=2).forecast("x"), r"seconds = 'x', but must be >= 0"),
    ("halving-budget", lambda: ft.halving(budget=0), r"schedule.budget = 0, but must be a whole number >= 1"),
    ("halving-numpy-real", lambda: ft.halving(budget=np.float32(5)), r"schedule.budget = .*5.0.*, but must be a whole number"),
    ("halving-eliminations", lambda: ft.halving(eliminations=10**8), r"eliminations 100000000.*lower eliminations"),
    ("halving-too-many-arms", lambda: ft.halving(10**12, 10**9, 10, 8), r"100000000 arms, but .* at most"),
    ("random-search-arms", lambda: ft.random_search(10**9, 1), r"1000000000 arms, but .* at most"),
    ("hyperband-arms", lambda: ft.hyperband(10**15, 1000, fill=True), r"arms, but .* at most"),
    ("hyperband-longest", lambda: ft.hyperband(10, 20), r"budget = 10 is less than longest = 20"),
    ("hyperband-eta", lambda: ft.hyperband(eta=1), r"schedule.eta = 1, but must be a whole number >= 2"),
    ("fedex-k-huge", lambda: ft.FedEx(k=10**8), r"fedex.k = 100000000, but must be at most"),
    ("fedex-k-text", lambda: ft.FedEx(k="9"), r"fedex.k = '9', but must be a whole number >= 1"),
    ("fedex-eps-nan", lambda: ft.FedEx(eps=np.float64("nan")), r"fedex.eps = .*nan.*, but must be"),
    ("fedex-eps-infinite", lambda: ft.FedEx(eps=math.inf), r"fedex.eps = inf, but must be"),
    ("fedex-tries-none", lambda: ft.FedEx(tries=None), r"fedex.tries = None, but must be a whole number or 'all'"),
    ("fedex-step-an-array", lambda: ft.FedEx(step=np.zeros(2)), r"fedex.step = .*, but must be one of"),
    ("fedex-gamma-text", lambda: ft.FedEx(gamma="0"), r"fedex.gamma = '0', but must be in \[0, 1\]"),
    ("optuna-kind", lambda: samplers.optuna("tpee"), r"sampler = 'tpee', but must be one of .*did you mean 'tpe'\?"),
    ("optuna-kind-none", lambda: samplers.optuna(None), r"sampler = None, but must be one of"),
    ("optuna-kind-a-list", lambda: samplers.optuna(["tpe"]), r"sampler = \['tpe'\], but must be one of"),
    ("optuna-startup", lambda: samplers.optuna("tpe", 0), r"sampler.startup = 0, but must be a whole number >= 1"),
    ("ball-eps", lambda: samplers.Ball(-1), r"sampler.eps = -1, but must be >= 0"),
    ("methods-named", lambda: ft.methods.named("fedavgg"), r"no method 'fedavgg'; did you mean 'fedavg'\?"),
    ("methods-named-none", lambda: ft.methods.named(None), r"no method None; known: "),
    ("methods-named-a-list", lambda: ft.methods.named(["fedavg"]), r"no method \['fedavg'\]; did you mean|; known: "),
    ("defaults-unknown", lambda: ft.methods.fedavg.with_defaults({"lrr": 1}), r"no client hyperparameter 'lrr'.*'lr'"),
    ("defaults-a-range", lambda: ft.methods.fedavg.with_defaults({"lr": ft.Float(0, 1)}), r"client.lr = .*, but .*one value"),
    ("tables-find", lambda: tables.find("numpy:arrray", "kind"), r"kind = 'numpy:arrray': numpy has no 'arrray'; did you"),
]  # fmt: skip

CLIENTS = [
    ("none", lambda: ft.Simulation(toys.Softmax(), None), r"clients = None, but must be a list of Client"),
    ("a-number", lambda: ft.Simulation(toys.Softmax(), 3), r"clients = 3, but must be a list of Client"),
    ("empty", lambda: ft.Simulation(toys.Softmax(), []), r"a problem needs at least one client"),
    ("a-client", lambda: ft.Simulation(toys.Softmax(), ft.Client(0, PAIR, PAIR)), r"clients = .*, but must be a list of Client"),
    ("of-pairs", lambda: ft.Simulation(toys.Softmax(), [PAIR]), r"no Client: give Client\(id, train, valid, test\)"),
    ("of-none", lambda: ft.Simulation(toys.Softmax(), [None]), r"None is no Client: give Client\("),
    ("a-text", lambda: ft.Simulation(toys.Softmax(), "abc"), r"'a' is no Client|clients = 'abc'"),
    ("of-classes", lambda: ft.Simulation(toys.Softmax(), [ft.Client]), r"Client.*is no Client: give Client\("),
    ("twice", lambda: ft.Simulation(toys.Softmax(), [*toys.clients(2), *toys.clients(1)]), r"two clients have the id 'phone0'"),
    ("id-none", lambda: ft.Simulation(toys.Softmax(), [ft.Client(None, PAIR, PAIR)]), r"id None.*must be a string or a whole"),
    ("id-bytes", lambda: ft.Simulation(toys.Softmax(), [ft.Client(b"a", PAIR, PAIR)]), r"id b'a'.*must be a string or a whole"),
    ("id-real", lambda: ft.Simulation(toys.Softmax(), [ft.Client(0.5, PAIR, PAIR)]), r"id 0.5.*must be a string or a whole"),
    ("id-a-list", lambda: ft.Simulation(toys.Softmax(), [ft.Client([1], PAIR, PAIR)]), r"id \[1\].*must be a string or a"),
    ("id-true", lambda: ft.Simulation(toys.Softmax(), [ft.Client(True, PAIR, PAIR)]), r"id True.*must be a string or a whole"),
    ("id-a-pair", lambda: ft.Simulation(toys.Softmax(), [ft.Client((1, 2), PAIR, PAIR)]), r"id \(1, 2\).*must be a string or"),
    ("name-a-number", lambda: ft.Simulation(toys.Softmax(), toys.clients(), 3), r"name = 3, but must be a string"),
    ("name-with-a-newline", lambda: ft.Simulation(toys.Softmax(), toys.clients(), "a\nb"), r"name = 'a\\nb', but must be"),
    ("model-none", lambda: ft.Simulation(None, toys.clients()), r"model is NoneType, but must be .*Task"),
    ("model-a-module", lambda: ft.Simulation(linear(), toys.clients()), r"model is Linear, but must be .*Task"),
    ("model-a-class", lambda: ft.Simulation(Task, toys.clients()), r"model is .*type.*, but must be .*Task"),
    ("model-turned", lambda: ft.Simulation(toys.clients(), toys.Softmax()), r"clients = .*, but must be|model is list, but must"),
    ("one-client-cohort-two", lambda: study(ft.Simulation(Task(linear), [ft.Client(0, PAIR, PAIR)])), r"cohort = 2, .* 1 client"),
    ("no-train", lambda: study(ft.Simulation(Task(linear), [ft.Client(i, None, PAIR) for i in "ab"])), r"no client has any train"),
    ("no-valid", lambda: study(ft.Simulation(Task(linear), [ft.Client(i, PAIR, None) for i in "ab"])), r"no client has any valid"),
    ("all-empty", lambda: study(simulation(train=(X[:0], Y[:0]), valid=(X[:0], Y[:0]), test=None)), r"'b' has no examples at all"),
    # Splits
    ("split-a-dict", split({"x": X, "y": Y}), r"client 'b', train data: .*no 'labels': give a pair \(x, y\)"),
    ("split-a-number", split(3), r"client 'b', train data: .*int"),
    ("split-a-text", split("x.npz"), r"client 'b', train data: "),
    ("split-bytes", split(b"abc"), r"client 'b', train data: "),
    ("split-a-set", split({1, 2}), r"client 'b', train data: .*set"),
    ("split-one-array", split(X), r"client 'b', train data: "),
    ("split-three-arrays", split((X, Y, Y)), r"client 'b', train data: "),
    ("split-of-one", split((X,)), r"client 'b', train data: "),
    ("split-of-nones", split((None, None)), r"client 'b', train data: "),
    ("split-without-length", split(NoLength()), r"client 'b', train data: .*NoLength"),
    ("split-a-generator", split(x for x in X), r"client 'b', train data: .*generator"),
    ("split-that-ends-early", split(Shrinking()), r"client 'b', train data: .*(index|IndexError)"),
    ("x-0-d", split((np.array(1.0), Y)), r"client 'b', train data: x .*shape \(\)"),
    ("y-0-d", split((X, np.array(1))), r"client 'b', train data: y .*shape \(\)"),
    ("both-0-d", split((np.array(1.0), np.array(1))), r"client 'b', train data: x .*shape \(\)"),
    ("x-ragged", split((ragged(), np.zeros(2, np.int64))), r"client 'b', train data: x .*(object|numbers)"),
    ("x-ragged-lists", split(([[1.0, 2.0], [3.0]], [0, 1])), r"client 'b', train data: "),
    ("x-texts", split((np.array(["a"] * 6), Y)), r"client 'b', train data: x .*(numbers|type)"),
    ("x-objects", split((X.astype(object), Y)), r"client 'b', train data: x .*(numbers|object)"),
    ("x-complex", split((X.astype(complex), Y)), r"client 'b', train data: x .*complex"),
    ("x-dates", split((np.zeros(6, "datetime64[s]"), Y)), r"client 'b', train data: x .*(numbers|type)"),
    ("x-structured", split((np.zeros(6, [("a", "f4")]), Y)), r"client 'b', train data: x .*(numbers|type)"),
    ("x-longer", split((X, Y[:5])), r"client 'b', train data: x has 6 examples, y has 5"),
    ("x-of-another-width", split((X[:, :2], Y)), r"client 'b', .*shape \(1, 2\)|\(6, 2\)"),
    ("x-of-more-axes", split((X[:, :, None], Y)), r"client 'b'"),
    ("x-nan", split((holes((6, 3), math.nan), Y)), r"client 'b', train data: x .*NaN or infinite"),
    ("x-infinite", split((holes((6, 3), math.inf), Y)), r"client 'b', train data: x .*NaN or infinite"),
    ("x-beyond-float32", split((holes((6, 3), 1.0).astype(np.float64) * 1e300, Y)), r"client 'b', train data: x .*(infinite|float32)"),
    ("y-nan", split((X, holes((6,), math.nan))), r"client 'b', train data: y .*NaN or infinite"),
    ("y-texts", split((X, np.array(list("ababab")))), r"client 'b', train data: y .*(numbers|type)"),
    ("y-real", split(float_labels()), r"client 'b'.*"),
    ("y-too-large", split((X, Y + 5)), r"client 'b', train data, example \d: .*(Target|target|label) .*[56]"),
    ("y-negative", split((X, Y - 1)), r"client 'b', train data, example \d: .*-1"),
    ("y-ignored", split((X, np.full(6, -100))), r"client 'b', train data.*-100"),
    ("y-two-columns", split((X, np.stack([Y, Y], 1))), r"client 'b'"),
    ("y-beyond-64-bits", split((X, np.full(6, 2**64 - 1, np.uint64))), r"client 'b', train data"),
    ("valid-too-large", lambda: study(simulation(valid=(X, Y + 5))), r"client 'b', valid data, example \d"),
    ("test-too-large", lambda: study(simulation(test=(X, Y + 5))), r"client 'b', test data, example \d"),
    ("test-nan", lambda: study(simulation(test=(holes((6, 3), math.nan), Y))), r"client 'b', test data: x .*NaN"),
]  # fmt: skip

MODELS = [
    ("build-a-module", lambda: Task(linear()), r"build is Linear, but must be a function that returns a new module"),
    ("build-none", lambda: Task(None), r"build is NoneType, but must be a function"),
    ("build-returns-none", lambda: Task(lambda: None), r"build\(\) returned NoneType, but must return a torch.nn.Module"),
    ("build-returns-a-class", lambda: Task(lambda: nn.Linear), r"build\(\) returned type, but must return a torch.nn.Module"),
    ("build-needs-arguments", lambda: Task(nn.Linear), r"build\(\) .*in_features"),
    ("build-raises", lambda: Task(lambda: 1 / 0), r"build\(\) .*ZeroDivisionError: division by zero"),
    ("build-raises-much", lambda: Task(boom), r"build\(\) .*RuntimeError: many lines"),
    ("lazy-module", lambda: Task(lambda: nn.LazyLinear(2)), r"lazy.*LazyLinear|LazyLinear.*lazy"),
    ("nothing-to-train", lambda: Task(nn.Flatten), r"the model has no parameters to train"),
    ("moody", model(Moody), r"another shape than before: it must always build the same one"),
    ("shared-by-build", model(lambda: SHARED), r"two modules that share the memory of .*weight., but must make"),
    ("forward-raises", model(Raises), r"the model .*KeyError: 'mask'|the model cannot take inputs"),
    ("forward-a-tuple", model(Tuple), r"the model returns a tuple, without 'logits'"),
    ("too-narrow", model(lambda: nn.Linear(5, 2)), r"the model cannot take inputs of shape \(6, 3\)"),
    ("too-few-classes", model(lambda: nn.Linear(3, 1)), r"the loss does not fit|client"),
    ("loss-none", lambda: Task(linear, loss=None), r"loss is NoneType, but must be a function"),
    ("loss-a-text", lambda: Task(linear, loss="cross_entropy"), r"loss is str, but must be a function"),
    ("loss-a-class", model(loss=nn.CrossEntropyLoss), r"loss.*CrossEntropyLoss\(\)|the loss"),
    ("loss-raises", model(loss=lose(RuntimeError("a\nb"))), r"the loss does not fit: .*a b"),
    ("loss-raises-a-key-error", model(loss=lose(KeyError("weights"))), r"the loss .*KeyError: 'weights'"),
    ("loss-raises-zero-division", model(loss=lose(ZeroDivisionError("no"))), r"the loss .*ZeroDivisionError: no"),
    ("loss-raises-an-assertion", model(loss=lose(AssertionError())), r"the loss .*AssertionError"),
    ("loss-raises-not-implemented", model(loss=lose(NotImplementedError())), r"the loss .*NotImplementedError"),
    ("loss-of-one-argument", model(loss=lambda output: output.mean()), r"the loss .*argument"),
    ("loss-per-example", model(loss=nn.CrossEntropyLoss(reduction="none")), r"the loss must be one number.*\(6,\)"),
    ("loss-a-float", model(loss=lambda output, y: 1.0), r"the loss must be one number.*float"),
    ("loss-detached", model(loss=lambda output, y: output.detach().mean()), r"arm 0, round 1, client .*the loss has no gradient"),
    ("loss-nan", model(loss=lambda output, y: output.mean() * math.nan), r"the untrained model's loss .* nan"),
    ("loss-of-many-lines", model(loss=boom), r"the loss does not fit: .*many lines"),
    ("error-a-text", lambda: Task(linear, error="mean"), r"error = 'mean', but must be 'argmax', 'loss' or a function"),
    ("error-nan", model(error=lambda output, y: torch.tensor(math.nan)), r"the error of the untrained model is NaN for every client"),
    ("error-raises", model(error=lose(KeyError("a"))), r"the error function failed.*KeyError"),
    ("error-of-words", model(error=lambda output, y: "bad"), r"the error function failed"),
    ("error-none", model(error=lambda output, y: None), r"the error function failed"),
    ("worst-error-nan", lambda: Task(linear, worst_error=math.nan), r"worst_error = nan, but must be a number"),
    ("worst-error-text", lambda: Task(linear, worst_error="1"), r"worst_error = '1', but must be a number"),
    ("worst-error-negative-infinity", lambda: Task(linear, worst_error=-math.inf), r"worst_error = -inf, but must be"),
    ("device-unknown", lambda: Task(linear, device="gpu0"), r"device = 'gpu0' is not to be had here"),
    ("device-absent", lambda: Task(linear, device="cuda:77"), r"device = 'cuda:77' is not to be had here .*: 'cpu' always is"),
    ("device-none", lambda: Task(linear, device=None), r"device = None"),
    ("device-a-list", lambda: Task(linear, device=[0]), r"device = \[0\]"),
    ("choices-without-configure", lambda: Task(linear, choices={"a": [1]}), r"choices needs configure"),
    ("configure-without-choices", lambda: Task(linear, configure=boom), r"configure needs choices"),
    ("choices-a-list", lambda: Task(linear, choices=["a"], configure=boom), r"choices = \['a'\], but must be a mapping"),
    ("choices-empty", lambda: Task(linear, choices={"a": []}, configure=boom), r"choices\['a'\]: give a list of values"),
    ("configure-raises", lambda: Task(linear, choices={"a": [1]}, configure=boom), r"configure\(\) failed for \{'a': 1\}: .*many"),
    ("configure-a-text", lambda: Task(linear, choices={"a": [1]}, configure="x"), r"configure is str, but must be a function"),
    ("choices-of-the-method", lambda: study(simulation(choices={"lr": [1]}, configure=lambda m, c: None)),
     r"the model and fedavg both have a client hyperparameter 'lr'"),
    ("batch-norm-of-one", model(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), ),
     None),
    ("complex-parameters", lambda: Task(lambda: nn.Linear(3, 2, dtype=torch.complex64)), r"complex"),
    ("whole-parameters", lambda: Task(lambda: nn.Linear(3, 2, dtype=torch.int32)), r"build\(\) failed: RuntimeError"),
    ("outside-no-arrays", lambda: ft.Outside({}, 3), r"the model has no arrays"),
    ("outside-none", lambda: ft.Outside(None, 3), r"arrays = None, but must be a mapping of names to arrays"),
    ("outside-a-list", lambda: ft.Outside([X], 3), r"arrays = .*, but must be a mapping of names to arrays"),
    ("outside-texts", lambda: ft.Outside({"w": ["a"]}, 3), r"array 'w' is of type <U1, but must be of numbers"),
    ("outside-ragged", lambda: ft.Outside({"w": [[1], [1, 2]]}, 3), r"array 'w' .*"),
    ("outside-whole", lambda: ft.Outside({"w": [1, 2]}, 3), r"nothing to train"),
    ("outside-nan", lambda: ft.Outside({"w": [math.nan]}, 3), r"array 'w' .*NaN"),
    ("outside-nobody", lambda: ft.Outside({"w": [1.0]}, 0), r"clients = 0, but must be a whole number >= 1"),
    ("outside-twice", lambda: ft.Outside({"w": [1.0]}, ["a", "a"]), r"clients = \['a', 'a'\], but must be distinct ids"),
    ("outside-real", lambda: ft.Outside({"w": [1.0]}, 2.5), r"clients = 2.5, but must be"),
    ("outside-no-clients", lambda: ft.Outside({"w": [1.0]}, None), r"clients = None, but must be"),
    ("outside-run", lambda: study(ft.Outside({"w": [1.0]}, 3), space=ft.Space({"lr": 0.1}), fedex=None), r"ask\(\) for rounds"),
    ("outside-scaffold", lambda: study(ft.Outside({"w": [1.0]}, 3), method=ft.methods.scaffold), r"train by code of their own"),
    ("hyper-reserved", lambda: study(ft.Outside({"w": [1.0]}, 3), space=ft.Space({"split": 1}), fedex=None), r"client.split"),
    ("hyper-option", lambda: ft.tune(ft.Simulation(toys.Softmax(hyperparameters={"p": Hyper(None, 1, options=(1, 2))}),
     toys.clients()), ft.Space({"p": 3}), cohort=2), r"client.p = 3, but must be one of \[1, 2\]"),
]  # fmt: skip
MODELS = [row for row in MODELS if row[2]]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        pytest.param(*row[1:], id=f"{name}-{row[0]}")
        for name, rows in (("space", SPACES), ("setting", SETTINGS), ("client", CLIENTS), ("model", MODELS))
        for row in rows
    ],
)
def test_an_argument_that_is_wrong(call: Callable[[], Any], match: str) -> None:
    refused(call, match)


# Numbers of NumPy are numbers.


def test_numpys_whole_numbers_are_whole_numbers() -> None:
    made = study(
        cohort=np.int64(2), seed=np.int32(3), workers=np.int8(1), fedex=ft.FedEx(k=np.int16(2), tries=np.int64(1)),
        schedule=ft.random_search(np.int64(2), np.uint8(1), together=np.int64(1)), cooling=np.float32(0.5),
    )  # fmt: skip
    same = study(
        cohort=2, seed=3, workers=1, fedex=ft.FedEx(k=2), schedule=ft.random_search(2, 1, together=1), cooling=0.5
    )
    assert made.describe() == same.describe()
    assert made.best.model.tobytes() == same.best.model.tobytes()


def test_numpys_numbers_in_spaces() -> None:
    assert ft.Space({"lr": np.float64(0.1)}) == ft.Space({"lr": 0.1})
    assert ft.Space({"batch": [np.int64(2), np.int64(4)]}) == ft.Space({"batch": [2, 4]})
    assert ft.Float(np.float32(0.5), np.int64(1)) == ft.Float(0.5, 1.0)
    assert ft.Int(np.int64(1), np.uint8(5)).describe() == {"low": 1, "high": 5}
    assert ft.PowerOfTwo(np.int64(8), np.int64(16)) == ft.PowerOfTwo(8, 16)
    assert type(ft.Choice([np.float64(0.5)]).values[0]) is float
    assert type(ft.Int(np.int64(1), np.int64(5)).low) is int


def test_ids_of_numpy_are_ids() -> None:
    made = ft.Simulation(toys.Softmax(), [ft.Client(np.int64(3), PAIR, PAIR), ft.Client(np.str_("a"), PAIR, PAIR)])
    assert [made.id_of(i) for i in range(2)] == [3, "a"]
    assert study(made).rounds_used == 1
