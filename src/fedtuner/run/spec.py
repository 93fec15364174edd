"""study.toml: a file of settings becomes the arguments of ``prepare``.

problem = "digits"            a built-in problem, or "package.module:function" that returns a Simulation
proxy = "digits-in-order"     another problem: it is tuned there, and what is found is trained on the problem
start_from = "runs/other"     a study's folder, or an exported one: its best configurations are the first arms
method = "fedavg"             or "package.module:name" of your own
sampler = "uniform"           or tpe, gp, cmaes, random: Optuna proposes the arms
combine = "mean"              or median;  [combine] kind = "trimmed", share: how the server combines updates
[privacy]                     epsilon, delta, clip, loss, error, value: noise that hides single clients
budget = 500                  rounds to spend; all that is not said is chosen for them, as ft.auto(500) does
[auto]                        the same with settings: budget, arms, vary, max_work, decades
[schedule]                    in place of a budget: kind, budget, longest, eta, eliminations, discount, score
[fedex]                       k, eps, step, gamma, metric, signal, cutoff, tries;  or  fedex = false
[tuner]                       in place of [fedex]: kind = "fedex", "kernel" (and width), "gaussian" (deviation, rate,
                              metric, signal), "fedpop", "none" or your own, and its settings
[client] and [server]         only ranges (and lists) that are named are searched; if none is named, the method's own
                              ranges are, except of what is set to one value. With a budget the default, or include's
                              first configuration, is an arm in any case, as it is what tuning has to beat
[executor]                    kind = "ray", address, num_cpus, num_gpus, every, problem, code: where rounds are computed
constraints = ["lr * epochs <= 1"]    what the hyperparameters of an arm must meet together

A kind, a sampler and the server's optimiser may be your own, too: "package.module:Class" or "package.module:name".
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from fedtuner import checks, methods, samplers, schedules, tables, tuners
from fedtuner.core.executor import OpenExecutor
from fedtuner.core.method import Method
from fedtuner.core.model import Hyper, Model
from fedtuner.core.privacy import Gaussian
from fedtuner.core.robust import COMBINES
from fedtuner.core.sampler import Sampler
from fedtuner.core.schedule import Schedule
from fedtuner.core.setup import PLAIN, with_named_optimiser
from fedtuner.core.stages import Combine
from fedtuner.core.tally import mean
from fedtuner.core.tuner import Tuner
from fedtuner.errors import FAILURES, FedtunerError, SpecError, brief, suggest
from fedtuner.federations import Simulation
from fedtuner.run.auto import Auto
from fedtuner.run.executors import KINDS as EXECUTORS
from fedtuner.run.study import Study
from fedtuner.run.tuning import prepare
from fedtuner.space import Space
from fedtuner.tuners import FedEx

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

_FORMS = ("", "-iid", "-small", "-iid-small")
PROBLEMS = {  # the function of digits-in-order is fedtuner.problems.digits:problem_in_order
    f"{name}{form}": f"fedtuner.problems.{name}:problem{form}".replace("-", "_")
    for name, forms in {
        "digits": ("", "-in-order"), "mnist-writers": _FORMS, "shakespeare": _FORMS, "femnist": _FORMS,
        "cifar10": ("", "-small"),
    }.items()
    for form in forms
}  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """A study as its file says it: the names of problem and method, and settings of ``prepare``."""

    problem: str
    proxy: str | None = None  # another problem, on which it is tuned
    method: str = "fedavg"
    ranges: str = "usual"  # of the server's step, where they are not given: those that can work, or the paper's
    device: str = "cpu"
    auto: Auto | None = None
    schedule: Schedule = field(default_factory=schedules.halving)
    tuner: Tuner = field(default_factory=FedEx)
    sampler: Sampler = samplers.uniform
    combine: Combine = mean
    executor: OpenExecutor | None = None  # no part of what a study is
    client: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    constraints: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # those that are passed on as they are
    named: frozenset[str] = field(default=frozenset(), compare=False)  # what the file says

    # As the file says them: ``Setup`` checks them.

    @property
    def seed(self) -> int:
        return self.settings.get("seed", 0)  # type: ignore[no-any-return]

    @property
    def cohort(self) -> float:
        return self.settings.get("cohort", 10)  # type: ignore[no-any-return]

    @property
    def target(self) -> str:
        return self.settings.get("target", "personalized")  # type: ignore[no-any-return]

    def study(self, store: Path | None, workers: int | None, problem: Simulation | None = None) -> Study:
        """Load the problem (unless it is given), check everything and return the study, not yet run."""
        optimiser = {name: self.server[name] for name in ("optimiser",) if name in self.server}
        method, _ = with_named_optimiser(self._method(), Space(server=optimiser))
        problem = self.load(self.problem) if problem is None else problem
        chosen = {name: getattr(self, name) for name in ("tuner", "schedule", "sampler")}
        if self.auto is not None or tuners.inside(self.schedule):  # what the file does not say is for these to say
            chosen = {name: value for name, value in chosen.items() if name in self.named}
        return prepare(
            problem, self.space(method, problem.model), method=method, recipe=self.auto, combine=self.combine,
            store=store, workers=workers, executor=self.executor, **chosen, **self.settings,
        )  # fmt: skip

    def load(self, name: str) -> Simulation:
        """Return a problem, on the device that the file asks for."""
        problem = load_problem(name)
        return problem if self.device == "cpu" else problem.on(self.device)

    def _method(self) -> Method:
        """Return the method with the ranges that the file asks for."""
        checks.one_of("ranges", self.ranges, ("usual", "paper"))
        found = methods.named(self.method)
        return methods.paper_ranges(found) if self.ranges == "paper" else found

    def space(self, method: Method, model: Model) -> Space | None:
        """Return what the file names; None if it names nothing."""
        if not self.client and not self.server and not self.constraints:
            return None
        client = _real(self.client, {**({} if model.own_training else method.client), **model.hyperparameters})
        return Space(client, _real(self.server, method.server), self.constraints)


_PASSED = (*PLAIN, "include", "start_from", "patience", "privacy")
_KNOWN = (*(f.name for f in fields(Spec) if f.name not in ("settings", "named")), "budget", "fedex", *_PASSED)
_TEXTS = (
    "problem",
    "proxy",
    "start_from",
    "method",
    "ranges",
    "device",
    *(n for n, v in PLAIN.items() if type(v) is str),
)
# What a table, or a name, may stand for, and the kind of a table that names none.
_KINDS: dict[str, tuple[Any, str]] = {
    "combine": (COMBINES, "mean"), "executor": (EXECUTORS, "ray"), "privacy": ({"gaussian": Gaussian}, "gaussian"),
}  # fmt: skip
# What the tables know, to say where a setting belongs that is in none of them.
_SETTINGS = {
    "schedule": {name for kind in schedules.KINDS.values() for name in tables.parameters(kind)},
    "fedex": set(tables.parameters(FedEx)),
    "tuner": {name for kind in tuners.KINDS.values() for name in tables.parameters(kind)},
    "sampler": {"startup"},
    "auto": set(tables.parameters(Auto)),
    "combine": {name for kind in COMBINES.values() for name in tables.parameters(kind)},
    "privacy": set(tables.parameters(Gaussian)),
    "executor": {name for kind in EXECUTORS.values() for name in tables.parameters(kind)},
}


def _real(domains: Mapping[str, Any], hypers: Mapping[str, Hyper]) -> dict[str, Any]:
    """Return the domains, with ranges of hyperparameters that are real numbers made real: 0 to 1 is not {0, 1}."""
    made = dict(domains)
    for name, value in domains.items():
        if isinstance(value, Mapping) and name in hypers and isinstance(hypers[name].default, float):
            ends = {key: float(value[key]) for key in ("low", "high") if type(value.get(key)) is int}
            made[name] = {**value, **ends}
    return made


def parse(table: Mapping[str, Any]) -> Spec:
    """Return the spec that a TOML table stands for."""
    for key in table:
        if key not in _KNOWN:
            raise SpecError(f"no setting {brief(key)}{_elsewhere(key)}")
    if "problem" not in table:
        raise SpecError("no problem is given: problem = 'digits', or 'package.module:function' of your own")
    values = dict(table)
    for key in _TEXTS:
        if key in values and not isinstance(values[key], str):
            raise SpecError(f"{key} = {brief(values[key])}, but must be a string")
    for key in ("schedule", "tuner", "auto", "client", "server", "privacy"):
        if key in values and not isinstance(values[key], Mapping):
            raise SpecError(f"{key} = {brief(values[key])}, but must be a table: [{key}]")
    for key in _SETTINGS:
        for inner in values[key] if isinstance(values.get(key), Mapping) else ():
            if inner in _PASSED and inner not in _SETTINGS[key]:
                raise SpecError(f"no setting {key}.{inner}; did you mean {inner!r}, before all [tables]?")
    recipe = _auto(values)
    if recipe is not None:
        values |= {"auto": recipe, "schedule": recipe.schedule}
        if "tuner" not in values:
            values.setdefault("fedex", False)
    elif "schedule" in values:
        values["schedule"] = schedule(values["schedule"])
    tuner = _tuner(values.pop("tuner", None), values.pop("fedex", None))
    tuner = tuner or tuners.inside(values.get("schedule"), values.get("cohort", 10))
    if tuner is not None:
        values["tuner"] = tuner
    if "sampler" in values:
        values["sampler"] = sampler(values["sampler"])
    for key, (kinds, usual) in _KINDS.items():
        if key in values:
            values[key] = tables.read(kinds, _table(values[key]), key, usual)
    settings = {key: values.pop(key) for key in _PASSED if key in values}
    named = frozenset("tuner" if key == "fedex" else key for key in table)
    return Spec(**values, settings=settings, named=named)


def _auto(values: dict[str, Any]) -> Auto | None:
    """Take ``budget`` and ``[auto]`` out of a file's settings, and return the recipe that they stand for, if any."""
    table, budget = values.pop("auto", None), values.pop("budget", None)
    if table is None and budget is None:
        return None
    if "schedule" in values:
        said = "budget" if table is None else "[auto]"
        raise SpecError(
            f"{said} and [schedule] are both given, but a schedule has a budget of its own: leave one out (did you "
            "mean 'schedule.budget'?)"
        )
    settings = dict(table or {})
    if budget is not None:
        if "budget" in settings:
            raise SpecError(f"budget = {brief(budget)} and auto.budget are both given: leave one out")
        settings["budget"] = budget
    return tables.make(Auto, settings, "auto")  # type: ignore[no-any-return]


