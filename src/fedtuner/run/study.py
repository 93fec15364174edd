"""A study: setup, federation, journal and winner. ``tune`` makes one and runs it."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

from fedtuner import checks, methods, samplers, tables
from fedtuner.core.across import ALL
from fedtuner.core.executor import OpenExecutor, Stop
from fedtuner.core.federation import SPLITS, Federation, described
from fedtuner.core.method import Method, check
from fedtuner.core.metric import Metric
from fedtuner.core.place import Place
from fedtuner.core.records import Key, Plan, Report, State, Tally
from fedtuner.core.round import Round
from fedtuner.core.sampler import Sampler
from fedtuner.core.schedule import METRICS, Schedule
from fedtuner.core.setup import Setup, check_given, resolve, searched, with_named_optimiser
from fedtuner.core.store import Store
from fedtuner.core.tuner import Tuner
from fedtuner.errors import FedtunerWarning, Interrupted, SpecError, brief, suggest
from fedtuner.run import sampling
from fedtuner.run.asktell import AskTell
from fedtuner.run.auto import auto, differing
from fedtuner.run.forecast import Forecast, forecast
from fedtuner.run.journal import Journal
from fedtuner.run.result import Results
from fedtuner.run.session import Session, Watch, Where, load_state, play
from fedtuner.run.warm import found_by, with_prior
from fedtuner.run.watch import Counter, Meter, Show, showing, stoppable
from fedtuner.run.watchers import watching
from fedtuner.run.words import without_examples
from fedtuner.schedules import Alone, Duel, Halving, Patient
from fedtuner.schedules.longer import Longer, links, original
from fedtuner.space import Domain, Space
from fedtuner.tables import Table
from fedtuner.tuners import FedEx, inside, none

MOST_WORKERS = 1024
Recipe = Callable[[Federation, Mapping[str, Any]], dict[str, Any]]  # fills in settings that are not given
_PAPERS = FedEx()  # what ``tune`` takes unless it is told otherwise


class Study(Results):
    """A tuning run, finished or not. ``tune`` and ``prepare`` make it."""

    def __init__(
        self, setup: Setup, federation: Federation, where: Where, default: tuple[Method, float, Space] | None = None
    ) -> None:
        super().__init__(where.store, Journal())
        self.setup, self.problem, self.where = setup, federation, where
        # What there was before any tuning: the method and cooling that were asked for, and values of the user's own.
        self.default = default or (setup.method, setup.cooling, Space())
        self._asking: AskTell | None = None

    @property
    def schedule(self) -> Schedule:
        return self.setup.schedule

    def run(self, progress: bool | Show | None = None, label: str = "tuning", timeout: float | None = None) -> Study:
        """Run it to its end, continuing from its store, and return it.

        After ``timeout`` seconds it ends with the rounds that are under way; the best arm so far wins.
        """
        # With real devices, the program around this one (Flower) prints our lines and handles signals.
        devices = self.problem.save_every_round
        shown = True if progress is None and devices else progress
        if devices and shown is True and isinstance(self.schedule, Duel):
            print(f"{label}: arms differ in {differing(self.describe())}", file=sys.stderr, flush=True)
        end = math.inf if timeout is None else time.monotonic() + checks.number("timeout", timeout)
        with showing(shown, label) as show, stoppable(not devices) as asked:

            def stop() -> bool:
                return asked() or time.monotonic() > end

            with self._session(stop) as session:
                session.on_progress = Meter(session, show).tell
                try:
                    play(session.setup.schedule, session)
                except Interrupted:
                    if asked() or not session.conclude():
                        raise
        return self

    @contextmanager
    def _session(self, stop: Stop = lambda: False) -> Iterator[Session]:
        """Yield an open session, whose journal becomes the study's."""
        self.close()
        with Session(self.setup, self.problem, self.where, stop) as session:
            self.journal, self.setup = session.journal, session.setup  # the store may have extended the schedule
            yield session

    # Ask and tell

    def ask(self) -> Plan | None:
        """Return the plan of the next round: a model, a configuration for each client, the server's hyperparameters.

        None means that there is nothing to do now: the study is ``finished``, or it waits for the rounds in flight
        (those that ``ask`` has returned and ``tell`` has not yet received). The study locks its store until it is
        finished, closed (``with prepare(...) as study``) or garbage-collected. A study that continues later returns the
        rounds in flight again, equal to the bit.
        """
        if self._asking is None and not self.finished:
            session = Session(self.setup, self.problem, self.where).open()
            try:
                self._asking = AskTell(session)
            except BaseException:
                session.close()
                raise
            self.journal, self.setup = session.journal, session.setup
        plan = self._asking.ask() if self._asking else None
        if self.finished:
            self.close()
        return plan

    def tell(self, plan: Plan, reports: Sequence[Report | None] | Tally) -> None:
        """Settle a round: reports in the order of the plan's jobs, None where a client did not answer; or a tally.

        Rounds in flight may come in any order. The round is in the store when this returns.
        """
        if self._asking is None:
            why = "the study is finished" if self.finished else "ask() for one first"
            raise SpecError(f"there is no round in flight: {why}")
        self._asking.tell(plan, reports)
        if self.finished:
            self.close()

    def close(self) -> None:
        """Release the store; ``ask`` opens it again."""
        if self._asking is not None:
            asking, self._asking = self._asking, None
            asking.session.close()

    def __enter__(self) -> Study:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # Results

    @property
    def epsilon_spent(self) -> float:
        """What the rounds done so far have spent of the privacy's epsilon; infinite for a study without privacy."""
        keys = [(record.arm, record.round) for record in self.history]
        return math.inf if self.setup.privacy is None else self.setup.privacy.spent(keys)

    def state(self, key: Key) -> State:
        """Return the state of (arm, round), if it is kept."""
        return load_state(self.where.store, Round(self.setup, self.problem), self.journal, key)

    def evaluate(
        self, split: str = "test", config: str = "mode", metric: str | None = None, rounds: int | None = None,
        *, across: str = ALL, sample: int | None = None, progress: bool | Show | None = None,
    ) -> dict[str, float]:  # fmt: skip
        """Return the winner's metric over all clients: of the server's model, and after each client's fine-tuning.

        It is the problem's metric in its own units; or the ``"loss"``, or the ``"error"`` that arms are compared by,
        which is lower where the metric is better. ``across`` asks for that of the "worst tenth" of clients, of the
        "worst group" or of "group NAME"; and of a pooled metric for the "mean of clients".

        Clients fine-tune with the mode of theta, or (``config="sample"``) each with its own draw from theta. If no
        client has examples, a warning says so and the result is NaN. It is kept with the study, and computed again only
        if some clients did not answer: ``missing`` is their number. ``undefined`` is that of clients for whom the
        metric is not defined. ``rounds`` asks for the winner as it was earlier, if that state is kept.

        ``sample`` estimates it from so many clients, drawn in proportion to their examples by the study's seed. The
        result then has the ends of the interval of 95 % for the mean over all clients (``global_low``, ``global_high``
        ...), and ``sample``, ``clients`` and ``population``: draws, different clients among them, and all there are. Of
        no more clients than that all are evaluated. More than 10,000 are evaluated block after block; ``progress``
        shows how far it is.
        """
        checks.one_of("split", split, SPLITS)
        checks.one_of("config", config, ("mode", "sample"))
        known = self.problem.model.metric
        metric = known.name if metric is None else metric
        checks.one_of("metric", metric, dict.fromkeys((known.name, *METRICS)))
        key = self.winner if rounds is None else (self.winner[0], checks.whole("rounds", rounds))
        if sample is not None:
            sample = sampling.checked(self.problem, sample)
        kept = self.journal.evaluation(key, split, config, sample)
        if kept is None:
            with self._session() as session, showing(progress, "evaluating") as show:
                kept = session.evaluate(key, split, config, sample, Counter(show).tell)
        if not kept.validated and kept.clients:
            warnings.warn(f"{self.problem.name}: {without_examples(split)}", FedtunerWarning, stacklevel=2)
        if across != ALL:
            checks.one_of("across", across, [ALL, *kept.breakdown])
            if metric == "loss" != known.name:
                raise SpecError(f"metric = 'loss' across {across!r}, but only errors are kept: leave metric out")
        if metric in METRICS and metric != known.name:
            return kept.mean(metric, across)
        found = kept.mean("error", across)
        return found | dict(_turned(known, found, "global")) | dict(_turned(known, found, "personalized"))

    def describe(self) -> dict[str, Any]:
        """Return setup and problem, by the names of a study.toml."""
        return {**tables.plain(self.setup.describe()), "problem": tables.plain(described(self.problem))}

    def forecast(self, seconds: float = 1.0) -> Forecast:
        """Return what the study will do and take, before it runs; the time is from a trial of so many seconds."""
        return forecast(self.setup, self.problem, self.where, seconds)

    # After the study

    def extend(self, budget: int, progress: bool | Show | None = None) -> Study:
        """Go on in the same store until ``budget`` rounds are used in all, and return the study.

        Its schedule is played again with the further rounds and new arms, and the better one of the winners wins. After
        a study of ``budget=`` the winner trains on instead. Rounds that it has already are not done again.
        """
        first = self._whole(progress)
        if checks.whole("budget", budget) not in (first.budget, *(known for known, _ in links(self.schedule))):
            if budget < self.schedule.budget:
                raise SpecError(
                    f"budget = {budget}, but the study has {self.schedule.budget} rounds already: give more"
                )
            self._go_on(budget, getattr(first, "goes_on", "schedule"), progress)
        return self

    def resume_winner(self, rounds: int, progress: bool | Show | None = None) -> Study:
        """Let the winner's training go on for ``rounds`` rounds after the study's end, and return the study.

        ``rounds`` counts from the end of the tuning: ``resume_winner(100)``, later ``resume_winner(150)``, is 150.
        """
        budget, done = self._whole(progress).budget, 0
        for reached, by in links(self.schedule):
            done, budget = done + (reached - budget if by == "winner" else 0), reached
        if checks.whole("rounds", rounds) > done:
            self._go_on(budget + rounds - done, "winner", progress)
        return self

    def _whole(self, progress: bool | Show | None) -> Schedule:
        """Run the study to its end, with the extensions that its store has; return the schedule that it began with."""
        if not self.finished:
            self.run(progress)
        return original(self.schedule)

    def _go_on(self, budget: int, by: str, progress: bool | Show | None) -> None:
        setup = replace(self.setup, schedule=Longer(self.schedule, budget, by))
        setup.sampler.check(setup.space, setup.schedule)
        self.setup = setup
        self.run(progress)

    def retrain(self, rounds: int, progress: bool | Show | None = None) -> Study:
        """Train the configuration that was found from new weights, and return that study.

        Its store is the folder ``retrained-ROUNDS`` inside the study's.
        """
        rounds = checks.whole("rounds", rounds)
        setup = replace(self.setup, **self._found(rounds))
        return self._beside(f"retrained-{rounds}", setup).run(progress, "retraining")

    def _found(self, rounds: int) -> dict[str, Any]:
        """Return the settings of a study that trains the configuration that was found."""
        config = {"client": self.best.client, "server": self.best.server}
        sampler = samplers.Include((config,), samplers.uniform)
        return {"schedule": Alone(rounds), "space": Space(), "tuner": none, "sampler": sampler}

    def _beside(self, name: str, setup: Setup) -> Study:
        """Return a study of its own, in a folder inside this one's."""
        folder = None if self.path is None else self.path / name
        where = replace(self.where, store=Where.at(folder).store, watch=None)
        return Study(setup, self.problem, where, self.default)


