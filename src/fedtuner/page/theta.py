"""Theta after each round. The journal has it where states were saved; for the rounds between, the tuner is run again.

A round's record has each client's label and metrics: all that the update of FedEx reads, with a kernel or without. Each
round's entropy, which the record has, too, is compared: where it differs (only sums were known, or clients tried
several candidates), only the saved ones are shown. A tuner without labels has no theta.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedtuner import tables, tuners
from fedtuner.core.model import Metrics
from fedtuner.core.records import Record, Seen, Tried
from fedtuner.core.tuner import Belief, Floats, Tuner
from fedtuner.run.journal import Journal
from fedtuner.space import Space

CLOSE = 1e-6  # nats


class Thetas:
    """Theta by arm and round; what was computed for a journal is kept while the journal grows."""

    def __init__(self) -> None:
        self._beliefs: dict[int, list[Belief]] = {}  # by arm: before its first own round, then after each
        self._wrong: set[int] = set()

    def of(self, journal: Journal, arm: int) -> Mapping[int, Floats]:
        """Return theta by round, from the arm's own rounds; empty where there is one candidate."""
        if len(journal.candidates[arm]) < 2:
            return {}
        own = journal.own_records[arm]
        tuner = _known(journal)
        if tuner is not None and self._replay(journal, arm, tuner):
            return {r.round: tuner.offers(b)[1] for r, b in zip(own, self._beliefs[arm][1:], strict=True)}
        saved = ((round, p) for (id, round), p in journal.beliefs.items() if id == arm and len(p) > 1)
        return {round: np.asarray(p) for round, p in saved}

    def _replay(self, journal: Journal, arm: int, tuner: Tuner) -> bool:
        """Run the tuner's updates that were not run yet; return whether they gave what the records say."""
        if arm not in self._beliefs and not self._begin(journal, arm, tuner):
            self._wrong.add(arm)
        if arm in self._wrong:
            return False
        beliefs, own = self._beliefs[arm], journal.own_records[arm]
        for record in own[len(beliefs) - 1 :]:
            beliefs.append(tuner.update(beliefs[-1], _seen(tuner, record)))
            entropy = tuner.summary(beliefs[-1]).entropy
            if abs(entropy - record.entropy) > CLOSE or len(record.rows) != record.trainings:
                self._wrong.add(arm)
                return False
        return True

    def _begin(self, journal: Journal, arm: int, tuner: Tuner) -> bool:
        setup, known = journal.setup, journal.arms[arm]
        before = None
        if known.parent is not None:
            parent, round = known.parent
            if not self._replay(journal, parent, tuner):
                return False
            own = journal.own_records[parent]
            before = self._beliefs[parent][round - own[0].round + 1 if own else 0]
        belief = tuner.begin(known, Space.of(setup), setup["seed"], before)
        self._beliefs[arm] = [belief]
        return bool(tables.plain(tuner.offers(belief)[0]) == tables.plain(journal.candidates[arm]))


def _known(journal: Journal) -> Tuner | None:
    """Return the study's tuner, if it is one of ours whose update needs no more than labels and values."""
    table = journal.setup["tuner"]
    if not isinstance(table, Mapping) or table.get("kind") not in tuners.KINDS:
        return None  # nobody's code is run to show a study
    made: Tuner = tables.read(tuners.KINDS, table, "tuner", "fedex")
    return None if made.labels is None else made


def _seen(tuner: Tuner, record: Record) -> list[Seen]:
    found = []
    for row in record.rows:
        before, after = (
            Metrics(loss, error, row.validated)
            for loss, error in ((row.loss_before, row.error_before), (row.loss_after, row.error_after))
        )
        found.append(Seen((row.label,), (tuner.value(Tried(row.label, before, after)),), row.validated))
    return found


def columns(thetas: Mapping[int, Floats], most: int) -> dict[str, Any]:
    """Return theta at no more than ``most`` rounds, the last of them among these."""
    rounds = sorted(thetas)
    step = -(-len(rounds) // most) if rounds else 1
    shown = rounds[::-1][::step][::-1]
    return {"rounds": shown, "p": [[round(float(p), 3) for p in thetas[t]] for t in shown]}