def _elsewhere(key: str) -> str:
    """Return what to say after a key that is none of the top level: where it belongs, or the nearest one."""
    if key == "space":
        return ": ranges and values stand under [client] and [server]"
    if key in ("axes", "base", "figures"):
        return ": this file is a suite, which 'fedtuner bench' runs"
    inner = {f"{name}.{setting}" for name in _SETTINGS if name != "tuner" for setting in _SETTINGS[name]}
    for side in ("client", "server"):
        inner |= {f"{side}.{name}" for method in methods.ALL.values() for name in getattr(method, side)}
    places = sorted(place for place in inner if place.partition(".")[2] == key)
    if places:
        return f"; did you mean {' or '.join(map(repr, places))}?"
    said = suggest(key, _KNOWN)
    if said.startswith("; known"):
        for near in difflib.get_close_matches(key.lower(), {place.partition(".")[2] for place in inner}, 1, 0.82):
            return _elsewhere(near)
    return said


def schedule(table: Mapping[str, Any]) -> Schedule:
    """Return the schedule that a ``[schedule]`` table stands for."""
    return tables.read(schedules.KINDS, table, "schedule", "halving")  # type: ignore[no-any-return]


def _table(value: Any) -> dict[str, Any]:
    """Return a table of settings; a name stands for one with that kind."""
    return dict(value) if isinstance(value, Mapping) else {"kind": value}