def _turned(metric: Metric, found: Mapping[str, float], side: str) -> Iterator[tuple[str, float]]:
    """Yield an error, and the ends of its interval, as values of the metric; a rate's are from 0 to 1."""
    yield side, metric.turned(found[side])
    if f"{side}_low" in found:
        low, high = sorted(metric.turned(found[f"{side}_{end}"]) for end in ("low", "high"))
        yield f"{side}_low", max(low, 0.0) if metric.rate else low
        yield f"{side}_high", min(high, 1.0) if metric.rate else high


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
    check_given(problem, given)
    patience = given.pop("patience", None)
    source, warm, priors = given.pop("start_from", None), list[Table](), list[Table]()
    if source is not None:
        warm, priors = found_by(source, method, problem.model)
        own = given.get("include", () if budget is None and recipe is None else ({},))
        given["include"] = [*warm[:1], *own, *warm[1:]]  # few arms should have one of each
    if "include" in given:
        given["include"] = _included(problem, method, given["include"])
    filled = _filled(problem, given, budget, recipe)
    if patience is not None:
        filled["schedule"] = Patient(filled["schedule"], patience)
    if priors:
        filled["tuner"] = with_prior(filled["tuner"], priors)
    setup = resolve(problem, **filled)
    today = Space() if budget is None and recipe is None else _today(setup, problem, len(warm[:1]))
    default = with_named_optimiser(method, space)[0], given.get("cooling", 0.0), today
    return Study(setup, problem, Where.at(store, workers=workers, executor=executor, watch=watching(watch)), default)


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
        checks.function("recipe", recipe, ", such as fedtuner.auto(500)")
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


