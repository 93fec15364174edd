"""The scores of a session's arms: those at which arms were compared, and those of arms that still train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fedtuner.core.records import Arm
from fedtuner.core.sampler import Past
from fedtuner.core.schedule import Evidence, RunningScore, Score, Scoring
from fedtuner.run.journal import Journal


class Scores:
    """The scores of arms; their records are the journal's."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._first: dict[int, int] = {}  # arm -> the lowest of the arms started with it
        self._compared: dict[int, dict[int, Score]] = {}  # arm -> round -> score
        self._lowest: tuple[float, int] = (math.inf, 0)  # of all scores at which arms were compared, and whose it is
        self._running: dict[int, RunningScore] = {}  # of the arms that were shown on the way

    def start(self, arms: Iterable[int]) -> None:
        """Take note of arms that start together."""
        self._first |= dict.fromkeys(arms, min(arms, default=0))

    def first(self, arm: int) -> int:
        """Return the lowest of the arms that were started with one."""
        return self._first[arm]

    def evidence(self, until: Mapping[int, int], scoring: Scoring, target: str) -> Evidence:
        """Return arms' scores and records up to a round each, for a schedule of this scoring and target.

        An arm that has ended later had not ended then: a schedule that is run again must see what it saw before.
        """
        journal = self._journal
        ended = {arm: why for arm, t in until.items() if (why := self._ended(arm, t))}
        records = {arm: journal.records(arm, t) for arm, t in until.items()}
        scores = {arm: scoring.score(rounds, target) for arm, rounds in records.items()}
        # Behind all others; among themselves, by what they last had.
        scores |= {arm: (math.inf, scores[arm][0]) for arm, why in ended.items() if why == "failed"}
        for arm, t in until.items():
            self._compared.setdefault(arm, {})[t] = scores[arm]
            if math.isfinite(scores[arm][0]):
                self._lowest = min(self._lowest, (scores[arm][0], arm))
        return Evidence(scores, records, ended, {arm: journal.arms[arm] for arm in until})

    def _ended(self, arm: int, until: int) -> str:
        """Return why an arm has ended by a round; empty if it had not. It fails in the round after its last one."""
        why, last = self._journal.ended.get(arm, ""), self._journal.round_of(arm)
        return why if last < until or (last == until and why != "failed") else ""

    def last(self, arm: int) -> Score:
        """Return the score at which an arm was last compared; infinite if it never was."""
        scores = self._compared.get(arm, {})
        return scores[max(scores)] if scores else (math.inf, math.inf)

    def past(self, id: int, known: Mapping[int, Arm]) -> list[Past]:
        """Return the arms before one; those that were not started together with it have scores.

        An arm that has ended keeps its last score at every later rung of the arms started with it.
        """
        past = []
        for other in sorted(a for a in known if a < id):
            first = self._first[other]
            scores: dict[int, float] = {}
            if first != self._first[id]:
                scores = {t: score for t, (score, _) in self._compared.get(other, {}).items()}
                if other in self._journal.ended:
                    rungs = {t for a, f in self._first.items() if f == first for t in self._compared.get(a, {})}
                    scores |= {t: scores[max(scores)] for t in rungs if t not in scores}
            past.append(Past(known[other], first, scores))
        return past

    def lowest(self, until: Mapping[int, float], scoring: Scoring, target: str) -> tuple[float, int] | None:
        """Return the lowest score so far at which arms were compared, and whose it is; before that, of any arm.

        Arms that train up to a round (``until``) are compared once they have reached it.
        """
        reached = [a for a, t in until.items() if not self._compared or self._journal.round_of(a) >= t]
        scores = [self._lowest, *((self._now(arm, scoring, target), arm) for arm in reached)]
        return min((found for found in scores if math.isfinite(found[0])), default=None)

    def _now(self, arm: int, scoring: Scoring, target: str) -> float:
        """Return an arm's score after its rounds so far; infinite if it has none."""
        if arm not in self._running:
            self._running[arm] = RunningScore(scoring, target)
        running = self._running[arm]
        running.add(self._journal.records(arm, after=running.rounds))
        return running.value
