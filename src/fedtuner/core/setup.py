"""The settings of a study. Its results depend on a ``Setup`` and the federation, and on nothing else.

``resolve`` is the one place where settings are checked against each other and defaults come from the method, the model
and the federation; ``tune``, study.toml, suites and ``untuned`` all call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fedtuner import checks, constraints, tables
from fedtuner.core.across import ACROSS, ALL, GROUP
from fedtuner.core.engine import ENGINES
from fedtuner.core.federation import Federation
from fedtuner.core.method import Method, Optimiser, check, default_space, defaults
from fedtuner.core.metric import Metric
from fedtuner.core.model import Hyper, Model
from fedtuner.core.sampler import Sampler
from fedtuner.core.schedule import TARGETS, Schedule
from fedtuner.core.stages import Combine, Privacy, Screen
from fedtuner.core.tally import mean
from fedtuner.core.tuner import Tuner
from fedtuner.errors import SpecError, brief, suggest
from fedtuner.rng import stream
from fedtuner.space import Choice, Domain, Space, When
from fedtuner.tables import Table

CODE_OF_THEIR_OWN = "these clients train by code of their own: give space= with the hyperparameters that it reads"
WEIGHTS = ("independent", "shared")
COHORTS = (*WEIGHTS, "auto")
SMALL = 20  # cohorts: fewer clients than this many times the cohort are a small population
FAILING = ("stop", "end")
_ALWAYS = ("cohort", "cohorts", "target", "weights", "cooling", "engine", "seed")  # in the journal of every study
_SENT = {"server-round", "split"}  # what clients that train by code of their own get beside hyperparameters


@dataclass(frozen=True, kw_only=True)
class Setup:
    """All settings that a study's results depend on."""

    method: Method
    space: Space
    schedule: Schedule
    tuner: Tuner
    sampler: Sampler
    cohort: float = 10  # clients per round; a real number up to 1.0 is a part of those who are present
    cohorts: str = "independent"  # shared: all arms have the same clients in the same round; auto: if there are few
    target: str = "personalized"  # what arms are compared by: the clients' models or the server's (global)
    weights: str = "independent"  # shared: all arms begin from the same initial weights
    across: str = ALL  # whose metrics compare arms: all clients', the worst tenth's, the worst group's
    screens: tuple[Screen, ...] = ()
    combine: Combine = mean
    privacy: Privacy | None = None
    cooling: float = 0.0  # the last part of an arm's rounds, from 0 to 1, in which the server's step falls to 2 %
    engine: str = "sequential"  # how a round's jobs are done; engines agree up to rounding
    seed: int = 0
    failing: str = "stop"  # what an error in clients' code does: it stops the study, or ("end") ends its arm alone

    def __post_init__(self) -> None:
        cohort, seed = checks.python(self.cohort), checks.seed(self.seed)
        if not isinstance(cohort, float) or not 0 < cohort <= 1:
            cohort = checks.whole("cohort", cohort, remedy=", or a part of the clients such as 0.1")
        checks.one_of("target", self.target, TARGETS)
        checks.one_of("cohorts", self.cohorts, COHORTS)
        checks.one_of("weights", self.weights, WEIGHTS)
        checks.one_of("across", self.across, ACROSS)
        checks.one_of("failing", self.failing, FAILING)
        if self.privacy is not None:  # also where a schedule is extended
            checks.settle(self, privacy=self.privacy.over(self.schedule.budget))
        checks.settle(self, cohort=cohort, seed=seed, cooling=checks.number("cooling", self.cooling, 0, 1))

    def shares_cohorts(self, present: int) -> bool:
        """Return whether all arms have the same clients in a round, of so many who are present."""
        return self.cohorts == "shared" or (self.cohorts == "auto" and present < SMALL * size_of(self.cohort, present))

    def describe(self) -> Table:
        """Return the setup by the names of a study.toml."""
        plain = {name: getattr(self, name) for name in PLAIN}
        return {
            "method": self.method.name,
            "defaults": {"client": defaults(self.method.client), "server": defaults(self.method.server)},
            "work": [name for name, hyper in self.method.client.items() if hyper.role == "work"],
            **{name: value for name, value in plain.items() if name in _ALWAYS or value != PLAIN[name]},
            "screens": self.screens,
            "combine": self.combine,
            **({} if self.privacy is None else {"privacy": self.privacy}),
            "schedule": _described(self.schedule),
            "sampler": self.sampler,
            "tuner": self.tuner,
            **self.space.describe(),
        }


