"""``tune`` and ``prepare``: the settings that a user gives become a study. ``untuned`` is what it is compared with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedtuner import checks, methods, samplers, tables
from fedtuner.core.executor import OpenExecutor
from fedtuner.core.federation import Federation
from fedtuner.core.method import Method, check, defaults
from fedtuner.core.place import Place
from fedtuner.core.robust import COMBINES
from fedtuner.core.sampler import Sampler
from fedtuner.core.schedule import Schedule
from fedtuner.core.setup import Setup, check_given, resolve, searched, with_named_optimiser
from fedtuner.core.store import Store
from fedtuner.core.tuner import Tuner
from fedtuner.errors import FedtunerWarning, SpecError, brief, suggest
from fedtuner.federations import Outside
from fedtuner.run.auto import Auto, auto
from fedtuner.run.outside import warn_of_outside
from fedtuner.run.study import Study, Today
from fedtuner.run.warm import found_by, with_prior
from fedtuner.run.watch import Show
from fedtuner.run.watchers import Watch, watching
from fedtuner.run.where import Where
from fedtuner.schedules import Alone, Halving, Patient
from fedtuner.space import Domain, Space, fixed
from fedtuner.tables import Table
from fedtuner.tuners import FedEx, inside, none

MOST_WORKERS = 1024
Recipe = Callable[[Federation, Mapping[str, Any]], dict[str, Any]]  # fills in settings that are not given
_PAPERS = FedEx()  # the tuner of ``tune``, unless another is given


def prepare(
    problem: Federation,
    space: Space | None = None,
    *,
    method: Method | str = methods.fedavg,
    fedex: FedEx | None = None,
    tuner: Tuner | None = None,
    schedule: Schedule | None = None,
    budget: int | None = None,
    recipe: Recipe | None = None,
    store: str | Place | Store | None = None,
    workers: int | None = None,
    executor: OpenExecutor | None = None,
    watch: Watch | Sequence[Watch] | None = None,
    **settings: Any,
) -> Study:
    """Check all settings and return the study, not yet run: ``run()`` it, or use ``ask()`` and ``tell()``.

    The arguments are those of ``tune``, but without ``fedex`` (or ``tuner``) there is no FedEx: an arm has one client
    configuration, or the tuner that its schedule was published with (``fedpop``).
    """
    if fedex is not None and tuner is not None:
        raise SpecError("fedex and tuner are both given, but an arm has one tuner: give one of them")
    known = {*Setup.__dataclass_fields__, "include", "start_from", "patience"}
    for name in settings:
        if name not in known:
            raise SpecError(
                f"no setting {brief(name)}{suggest(name, {*known, 'budget', 'recipe', 'store', 'workers'})}"
            )
    if fedex is not None and not isinstance(fedex, FedEx):
        raise SpecError(f"fedex = {brief(fedex)}, but must be a fedtuner.FedEx, or None")
    if workers is not None:
        workers = checks.whole("workers", workers, 1, MOST_WORKERS)
    device = str(problem.model.device) if isinstance(problem, Federation) else "cpu"
    if device != "cpu" and executor is None:
        if workers not in (None, 1):
            rule = f"but work on {device} is done by one process: leave workers out"
            raise SpecError(f"workers = {brief(workers)}, {rule}")
        workers = 1
    if fedex is not None or tuner is not None:
        settings["tuner"] = fedex or tuner
    if schedule is not None:
        settings["schedule"] = schedule
    method = methods.named(method) if isinstance(method, str) else method
    given = {"method": method, "space": space, **settings}
    if isinstance(given.get("combine"), str):
        given["combine"] = tables.read(COMBINES, {"kind": given["combine"]}, "combine", "mean")
    check_given(problem, given)
    usual = given.get("cohort") is None
    if usual:
        given["cohort"] = _usual_cohort(problem)
    patience = given.pop("patience", None)
    source, warm, priors = given.pop("start_from", None), list[Table](), list[Table]()
    if source is not None:
        warm, priors = found_by(source, method, problem.model)
        own = given.get("include", () if budget is None and recipe is None else ({},))
        if budget is not None or isinstance(recipe, Auto):  # as many as it has arms for; of one arm the best
            of_budget = recipe if isinstance(recipe, Auto) else auto(budget)  # type: ignore[arg-type]
            most = of_budget.schedule.arms or 1
            own = own if most > 1 or "include" in given else ()
            room = max(1, most - len(own))
            warm, priors = warm[:room], priors[:room]
        given["include"] = [*warm[:1], *own, *warm[1:]]  # few arms should have one of each
    if "include" in given:
        given["include"] = _included(problem, method, given["include"])
    filled = _filled(problem, given, budget, recipe)
    if patience is not None:
        filled["schedule"] = Patient(filled["schedule"], patience)
    if priors:
        filled["tuner"] = with_prior(filled["tuner"], priors)
    setup = resolve(problem, **filled)
    named, asked = with_named_optimiser(method, space)
    if asked is not None:
        _warn_of_unread(setup, asked)
        warn_of_outside(setup, asked, problem.model.hyperparameters, len(warm))
    default = Today(named, given.get("cooling", 0.0), _today(setup, asked or Space(), len(warm)), usual)
    return Study(setup, problem, Where.at(store, workers=workers, executor=executor, watch=watching(watch)), default)


def _usual_cohort(problem: Federation) -> float:
    """Return the cohort where none is given: all clients where they are fewer than 10; of devices more may come."""
    return Setup.cohort if problem.executor else min(Setup.cohort, problem.population())


def _warn_of_unread(setup: Setup, space: Space) -> None:
    """Say which ranges of the server's no optimiser reads that an arm can have: searching them would change nothing."""
    method, named = setup.method, setup.space.server.get("optimiser")
    steps = [str(name) for name in (named.ends() if named else (method.server["optimiser"].default,))]
    read = {name for step in steps for name in method.optimisers[step].hypers}
    for name, domain in space.server.items():
        readers = [step for step, optimiser in method.optimisers.items() if name in optimiser.hypers]
        if readers and name not in read and not fixed(domain):
            warnings.warn(
                f"server.{name} is searched, but server.optimiser = {' or '.join(steps)} does not read it: name one "
                f"that does ({', '.join(readers)}), or leave {name} out",
                FedtunerWarning,
                stacklevel=3,
            )


