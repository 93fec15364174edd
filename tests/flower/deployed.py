"""What the tests of deployments share: the study that ``toyapp`` runs over Flower, and what its store holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fedtuner as ft
from fedtuner.core.records import Record
from fedtuner.flower.handshake import client_number
from fedtuner.report.summary import journal_of, summary
from fedtuner.run.journal import Journal
from fedtuner.run.store import Folder
from toys import SPACE, TESTS, clients, remembering

CLIENTS = clients(3)
EXAMPLES = TESTS.parent / "examples"
QUICKSTART = EXAMPLES / "flower-quickstart"
TOY, SECURE = TESTS / "flower" / "toyapp", TESTS / "flower" / "secureapp"


def tune(problem: Any, arms: int, cohort: int, store: str | Path) -> ft.Study:
    """Tune a method with slots and memory: one arm for two rounds, or two arms of which one has a second round."""
    schedule = ft.random_search(budget=2, longest=2)
    if arms == 2:
        schedule = ft.halving(budget=3, longest=2, eta=2, eliminations=1)
    return ft.tune(
        problem, SPACE, method=remembering, fedex=ft.FedEx(k=3, eps=0.3), schedule=schedule, cohort=cohort, seed=5,
        store=store, workers=1, progress=False,
    )  # fmt: skip


def records(store: Path) -> list[Record]:
    """Return the rounds in a store so far; there may be no store yet."""
    return Journal(Folder(store).events()).history()


def outcome(store: Path) -> dict[str, str]:
    """Return all that a study has found, to the bit: arms, rounds, winner, evaluations; each arm's last state.

    A simulation knows a client by its place, a fleet by a number made of its id: here both are the id.
    """
    ids = {n: str(c.id) for i, c in enumerate(CLIENTS) for n in (i, client_number(c.id))}
    study = journal_of(store)
    found = {name: repr(getattr(study, name)) for name in ("arms", "candidates", "ended", "eliminated", "won")}
    found |= {"rounds": repr(study.history()), "evaluated": repr(study.evaluated)}
    for arm in study.arms:
        key = (arm, study.saved_round(arm) or 0)
        state, belief = Folder(store).load(key, study.saved[key])
        memory = {f"memory of {ids[i]}: {name}": v for i, kept in state.memory.items() for name, v in kept.items()}  # type: ignore[union-attr]
        for name, v in {"w": state.w, **state.slots, **belief, **memory}.items():
            found[f"state {key}, {name}"] = repr((str(v.dtype), v.shape, v.tobytes()))
    return found


def check(log: str, store: Path) -> None:
    """Check that an example's run printed its result, and that the store has all of its rounds."""
    study = summary(store)
    assert len(records(store)) == study["rounds_used"] == 3
    assert all(record.clients == 3 and not record.dropped for record in records(store))
    assert re.search(r"tuning: \d+/3 rounds", log)  # progress shows in the stream without being asked for
    shown = re.search(r"accuracy: (\S+) with (.*)", log)
    assert shown
    assert 0 < float(shown.group(1)) < 1
    assert all(f"'{name}': {value}" in shown.group(2) for name, value in study["result"]["client"].items())