def _today(setup: Setup, problem: Federation, arm: int) -> Space:
    """Return the configuration that the user has now: a recipe's first arm of its own, as far as the user gave it."""
    if not isinstance(setup.sampler, samplers.Include):
        return Space()
    if problem.model.own_training:  # its code may read what the space fixes, too
        return Space(*setup.sampler.propose(setup.space, setup.seed, arm, 0, ()))
    first = setup.sampler.configs[arm]
    return Space(first["client"], first["server"])


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
    cohort: float = 10,
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

    space       only ranges that it names are searched; if it names none, the method's own ranges are, except of what it
                sets to one value. None: all of the method's and the model's ranges; ``Space()``: nothing
    method      one of ``fedtuner.methods``, or its name: "fedprox"
    fedex       None: every arm has one client configuration, which only the schedule tunes; ``tuner=`` replaces FedEx,
                and so does the tuner that a schedule was published with (``fedpop``), unless another is given
    schedule    by default the paper's successive halving, with 2000 rounds
    cohort      clients per round, or (0.1) a part of those who are present; ``cohorts="shared"`` gives all arms the
                same clients in the same round
    target      arms are compared by the clients' models ("personalized") or the server's ("global")
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
    timeout     seconds after which the study ends; the best arm so far wins
    patience    rounds, over all arms, after which the study ends if no score has improved; its best arm wins

    Further settings are the other fields of ``Setup``; and ``executor`` and ``watch``, which do not change results:
    ``watch`` is told the journal's events, by a function, a ``watchers.Watcher``, or several.
    """
    own = inside(schedule) is not None
    unasked = "tuner" in settings or (fedex is _PAPERS and (budget is not None or recipe is not None or own))
    if own and fedex is None:
        settings.setdefault("tuner", none)
    settings |= {k: v for k, v in (("cohorts", cohorts), ("sampler", sampler)) if v is not None}
    where = Where.at(store)
    if proxy is not None:
        if not isinstance(proxy, Federation):
            raise SpecError(f"proxy is {type(proxy).__name__}, but must be a Simulation(task, clients)")
        store = None if where.path is None else where.path / "proxy"
    study = prepare(
        problem if proxy is None else proxy, space, method=method, fedex=None if unasked else fedex, schedule=schedule,
        budget=budget,
        recipe=recipe, cohort=cohort, target=target, seed=seed, store=store, workers=workers, engine=engine, **settings,
    )  # fmt: skip
    study.run(progress, timeout=timeout)
    return study if proxy is None else for_real(study, problem, where.store).run(progress, "training")


def for_real(study: Study, problem: Federation, store: str | Place | Store | None) -> Study:
    """Return the study, not yet run, that trains on a problem what was found on a proxy: for as many rounds."""
    names = ("method", "cohort", "cohorts", "target", "weights", "combine", "privacy", "cooling", "seed", "engine")
    same = {name: getattr(study.setup, name) for name in names}
    if study.setup.screens != study.problem.screens:  # they were given; others are each federation's own
        same["screens"] = study.setup.screens
    setup = resolve(problem, **same, **study._found(study.schedule.budget))
    return Study(setup, problem, replace(study.where, store=Where.at(store).store), study.default)


def untuned(study: Study, progress: bool | Show | None = None, rounds: int | None = None) -> Study:
    """Train the method's default configuration, or the user's own (``include=``), as it was before any tuning.

    It gets all the study's rounds, or ``rounds`` of them. Its model after as many rounds as the study's longest arm is
    kept, too: ``untuned(study).evaluate(rounds=study.schedule.longest)``. Its store is the folder ``untuned`` inside
    the study's.
    """
    if not isinstance(study, Study):
        raise SpecError(f"study = {brief(study)}, but must be a Study, such as tune(...) returns")
    budget, setup, (method, cooling, today) = study.schedule.budget, study.setup, study.default
    rounds = budget if rounds is None else checks.whole("rounds", rounds)
    same = {f: getattr(setup, f) for f in ("cohort", "cohorts", "target", "across", "weights", "seed", "engine")}
    plain = resolve(
        study.problem, method=method, cooling=cooling, space=today, tuner=none, sampler=samplers.uniform,
        schedule=Alone(rounds, min(rounds, study.schedule.longest)), screens=setup.screens, combine=setup.combine,
        privacy=setup.privacy, **same,
    )  # fmt: skip
    return study._beside(study.journal.untuned, plain).run(progress, "untuned")