def _filled(problem: Federation, given: dict[str, Any], budget: int | None, recipe: Recipe | None) -> dict[str, Any]:
    """Return the settings with those that a budget or a recipe fills in."""
    if budget is not None or recipe is not None:
        if budget is not None and recipe is not None:
            raise SpecError("budget and recipe are both given, but budget=500 is recipe=auto(500): give one of them")
        if "schedule" in given:
            word = "budget" if recipe is None else "recipe"
            raise SpecError(f"{word} and schedule are both given, but a schedule has a budget of its own: give one")
        if recipe is None:
            recipe = auto(budget)  # type: ignore[arg-type]  # budget is no None, and what it is auto checks
        if isinstance(recipe, type) or not callable(recipe):
            rule = "but must be ft.auto(500), which is budget=500, or ft.paper(2000), or a function of your own"
            raise SpecError(f"recipe = {brief(recipe)}, {rule}")
        made = recipe(problem, given)
        if not isinstance(made, Mapping) or not made.keys() >= {"method", "space"}:
            raise SpecError(f"recipe gave {brief(made)}, but must give the settings that it is given, and its own")
    else:
        made = given
    if made.get("space") is given["space"]:  # as the user gave it
        made = {**made, "space": searched(made["method"], problem.model, made["space"])}
    own = inside(made.get("schedule"), made.get("cohort", 10))
    settings = {"sampler": samplers.uniform, "tuner": own or none, "schedule": Halving(), **made}
    if "include" in settings:
        settings["sampler"] = samplers.Include(settings.pop("include"), settings["sampler"])
    return settings


def _today(setup: Setup, asked: Space, warm: int) -> Space:
    """Return the configuration that the user has now: the first one of ``include``, and what the space fixes.

    It is what a recipe's default arm has. ``warm`` is how many of the included ones another study has found.
    """
    configs = setup.sampler.configs if isinstance(setup.sampler, samplers.Include) else ()
    first = configs[min(warm, 1)] if len(configs) > warm else {"client": {}, "server": {}}
    client, server = samplers.Include((first,), samplers.uniform).propose(asked, setup.seed, 0, 0, ())
    if first["server"].get("optimiser", usual := setup.method.server["optimiser"].default) != usual:
        server = {**defaults(setup.method.server), **server}  # the arm has these, not that optimiser's own defaults
    return Space(client, server)


