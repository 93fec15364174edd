"""What several tests of deployments use: the study that ``toyapp`` runs over Flower, and the examples."""

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
PAGE = TESTS.parent / "docs" / "flower.md"


def tune(problem: Any, budget: int, longest: int, cohort: int, store: str | Path) -> ft.Study:
    """Tune a method with slots and memory: two arms, one of which goes on."""
    schedule = ft.halving(budget=budget, longest=longest, eta=2, eliminations=1)
    fedex = ft.FedEx(k=3, eps=0.3)
    return ft.tune(problem, SPACE, remembering, fedex, schedule, cohort, seed=5, store=store, workers=1, progress=False)


def outcome(store: Path) -> dict[str, bytes]:
    """Return what a study has found, to the bit: every round's record, the result, each arm's weights, theta, memory.

    A simulation knows a client by its place, a fleet by a number made of its id: here both are the id.
    """
    ids = {str(n): str(c.id) for i, c in enumerate(CLIENTS) for n in (i, client_number(c.id))}
    found = {name: (store / name).read_bytes() for name in ("journal.jsonl", "result.json", "evaluations.json")}
    for file in sorted((store / "arms").iterdir()):
        for name, array in load_file(file).items():
            known = ".".join(ids.get(part, part) for part in name.split("."))
            found[f"{file.name} {known}"] = f"{array.dtype} {array.shape} ".encode() + array.tobytes()
    return found


def check(log: str, store: Path) -> None:
    """See that an example's run says what it found, and that the store has every round of it."""
    result = json.loads((store / "result.json").read_text())
    rounds = [json.loads(line) for line in (store / "journal.jsonl").read_text().splitlines()]
    assert len(rounds) == result["rounds_used"] == 3
    assert all(record["clients"] == 3 and not record["dropped"] for record in rounds)
    assert re.search(r"tuning: \d+/3 rounds", log)  # progress shows in the stream without being asked for
    shown = re.search(r"accuracy: (\S+) with", log)
    assert shown
    assert float(shown.group(1)) == 1 - result["score"]
