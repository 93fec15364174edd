"""A study: setup, federation, journal and winner. ``tune`` and ``prepare`` (tuning.py) make one."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from types import TracebackType
from typing import Any

from fedtuner import checks, samplers, tables
from fedtuner.core.across import ALL
from fedtuner.core.executor import Stop
from fedtuner.core.federation import SPLITS, Federation, described
from fedtuner.core.method import Method
from fedtuner.core.metric import Metric
from fedtuner.core.records import Key, Plan, Report, State, Tally
from fedtuner.core.round import Round
from fedtuner.core.schedule import METRICS, Schedule
from fedtuner.core.setup import Setup
from fedtuner.errors import FedtunerWarning, Interrupted, SpecError, brief
from fedtuner.run import sampling
from fedtuner.run.asktell import AskTell
from fedtuner.run.auto import differing
from fedtuner.run.forecast import Forecast, forecast
from fedtuner.run.journal import Journal
from fedtuner.run.result import Results
from fedtuner.run.saving import load_state
from fedtuner.run.session import Session, complete, play
from fedtuner.run.watch import Counter, Meter, Show, showing, stoppable
from fedtuner.run.watchers import NOBODY
from fedtuner.run.where import Where
from fedtuner.run.words import without_examples
from fedtuner.schedules import Alone, Duel
from fedtuner.schedules.longer import Longer, links, original
from fedtuner.space import Space
from fedtuner.tuners import none


@dataclass(frozen=True)
class Today:
    """What the user has without any tuning."""

    method: Method
    cooling: float
    space: Space  # values of the user's own
    usual_cohort: bool = False  # no cohort was given: it is as many clients as there are, up to ten


class Study(Results):
    """A tuning run, finished or not. ``tune`` and ``prepare`` make it."""

    def __init__(self, setup: Setup, federation: Federation, where: Where, default: Today | None = None) -> None:
        super().__init__(where.store, Journal())
        self.setup, self.problem, self.where = setup, federation, where
        self.default = default or Today(setup.method, setup.cooling, Space())
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
            print(f"{label}: {searched_in_words(self.schedule, self.describe())}", file=sys.stderr, flush=True)
        end = math.inf if timeout is None else time.monotonic() + checks.number("timeout", timeout)
        with showing(shown, label) as show, stoppable(not devices) as asked:

            def stop() -> bool:
                return asked() or time.monotonic() > end

            with self._session(stop) as session:
                session.on_progress = Meter(session, show).tell
                try:
                    play(session.setup.schedule, session)
                except Interrupted:
                    if asked():
                        raise
                    if not session.conclude():
                        early = f"timeout = {timeout:g} was over before any round was done"
                        raise Interrupted(f"{early}, so there is no winner: give more seconds") from None
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
        if not isinstance(key, tuple) or len(key) != 2 or not all(map(checks.is_whole, key)):
            raise SpecError(f"state({brief(key)}), but it must be a pair (arm, round), such as study.winner")
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
        a study of ``budget=`` the winner trains on instead. Rounds that it has already are not done again. After a
        timeout the study's own budget means the rounds that were left.
        """
        first = self._whole(progress)
        if budget == self.schedule.budget and not self._complete():
            self._go_on(budget, "rest", progress)
        if checks.whole("budget", budget) not in (first.budget, *(known for known, _ in links(self.schedule))):
            if budget < self.schedule.budget:
                used = f"{self.schedule.budget} rounds already, of which {self.rounds_used} are used"
                raise SpecError(f"budget = {budget}, but the study has {used}: give more")
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

    def _complete(self) -> bool:
        with self._session() as session:
            return complete(session)

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
        setup = replace(self.setup, **self.found(rounds))
        return self.beside(f"retrained-{rounds}", setup).run(progress, "retraining")

    def found(self, rounds: int) -> dict[str, Any]:
        """Return the settings of a study that trains the configuration that was found."""
        found = self.journal.trained(self.winner)
        config = {"client": found.client, "server": found.server}
        sampler = samplers.Include((config,), samplers.uniform)
        return {"schedule": Alone(rounds), "space": Space(), "tuner": none, "sampler": sampler}

    def beside(self, name: str, setup: Setup) -> Study:
        """Return a study of its own, in a folder inside this one's."""
        folder = None if self.path is None else self.path / name
        where = replace(self.where, store=Where.at(folder).store, watch=NOBODY)
        return Study(setup, self.problem, where, self.default)


def searched_in_words(schedule: Duel, described: Mapping[str, Any]) -> str:
    """Return what a budget's arms differ in, in words."""
    if schedule.arms != 1:
        return f"arms differ in {differing(described)}"
    enough = next(n for n in count(schedule.budget) if Duel.searched(n) > 1)
    if enough == schedule.budget:
        return "nothing to search: the default is trained alone"
    return f"below {enough} rounds nothing is searched, unless [auto] arms is given: the default is trained alone"


def _turned(metric: Metric, found: Mapping[str, float], side: str) -> Iterator[tuple[str, float]]:
    """Yield an error, and the ends of its interval, as values of the metric; a rate's are from 0 to 1."""
    yield side, metric.turned(found[side])
    if f"{side}_low" in found:
        low, high = sorted(metric.turned(found[f"{side}_{end}"]) for end in ("low", "high"))
        yield f"{side}_low", max(low, 0.0) if metric.rate else low
        yield f"{side}_high", min(high, 1.0) if metric.rate else high
