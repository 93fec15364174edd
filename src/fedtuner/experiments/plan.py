"""What a suite has still to do, and how long it will take on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fedtuner.core.schedule import Outline, outline
from fedtuner.core.setup import size_of
from fedtuner.errors import FedtunerError, SpecError
from fedtuner.experiments import results
from fedtuner.experiments.family import marks
from fedtuner.experiments.suite import Entry, Suite
from fedtuner.experiments.tables import text
from fedtuner.federations import Simulation
from fedtuner.run import forecast, spec
from fedtuner.run.executors import cores
from fedtuner.run.forecast import speedup
from fedtuner.run.words import duration

_TRIAL = 3.0  # seconds that a trial of a problem's rounds takes


@dataclass(frozen=True)
class Group:
    """The studies of a family that have no result yet, and those of them that are asked for now."""

    entries: tuple[Entry, ...]
    asked: tuple[Entry, ...]
    first: Entry  # of all studies of the family, with results or without

    @property
    def problem(self) -> str:
        return self.first.spec.problem

    @property
    def name(self) -> str:
        """The name of their folder."""
        return self.first.family_name

    @property
    def tries(self) -> int:
        """How many local trainings a client does in a round: the same for all, or their arms would not be shared."""
        return self.first.spec.tuner.tried

    def expected(self) -> tuple[int, int]:
        """Return how many rounds and evaluations to expect: those that the schedules ask for on random scores."""
        outlines = [outline(entry.spec.schedule, entry.seed, entry.spec.target) for entry in self.asked]
        reach: dict[int, int] = {}
        for known in outlines:
            reach |= {arm: max(t, reach.get(arm, 0)) for arm, t in known.reach.items()}
        rounds = sum(reach.values()) if len(outlines) > 1 else outlines[0].cost
        return rounds, sum(map(_evaluations, self.asked, outlines))


@dataclass(frozen=True)
class Estimate:
    """What a problem's studies will take."""

    problem: str
    studies: int
    asked: int = 0  # rounds, if nothing were shared
    rounds: int = 0  # rounds to compute
    evaluations: int = 0
    pace: float = 0.0  # seconds a round, on one worker
    seconds: float = 0.0
    quiet: float = 0.0  # seconds, if nothing else ran on the machine
    absent: str = ""  # why the problem cannot be loaded


def families(suite: Suite, out: Path, only: str | None = None) -> list[Group]:
    """Return all families of a suite in the order in which they are run, also those with nothing left to do."""
    asked = [entry for entry in suite.entries if only is None or entry.matches(only)]
    if not asked:
        raise SpecError(f"--only {only!r} matches no study of the suite; names are such as {suite.entries[0].name!r}")
    unfinished = results.unfinished(out, suite)
    found: dict[str, list[Entry]] = {}
    for entry in suite.entries:
        found.setdefault(entry.family, []).append(entry)
    made = []
    for family in found.values():
        entries = tuple(entry for entry in family if entry in unfinished)
        made.append(Group(entries, tuple(entry for entry in entries if entry in asked), family[0]))
    seeds: dict[str, set[int]] = {}
    for group in made:
        seeds.setdefault(group.problem, set()).add(group.first.seed)
    turns = {(name, seed): (n, m) for m, name in enumerate(seeds) for n, seed in enumerate(sorted(seeds[name]))}
    return sorted(made, key=lambda group: turns[group.problem, group.first.seed])


def groups(suite: Suite, out: Path, only: str | None = None) -> list[Group]:
    """Return the families in which there is something to do."""
    return [group for group in families(suite, out, only) if group.asked]


def estimate(suite: Suite, out: Path, workers: int | None = None, only: str | None = None) -> Iterator[Estimate]:
    """Yield what each problem's studies will take, from a short trial of its rounds on this machine."""
    todo = groups(suite, out, only)
    for name in dict.fromkeys(group.problem for group in todo):
        mine = [group for group in todo if group.problem == name]
        studies = sum(len(group.asked) for group in mine)
        try:
            problem = spec.load_problem(name)
        except FedtunerError as error:
            yield Estimate(name, studies, absent=str(error))
            continue
        pace, work = calibrate(mine[0].first, problem)
        expected = [group.expected() for group in mine]
        rounds, evaluations = (sum(numbers) for numbers in zip(*expected, strict=True))
        asked = sum(outline(entry.spec.schedule).cost for group in mine for entry in group.asked)
        trained = sum(group.tries * n for group, (n, _) in zip(mine, expected, strict=True)) / mine[0].tries
        everyone = len(problem.clients)  # an evaluation is the work of all
        evaluated = evaluations * everyone / size_of(mine[0].first.spec.cohort, everyone)
        amount = (trained + evaluated) / speedup(workers or cores())
        took = {"pace": pace, "seconds": pace * amount, "quiet": work * amount}
        yield Estimate(name, studies, asked, rounds, evaluations, **took)


def calibrate(entry: Entry, problem: Simulation, seconds: float = _TRIAL) -> tuple[float, float]:
    """Return the seconds that a round of a study takes on one worker, and the processor's seconds."""
    study = entry.spec.study(None, 1, problem)
    return forecast.calibrate(study.setup, study.problem, seconds)


def _evaluations(entry: Entry, known: Outline) -> int:
    """Return about how many evaluations a study makes."""
    expected, kept = 1, marks(entry.spec.schedule, entry.online)
    for group in known.groups:
        for rung in known.rungs[group[0]]:
            alive = sum(known.reach[arm] >= rung for arm in group)
            if entry.online:  # about one at each mark, and one for every second arm
                expected += sum(mark <= rung for mark in kept.get(group[0], ())) + alive // 2
            if entry.every_arm and rung == known.rungs[group[0]][-1]:
                expected += alive
    return expected


def print_estimates(found: Iterable[Estimate], as_json: bool = False) -> None:
    """Print what a suite will take."""
    estimates = list(found)
    total, quiet = sum(e.seconds for e in estimates), sum(e.quiet for e in estimates)
    if as_json:
        print(json.dumps({"problems": [asdict(e) for e in estimates], "seconds": total, "quiet": quiet}, indent=2))
        return
    rows = []
    for e in estimates:
        numbers = [str(n) for n in (e.asked, e.rounds, e.evaluations)] + [f"{e.pace:.3f}", duration(e.seconds)]
        rows.append([e.problem, str(e.studies), *(["-"] * 4 + ["cannot be loaded"] if e.absent else numbers)])
    head = ["problem", "studies", "rounds asked for", "to compute", "evaluations", "s a round", "about"]
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
