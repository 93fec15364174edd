"""A few arms, a duel of the best with the default, and a long run of the winner: how ``auto`` spends its rounds.

1. ``arms`` arms train ``rung`` rounds each. Arm 0 is the default, if the sampler has it so.
2. The best of them and the default (the second best, if the default is the best) train three times as long, both from
   the best arm's model: what is compared is how a configuration goes on from a model that learns, not how it begins.
   Where the best arm's model is no better than an untrained one, each goes on from its own: it may be beyond repair.
3. The winner trains alone for the rest of the budget (long_run.py).

An arm *overshoots* if its model was worse than the untrained one in a tenth of its rounds of the duel: its step is too
large. If the best arm overshoots and wins, the other one takes its place where its model is better and has settled;
else the best arm runs with a smaller step. The default keeps its step. If the best arm overshoots and the default wins
on its model, or wins a long duel and no longer learns in it, then learning fast does not last here. Unless most of the
loss is gone by then, the default goes on from the model that it had after the rung. After a long duel, when it has
rounds enough, it trains as it would have without a search, with the server's own step and no cooling.

Where no arm's server model has learned anything by the end of the rung, its losses say nothing. If the default's
clients have learned nothing by themselves either, its step is too small rather than too large: the boldest arm leads.
If they have (as where each has few labels), a larger step would drive them further apart. So of the arms whose step is
no larger than the default's, the one whose clients end lowest leads, and it wins if its clients stay ahead of the
default's. Losses above the untrained one are then not held against it.

``sum_of_both`` ranks arms that have hardly begun, ``smaller_of_both`` those of the duel and the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedtuner import checks
from fedtuner.core.records import Key, Record
from fedtuner.core.schedule import Change, Evidence, Score, Scoring, Start, Step, best, discounted
from fedtuner.errors import SpecError
from fedtuner.schedules.judging import (
    LEARNED,
    MANY,
    keeps_ahead,
    left,
    no_longer_learns,
    overshoots,
    smaller_of_both,
    sum_of_both,
    typical,
    untrained_loss,
    worse_than_none,
)
from fedtuner.schedules.long_run import LAST, LongRun, Plain, SmallerStep

SHARE = 0.4  # of the budget, for the rung and the duel
LONGER = 3  # the duel has this many times the rounds of the rung
LARGEST = 1_000_000  # rounds: every one of them is imagined before the study begins (``outline``)
MOST, LEAST = 9, 3  # arms; with fewer, a search does not pay
FEWEST = 3  # rounds of the rung
MOST_LEARNED = 0.5  # of the untrained model's loss: below it, a model is worth more than a way to train it
HARDLY = 0.005  # of the untrained model's loss: a difference of models that have learned next to nothing
RISEN = 1.1  # of the untrained model's loss: above it, an arm of which nothing else is known takes too large a step
ALONE = 0.9  # of the untrained model's loss: below it, clients learn much in one round by themselves
WILDER = 2.0  # how many times the loss of another


@dataclass(frozen=True)
class Duel:
    """A rung of a few arms, a duel from the best one's model, and the winner's long run."""

    kind: ClassVar[str] = "duel"
    budget: int = 500
    arms: int | None = None  # None: as many as the budget can compare; 1: no search
    discount: float = 0.8  # weight of a round's score against the next one's
    score: str = "error"  # what is shown of an arm; arms are compared as the file says
    step: str = "lr"  # the client hyperparameter that a return makes smaller
    returns: int = 3  # at most
    least_step: float = 0.0  # that it may be
    default_optimiser: str = ""  # the server's, where the default trains as without a search; empty: as in the search
    default_lr: float = 1.0  # the server's there
    needs: ClassVar[frozenset[str]] = frozenset()
    goes_on: ClassVar[str] = "run"  # what further rounds are for: ``Longer.by``

    def __post_init__(self) -> None:
        budget = checks.whole("schedule.budget", self.budget, 1, LARGEST)
        arms = self.searched(budget) if self.arms is None else checks.whole("schedule.arms", self.arms)
        checks.settle(self, budget=budget, arms=arms, returns=checks.whole("schedule.returns", self.returns, 0))
        checks.settle(self, discount=self.scoring.discount)
        if arms > 1 and self.rung < 1:
            raise SpecError(
                f"budget = {budget} cannot give {arms} arms a round each: raise budget to {self.least(arms)} or more, "
                "or lower arms"
            )

    @staticmethod
    def searched(budget: int) -> int:
        """Return how many arms a budget can compare; 1 where a search does not pay."""
        arms = min(MOST, int(SHARE * budget / FEWEST) - 2 * LONGER)
        return arms if arms >= LEAST else 1

    @staticmethod
    def least(arms: int) -> int:
        """Return the least budget that gives so many arms a round each."""
        return math.ceil((arms + 2 * LONGER) / SHARE) if arms > 1 else 1

    @property
    def rung(self) -> int:
        """Rounds of each arm before the duel."""
        assert self.arms is not None
        return int(SHARE * self.budget / (self.arms + 2 * LONGER)) if self.arms > 1 else 0

    @property
    def run(self) -> int:
        """Rounds of the winner after the duel."""
        assert self.arms is not None
        return self.budget - self.rung * (self.arms + 2 * LONGER)

    @property
    def last(self) -> int:
        """The last rounds of the run, which are trained once more with a smaller step."""
        return self.run // LAST if self.step else 0

    @property
    def longest(self) -> int:
        return (1 + LONGER) * self.rung + self.run - self.last

    @property
    def scoring(self) -> Scoring:
        return Scoring(self.score, self.discount)

    @property
    def _smaller(self) -> SmallerStep:
        return SmallerStep(self.step, least=self.least_step)

    @property
    def _plain(self) -> Plain:
        return Plain(self.default_optimiser, self.default_lr)

    def steps(self) -> Generator[Step, Evidence, Key]:
        """Play the rung, the duel and the run."""
        if self.arms == 1:
            return (yield from self._run(None, 0, default=True))
        assert self.arms is not None
        everyone = range(self.arms)
        evidence = yield Step(dict.fromkeys(everyone, self.rung), dict.fromkeys(everyone, Start()))
        untrained = untrained_loss(next(filter(None, evidence.records.values()), ()))  # one may have failed at once
        sound = 0 not in evidence.ended and math.isfinite(self._before(evidence.records[0], untrained))
        alone = self._alone(evidence, untrained)
        ranked = best(self._first_scores(evidence, untrained), self.arms)
        leader, other = ranked[0], ranked[1] if ranked[0] == 0 else 0
        until, rival, start = (1 + LONGER) * self.rung, other, dict[int, Start]()
        if not alone and discounted([r.loss_before for r in evidence.records[leader]], self.discount) < untrained:
            rival, start = self.arms, {self.arms: Start(parent=(leader, self.rung), like=other)}
        out = tuple(arm for arm in everyone if arm not in (leader, rival))
        own = (0, self.rung)
        home = own if sound else (leader, self.rung)  # where there is a sound model after a duel without one
        evidence = yield Step({leader: until, rival: until}, start, out, (home,))
        winner = self._winner(evidence, leader, rival, untrained, alone=alone)
        first = self.arms + len(start)
        rounds = {arm: [r for r in evidence.records[arm] if r.round > self.rung] for arm in (leader, rival)}
        default = (leader if winner == leader else other) == 0
        change: Change | None = None
        if evidence.ended.keys() >= {leader, rival}:
            change = None if sound else self._smaller
            return (yield from self._run(home, first, (leader, rival), change, default=sound))
        if default and winner == rival:
            loss = self._scores(evidence, smaller_of_both, untrained, self.rung)[rival][0]
            vain = overshoots(rounds[leader], untrained) or no_longer_learns(rounds[rival], untrained)
            if start and sound and vain and loss > left(untrained, MOST_LEARNED):
                plain = self._plain if len(rounds[rival]) >= MANY else None
                return (yield from self._run(own, first, (leader, rival), plain, default=True))
        elif not default and not alone and overshoots(rounds[winner], untrained):
            before = {arm: self._before(of, untrained) for arm, of in rounds.items()}
            settled = not any(r.loss_before > untrained for r in rounds[rival][len(rounds[rival]) // 2 :])
            if winner == leader and rival not in evidence.ended and settled and before[rival] < before[leader]:
                winner, default = rival, other == 0
            else:
                change = self._smaller
        out = (rival if winner == leader else leader,)
        return (yield from self._run((winner, until), first, out, change, default=default))

    def _alone(self, evidence: Evidence, untrained: float) -> bool:
        """Return whether no arm's server model has learned anything, while the default's clients have, by themselves.

        So its step is not too small, and losses of the server's model that are above the untrained one's say nothing.
        """
        if any(self._before(records, untrained) <= left(untrained, LEARNED) for records in evidence.records.values()):
            return False
        sound = 0 not in evidence.ended and not worse_than_none(evidence.records[0])
        return sound and self._after(evidence.records[0], untrained) < left(untrained, ALONE)

    def _winner(self, evidence: Evidence, leader: int, rival: int, untrained: float, *, alone: bool) -> int:
        """Return the better one after a duel.

        Where the server's model of one has learned nothing, the loss before local training decides: that after it may
        be what clients learn by themselves. The default wins where it is hardly higher; but not where neither has
        learned anything and its loss, which is cut in the scores, is far above the other's, or, if all clients learn by
        themselves (``alone``), where the other's stay as far ahead of the default's as they were at first.
        """
        scores = self._scores(evidence, smaller_of_both, untrained, self.rung)
        before = {
            arm: self._before([r for r in evidence.records[arm] if r.round > self.rung], untrained)
            for arm in (leader, rival)
        }
        learned = left(untrained, LEARNED)
        if not all(math.isfinite(score[0]) for score in scores.values()) or max(before.values()) <= learned:
            return best(scores, 2)[0]
        default, other = (leader, rival) if leader == 0 else (rival, leader)
        if min(before.values()) > learned:
            wild = {arm: typical(evidence.records[arm], self.rung) for arm in (default, other)}
            if wild[default] > left(max(untrained, wild[other]), WILDER):
                return other
            if alone and keeps_ahead(evidence.records[other], evidence.records[default], self.rung, untrained):
                return other
        return other if before[other] < before[default] - HARDLY * abs(untrained) else default

    def _before(self, records: Sequence[Record], untrained: float) -> float:
        return discounted([min(r.loss_before, untrained) for r in records], self.discount)

    def _first_scores(self, evidence: Evidence, untrained: float) -> dict[int, Score]:
        """Return the scores of arms that have hardly begun; wrecks are behind all others.

        Where no arm's server model has learned anything yet, their scores are noise, or what clients learn by
        themselves. If the default's clients do so, they decide, without the arms of larger steps. If not, the step is
        too small rather than too large, unless an arm's loss is far above the untrained one: the more local training
        changes, the better.
        """
        scores = self._scores(evidence, sum_of_both, untrained)
        wrecks = [arm for arm, records in evidence.records.items() if worse_than_none(records)]
        if len(wrecks) < len(scores):
            scores |= {arm: (math.inf, scores[arm][1]) for arm in wrecks}
        finite = [arm for arm, score in scores.items() if math.isfinite(score[0])]
        if any(self._before(evidence.records[arm], untrained) <= left(untrained, LEARNED) for arm in finite):
            return scores
        if self._alone(evidence, untrained):
            steps = {arm: self._step(evidence, arm) for arm in scores}
            out = [arm for arm, (score, _) in scores.items() if math.isinf(score) or steps[arm] > steps[0]]
            after = {arm: self._after(records, untrained) for arm, records in evidence.records.items()}
            return {arm: (math.inf if arm in out else after[arm], score) for arm, (score, _) in scores.items()}
        bold = {}
        for arm, records in evidence.records.items():
            known = [r.loss_before for r in records if not math.isnan(r.loss_before)]
            wild = math.isinf(scores[arm][0]) or (known and known[-1] > left(untrained, RISEN))
            moved = [abs(r.loss_after - r.loss_before) for r in records if math.isfinite(r.loss_after - r.loss_before)]
            bold[arm] = (math.inf if wild or not moved else -sum(moved) / len(moved), scores[arm][0])
        return bold

    def _after(self, records: Sequence[Record], untrained: float) -> float:
        return discounted([min(r.loss_after, untrained) for r in records], self.discount)

    def _step(self, evidence: Evidence, arm: int) -> float:
        """Return an arm's step size; 0 if it has none."""
        value = evidence.arms[arm].client.get(self.step) if arm in evidence.arms else None
        return float(value) if isinstance(value, (int, float)) else 0.0

    def _scores(
        self, evidence: Evidence, value: Callable[[Record, float], float], untrained: float, since: int = 0
    ) -> dict[int, Score]:
        """Return the arms' scores by their rounds after one; an arm that has ended is behind all others."""
        scores = {}
        for arm, records in evidence.records.items():
            rounds = [value(record, untrained) for record in records if record.round > since]
            last = math.inf if arm in evidence.ended else discounted(rounds, self.discount)
            scores[arm] = (last, evidence.scores[arm][0])
        return scores

    def _run(
        self, parent: Key | None, first: int, out: tuple[int, ...] = (), change: Change | None = None,
        *, default: bool = False,
    ) -> Generator[Step, Evidence, Key]:  # fmt: skip
        own = self._plain if self.default_optimiser else None
        # Without a step that could be smaller only the default has something to change.
        returns = self.returns if self.step else min(self.returns, int(default and own is not None))
        run = LongRun(self.run, self._smaller, returns, own, self.last)
        return run.steps(parent, first, out, change, default=default)