# The settings that are single values, with their defaults.
PLAIN: dict[str, Any] = {f.name: f.default for f in fields(Setup) if isinstance(f.default, (int, float, str))}


def size_of(cohort: float, present: int) -> int:
    """Return how many clients a cohort has, of so many who are present.

    >>> [size_of(cohort, 40) for cohort in (10, 100, 0.1, 1.0)]
    [10, 40, 4, 40]
    """
    return max(1, round(cohort * present)) if isinstance(cohort, float) else min(int(cohort), present)


def _described(schedule: Schedule) -> Table:
    """Return a schedule's table, with the fields that every schedule has under the same names."""
    made, scoring = tables.table(schedule), schedule.scoring
    return {
        **(made if isinstance(made, Mapping) else {"kind": made}),
        "budget": schedule.budget,
        "longest": schedule.longest,
        "discount": scoring.discount,
        "score": scoring.metric,
    }


def resolve(federation: Federation, **given: Any) -> Setup:
    """Return a study's setup: what is given, checked, and defaults for the rest."""
    check_given(federation, given)
    model: Model = federation.model
    method, space = given.pop("method"), given.pop("space", None)
    method, space = with_named_optimiser(method, space)
    named = given.pop("engine", "auto")
    checks.one_of("engine", named, ENGINES)
    # Clients that are elsewhere work one by one.
    engine = model.engine(named if federation.executor is None else "sequential")
    if model.own_training:
        method = _on_the_server(method, model, space)
    else:
        for name in model.hyperparameters.keys() & method.client.keys():
            raise SpecError(f"the model and {method.name} both have a client hyperparameter {name!r}: rename one")
    space = default_space(method, model.hyperparameters) if space is None else space
    unknown = model.own_training and not model.hyperparameters  # what the clients' code reads is for them to say
    check(method, Space(server=space.server) if unknown else space, model.hyperparameters)
    _check_batch(space, model.smallest_batch)
    space = bound(space, {**method.client, **model.hyperparameters}, method.server)
    given.setdefault("screens", federation.screens if given.get("privacy") is None else ())
    if "shared" in given["schedule"].needs:
        _share(given)
    setup = Setup(method=method, space=space, engine=engine.name, **given)
    if method.sums and setup.combine.each:
        raise SpecError(
            f"method = {method.name} adds up what its clients keep, and combine = {tables.plain(setup.combine)!r} does "
            "not: use the mean, or a method that keeps nothing, such as fedavg"
        )
    if setup.across == GROUP and not federation.groups:
        raise SpecError(f"across = {GROUP!r}, but clients have no groups: give Simulation(..., groups={{id: group}})")
    _check_metric(model.metric, setup, federation)
    if federation.shows == "sums":
        if setup.privacy is not None:
            raise SpecError("privacy bounds single reports, but with secure aggregation there are none: leave it out")
        _check_sums(setup, "with secure aggregation")
    if setup.privacy is not None:
        _check_sums(setup, "with privacy")
        _check_optimisers(setup)
    federation.check(setup)
    setup.sampler.check(space, setup.schedule)
    tables.plain(setup.describe())  # raises an error for settings that a study.toml cannot express
    return setup


def check_given(federation: Federation, given: Mapping[str, Any]) -> None:
    """Refuse a federation and settings that are not of the kind that they must be."""
    if not isinstance(federation, Federation):
        raise SpecError(f"problem is {type(federation).__name__}, but must be a Simulation(task, clients)")
    if not isinstance(given["method"], Method):
        raise SpecError(f"method = {brief(given['method'])}, but must be a Method such as fedtuner.methods.fedavg")
    kinds: dict[str, tuple[Any, str]] = {
        "space": (Space, "a fedtuner.Space"),
        "tuner": (Tuner, "a tuner such as fedtuner.FedEx(k=27)"),
        "schedule": (Schedule, "a schedule such as fedtuner.halving(budget=2000)"),
        "sampler": (Sampler, "a sampler such as fedtuner.samplers.optuna('tpe')"),
        "combine": (Combine, "such as fedtuner.core.robust.Median()"),
        "privacy": (Privacy, "such as fedtuner.core.privacy.Gaussian(epsilon=8), or None"),
    }
    for name, (kind, words) in kinds.items():
        value = given.get(name)
        if name not in given or (value is None and name in ("space", "privacy")):
            continue
        if isinstance(value, type) or not isinstance(value, kind):
            raise SpecError(f"{name} = {brief(value)}, but must be {words}{_lacking(value, kind)}")
    screens = given.get("screens", ())
    if not isinstance(screens, tuple) or not all(callable(screen) for screen in screens):
        raise SpecError(f"screens = {brief(screens)}, but must be a tuple of functions that screen a round's reports")


