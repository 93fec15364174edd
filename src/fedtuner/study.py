"""The driver: ask the schedule, advance the arms, tell the scores; and the study that comes of it.

"Arm 7 up to round 150" has one answer, so continuing a study is running it again with the answers that are there.
"""

from __future__ import annotations

import tempfile
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedtuner import engines, memory, methods, samplers
from fedtuner import fedex as fx
from fedtuner.arm import Arm, Record, Setting, State, mean
from fedtuner.errors import Interrupted, SpecError, suggest
from fedtuner.executors import Assessment, Executor, Leg, Progress, cores, open_executor
from fedtuner.federation import SPLITS, Simulation
from fedtuner.fedex import METRICS, FedEx, Floats
from fedtuner.memory import memory_of
from fedtuner.methods.base import Job, Method, check, default_space, defaults
from fedtuner.progress import Show, Status, showing, stoppable
from fedtuner.rng import stream
from fedtuner.schedules import Schedule, Score, discounted, halving, random_search
from fedtuner.space import Config, Space
from fedtuner.store import Store, read_json, write_json
from fedtuner.task import Vector

FORMAT = 1  # of the store
_SAVE = 2.0  # seconds between two saves of an arm that is on its way


@dataclass(frozen=True)
class Best:
    """The winner of a study."""

    arm: int
    rounds: int
    score: float  # what it was compared by when it won; infinite if every arm diverged
    server: Config  # b
    client: Config  # the mode of theta
    candidates: tuple[Config, ...]  # c_1..c_k
    theta: Floats
    model: Vector  # w; pytorch.Task.module(w) makes a module of it


