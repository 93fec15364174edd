"""Run a suite: every study and seed that has no result yet, with shared arms, from wherever it was stopped.

Studies of one family (family.py) run side by side. Families run one after the other: the first seed of every data set,
then the second, so that what is there at any time can be compared in pairs, and no column waits for another's last
seed. A result is written as soon as its study ends. States of arms are in a folder beside the file of results; those of
a family are deleted when all of its studies have results.
"""

from __future__ import annotations

import glob
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from fedtuner.core.schedule import TARGETS
from fedtuner.errors import ClientError, FedtunerError, Interrupted, StoreError, WorkerError, counted
from fedtuner.experiments import results
from fedtuner.experiments.compare import compare
from fedtuner.experiments.family import Family
from fedtuner.experiments.plan import Group, calibrate, families, groups
from fedtuner.experiments.suite import Suite
from fedtuner.experiments.tabulate import as_json as as_plain
from fedtuner.experiments.tabulate import show
from fedtuner.federations import Simulation
from fedtuner.report import strict
from fedtuner.run import spec
from fedtuner.run.executors import cores
from fedtuner.run.forecast import speedup
from fedtuner.run.session import Session
from fedtuner.run.store.files import disk_errors
from fedtuner.run.store.lock import Lock
from fedtuner.run.versions import commit
from fedtuner.run.watch import Show, showing, stoppable
from fedtuner.run.words import duration
from fedtuner.schedules import RandomSearch

EVERY = 5.0  # seconds between two lines of progress


@dataclass
class Report:
    """What a run of a suite did."""

    done: int = 0  # studies finished
    asked: int = 0  # rounds of these studies
    computed: int = 0  # rounds really computed
    failed: list[tuple[str, FedtunerError]] = field(default_factory=list)


