"""A study: setup, federation, journal and winner. ``tune`` makes one and runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from fedtuner import checks, methods, samplers, tables
from fedtuner.core.executor import OpenExecutor, Stop
from fedtuner.core.federation import SPLITS, Federation
from fedtuner.core.method import Method
from fedtuner.core.model import Vector
from fedtuner.core.records import Key, Plan, Record, Report, State, Tally
from fedtuner.core.round import Round
from fedtuner.core.sampler import Sampler
from fedtuner.core.schedule import METRICS, Schedule
from fedtuner.core.setup import Setup, resolve
from fedtuner.core.store import Store
from fedtuner.core.tuner import Floats, Tuner
from fedtuner.errors import SpecError, brief, suggest
from fedtuner.run.asktell import AskTell
from fedtuner.run.journal import Journal
from fedtuner.run.session import Session, Watch, Where, load_state, play
from fedtuner.run.watch import Meter, Show, showing, stoppable
from fedtuner.schedules import Halving, RandomSearch
from fedtuner.space import Config, Space
from fedtuner.tuners import FedEx, none

MOST_WORKERS = 1024


@dataclass(frozen=True)
class Best:
    """The winner of a study."""

    arm: int
    rounds: int
    score: float  # of the schedule's metric and the study's target; infinite if every arm diverged
    server: Config  # b
    client: Config  # the mode of theta
    candidates: tuple[Config, ...]  # c_1..c_k
    theta: Floats
    model: Vector  # w; pytorch.Task.module(w) returns it as a module


class Study:
    """A tuning run, finished or not. ``tune`` and ``prepare`` make it."""

    def __init__(self, setup: Setup, federation: Federation, where: Where) -> None:
        self.setup, self.problem, self.where = setup, federation, where
        self.journal = Journal()
        self._asking: AskTell | None = None

    @property
    def schedule(self) -> Schedule:
        """The schedule of the setup."""
        return self.setup.schedule

    @property
    def path(self) -> Path | None:
        """Its folder; None if it has none."""
        return self.where.path

    def run(self, progress: bool | Show | None = None, label: str = "tuning") -> Study:
        """Run it to its end, continuing from its store, and return it."""
        # With real devices, the program around this one (Flower) prints our lines and handles signals.
        devices = self.problem.save_every_round
        shown = True if progress is None and devices else progress
        with showing(shown, label) as show, stoppable(not devices) as stop, self._session(stop) as session:
            session.on_progress = Meter(session, show).tell
            play(self.schedule, session)
        return self

    @contextmanager
    def _session(self, stop: Stop = lambda: False) -> Iterator[Session]:
        """Yield an open session, whose journal becomes the study's."""
        self.close()
        with Session(self.setup, self.problem, self.where, stop) as session:
            self.journal = session.journal
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
            self.journal = session.journal
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

    @property
    def finished(self) -> bool:
        """Whether there is a winner."""
        return self.journal.won is not None

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
    def rounds_used(self) -> int:
        """Communication rounds spent so far, over all arms."""
        return self.journal.rounds_used

    @property
    def local_work(self) -> int:
        """Local trainings done so far, over all arms: ``FedEx.tries`` for each client of a round."""
        return self.journal.trainings

    @property
    def history(self) -> list[Record]:
        """One record per arm and round, in the order of arms and rounds. ``pandas.DataFrame(study.history)`` works."""
        return self.journal.history()

    @property
    def winner(self) -> Key:
        """The winning arm, and the round after which it won."""
        if self.journal.won is None:
            raise SpecError("the study is not finished, so it has no winner yet: run it to the end")
        return self.journal.won.arm, self.journal.won.round

    @property
    def best(self) -> Best:
        """The winner: its server configuration, candidates, theta, the most probable candidate and the model."""
        arm, round = self.winner
        assert self.journal.won is not None
        state, tuner = self.state((arm, round)), self.setup.tuner
        candidates, theta = tuner.offers(state.belief)
        known = self.journal.arms[arm]
        return Best(
            arm, round, self.journal.won.score[0], known.server, tuner.best(state.belief), candidates, theta, state.w
        )  # fmt: skip

    def state(self, key: Key) -> State:
        """Return the state of (arm, round), if it is kept."""
        return load_state(self.where.store, Round(self.setup, self.problem), self.journal, key)

    def evaluate(self, split: str = "test", config: str = "mode", metric: str = "error") -> dict[str, float]:
        """Return the winner's mean error over all clients: of the server's model, and after each client's fine-tuning.

        Clients fine-tune with the mode of theta, or (``config="sample"``) each with its own draw from theta. The result
        is NaN if no client has examples. It is kept with the study, and computed again only if some clients did not
        answer: ``missing`` is their number.
        """
        checks.one_of("split", split, SPLITS)
        checks.one_of("config", config, ("mode", "sample"))
        checks.one_of("metric", metric, METRICS)
        key = self.winner
        kept = self.journal.evaluated.get((key, split, config))
        if kept is None or kept.missing:
            with self._session() as session:
                kept = session.evaluate(key, split, config)
        return kept.mean(metric)

    def describe(self) -> dict[str, Any]:
        """Return setup and problem, by the names of a study.toml."""
        return {**tables.plain(self.setup.describe()), "problem": tables.plain(self.problem.describe())}


