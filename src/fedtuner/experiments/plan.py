"""What a suite has still to do, and how long it will take on this machine."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from fedtuner import spec
from fedtuner.arm import begin, plan
from fedtuner.engines import work_all
from fedtuner.errors import FedtunerError, SpecError
from fedtuner.executors import cores
from fedtuner.experiments import results
from fedtuner.experiments.family import stops
from fedtuner.experiments.suite import Entry, Suite
from fedtuner.experiments.tables import text
from fedtuner.federation import Simulation
from fedtuner.methods.base import Job
from fedtuner.progress import duration
from fedtuner.rng import stream
from fedtuner.schedules import Score

_TRIAL = 3.0  # seconds of rounds from which a problem's pace is taken
_LEAST = 5  # parts of rounds that the trial has at least, if each is longer than that
_GAIN = 0.85  # of a worker beside another, against one alone (docs/speed.md)


@dataclass(frozen=True)
class Group:
    """The studies of a family that have no result yet, and those of them that are asked for now."""

    entries: tuple[Entry, ...]
    asked: tuple[Entry, ...]

    @property
    def problem(self) -> str:
        """The name of their problem."""
        return self.entries[0].spec.problem

    @property
    def name(self) -> str:
        """The name of their folder."""
        return hashlib.blake2b(self.entries[0].family.encode(), digest_size=8).hexdigest()

    @property
    def tries(self) -> int:
        """How many local trainings a client does in a round: the same for all, or their arms would not be shared."""
        fedex = self.entries[0].spec.fedex
        return fedex.tried if fedex else 1

    def expected(self) -> tuple[int, int]:
        """Return how many rounds and how many tests to expect, from a rehearsal on random scores."""
        reach: dict[int, int] = {}
        tests = 0
        for entry in self.asked:
            used, tested = _rehearse(entry)
            reach = {arm: max(reach.get(arm, 0), used.get(arm, 0)) for arm in {*reach, *used}}
            tests += tested
        return sum(reach.values()), tests


@dataclass(frozen=True)
class Estimate:
    """What a problem's studies will take."""

    problem: str
    studies: int
    asked: int  # rounds, if nothing were shared
    rounds: int  # rounds to compute
    tests: int
    pace: float  # seconds a round, on one worker
    seconds: float
    quiet: float  # seconds, if nothing else ran on the machine
    absent: str = ""  # why the problem cannot be loaded


def groups(suite: Suite, out: Path, only: str | None = None) -> list[Group]:
    """Return what there is to do, in its order."""
    asked = [entry for entry in suite.entries if only is None or entry.matches(only)]
    if not asked:
        raise SpecError(f"--only {only!r} matches no study of the suite; names are such as {suite.entries[0].name!r}")
    families: dict[str, list[Entry]] = {}
    for entry in results.unfinished(out, suite):
        families.setdefault(entry.family, []).append(entry)
    made = [Group(tuple(kept), tuple(e for e in kept if e in asked)) for kept in families.values()]
    problems = list(dict.fromkeys(entry.spec.problem for entry in suite.entries))
    todo = [group for group in made if group.asked]
    return sorted(todo, key=lambda group: (problems.index(group.problem), group.entries[0].seed))


def estimate(suite: Suite, out: Path, workers: int | None = None, only: str | None = None) -> Iterator[Estimate]:
    """Yield what each problem's studies will take, from a short trial of its rounds on this machine."""
    todo = groups(suite, out, only)
    for name in dict.fromkeys(group.problem for group in todo):
        mine = [group for group in todo if group.problem == name]
        studies = sum(len(group.asked) for group in mine)
        try:
            problem = spec.load_problem(name)
        except FedtunerError as error:
            yield Estimate(name, studies, 0, 0, 0, 0.0, 0.0, 0.0, str(error))
            continue
        pace, work = calibrate(mine[0].entries, problem)
        expected = [group.expected() for group in mine]
        rounds, tests = (sum(numbers) for numbers in zip(*expected, strict=True))
        asked = sum(entry.spec.schedule.cost for group in mine for entry in group.asked)
        trained = sum(group.tries * n for group, (n, _) in zip(mine, expected, strict=True)) / mine[0].tries
        amount = _in_rounds(trained, tests, problem, mine[0].entries[0]) / speedup(workers or cores())
        yield Estimate(name, studies, asked, rounds, tests, pace, pace * amount, work * amount)