def run(
    suite: Suite, out: Path, workers: int | None = None, only: str | None = None, progress: TextIO | None = None
) -> Report:
    """Run what has no result yet and return what was done; ``progress`` is where the time left is said."""
    if not groups(suite, out, only) and not scratch(out).exists() and results.read(out).suite == suite.describe():
        return Report()  # there is nothing to write
    with _alone(out):
        return _run(suite, out, workers, only, progress)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keep other processes from adding to these results; delete what a process that was killed has half written."""
    folder = scratch(out)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = Lock(folder)
        except StoreError as error:
            raise StoreError(
                f"another 'fedtuner bench' is adding to {out}: wait for it, stop it, or use another --out"
            ) from error
    try:
        for part in out.parent.glob(f"{glob.escape(out.name)}.*.part"):
            part.unlink()
        yield
    finally:
        if [file.name for file in folder.iterdir()] == ["lock"]:
            shutil.rmtree(folder)
        lock.release()


def _run(suite: Suite, out: Path, workers: int | None, only: str | None, progress: TextIO | None) -> Report:
    known = families(suite, out, only)
    for group in known:
        if not group.entries:  # its last result was written, and then the process was killed
            shutil.rmtree(scratch(out) / group.name, ignore_errors=True)
    todo, report = [group for group in known if group.asked], Report()
    results.update(out, suite)
    commit()  # of the code that runs: it may be another by the time that a study ends
    held: tuple[str, Simulation] | None = None  # one problem at a time
    with showing(progress is not None, "bench", progress, EVERY) as said, stoppable() as stop:
        board = _Board(todo, workers or cores(), said if progress else None)
        for group in todo:
            try:
                if held is None or held[0] != group.problem:
                    held = None
                    held = (group.problem, spec.load_problem(group.problem))
                    board.time(group, held[1])
                _run_group(group, held[1], suite, out, workers, board=board, report=report, stop=stop)
            except FedtunerError as error:
                name, folder = f"{group.first.name} seed{group.first.seed}", scratch(out) / group.name
                if isinstance(error, StoreError) and str(folder) in str(error):
                    error = StoreError(f"{error}; or delete {folder}, and its rounds are computed again")
                report.failed.append((name, error))
                board.drop(group)
            except Interrupted as error:
                left = counted(sum(len(g.asked) for g in todo) - report.done, "study", "studies")
                raise Interrupted(
                    f"stopped with {left} to go. Everything is kept in {out}: run the same command again to continue"
                ) from error
    return report


def _run_group(
    group: Group, problem: Simulation, suite: Suite, out: Path, workers: int | None,
    *, board: _Board, report: Report, stop: Callable[[], bool],
) -> None:  # fmt: skip
    if stop():
        raise Interrupted
    folder = scratch(out) / group.name
    study, *_ = [entry.spec.study(folder, workers, problem) for entry in group.asked]  # of all: mistakes show now
    # The session plays no schedule itself. It has the same one whichever studies are left, so that it can be continued.
    setup = study.setup if group.first.alone else replace(study.setup, schedule=RandomSearch(1, 1), target=TARGETS[0])
    with Session(setup, study.problem, study.where, stop) as session:
        family = Family(session, group.entries, group.asked)
        session.on_progress = lambda: board.show(family.computed)
        board.begin(group)
        for outcome in family.outcomes():
            made = results.describe(outcome)
            results.update(out, suite, made)
            report.done += 1
            report.asked += made["rounds"]
            board.finished()
        report.computed += family.computed
        board.end(group)
    if len(group.asked) == len(group.entries):
        shutil.rmtree(folder)


class _Board:
    """How far a suite is, and the time left: what each problem still has to do, at its own pace."""

    def __init__(self, todo: Sequence[Group], workers: int, show: Show | None) -> None:
        self._show, self._workers = show, workers
        # Work is in rounds whose clients train once: where they try several candidates, a round is several of them.
        self._left = {g.name: (g.problem, g.tries * g.expected()[0]) for g in todo} if show else {}
        self._pace: dict[str, float] = {}  # seconds of each problem's round, as far as is known
        self._work: dict[str, tuple[float, float]] = {}  # seconds and rounds of families that have ended
        self._studies, self._done = sum(len(group.asked) for group in todo), 0
        self._now: Group | None = None
        self._all = sum(rounds for _, rounds in self._left.values())
        self._began = time.monotonic()
        self._rounds = 0

    def time(self, group: Group, problem: Simulation) -> None:
        """Take a problem's pace before its first family."""
        if self._show and group.problem not in self._pace:
            pace, _ = calibrate(group.first, problem, 1.0)
            self._pace[group.problem] = pace / group.tries / speedup(self._workers)

    def begin(self, group: Group) -> None:
        self._now, self._began, self._rounds = group, time.monotonic(), 0

    def show(self, rounds: int) -> None:
        self._rounds = rounds * (self._now.tries if self._now else 1)
        self._say()

    def finished(self) -> None:
        self._done += 1
        self._say()

    def end(self, group: Group) -> None:
        seconds, rounds = self._work.get(group.problem, (0.0, 0.0))
        self._work[group.problem] = seconds + time.monotonic() - self._began, rounds + max(1, self._rounds)
        self.drop(group)

    def drop(self, group: Group) -> None:
        self._left.pop(group.name, None)
        self._now = None

    def _seconds_left(self) -> float | None:
        pace = {**self._pace, **{name: s / r for name, (s, r) in self._work.items()}}
        if not pace:
            return None
        usual = sum(pace.values()) / len(pace)
        total = sum(pace.get(problem, usual) * rounds for problem, rounds in self._left.values())
        if self._now is not None:
            problem, rounds = self._left[self._now.name]
            total -= pace.get(problem, usual) * min(self._rounds, rounds)
        return total

    def _say(self) -> None:
        if self._show is not None:
            left = sum(rounds for _, rounds in self._left.values()) - self._rounds
            ended = self._done == self._studies
            where = f", {self._now.problem} seed {self._now.first.seed}" if self._now and not ended else ""
            text = f"{self._done} of {self._studies} studies{where}, {duration(self._seconds_left())} left"
            self._show(_Status(self._all if ended else max(0, min(self._all - left, self._all - 1)), self._all, text))


@dataclass(frozen=True)
class _Status:
    """How far a suite is, for the bar of ``run``."""

    used: int  # rounds, of those expected
    planned: int
    text: str

    def __str__(self) -> str:
        return self.text


def default_out(path: Path) -> Path:
    """Return where a suite's results are kept unless it is said otherwise: ``results/NAME.jsonl`` beside its file."""
    return path.parent / "results" / (path.stem + results.SUFFIX)


def scratch(out: Path) -> Path:
    """Return the folder with the states of arms that some study still needs: ``NAME.scratch`` beside the results."""
    return out.with_suffix(".scratch")


def print_report(done: Report, out: Path, as_json: bool = False) -> None:
    """Print the comparison of all results, and what this run did."""
    failed = {name: str(error) for name, error in done.failed}
    if as_json:
        run = {"done": done.done, "asked": done.asked, "computed": done.computed, "failed": failed}
        made = as_plain(compare([out])) if results.read(out).studies else {}
        print(json.dumps(strict({"run": run, **made}), indent=2))
    else:
        if results.read(out).studies:
            show(compare([out]))
        if done.done:
            studies = counted(done.done, "study", "studies")
            print(f"\n{studies} of {done.asked} rounds took {done.computed} rounds: equal arms are shared.")
        print(f"Kept in {out}: fedtuner compare {out}")
        for name, why in failed.items():
            print(f"fedtuner: {name} and what shares its arms: {why}", file=sys.stderr)


def exit_code(done: Report) -> int:
    """Return 0, or that of what went wrong."""
    return min((1 if isinstance(error, (ClientError, WorkerError)) else 2 for _, error in done.failed), default=0)