def prepare(
    problem: Federation,
    space: Space | None = None,
    *,
    method: Method = methods.fedavg,
    fedex: FedEx | None = None,
    tuner: Tuner | None = None,
    schedule: Schedule | None = None,
    store: str | Path | Store | None = None,
    workers: int | None = None,
    executor: OpenExecutor | None = None,
    watch: Watch | None = None,
    **settings: Any,
) -> Study:
    """Check all settings and return the study, not yet run: ``run()`` it, or use ``ask()`` and ``tell()``.

    The arguments are those of ``tune``, but without ``fedex`` (or ``tuner``) there is no FedEx.
    """
    if fedex is not None and tuner is not None:
        raise SpecError("fedex and tuner are both given, but an arm has one tuner: give one of them")
    known = set(Setup.__dataclass_fields__)
    for name in settings:
        if name not in known:
            raise SpecError(f"no setting {brief(name)}{suggest(name, known)}")
    if fedex is not None and not isinstance(fedex, FedEx):
        raise SpecError(f"fedex = {brief(fedex)}, but must be a fedtuner.FedEx, or None")
    if workers is not None:
        workers = checks.whole("workers", workers, 1, MOST_WORKERS)
    device = str(problem.model.device) if isinstance(problem, Federation) else "cpu"
    if device != "cpu":
        if workers not in (None, 1):
            rule = f"but work on {device} is done by one process: leave workers out"
            raise SpecError(f"workers = {brief(workers)}, {rule}")
        workers = 1
    settings.setdefault("sampler", samplers.uniform)
    setup = resolve(
        problem, method=method, space=space, tuner=fedex or tuner or none,
        schedule=Halving() if schedule is None else schedule, **settings,
    )  # fmt: skip
    return Study(setup, problem, Where.at(store, workers=workers, executor=executor, watch=watch))


def tune(
    problem: Federation,
    space: Space | None = None,
    *,
    method: Method = methods.fedavg,
    fedex: FedEx | None = FedEx(),  # noqa: B008 (frozen)
    schedule: Schedule | None = None,
    cohort: int = 10,
    target: str = "personalized",
    seed: int = 0,
    store: str | Path | Store | None = None,
    workers: int | None = None,
    cohorts: str = "independent",
    progress: bool | Show | None = None,
    engine: str = "auto",
    sampler: Sampler = samplers.uniform,
    **settings: Any,
) -> Study:
    """Tune a method's hyperparameters on a problem and return the finished study.

    space       what is tuned; by default the hyperparameters of the method and of the model
    fedex       None: every arm has one client configuration, which only the schedule tunes; ``tuner=`` replaces FedEx
    schedule    by default the paper's successive halving, with 2000 rounds
    cohort      clients per round; ``cohorts="shared"`` gives all arms the same clients in the same round
    target      arms are compared by the clients' models ("personalized") or the server's ("global")
    store       a folder; the same call continues the study in it. None: nothing is kept
    workers     processes, by default one per core; the result does not depend on their number
    progress    True prints lines where there is no terminal for a progress bar; a fleet always does
    engine      "auto" is "batched" for small networks that it covers, else "sequential"
    sampler     proposes the arms: uniform draws, or e.g. ``samplers.optuna("tpe")``, which learns from finished arms

    Further settings are the other fields of ``Setup``; and ``executor`` and ``watch``, which do not change results.
    """
    study = prepare(
        problem, space, method=method, fedex=None if "tuner" in settings else fedex, schedule=schedule, cohort=cohort,
        target=target, seed=seed, store=store, workers=workers, cohorts=cohorts, engine=engine, sampler=sampler,
        **settings,
    )  # fmt: skip
    return study.run(progress)


def untuned(study: Study, progress: bool | Show | None = None) -> Study:
    """Train the method's default configuration for as many rounds as the study's longest arm: the baseline.

    Its store is the folder ``untuned`` inside the study's.
    """
    if not isinstance(study, Study):
        raise SpecError(f"study = {brief(study)}, but must be a Study, such as tune(...) returns")
    longest, setup = study.schedule.longest, study.setup
    same = {f: getattr(setup, f) for f in ("method", "cohort", "cohorts", "target", "weights", "seed", "engine")}
    plain = resolve(
        study.problem, space=Space(), tuner=none, schedule=RandomSearch(longest, longest), sampler=samplers.uniform,
        screens=setup.screens, combine=setup.combine, privacy=setup.privacy, cooling=setup.cooling, **same,
    )  # fmt: skip
    folder = None if study.path is None else study.path / "untuned"
    where = replace(study.where, store=Where.at(folder).store, watch=None)
    return Study(plain, study.problem, where).run(progress, "untuned")
