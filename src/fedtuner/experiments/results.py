"""The results of a suite: one file of JSON lines, made to be read, compared and committed.

The first line is ``{"suite": ...}``: title, axes, published numbers and figures. Each further line is one study with
one seed: its settings, test errors, cost and winner, and the versions and the machine that computed it. A line holds
no paths. Lines are in the order of the suite's axes, then of seeds, so two versions of a file can be compared line by
line.
"""

from __future__ import annotations

import json
import math
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from fedtuner import __version__
from fedtuner.arm import Record, trainings
from fedtuner.errors import SpecError, StoreError
from fedtuner.executors import cores
from fedtuner.experiments.family import Outcome, Point
from fedtuner.experiments.suite import Entry, Suite
from fedtuner.store import differences, plain, replace_file

FORMAT = 1
SIDES = ("global", "personalized")
SUFFIX = ".jsonl"

Result = Mapping[str, Any]  # one study with one seed


@dataclass(frozen=True)
class Results:
    """The content of a file of results."""

    suite: Mapping[str, Any]  # what `Suite.describe` returned; empty if the file does not say
    studies: tuple[Result, ...] = ()


def describe(outcome: Outcome) -> dict[str, Any]:
    """Return the result of a finished study."""
    entry, study = outcome.entry, outcome.study
    best, rounds = study.best, study.history
    target = entry.spec.target
    made: dict[str, Any] = {
        "format": FORMAT,
        "labels": dict(entry.labels),
        "seed": entry.seed,
        "study": dict(entry.table),
        "problem": study.problem.describe(),
        "target": target,
        "test": dict(outcome.winner.test),
        "budget": study.schedule.budget,
        "rounds": study.rounds_used,
        "trainings": sum(trainings(study.setting.fedex, kept) for kept in study.records.values()),
        "arms": len(study.records),
        "diverged": sorted(arm for arm, kept in study.records.items() if kept and kept[-1].diverged),
        "broken": sum(record.broken for record in rounds),
        "dropped": sum(record.dropped for record in rounds),
        "winner": {
            "arm": best.arm,
            "rounds": best.rounds,
            "score": best.score,
            "server": dict(best.server),
            "client": dict(best.client),
            "confidence": float(best.theta.max()),
        },
    }
    if entry.online:
        made["online"] = {"every": entry.online, "curve": [_row(point) for point in outcome.curve]}
        if len(best.theta) > 1:
            made["theta"] = _theta(study.records[best.arm], entry.online)
    if entry.every_arm:
        made["tested"] = [_row(point) for point in outcome.tested]
    return made | {"versions": versions(), "machine": machine()}


def _row(point: Point) -> list[float]:
    """Return the rounds that the study has used, the arm, the arm's rounds and score, and its test errors."""
    return [point.used, point.arm, point.round, point.score, *(point.test[side] for side in SIDES)]


def _theta(records: Sequence[Record], every: int) -> list[list[float]]:
    """Return round, theta's entropy and its mode's probability: of the first round, every n-th, and the last."""
    return [[r.round, r.entropy, r.confidence] for r in records if r.round % every == 0 or r.round in (1, len(records))]


def versions() -> dict[str, str]:
    """Return the versions that results depend on and, if this package is in a checkout, its commit."""
    found = {"fedtuner": __version__, **({"commit": commit()} if commit() else {}), "python": platform.python_version()}
    for name in ("numpy", "torch", "optuna"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@lru_cache(maxsize=1)
def commit() -> str:
    """Return the commit of the checkout that has this package, with "+" if the package was changed; else nothing."""
    here = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", *arguments]
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # fails if installed inside another checkout
        return git("describe", "--always", "--abbrev=12") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def machine() -> dict[str, Any]:
    """Return the operating system, the processor and the number of cores."""
    model = platform.processor()
    try:
        with Path("/proc/cpuinfo").open() as file:
            model = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"system": platform.system(), "cpu": model or platform.machine(), "cores": cores()}


def read(path: Path) -> Results:
    """Return the content of a file of results; a file that does not exist yet has none."""
    folder = path.with_suffix("") if path.suffix == SUFFIX else path
    if not path.is_file() and (folder / "suite.json").is_file():
        raise SpecError(
            f"{folder} has results in the old form, a file per study, which is no longer read: "
            f"delete it, and 'fedtuner bench' computes them again as {folder}{SUFFIX}"
        )
    if path.suffix != SUFFIX or path.is_dir():
        raise SpecError(f"{path} is no file of results: 'fedtuner bench' keeps them in one that ends in {SUFFIX}")
    if not path.exists():
        return Results({})
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    suite: Mapping[str, Any] = {}
    studies = []
    for n, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise StoreError(f"cannot read {path}, line {n}: {error}") from error
        if n == 1 and isinstance(value, dict) and "suite" in value:
            suite = value["suite"]
        elif isinstance(value, dict) and {"labels", "seed", "test"} <= set(value):
            studies.append(value)
        else:
            raise StoreError(f"{path}, line {n}, is not the result of a study")
    return Results(suite, tuple(studies))


def write(path: Path, results: Results) -> None:
    """Replace a file of results, with its lines in order; a file that would stay the same is not touched."""
    order = {axis: {label: n for n, label in enumerate(labels)} for axis, labels in results.suite["axes"].items()}

    def place(study: Result) -> tuple[Any, ...]:
        labels = study["labels"]
        along = [places.get(labels.get(axis), math.inf) for axis, places in order.items()]
        return *along, json.dumps(labels), study["seed"]  # labels that the suite no longer has: by their text

    lines = [{"suite": results.suite}, *sorted(results.studies, key=place)]
    text = "".join(json.dumps(plain(line)) + "\n" for line in lines)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            replace_file(path, text.encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def update(path: Path, suite: Suite, *new: Result) -> None:
    """Add new results to a suite's file, and bring its first line up to date."""
    write(path, Results(suite.describe(), (*read(path).studies, *new)))


def unfinished(path: Path, suite: Suite) -> list[Entry]:
    """Return the studies of a suite that have no result; a result with other settings is an error."""
    studies = {_key(study["labels"], study["seed"]): study for study in read(path).studies}
    return [
        entry for entry in suite.entries if not _is_result(studies.get(_key(entry.labels, entry.seed)), entry, path)
    ]


def _key(labels: Mapping[str, str], seed: int) -> tuple[frozenset[tuple[str, str]], int]:
    return frozenset(labels.items()), seed


def _is_result(study: Result | None, entry: Entry, path: Path) -> bool:
    if study is None:
        return False
    now = json.loads(json.dumps(plain(dict(entry.table))))
    changed = list(differences(study.get("study"), now))
    if study.get("online", {}).get("every", 0) != entry.online:
        changed.append("online")
    if entry.every_arm and "tested" not in study:
        changed.append("every_arm")
    if changed:
        raise SpecError(
            f"{path} has {entry.name!r}, seed {entry.seed}, with other settings ({'; '.join(changed[:3])}): "
            "delete its line, or use another --out"
        )
    return True