class Study:
    """A tuning run, finished or on its way. ``tune`` makes and runs it."""

    def __init__(
        self, problem: Simulation, setting: Setting, schedule: Schedule, space: Space, path: Path | None, workers: int
    ) -> None:
        self.problem, self.setting, self.schedule, self.space, self.path = problem, setting, schedule, space, path
        self.workers = workers
        self.folder = path or Path(tempfile.gettempdir()) / f"fedtuner-{uuid.uuid4().hex}"
        if path is None:  # it is only made if what clients remember is too large for a state
            weakref.finalize(self, memory.drop, self.folder)
        self.states: dict[int, State] = {}
        self.records: dict[int, list[Record]] = {}
        self.winner: int | None = None
        self._sampler = samplers.local(space, setting.method, setting.fedex, setting.seed)
        self._arms: dict[int, Arm] = {}

    def arm(self, id: int) -> Arm:
        """Return the hyperparameters of an arm."""
        if id not in self._arms:
            self._arms[id] = self._sampler(id)
        return self._arms[id]

    @property
    def rounds_used(self) -> int:
        """Communication rounds spent so far, over all arms."""
        return sum(len(records) for records in self.records.values())

    @property
    def history(self) -> list[Record]:
        """One record per arm and round, in the order of arms and rounds. ``pandas.DataFrame(study.history)`` works."""
        return [record for arm in sorted(self.records) for record in self.records[arm]]

    @property
    def best(self) -> Best:
        """The winner: its server configuration, candidates, theta, the most probable candidate and the model."""
        if self.winner is None:
            raise SpecError("the study is not finished, so it has no winner yet: run it to the end")
        arm, state = self.arm(self.winner), self.states[self.winner]
        return Best(
            arm.id, state.round, self.score(arm.id, state.round)[0], arm.server,
            arm.candidates[state.belief.mode], arm.candidates, state.belief.theta, state.w,
        )  # fmt: skip

    def score(self, arm: int, until: int) -> Score:
        """Return an arm's score after round ``until`` and its tie-breaker, the other metric."""
        records = [r for r in self.records[arm] if r.round <= until]
        by_error = discounted([r.error for r in records], self.schedule.discount)
        by_loss = discounted([r.loss for r in records], self.schedule.discount)
        return (by_error, by_loss) if self.schedule.score == "error" else (by_loss, by_error)

    def evaluate(self, split: str = "test", config: str = "mode", metric: str = "error") -> dict[str, float]:
        """Return the winner's mean error over all clients: of the server's model, and after each client's fine-tuning.

        Clients fine-tune with the mode of theta, or (``config="sample"``) each with its own draw from theta. It is
        NaN where no client has examples. With a store the answer is kept.
        """
        for name, value, known in (
            ("split", split, SPLITS),
            ("config", config, ("mode", "sample")),
            ("metric", metric, METRICS),
        ):
            if value not in known:
                raise SpecError(f"{name} = {value!r}, but must be one of {known}{suggest(value, known)}")
        file, key = self.path and self.path / "evaluations.json", f"{split} {config} {metric}"
        kept: dict[str, dict[str, float]] = read_json(file) if file and file.exists() else {}
        if key not in kept:
            kept[key] = self._evaluate(split, config, metric)
            if file:
                write_json(file, kept)
        return {name: float(value) for name, value in kept[key].items()}

    def _evaluate(self, split: str, config: str, metric: str) -> dict[str, float]:
        best = self.best
        arm, state, seed = self.arm(best.arm), self.states[best.arm], self.setting.seed
        slots = {name: state.slots[name] for name in self.setting.method.sends if name in state.slots}
        jobs = []
        for i, client in enumerate(self.problem.clients):
            j = state.belief.mode
            if config == "sample":
                j = fx.choose(state.belief, 1, stream(seed, "evaluate", split, client.id))[0]
            job = Job(
                seed, arm.id, state.round, i, j, arm.candidates[j], arm.server, state.w, slots, split=split
            )  # fmt: skip
            jobs.append(Assessment(job, state.memory.get(i, {})))
        executor = open_executor(self.setting, self.problem, self.folder, self.workers)
        try:
            before, after = zip(*executor.assess(jobs), strict=True)
        finally:
            executor.close()
        return {
            "global": float(getattr(mean(before), metric)),
            "personalized": float(getattr(mean(after), metric)),
        }

    def describe(self) -> dict[str, Any]:
        """Return what the study is, by the names of a study.toml: the spec that its store holds."""
        method, setting = self.setting.method, self.setting
        return {
            "format": FORMAT,
            "problem": {
                "name": self.problem.name,
                "clients": len(self.problem.clients),
                "fingerprint": self.problem.fingerprint(),
            },
            "method": method.name,
            "defaults": {"client": defaults(method.client), "server": defaults(method.server)},
            "cohort": setting.cohort,
            "cohorts": setting.cohorts,
            "engine": setting.engine,
            "target": setting.target,
            "seed": setting.seed,
            "schedule": self.schedule.describe(),
            "fedex": asdict(setting.fedex),
            **self.space.describe(),
            "layout": [asdict(part) for part in self.problem.task.layout()],
        }

    def result(self) -> dict[str, Any]:
        """Return the winner as plain values; the same for any number of workers."""
        best = self.best
        return {
            "arm": best.arm,
            "rounds": best.rounds,
            "score": best.score,
            "rounds_used": self.rounds_used,
            "budget": self.schedule.budget,
            "diverged": sorted(arm for arm, state in self.states.items() if state.diverged),
            "server": dict(best.server),
            "client": dict(best.client),
            "theta": best.theta.tolist(),
            "candidates": [dict(c) for c in best.candidates],
        }


def tune(
    problem: Simulation,
    space: Space | None = None,
    method: Method = methods.fedavg,
    fedex: FedEx | None = FedEx(),  # noqa: B008 (frozen)
    schedule: Schedule | None = None,
    cohort: int = 10,
    target: str = "personalized",
    seed: int = 0,
    store: str | Path | None = None,
    workers: int | None = None,
    cohorts: str = "independent",
    progress: bool | Show | None = None,
    engine: str = "auto",
) -> Study:
    """Tune a method's hyperparameters on a problem and return the finished study.

    ``space`` is by default the method's own (the paper's) with what the model has; ``fedex=None`` leaves the client's
    hyperparameters to the schedule alone; ``schedule`` is by default the paper's halving of 2000 rounds. With a
    ``store`` the study continues when the same call is made again. ``workers`` is by default one per core; the result
    does not depend on it. ``progress=True`` prints lines where there is no terminal for a bar. ``engine`` is by default
    ``batched`` for small networks that it covers, else ``sequential``.
    """
    study = prepare(problem, space, method, fedex, schedule, cohort, target, seed, store, workers, cohorts, engine)
    run(study, progress)
    return study