def _included(problem: Federation, method: Method, given: Any) -> tuple[Table, ...]:
    """Return the configurations that are arms from the start; refuse those that no client or server can have."""
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise SpecError(f"include = {brief(given)}, but must be a list of tables such as {{'client': {{'lr': 0.1}}}}")
    configs = samplers.both_sides(given)
    for config in configs:
        for side, values in config.items():
            for name, value in values.items():
                if isinstance(value, (list, Mapping, Domain)):
                    raise SpecError(f"include.{side}.{name} = {brief(value)}, but must be one value")
        own = problem.model.own_training
        check(method, Space({} if own else config["client"], config["server"]), problem.model.hyperparameters)
    return configs


def tune(
    problem: Federation,
    space: Space | None = None,
    *,
    method: Method | str = methods.fedavg,
    fedex: FedEx | None = _PAPERS,
    schedule: Schedule | None = None,
    budget: int | None = None,
    recipe: Recipe | None = None,
    cohort: float | None = None,
    target: str = "personalized",
    seed: int = 0,
    store: str | Place | Store | None = None,
    workers: int | None = None,
    cohorts: str | None = None,
    progress: bool | Show | None = None,
    engine: str = "auto",
    sampler: Sampler | None = None,
    proxy: Federation | None = None,
    timeout: float | None = None,
    **settings: Any,
) -> Study:
    """Tune a method's hyperparameters on a problem and return the finished study.

    budget      communication rounds in all; what is not given is chosen for them: ``tune(problem, budget=500)``
    recipe      in place of budget, who chooses: ``ft.auto(500, arms=, vary=, max_work=, decades=)``, which is what
                budget=500 means, or ``ft.paper(2000)``, the paper's tuning
    space       only ranges that it names are searched; if it names none, the method's own ranges are, except of what it
                sets to one value. None: all of the method's and the model's ranges; ``Space()``: nothing
    include     configurations that are arms from the start, ``[{"client": {"lr": 0.01}}]``: with budget the first is
                the default that the others are drawn around. One that is best wins, also outside of the space
    method      one of ``fedtuner.methods``, or its name: "fedprox"
    fedex       None: every arm has one client configuration, which only the schedule tunes; ``tuner=`` replaces FedEx,
                and so does the tuner that a schedule was published with (``fedpop``), unless another is given. With
                budget there is none unless it is given
    schedule    in place of budget: by default the paper's successive halving, with 2000 rounds
    cohort      clients per round, or (0.1) a part of those who are present. None: 10, or all of fewer
    cohorts     "shared" gives all arms the same clients in the same round, "independent" others; "auto": shared of few
    weights     "shared": all arms begin from the same initial weights; "independent": each from its own
    target      arms are compared by the clients' models ("personalized") or the server's ("global"); those of a budget
                by both, and the target is what is shown
    across      whose errors arms are compared by: "clients" (all), "worst tenth", "worst group"
    cooling     the last part of an arm's rounds, from 0 to 1, in which the server's step falls
    combine     how the server combines updates: "mean", "median", or e.g. ``fedtuner.core.robust.Trimmed(0.1)``
    privacy     noise that hides single clients: ``fedtuner.core.privacy.Gaussian(epsilon=8)``
    screens     functions that bound or drop single reports, in place of the problem's own
    failing     "stop": an error in clients' code stops the study; "end": it ends its arm alone
    store       a folder, or a URL such as s3://bucket/name; the same call continues the study in it. None: nothing
                is kept
    workers     processes, by default one per core; the result does not depend on their number
    progress    True prints lines where there is no terminal for a progress bar; a fleet always does
    engine      "auto" is "batched" for small networks that it covers, else "sequential"
    sampler     proposes the arms: uniform draws, or e.g. ``samplers.optuna("tpe")``, which learns from finished arms
    start_from  another study, its store or an exported folder: its best configurations are the first arms, and its
                thetas are what FedEx begins with in them
    proxy       another problem, such as public data: it is tuned there, and the configuration that is found is trained
                here, with all the rounds of the budget
    timeout     seconds after which the study (with a proxy: the search) ends; the best arm so far wins
    patience    rounds, over all arms, after which the study ends if no score has improved; its best arm wins
    executor    where rounds are computed, such as ``ft.ray()``: docs/cluster.md
    watch       called with the journal's events: a function, a ``watchers.Watcher``, or several

    All but store, workers, progress, executor and watch is part of the study: the store remembers it.
    """
    if proxy is not None and not isinstance(proxy, Federation):
        raise SpecError(f"proxy is {type(proxy).__name__}, but must be a Simulation(task, clients)")
    own = inside(schedule) is not None
    unasked = "tuner" in settings or (fedex is _PAPERS and (budget is not None or recipe is not None or own))
    if own and fedex is None:
        settings.setdefault("tuner", none)
    settings |= {k: v for k, v in (("cohorts", cohorts), ("sampler", sampler)) if v is not None}
    where = Where.at(store)
    if proxy is not None:
        store = None if where.path is None else where.path / "proxy"
    study = prepare(
        problem if proxy is None else proxy, space, method=method, fedex=None if unasked else fedex, schedule=schedule,
        budget=budget,
        recipe=recipe, cohort=cohort, target=target, seed=seed, store=store, workers=workers, engine=engine, **settings,
    )  # fmt: skip
    if proxy is not None:
        check_for_real(study, problem)  # not after the search
    study.run(progress, timeout=timeout)
    return study if proxy is None else for_real(study, problem, where.store).run(progress, "training")


