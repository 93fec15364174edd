"""The results of a suite: one file of JSON lines, made to be read, compared and committed.

The first line is ``{"suite": ...}``: title, axes, published numbers and figures. Each further line is one study with
one seed: its settings, test errors, cost and winner, and the versions and the machine that computed it. Studies of one
``family`` read the same arms, so ``by_arm`` has what can be counted once for all of them. A line holds no paths. Lines
are in the order of the suite's axes, then of seeds, so two versions of a file can be compared line by line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtuner.core.records import Record
from fedtuner.errors import SpecError, StoreError
from fedtuner.experiments.family import Outcome, Point
from fedtuner.experiments.suite import Entry, Suite
from fedtuner.run.store.files import replace_file
from fedtuner.run.versions import machine, versions
from fedtuner.tables import differences, is_real, misfit, plain

FORMAT = 1
SIDES = ("global", "personalized")
SUFFIX = ".jsonl"

Result = Mapping[str, Any]  # one study with one seed

# What the lines must say: all that compares and draws them.
_SUITE = {
    "title?": str, "axes?": {"*": [str]}, "columns?": str, "along?": str, "paper?": {"*": [is_real]}, "figures?": [dict]
}  # fmt: skip
_ROW = (is_real,) * 6  # of ``online`` and ``tested``
_STUDY = {
    "labels": lambda labels: isinstance(labels, dict) and labels and all(isinstance(v, str) for v in labels.values()),
    "seed": int,
    "target": lambda side: side in SIDES,
    "test": dict.fromkeys(SIDES, is_real),
    "problem": {"name": str},
    **dict.fromkeys(("rounds", "trainings", "arms", "broken", "dropped"), int),
    "diverged": [int],
    "stalled?": [int],
    "family?": str,
    "by_arm?": [(int, int, int, int)],
    "online?": {"every": int, "curve": lambda rows: rows and not misfit(rows, [_ROW])},
    "tested?": [_ROW],
    "theta?": [(int, is_real, is_real)],
}


@dataclass(frozen=True)
class Results:
    """The content of a file of results."""

    suite: Mapping[str, Any]  # what `Suite.describe` returned; empty if the file does not say
    studies: tuple[Result, ...] = ()


def describe(outcome: Outcome) -> dict[str, Any]:
    """Return the result of a finished study."""
    entry, winner = outcome.entry, outcome.winner
    rounds = [record for own in outcome.records.values() for record in own]
    made: dict[str, Any] = {
        "format": FORMAT,
        "labels": dict(entry.labels),
        "seed": entry.seed,
        "study": dict(entry.table),
        "problem": dict(outcome.problem),
        "target": entry.spec.target,
        "test": dict(winner.errors),
        "budget": entry.spec.schedule.budget,
        "rounds": len(rounds),
        "trainings": sum(record.trainings for record in rounds),
        "arms": len(outcome.records),
        **{why: sorted(arm for arm, own in outcome.ended.items() if own == why) for why in ("diverged", "stalled")},
        "broken": sum(record.broken for record in rounds),
        "dropped": sum(record.dropped for record in rounds),
        "family": entry.family_name,
        "by_arm": [_faults(arm, own) for arm, own in sorted(outcome.records.items())],
        "winner": {
            "arm": winner.arm,
            "rounds": winner.round,
            "score": winner.score,
            "server": dict(outcome.arm.server),
            "client": dict(outcome.client),
            "confidence": float(outcome.theta.max()),
        },
    }
    if entry.online:
        made["online"] = {"every": entry.online, "curve": [_row(point) for point in outcome.curve]}
        if len(outcome.theta) > 1:
            made["theta"] = _theta(outcome.records[winner.arm], entry.online)
    if entry.every_arm:
        made["tested"] = [_row(point) for point in outcome.ends]
    return made | {"versions": versions(), "machine": machine()}


def _faults(arm: int, records: Sequence[Record]) -> list[int]:
    """Return an arm, its rounds, and the updates that were broken and the reports that were dropped in them."""
    return [arm, len(records), sum(r.broken for r in records), sum(r.dropped for r in records)]


def _row(point: Point) -> list[float]:
    """Return the rounds that the study has used, the arm, the arm's rounds and score, and its test errors."""
    return [point.used, point.arm, point.round, point.score, *(point.errors[side] for side in SIDES)]


def _theta(records: Sequence[Record], every: int) -> list[list[float]]:
    """Return round, theta's entropy and its mode's probability: of the first round, every n-th, and the last."""
    ends = (records[0].round, records[-1].round)
    return [[r.round, r.entropy, r.confidence] for r in records if r.round % every == 0 or r.round in ends]


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
        except (ValueError, RecursionError) as error:
            raise StoreError(f"cannot read {path}, line {n}: {error}") from error
        first = n == 1 and isinstance(value, dict) and "suite" in value
        wrong = misfit(value, {"suite": _SUITE} if first else _STUDY)
        if wrong:
            raise StoreError(f"{path}, line {n}, is not the result of a study ({wrong}): restore it, or delete it")
        if first:
            suite = value["suite"]
        else:
            studies.append(value)
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
    return [one for one in suite.entries if not _is_result(studies.get(_key(one.labels, one.seed)), one, path)]


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
