"""A study: what is tuned, every round that was done, and the winner."""

from __future__ import annotations

import tempfile
import uuid
import weakref
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedtuner import engines, memory, samplers
from fedtuner import fedex as fx
from fedtuner.arm import Arm, Record, Setting, State, mean, trainings
from fedtuner.errors import SpecError, suggest
from fedtuner.executors import open_executor
from fedtuner.federation import SPLITS, Federation
from fedtuner.fedex import METRICS, Floats
from fedtuner.legs import Assessment
from fedtuner.methods.base import Job, defaults
from fedtuner.rng import stream
from fedtuner.samplers import Past, Proposer
from fedtuner.schedules import Schedule, Score, discounted
from fedtuner.space import Config, Space
from fedtuner.store import read_json, write_json
from fedtuner.task import Vector

FORMAT = 1  # of the store


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
        self,
        problem: Federation,
        setting: Setting,
        schedule: Schedule,
        space: Space,
        path: Path | None,
        workers: int,
        sampler: Proposer = samplers.uniform,
    ) -> None:
        self.problem, self.setting, self.schedule, self.space, self.path = problem, setting, schedule, space, path
        self.workers, self.sampler = workers, sampler
        self.folder = path or Path(tempfile.gettempdir()) / f"fedtuner-{uuid.uuid4().hex}"
        if path is None:  # it is only made if what clients remember is too large for a state
            weakref.finalize(self, memory.drop, self.folder)
        self.states: dict[int, State] = {}
        self.records: dict[int, list[Record]] = {}
        self.winner: int | None = None
        self.arms: dict[int, Arm] = {}  # those that have been asked for
        self._make = samplers.local(space, setting.method, setting.fedex, setting.seed, sampler)

    def arm(self, id: int) -> Arm:
        """Return the hyperparameters of an arm."""
        if id not in self.arms:
            first, _ = self.schedule.place(id)
            self.arms[id] = self._make(id, first, self._past(id) if self.sampler.learns else ())
        return self.arms[id]

    def _past(self, id: int) -> list[Past]:
        """Return the arms before this one; those of earlier brackets with their scores, read off their rounds."""
        known, own = [], self.schedule.place(id)[0]
        for other in range(id):
            first, bracket = self.schedule.place(other)
            known.append(Past(self.arm(other), first))
            if other < own:
                state = self.states.get(other)
                if state is None or (state.round < bracket.rungs[0] and not state.diverged):
                    raise SpecError(f"arm {id} is proposed when arm {other} has finished: run the study further")
                rungs = [r for r in bracket.rungs if r <= state.round or state.diverged]
                known[-1] = replace(known[-1], scores={r: self.score(other, r)[0] for r in rungs})
        return known

    @property
    def rounds_used(self) -> int:
        """Communication rounds spent so far, over all arms."""
        return sum(len(records) for records in self.records.values())

    @property
    def local_work(self) -> int:
        """Local trainings done so far, over all arms: a client's work in a round is one, or ``FedEx.tries`` of them."""
        return sum(trainings(self.setting.fedex, records) for records in self.records.values())

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
        NaN where no client has examples. With a store the answer is kept. If clients that are known did not answer (a
        fleet's may be away), ``missing`` says how many, and the next call asks again.
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
        if key not in kept or "missing" in kept[key]:
            kept[key] = self._evaluate(split, config, metric)
            if file:
                write_json(file, kept)
        return {name: float(value) for name, value in kept[key].items()}

    def _evaluate(self, split: str, config: str, metric: str) -> dict[str, float]:
        best = self.best
        arm, state, seed = self.arm(best.arm), self.states[best.arm], self.setting.seed
        slots = {name: state.slots[name] for name in self.setting.method.sends if name in state.slots}
        jobs = []
        for i in self.problem.gather():
            j = state.belief.mode
            if config == "sample":
                j = fx.choose(state.belief, 1, stream(seed, "evaluate", split, self.problem.id_of(i)))[0]
            job = Job(
                seed, arm.id, state.round, i, j, arm.candidates[j], arm.server, state.w, slots, split=split
            )  # fmt: skip
            jobs.append(Assessment(job, state.memory.get(i, {})))
        executor = open_executor(self.setting, self.problem, self.folder, self.workers)
        try:
            before, after = zip(*executor.assess(jobs), strict=True)
        finally:
            executor.close()
        missing = getattr(executor, "missing", 0)
        return {
            "global": float(getattr(mean(before), metric)),
            "personalized": float(getattr(mean(after), metric)),
            **({"missing": missing} if missing else {}),
        }

    def describe(self) -> dict[str, Any]:
        """Return what the study is, by the names of a study.toml: the spec that its store holds."""
        method, setting = self.setting.method, self.setting
        return {
            "format": FORMAT,
            "problem": self.problem.describe(),
            "method": method.name,
            "defaults": {"client": defaults(method.client), "server": defaults(method.server)},
            "cohort": setting.cohort,
            "cohorts": setting.cohorts,
            "engine": setting.engine,
            **({} if engines.device(self.problem.task) == "cpu" else {"device": engines.device(self.problem.task)}),
            "target": setting.target,
            "seed": setting.seed,
            "schedule": self.schedule.describe(),
            **({} if self.sampler == samplers.uniform else {"sampler": self.sampler.describe()}),
            "fedex": setting.fedex.describe(),
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