def _in_rounds(rounds: float, tests: int, problem: Simulation, entry: Entry) -> float:
    """Return the work as a number of rounds: a test is the work of all clients once."""
    return rounds + tests * len(problem.clients) / entry.spec.cohort


def speedup(workers: int) -> float:
    """Return how much faster so many workers are than one."""
    return 1.0 if workers == 1 else _GAIN * min(workers, cores())


def calibrate(entries: Sequence[Entry], problem: Simulation, seconds: float = _TRIAL) -> tuple[float, float]:
    """Return the seconds that a round takes on one worker, and the processor's seconds.

    Clients of the first arms' first rounds work until the time is up: whole rounds where the engine does them at once,
    else one by one; in a random order, so that several arms' configurations (batch sizes above all) are among them.
    What they took is scaled by examples times epochs, theirs against those of an arm's round.
    """
    study = entries[0].spec.study(None, 1, problem)
    setting, arms = study.setting, [study.arm(a) for a in range(study.schedule.place(0)[1].arms)]
    start = begin(setting, problem, arms[0])
    rounds = [plan(setting, problem, arm, start) for arm in arms]
    parts = rounds if setting.engine == "batched" else [[job] for jobs in rounds for job in jobs]
    took: list[tuple[float, float, float]] = []  # by part: seconds, the processor's, and examples times epochs
    for place in stream(0, "calibrate").permutation(len(parts)):
        part = parts[place]
        began, before = time.perf_counter(), time.process_time()
        work_all(setting, problem, part)
        took.append((time.perf_counter() - began, time.process_time() - before, _amount(problem, part)))
        if sum(t for t, _, _ in took) > seconds and len(took) >= _LEAST:
            break
    wall, processor, amount = (sum(column) for column in zip(*(took[1:] or took), strict=True))  # the first prepares
    a_round = fmean(_amount(problem, jobs) for jobs in rounds)
    return wall / amount * a_round, processor / amount * a_round


def _amount(problem: Simulation, jobs: Sequence[Job]) -> float:
    return sum(max(1, problem.size(job.client, "train")) * float(job.config.get("epochs", 1)) for job in jobs)


def _rehearse(entry: Entry) -> tuple[dict[int, int], int]:
    """Run a study's schedule on random scores; return each arm's rounds, and a number of tests to expect."""
    schedule = entry.spec.schedule
    steps, reach, tests = schedule.steps(), dict[int, int](), 1
    marks, target = stops(schedule, entry.online), entry.spec.target
    scores: dict[int, Score] | None = None
    while True:
        try:
            step = next(steps) if scores is None else steps.send(scores)
        except StopIteration:
            return reach, tests
        reach |= dict.fromkeys(step.arms, step.until)
        scores = {a: (float(stream(entry.seed, "rehearsal", target, a).random()), 0.0) for a in step.arms}
        if entry.online:  # about a new incumbent, or the same one further on, for every second stop
            tests += sum(mark <= step.until for mark in marks) + len(step.arms) // 2
        if entry.every_arm and step.until == schedule.longest:
            tests += len(step.arms)


def print_estimates(found: Iterable[Estimate], as_json: bool = False) -> None:
    """Print what a suite will take."""
    estimates = list(found)
    total, quiet = sum(e.seconds for e in estimates), sum(e.quiet for e in estimates)
    if as_json:
        print(json.dumps({"problems": [asdict(e) for e in estimates], "seconds": total, "quiet": quiet}, indent=2))
        return
    rows = [
        [e.problem, str(e.studies), str(e.asked), str(e.rounds), str(e.tests), f"{e.pace:.3f}", duration(e.seconds)]
        if not e.absent
        else [e.problem, str(e.studies), *["-"] * 4, "cannot be loaded"]
        for e in estimates
    ]
    head = ["problem", "studies", "rounds asked for", "to compute", "tests", "s a round", "about"]
    if rows:
        sys.stdout.write(text(head, rows))
    for e in estimates:
        if e.absent:
            print(f"{e.problem}: {e.absent}")
    if not rows:
        print("All results are there.")
        return
    busy = f" as busy as it is now, {duration(quiet)} if it did nothing else" if total > 1.3 * quiet else ""
    print(f"In all about {duration(total)} on this machine{busy}.")