def sampler(value: Any) -> Sampler:
    """Return the sampler that a name, or a ``[sampler]`` table, stands for."""
    settings = _table(value)
    kind = settings.get("kind")
    if isinstance(kind, str) and ":" in kind:
        ours = {"ball": samplers.Ball, "tpe": samplers.Optuna}
        return tables.read(ours, settings, "sampler", "")  # type: ignore[no-any-return]
    own = ("kind", "eps") if kind == "ball" else ("kind", "startup")
    for key in settings:
        if key not in own:
            raise SpecError(f"no setting sampler.{key}{suggest(key, own)}")
    checks.one_of("sampler", kind, ("uniform", "ball", *samplers.KINDS))
    if kind == "ball":
        return samplers.Ball(*(settings[key] for key in ("eps",) if key in settings))
    return samplers.uniform if kind == "uniform" else samplers.optuna(**settings)


def _tuner(table: Mapping[str, Any] | None, fedex: Any) -> Tuner | None:
    """Return the tuner that ``[tuner]`` and ``[fedex]`` stand for; None if neither is given."""
    if table is None:
        return None if fedex is None else _fedex(fedex)
    found: Tuner = tables.read(tuners.KINDS, table, "tuner", "fedex")
    if fedex not in (None, False) or (fedex is False and isinstance(found, FedEx)):
        raise SpecError("[tuner] and fedex are both given, but an arm has one tuner: leave one out, or fedex = false")
    return found


