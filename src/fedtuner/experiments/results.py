"""The results of a suite: one small JSON file per study and seed, and one table over all of them.

suite.json      the suite's axes and the published numbers
studies/*.json  a finished study each; made to be committed: no paths, with versions and machine
results.csv     a line per study and seed
"""

from __future__ import annotations

import csv
import io
import json
import math
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
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
from fedtuner.store import differences, plain, read_json, replace_file

FORMAT = 1
SIDES = ("global", "personalized")


def describe(outcome: Outcome) -> dict[str, Any]:
    """Return all that is kept of a finished study."""
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
    """Return rounds used, arm, its rounds, its score, and its errors on the test data."""
    return [point.used, point.arm, point.round, point.score, *(point.test[side] for side in SIDES)]


def _theta(records: Sequence[Record], every: int) -> list[list[float]]:
    """Return round, theta's entropy and the probability of its mode, now and then."""
    return [[r.round, r.entropy, r.confidence] for r in records if r.round % every == 0 or r.round in (1, len(records))]


def versions() -> dict[str, str]:
    """Return the versions that results depend on; of this package in a checkout, its commit as well."""
    found = {"fedtuner": __version__, **({"commit": commit()} if commit() else {}), "python": platform.python_version()}
    for name in ("numpy", "torch", "optuna"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@lru_cache(maxsize=1)
def commit() -> str:
    """Return what ``git describe`` calls this package's checkout, "+" for changes of the package; else nothing."""
    here = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", *arguments]
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # installed into some other project's folder, it is not ours
        return git("describe", "--always", "--abbrev=12") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def machine() -> dict[str, Any]:
    """Return what the work was done on."""
    model = platform.processor()
    try:
        with Path("/proc/cpuinfo").open() as file:
            model = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"system": platform.system(), "cpu": model or platform.machine(), "cores": cores()}


def file_of(out: Path, entry: Entry) -> Path:
    """Return where a study's result is kept."""
    return out / "studies" / entry.file


def finished(out: Path, entry: Entry) -> bool:
    """Whether a study's result is there; a result of other settings under its name is an error."""
    file = file_of(out, entry)
    if not file.exists():
        return False
    kept = read_json(file)
    now = json.loads(json.dumps(plain(dict(entry.table))))
    changed = list(differences(kept.get("study"), now))
    if kept.get("online", {}).get("every", 0) != entry.online:
        changed.append("online")
    if entry.every_arm and "tested" not in kept:
        changed.append("every_arm")
    if changed:
        raise SpecError(
            f"{file} is the result of other settings ({'; '.join(changed[:3])}): delete it, or use another --out"
        )
    return True


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Replace a result's file: a line for each of its entries."""
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(plain(value))}" for key, value in result.items())
    _put(path, f"{{\n{lines}\n}}\n")


def _put(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            replace_file(path, text.encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def read(path: Path) -> list[dict[str, Any]]:
    """Return the results of a suite's folder, of its ``studies`` folder, or of one file, in the suite's order."""
    if path.is_dir():
        folder = path / "studies" if (path / "studies").is_dir() else path
        files = sorted(folder.glob("*.json"))
    else:
        files = [path]
    found = [kept for kept in map(read_json, files) if isinstance(kept, dict) and "labels" in kept and "test" in kept]
    suite = about(path)
    order = {axis: {label: n for n, label in enumerate(labels)} for axis, labels in suite.get("axes", {}).items()}

    def place(kept: Mapping[str, Any]) -> tuple[Any, ...]:
        labels = kept["labels"].items()
        return (*(order.get(axis, {}).get(label, math.inf) for axis, label in labels), kept["seed"])

    return sorted(found, key=place) if order else found


def about(path: Path) -> dict[str, Any]:
    """Return what ``suite.json`` says, or nothing where there is none."""
    for file in (path / "suite.json", path.parent / "suite.json", path.parent.parent / "suite.json"):
        if file.is_file():
            return dict(read_json(file))
    return {}


def write_suite(out: Path, suite: Suite) -> None:
    """Write what a reader of the results needs to know of the suite, and the table of all results so far."""
    _put(out / "suite.json", json.dumps(plain(suite.describe()), indent=2) + "\n")
    found = read(out)
    if found:
        _put(out / "results.csv", tidy(found))


def tidy(found: Iterable[Mapping[str, Any]]) -> str:
    """Return results as CSV: a line per study and seed, errors as shares of 1."""
    rows = []
    for kept in found:
        rows.append(
            {
                **kept["labels"],
                "seed": kept["seed"],
                "problem": kept["problem"]["name"],
                "target": kept["target"],
                "error": kept["test"][kept["target"]],
                **{f"test_{side}": kept["test"][side] for side in SIDES},
                "budget": kept["budget"],
                "rounds": kept["rounds"],
                "trainings": kept["trainings"],
                "arms": kept["arms"],
                "diverged_arms": len(kept["diverged"]),
                "broken_updates": kept["broken"],
                "dropped_reports": kept["dropped"],
            }
        )
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