def prepare(
    problem: Simulation,
    space: Space | None,
    method: Method,
    fedex: FedEx | None,
    schedule: Schedule | None,
    cohort: int,
    target: str,
    seed: int,
    store: str | Path | None,
    workers: int | None,
    cohorts: str,
    engine: str = "auto",
) -> Study:
    """Check everything and return the study, not yet run."""
    if not isinstance(problem, Simulation):
        raise SpecError(f"problem is {type(problem).__name__}, but must be a Simulation(task, clients)")
    if not isinstance(method, Method):
        raise SpecError(f"method = {method!r}, but must be a Method such as fedtuner.methods.fedavg")
    for name, value, kind in (("space", space, Space), ("fedex", fedex, FedEx), ("schedule", schedule, Schedule)):
        if value is not None and not isinstance(value, kind):
            raise SpecError(f"{name} = {value!r}, but must be a fedtuner.{kind.__name__}")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise SpecError(f"workers = {workers!r}, but must be a whole number >= 1")
    how = engines.choose(engine, problem.task)
    setting = Setting(method, fedex or FedEx(k=1), cohort, cohorts, target, seed, how)
    if cohort > len(problem.clients):
        raise SpecError(f"cohort = {cohort}, but the problem has {len(problem.clients)} clients: lower cohort")
    problem.check()
    of_task = problem.task.hyperparameters
    space = default_space(method, of_task) if space is None else space
    check(method, space, of_task)
    least = min(space.client["batch"].ends()) if "batch" in space.client else problem.task.smallest_batch
    if not isinstance(least, str) and least < problem.task.smallest_batch:
        raise SpecError(f"client.batch = {least}, but a model with batch-norm cannot train on fewer than 2 examples")
    path = None if store is None else Path(store)
    return Study(problem, setting, schedule or halving(), space, path, workers or cores())


def untuned(study: Study, progress: bool | Show | None = None) -> Study:
    """Train the method's default configuration for as many rounds as the study's longest arm: the thing to beat.

    It is kept in the folder ``untuned`` of the study's own.
    """
    longest = study.schedule.longest
    setting, path = study.setting, study.path and study.path / "untuned"
    default = prepare(
        study.problem, Space(), setting.method, None, random_search(longest, longest), setting.cohort, setting.target,
        setting.seed, path, study.workers, setting.cohorts, setting.engine,
    )  # fmt: skip
    run(default, progress, "untuned")
    return default


def run(study: Study, progress: bool | Show | None = None, label: str = "tuning") -> None:
    """Run a study to its end, from wherever its store has it."""
    store = None
    if study.path is not None:
        room = 3 * 4 * study.problem.task.size * study.schedule.arms
        store = Store(study.path, study.describe(), room)
        study.states, study.records = store.states, store.records
    try:
        with showing(progress, label) as show, stoppable() as stop, _executor(study) as executor:
            _Driver(study, store, executor, show, stop).run()
        if store is not None:
            store.finish(study.result())
    finally:
        if store is not None:
            store.close()