def _lacking(value: Any, kind: type) -> str:
    """Return the end of a message: the names that an object lacks of a protocol."""
    if isinstance(value, type):
        return f": call it, {value.__name__}(...)"
    if type(value).__module__ == "builtins" or kind is Space:
        return ""
    lacks = [name for name in vars(kind) if not name.startswith("_") and not hasattr(value, name)]
    return f": {type(value).__name__} has no {', '.join(lacks)}" if lacks else ""


def with_named_optimiser(method: Method, space: Space | None) -> tuple[Method, Space | None]:
    """Return a method with the server optimiser that a space names, its defaults and ranges.

    ``server.optimiser = "package.module:name"`` is one's own. With several to choose from, those that the method has
    are common to all of them.
    """
    named = space.server.get("optimiser") if space else None
    if not isinstance(named, Choice) or space is None:
        return method, space
    values = []
    for value in named.values:
        if ":" in str(value):
            found = tables.find(str(value), "server.optimiser")
            if not isinstance(found, Optimiser):
                raise SpecError(
                    f"server.optimiser = {brief(value)} is {type(found).__name__}, but must be an Optimiser"
                )
            method, value = method.with_optimiser(found), found.name
        values.append(value)
    if len(values) == 1 and values[0] in method.optimisers:
        method = method.stepping_by(str(values[0]))
    return method, replace(space, server={**space.server, "optimiser": Choice(values)})


def searched(method: Method, model: Model, space: Space | None) -> Space | None:
    """Return what is searched: the ranges that a space names; if it names values only, the method's other ranges."""
    if space is None or space.searches or space == Space():
        return space
    method, _ = with_named_optimiser(method, space)
    usual = default_space(replace(method, client={}) if model.own_training else method, model.hyperparameters)
    return Space({**usual.client, **space.client}, {**usual.server, **space.server}, space.constraints)


def bound(space: Space, client: Mapping[str, Hyper], server: Mapping[str, Hyper]) -> Space:
    """Return a space that has every hyperparameter that its conditions and constraints name.

    Those that are not tuned have their defaults, and so have those that do not apply. Refuse conditions and
    constraints that nothing meets.
    """
    sides = {"client": (dict(space.client), client), "server": (dict(space.server), server)}
    conditional = False
    for side, (domains, hypers) in sides.items():
        for name, domain in list(domains.items()):
            if not isinstance(domain, When):
                continue
            conditional = True
            for other, values in domain.on:
                _present(other, domains, hypers, f"{side}.{name} depends on")
                if not any(value in domains[other] for value in values):
                    raise SpecError(f"{side}.{name} depends on {other} = {brief(list(values))}, which it never is")
            if name in hypers and domain.otherwise is None:
                domains[name] = replace(domain, otherwise=hypers[name].default)
        for name in domains:
            if name in _depends(name, domains):
                raise SpecError(f"{side}.{name} depends on itself: leave out a condition")
    for text in space.constraints:
        for side, name in constraints.names(text):
            side = side or ("client" if name in sides["client"][0] or name in client else "server")
            _present(name, *sides[side], f"constraint {text!r} has {side}")
    if not conditional and not space.constraints:
        return space
    made = Space(sides["client"][0], sides["server"][0], space.constraints)
    made.draw(stream(0, "bound"))  # raises an error where nothing is allowed
    return made


def _present(name: str, domains: dict[str, Domain], hypers: Mapping[str, Hyper], what: str) -> None:
    if name not in domains:
        if name not in hypers:
            raise SpecError(f"{what} {brief(name)}, which is no hyperparameter{suggest(name, [*domains, *hypers])}")
        domains[name] = Choice([hypers[name].default])


