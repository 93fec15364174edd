"""Studies that train the same arms: their rounds are computed once, and each study reads those that it asks for.

Random search, halving and Hyperband draw the same arms for a seed, whatever their budget, their longest arm and their
target, as long as the tuner inside is the same. So all of them are plays over one session, as in a suite
(fedtuner.experiments.family), with the results that each would have alone.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ways import WAYS

import fedtuner as ft
from fedtuner.core.schedule import Schedule
from fedtuner.experiments.family import Family, Outcome
from fedtuner.run.session import Session

Key = tuple[str, int, str, str, int]  # problem, budget, way, target, seed


@dataclass(frozen=True)
class Spec:
    """What a family reads of a study's settings."""

    schedule: Schedule
    target: str


@dataclass(frozen=True)
class Entry:
    """A study of a family."""

    key: Key
    spec: Spec
    online: int = 0
    every_arm: bool = False
    labels: Mapping[str, str] | None = None


def lines(problem: ft.Simulation, keys: Sequence[Key], scratch: Path | None = None) -> Iterator[dict[str, Any]]:
    """Yield the line of each study, as it ends. All have the same problem, seed and arms.

    ``scratch`` is where rounds are kept, so that they are not lost if the process is stopped.
    """
    entries = [Entry(key, Spec(WAYS[key[2]].settings(key[1])["schedule"], key[3])) for key in keys]  # type: ignore[misc]
    folder = None if scratch is None else scratch / hashlib.blake2b(repr(keys).encode(), digest_size=8).hexdigest()
    _, budget, way, target, seed = keys[0]
    settings = WAYS[way].settings(budget)  # type: ignore[misc]
    study = ft.prepare(problem, target=target, seed=seed, workers=1, store=folder, cohort=10, **settings)
    # The session plays no schedule itself.
    setup = replace(study.setup, schedule=ft.random_search(1, 1))
    with Session(setup, problem, study.where) as session:
        for outcome in Family(session, entries, entries).outcomes():  # type: ignore[arg-type]
            yield _line(session, outcome)
    if folder is not None:
        shutil.rmtree(folder)


def _line(session: Session, outcome: Outcome) -> dict[str, Any]:
    name, budget, way, target, seed = outcome.entry.key  # type: ignore[attr-defined]
    records = [record for own in outcome.records.values() for record in own]
    return {
        "problem": name, "budget": budget, "way": way, "target": target, "seed": seed, **outcome.winner.errors,
        "rounds": len(records), "examples": session.journal.processed_in(records), "arm": outcome.winner.arm,
        "client": dict(outcome.client),
    }  # fmt: skip
