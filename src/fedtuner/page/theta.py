"""Theta after each round. The journal has it where states were saved; for the rounds between, FedEx is run again.

A round's record has each client's label and metrics: all that FedEx's update reads. Each round's entropy, which the
record has, too, is compared: where it differs (only sums were known, or clients tried several candidates), only the
saved ones are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedtuner import tables, tuners
from fedtuner.core.model import Metrics
from fedtuner.core.records import Record, Seen, Tried
from fedtuner.core.tuner import Floats
from fedtuner.report.summary import is_fedex
from fedtuner.run.journal import Journal
from fedtuner.space import Space
from fedtuner.tuners import FedEx
from fedtuner.tuners.fedex import Belief

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
        if is_fedex(journal.setup["tuner"]) and self._replay(journal, arm):
            return {r.round: b.theta.p for r, b in zip(own, self._beliefs[arm][1:], strict=True)}
        saved = ((round, p) for (id, round), p in journal.beliefs.items() if id == arm and len(p) > 1)
        return {round: np.asarray(p) for round, p in saved}

    def _replay(self, journal: Journal, arm: int) -> bool:
        """Run FedEx's updates that were not run yet; return whether they gave what the records say."""
        tuner = tables.read(tuners.KINDS, journal.setup["tuner"], "tuner", "fedex")
        if arm not in self._beliefs and not self._begin(journal, arm, tuner):
            self._wrong.add(arm)
        if arm in self._wrong:
            return False
        beliefs, own = self._beliefs[arm], journal.own_records[arm]
        for record in own[len(beliefs) - 1 :]:
            beliefs.append(tuner.update(beliefs[-1], _seen(tuner, record)))
            if abs(beliefs[-1].theta.entropy - record.entropy) > CLOSE or len(record.rows) != record.trainings:
                self._wrong.add(arm)
                return False
        return True

    def _begin(self, journal: Journal, arm: int, tuner: FedEx) -> bool:
        setup, known = journal.setup, journal.arms[arm]
        before = None
        if known.parent is not None:
            parent, round = known.parent
            if not self._replay(journal, parent):
                return False
            own = journal.own_records[parent]
            before = self._beliefs[parent][round - own[0].round + 1 if own else 0]
        belief = tuner.begin(known, Space.of(setup), setup["seed"], before)
        self._beliefs[arm] = [belief]
        return bool(tables.plain(belief.candidates) == tables.plain(journal.candidates[arm]))


def _seen(tuner: FedEx, record: Record) -> list[Seen]:
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