def _depends(name: str, domains: Mapping[str, Domain]) -> set[str]:
    """Return all that a hyperparameter depends on."""
    found: set[str] = set()
    todo = [name]
    while todo:
        domain = domains[todo.pop()]
        new = {other for other, _ in domain.on} - found if isinstance(domain, When) else set()
        found |= new
        todo += new
    return found


def _on_the_server(method: Method, model: Model, space: Space | None) -> Method:
    """Return a method without its local training, for clients that train by code of their own.

    The client's hyperparameters are those that the model declares; without any, whatever the space names.
    """
    if not method.plain:
        raise SpecError(
            f"method = {method.name}, but these clients train by code of their own: use fedavg or reptile, whose part "
            "is on the server"
        )
    if space is None and not model.hyperparameters:
        raise SpecError(CODE_OF_THEIR_OWN)
    for name in _SENT & {*model.hyperparameters, *(space.client if space else ())}:
        raise SpecError(f"client.{name}: clients that train by code of their own are sent {name!r} besides: rename it")
    return replace(method, client=model.hyperparameters)


def _share(given: dict[str, Any]) -> None:
    """Give all arms the same clients and initial weights; refuse settings that do not."""
    for name in ("cohorts", "weights"):
        if given.setdefault(name, "shared") != "shared":
            kind = tables.kind_of(type(given["schedule"]))
            raise SpecError(
                f"{name} = {brief(given[name])}, but {kind} compares arms on the same clients, from the same weights: "
                f"leave {name} out, or schedule.paired"
            )


def _check_batch(space: Space, smallest: int) -> None:
    least = min(space.client["batch"].ends()) if "batch" in space.client else smallest
    if not isinstance(least, str) and least < smallest:
        raise SpecError(f"client.batch = {least}, but a model with batch-norm cannot train on fewer than 2 examples")


def _check_optimisers(setup: Setup) -> None:
    """Refuse server optimisers for which clients send more than their change: privacy does not bound it."""
    named, default = setup.space.server.get("optimiser"), setup.method.server["optimiser"].default
    for name in named.ends() if named else (default,):
        if setup.method.optimisers[str(name)].extra(np.zeros(1, np.float32)):
            raise SpecError(f"server.optimiser = {name!r} reads more than changes, which are private: use sgd")


def _check_metric(metric: Metric, setup: Setup, federation: Federation) -> None:
    """Refuse metrics that devices, secure sums or noise cannot carry."""
    if metric.pooled and setup.privacy is not None:
        raise SpecError(f"{metric.name} is pooled, but privacy adds noise to clients' values alone: give pooled=False")
    if metric.pooled and metric.size is None and federation.executor is not None:
        raise SpecError(
            f"{metric.name} is pooled over devices, but how many sums they send is not known: give Metric(size=)"
        )
    if metric.value is not None and not metric.pooled and federation.shows == "sums":
        raise SpecError(f"{metric.name} may be undefined for a client, which secure sums cannot tell: give sums=")


def _check_sums(setup: Setup, how: str) -> None:
    """Refuse what needs single clients' reports."""
    method, tuner = setup.method, setup.tuner
    sums = f"{how} the server sees only sums"
    if method.memory or method.extra or method.sends:
        raise SpecError(f"method = {method.name}, but {sums} of updates: use one of fedavg, fedprox, reptile, fedpa")
    if setup.screens:
        raise SpecError(f"screens compare single reports, but {sums}: leave them out")
    if setup.across != ALL:
        raise SpecError(f"across = {setup.across!r} compares single clients, but {sums}: use {ALL!r}")
    if setup.combine.each:
        raise SpecError(f"combine = {tables.plain(setup.combine)!r} looks at single updates, but {sums}: use the mean")
    if tuner.labels is None:
        raise SpecError(f"{type(tuner).__name__} cannot be summed by label, but {sums}: use FedEx")
    if tuner.tried > 1:
        raise SpecError(f"fedex.tries = {tuner.tried}, but {how} a client tries one candidate")
    if "rows" in setup.schedule.needs:
        raise SpecError(f"{type(setup.schedule).__name__} reads single clients' values, but {sums}")