def _fedex(value: Any) -> Tuner:
    if value is False:
        return tuners.none
    if value is True:
        return FedEx()
    if not isinstance(value, Mapping):
        raise SpecError(f"fedex = {brief(value)}, but must be a table ([fedex]) or false")
    return tables.make(FedEx, value, "fedex")  # type: ignore[no-any-return]


def read(name: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the table of a study.toml, or of a preset."""
    path = Path(name)
    if name.endswith(".toml") or _is_file(path):
        try:
            if path.exists() and not path.is_file() and not path.is_dir():  # a pipe would be waited for
                raise SpecError(f"cannot read {name}: it is no file; 'fedtuner init' writes a study.toml")
            return path.stem, _loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise SpecError(f"cannot read {name}: {error.strerror}; 'fedtuner init' writes a study.toml") from error
        except ValueError as error:
            raise SpecError(f"{name} is not TOML: {error}") from error
    known = presets()
    if name not in known:
        raise SpecError(f"no preset and no file {brief(name)}{suggest(name, list(known))}")
    return name, tomllib.loads(known[name])


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no name that a file can have
        return False


def _loads(text: str) -> dict[str, Any]:
    """Return a TOML text's table; raise a ``ValueError`` where it is none."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def presets() -> dict[str, str]:
    """Return the text of every preset, by name."""
    files = resources.files("fedtuner").joinpath("presets").iterdir()
    return {f.name.removesuffix(".toml"): f.read_text() for f in sorted(files, key=lambda f: f.name)}


def override(table: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return the table with ``--set`` settings such as ``schedule.budget=200`` in place."""
    table = dict(table)
    for setting in settings:
        key, equals, text = setting.partition("=")
        *path, last = (part.strip() for part in key.split("."))
        if not equals or not all((*path, last)):
            raise SpecError(f"--set {brief(setting)}, but must be KEY=VALUE, such as schedule.budget=200")
        if len(setting.splitlines()) > 1:
            raise SpecError(f"--set {brief(setting)}, but must be KEY=VALUE in one line: repeat --set for each setting")
        inner = table
        for part in path:
            below = inner.get(part)
            inner[part] = dict(below) if isinstance(below, Mapping) else {}
            inner = inner[part]
        inner[last] = _value(text.strip())
    return table


def _value(text: str) -> Any:
    try:
        return _loads(f"value = {text}")["value"]
    except ValueError:
        return text  # a bare word is a string


def load_problem(name: str) -> Simulation:
    """Return a built-in problem, or what the function ``package.module:function`` returns."""
    place = PROBLEMS.get(name, name)
    if ":" not in place or place.startswith((".", ":")) or place.endswith(":"):
        hint = suggest(name, list(PROBLEMS))
        raise SpecError(f"no problem {brief(name)}{hint} (your own is named 'package.module:function')")
    if name not in PROBLEMS and "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the study.toml, as python -m would find it
    made = _found(name, place)
    try:
        made = made() if callable(made) else made
    except FedtunerError:
        raise
    except FAILURES as error:
        raise SpecError(f"problem = {brief(name)} failed: {tables.where(error)}") from error
    if not isinstance(made, Simulation):
        raise SpecError(
            f"problem = {brief(name)} gave {type(made).__name__}, but must give a Simulation(task, clients)"
        )
    if made.name == "simulation":
        made.name = name
    return made


def _found(name: str, place: str) -> Any:
    try:
        return tables.find(place, "problem")
    except SpecError as error:
        raise SpecError(str(error).replace(repr(place), repr(name), 1)) from error.__cause__


def template() -> str:
    """Return a commented study.toml with every setting at its default."""
    return resources.files("fedtuner.run").joinpath("template.toml").read_text()
