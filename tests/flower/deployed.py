"""What the tests of deployments share: the study that ``toyapp`` runs over Flower, and what its store holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

import fedtuner as ft
from fedtuner.flower.handshake import client_number
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
    fedex = ft.FedEx(k=3, eps=0.3)
    return ft.tune(problem, SPACE, remembering, fedex, schedule, cohort, seed=5, store=store, workers=1, progress=False)


def records(store: Path) -> list[dict[str, Any]]:
    """Return the rounds in a store; the line that is being written does not count."""
    journal = store / "journal.jsonl"
    lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
    return [json.loads(line) for line in lines]


def outcome(store: Path) -> dict[str, bytes]:
    """Return all that a study has found, to the bit: rounds, result, evaluation; each arm's weights, theta and memory.

    A simulation knows a client by its place, a fleet by a number made of its id: here both are the id.
    """
    ids = {str(n): str(c.id) for i, c in enumerate(CLIENTS) for n in (i, client_number(c.id))}
    names = ("journal.jsonl", "result.json", "evaluations.json")
    found = {name: (store / name).read_bytes() for name in names if (store / name).exists()}
    for file in sorted((store / "arms").iterdir()):
        for name, array in load_file(file).items():
            known = ".".join(ids.get(part, part) for part in name.split("."))
            found[f"{file.name} {known}"] = f"{array.dtype} {array.shape} ".encode() + array.tobytes()
    return found


def check(log: str, store: Path) -> None:
    """Check that an example's run printed its result, and that the store has all of its rounds."""
    result, rounds = json.loads((store / "result.json").read_text()), records(store)
    assert len(rounds) == result["rounds_used"] == 3
    assert all(record["clients"] == 3 and not record["dropped"] for record in rounds)
    assert re.search(r"tuning: \d+/3 rounds", log)  # progress shows in the stream without being asked for
    shown = re.search(r"accuracy: (\S+) with", log)
    assert shown
    assert float(shown.group(1)) == 1 - result["score"]