class _Driver:
    """One run of a study: the only writer of its store."""

    def __init__(self, study: Study, store: Store | None, executor: Any, show: Show, stop: Any) -> None:
        self._study, self._store, self._executor, self._show, self._stop = study, store, executor, show, stop
        self._began, self._before = time.monotonic(), study.rounds_used
        self._pending: dict[int, list[Record]] = {}  # rounds whose state is not here yet, or not yet saved
        self._unsaved: dict[int, State] = {}
        self._saved: dict[int, float] = {}
        self._alive: Sequence[int] = ()
        self._until = 0
        self._short: dict[int, int] = {}  # rounds that diverged arms will not use

    def run(self) -> None:
        steps = self._study.schedule.steps()
        scores: Mapping[int, Score] | None = None
        while True:
            try:
                step = next(steps) if scores is None else steps.send(scores)
            except StopIteration as stop:
                self._study.winner = stop.value
                self._retire(arm for arm in self._study.states if arm != stop.value)
                self._sweep(stop.value)  # a kill may have come between its last save and the sweep
                return
            self._retire(step.out)
            self._alive = step.arms
            self._advance(step.arms, step.until)
            scores = {arm: self._study.score(arm, step.until) for arm in step.arms}

    def _advance(self, arms: Sequence[int], until: int) -> None:
        states, self._until = self._study.states, until
        self._short |= {arm: until - states[arm].round for arm in arms if arm in states and states[arm].diverged}
        legs = [
            Leg(self._study.arm(arm), states.get(arm), until) for arm in arms if _unfinished(states.get(arm), until)
        ]
        try:
            if legs:
                for progress in self._executor().advance(legs, self._stop):
                    self._take(progress)
                    self._report()
            elif self._short:  # all that are alive have diverged
                self._report()
        finally:
            for arm in list(self._unsaved):
                self._save(arm)
        if self._stop() and any(_unfinished(states.get(arm), until) for arm in arms):
            kept = f"Everything is kept in {self._study.path}: run the same command again to continue."
            lost = "There is no store, so nothing is kept: give store= to be able to continue."
            used, planned = self._study.rounds_used, self._study.schedule.cost
            raise Interrupted(f"stopped after {used} of {planned} rounds. {kept if self._store else lost}")

    def _take(self, progress: Progress) -> None:
        """Accept rounds; they count once their state is here. A redone leg repeats rounds: these are known already."""
        arm = progress.arm
        pending = self._pending.setdefault(arm, [])
        done = self._study.records.setdefault(arm, [])
        for record in progress.records:
            if record.round == len(done) + 1:
                done.append(record)
                pending.append(record)
        if progress.state is not None:
            self._study.states[arm] = self._unsaved[arm] = progress.state
            if progress.state.diverged:
                self._short[arm] = self._until - progress.state.round
            waited = time.monotonic() - self._saved.setdefault(arm, time.monotonic()) > _SAVE
            if waited or not _unfinished(progress.state, self._until):
                self._save(arm)

    def _save(self, arm: int) -> None:
        state = self._unsaved.pop(arm)
        pending = self._pending.get(arm, [])
        ready = [r for r in pending if r.round <= state.round]
        self._pending[arm] = [r for r in pending if r.round > state.round]
        self._saved[arm] = time.monotonic()
        if self._store is not None:
            self._store.keep(arm, state, ready)
        self._sweep(arm)

    def _sweep(self, arm: int) -> None:
        state = self._study.states[arm]
        memory.sweep(memory_of(self._study.folder, arm), state.memory, state.round)

    def _retire(self, arms: Iterable[int]) -> None:
        """Let go of what the clients remember of arms that are out."""
        for arm in list(arms):
            if self._study.states[arm].memory:
                self._study.states[arm] = self._unsaved[arm] = replace(self._study.states[arm], memory={})
                self._save(arm)
            memory.drop(memory_of(self._study.folder, arm))

    def _report(self) -> None:
        study = self._study
        used, planned = study.rounds_used, study.schedule.cost - sum(self._short.values())
        scores = [study.score(arm, study.schedule.longest)[0] for arm in self._alive if study.records.get(arm)]
        done, seconds = used - self._before, time.monotonic() - self._began
        left = seconds / done * (planned - used) if done else None
        self._show(Status(used, planned, len(self._alive), study.schedule.arms, min(scores, default=None), left))


def _unfinished(state: State | None, until: int) -> bool:
    return state is None or (state.round < until and not state.diverged)


@contextmanager
def _executor(study: Study) -> Iterator[Any]:
    """Yield a function that gives the executor, opened when first needed: a finished study needs none."""
    opened: list[Executor] = []

    def get() -> Executor:
        if not opened:
            opened.append(open_executor(study.setting, study.problem, study.folder, study.workers))
        return opened[0]

    try:
        yield get
    finally:
        for executor in opened:
            executor.close()