def for_real(study: Study, problem: Federation, store: str | Place | Store | None) -> Study:
    """Return the study, not yet run, that trains on a problem what was found on a proxy: for as many rounds."""
    setup = _for_real(study, problem, study.found(study.schedule.budget))
    return Study(setup, problem, replace(study.where, store=Where.at(store).store), study.default)


def check_for_real(study: Study, problem: Federation) -> Study:
    """Refuse a problem that cannot be trained with a search's settings; return that training, of the default."""
    alone = {"schedule": Alone(study.schedule.budget), "space": Space(), "tuner": none, "sampler": samplers.uniform}
    setup = _for_real(study, problem, alone)
    return Study(setup, problem, replace(study.where, store=Where.at(None).store), study.default)


def _for_real(study: Study, problem: Federation, settings: Mapping[str, Any]) -> Setup:
    """Return settings, with those that the search has beside them."""
    names = (
        "method", "cohorts", "target", "weights", "across", "combine", "privacy", "cooling", "seed", "engine",
        "failing",
    )  # fmt: skip
    same = {name: getattr(study.setup, name) for name in names}
    same["cohort"] = _usual_cohort(problem) if study.default.usual_cohort else study.setup.cohort
    if study.setup.screens != study.problem.screens:  # the user's own, not those of the proxy's clients
        same["screens"] = study.setup.screens
    return resolve(problem, **same, **settings)


def untuned(study: Study, progress: bool | Show | None = None, rounds: int | None = None) -> Study:
    """Train your own settings, as they were before any tuning: what there is to beat.

    They are the method's defaults, but for the values that the space gives in place of ranges, and those of the first
    configuration of ``include``: what the default arm has, with the server's own step where ``budget`` chose FedExP.

    It gets all the study's rounds, or ``rounds`` of them. Its model after as many rounds as the study's longest arm is
    kept, too: ``untuned(study).evaluate(rounds=study.schedule.longest)``. Its store is the folder ``untuned`` inside
    the study's. Of clients outside of fedtuner it is not run yet: ``ask`` for its rounds and ``tell`` their reports.
    """
    if not isinstance(study, Study):
        raise SpecError(f"study = {brief(study)}, but must be a Study, such as tune(...) returns")
    budget, setup, today = study.schedule.budget, study.setup, study.default
    rounds = budget if rounds is None else checks.whole("rounds", rounds)
    same = {f: getattr(setup, f) for f in ("cohort", "cohorts", "target", "across", "weights", "seed", "engine")}
    plain = resolve(
        study.problem, method=today.method, cooling=today.cooling, space=today.space, tuner=none,
        sampler=samplers.uniform, schedule=Alone(rounds, min(rounds, study.schedule.longest)), screens=setup.screens,
        combine=setup.combine, privacy=setup.privacy, **same,
    )  # fmt: skip
    made = study.beside(study.journal.untuned, plain)
    return made if isinstance(study.problem, Outside) else made.run(progress, "untuned")
