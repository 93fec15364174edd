"""A few arms, a duel of the best with the default, and a long run of the winner: how ``auto`` spends its rounds.

1. ``arms`` arms train ``rung`` rounds each. Arm 0 is the default, if the sampler has it so.
2. The best of them and the default (the second best, if the default is the best) train three times as long, both from
   the best arm's model: what is compared is how a configuration goes on from a model that learns, not how it begins.
   Where the best arm's model is no better than an untrained one, each goes on from its own: it may be beyond repair.
3. The winner trains alone for the rest of the budget. Its rounds are watched. Where its smoothed score rises clearly
   above its lowest, where it has not fallen for a quarter of the run, or where it diverges, its training goes back to
   the model that it had there, with a smaller step.

An arm *overshoots* if its model was worse than the untrained one in a tenth of its rounds of the duel: its step is too
large. If the best arm overshoots and wins, the other one takes its place where its model is better and has settled;
else the best arm runs with a smaller step. If it overshoots and the default wins on its model, or wins a long duel and
no longer learns in it, then learning fast does not last here. Unless most of the loss is gone by then, the default goes
on from the model that it had after the rung. After a long duel, when it has rounds enough, it trains as it would have
without a search, with the server's own step and no cooling.

Scores are losses, cut at the loss of the untrained model: what a model says that knows nothing says nothing about how
badly. ``sum_of_both`` ranks arms that have hardly begun, ``smaller_of_both`` those of the duel and the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedtuner import checks
from fedtuner.core.records import Arm, Key, Record, Row
from fedtuner.core.schedule import Change, Evidence, Score, Scoring, Start, Step, best, discounted
from fedtuner.errors import SpecError
from fedtuner.rng import Generator as Rng
from fedtuner.space import Config, Space

SHARE = 0.4  # of the budget, for the rung and the duel
LONGER = 3  # the duel has this many times the rounds of the rung
LARGEST = 1_000_000  # rounds: every one of them is imagined before the study begins (``outline``)
MOST, LEAST = 9, 3  # arms; with fewer, a search does not pay
FEWEST = 3  # rounds of the rung
AFTER = 0.25  # weight of the loss after local training, beside that before it, in an arm's first scores
LEARNED = 0.98  # of the untrained model's loss: above it, an arm has learned nothing
MOST_LEARNED = 0.5  # of the untrained model's loss: below it, a model is worth more than a way to train it
HARDLY = 0.005  # of the untrained model's loss: a difference of models that have learned next to nothing
WORSE = 0.25  # of the untrained model's error: how much worse clients do that start from a model worse than none
WILDER = 2.0  # how many times the loss of another
OVERSHOT, OFTEN = 0.1, 2  # of an arm's rounds of the duel, and at least: its model was worse than the untrained one
MANY = 20  # rounds of a long duel
FLAT = 0.03  # of the untrained model's loss: a smaller fall from one half of a long duel to the other is none
RISE = 0.2  # of the untrained model's loss: how far the smoothed score may rise above its lowest
SMOOTHING = 0.9
LOWER = 3.0  # a return divides the step by it
PIECES = 24  # of the run; after each, its rounds are looked at
STALLED = 6  # pieces, of two rounds or more, in which the smoothed score has not fallen
FALLEN = 0.01  # of the untrained model's loss: by how much it falls, if it does
LOW = 0.25  # of the untrained model's loss: below it, a score need not fall any more


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
    default_optimiser: str = ""  # the server's, where the default trains as without a search; empty: as in the search
    needs: ClassVar[frozenset[str]] = frozenset()
    goes_on: ClassVar[str] = "run"  # what further rounds are for: ``Longer.by``

    def __post_init__(self) -> None:
        budget = checks.whole("schedule.budget", self.budget, 1, LARGEST)
        arms = self.searched(budget) if self.arms is None else checks.whole("schedule.arms", self.arms)
        checks.settle(self, budget=budget, arms=arms, returns=checks.whole("schedule.returns", self.returns, 0))
        checks.settle(self, discount=self.scoring.discount)
        if arms > 1 and self.rung < 1:
            raise SpecError(
                f"budget = {budget} cannot give {arms} arms a round each: raise budget to "
                f"{math.ceil((arms + 2 * LONGER) / SHARE)} or more, or lower arms"
            )

    @staticmethod
    def searched(budget: int) -> int:
        """Return how many arms a budget can compare; 1 where a search does not pay."""
        arms = min(MOST, int(SHARE * budget / FEWEST) - 2 * LONGER)
        return arms if arms >= LEAST else 1

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
    def longest(self) -> int:
        return (1 + LONGER) * self.rung + self.run

    @property
    def scoring(self) -> Scoring:
        return Scoring(self.score, self.discount)

    def steps(self) -> Generator[Step, Evidence, Key]:
        """Play the rung, the duel and the run."""
        if self.arms == 1:
            return (yield from self._run(None, 0, ()))
        assert self.arms is not None
        everyone = range(self.arms)
        evidence = yield Step(dict.fromkeys(everyone, self.rung), dict.fromkeys(everyone, Start()))
        untrained = untrained_loss(next(filter(None, evidence.records.values()), ()))  # one may have failed at once
        sound = 0 not in evidence.ended and math.isfinite(self._before(evidence.records[0], untrained))
        ranked = best(self._first_scores(evidence, untrained), self.arms)
        leader, other = ranked[0], ranked[1] if ranked[0] == 0 else 0
        until, rival, start = (1 + LONGER) * self.rung, other, dict[int, Start]()
        if discounted([r.loss_before for r in evidence.records[leader]], self.discount) < untrained:
            rival, start = self.arms, {self.arms: Start(parent=(leader, self.rung), like=other)}
        out = tuple(arm for arm in everyone if arm not in (leader, rival))
        own = (0, self.rung)
        evidence = yield Step({leader: until, rival: until}, start, out, (own,))
        winner = self._winner(evidence, leader, rival, untrained)
        first = self.arms + len(start)
        rounds = {arm: [r for r in evidence.records[arm] if r.round > self.rung] for arm in (leader, rival)}
        change: Change | None = None
        if winner == rival and other == 0:
            loss = self._scores(evidence, smaller_of_both, untrained, self.rung)[rival][0]
            vain = overshoots(rounds[leader], untrained) or no_longer_learns(rounds[rival], untrained)
            if start and sound and vain and loss > MOST_LEARNED * untrained:
                plain = Plain(self.default_optimiser) if len(rounds[rival]) >= MANY else None
                return (yield from self._run(own, first, (leader, rival), plain))
        elif overshoots(rounds[winner], untrained):
            before = {arm: self._before(of, untrained) for arm, of in rounds.items()}
            settled = not any(r.loss_before > untrained for r in rounds[rival][len(rounds[rival]) // 2 :])
            if winner == leader != 0 and rival not in evidence.ended and settled and before[rival] < before[leader]:
                winner = rival
            else:
                change = SmallerStep(self.step)
        return (yield from self._run((winner, until), first, (rival if winner == leader else leader,), change))

    def _winner(self, evidence: Evidence, leader: int, rival: int, untrained: float) -> int:
        """Return the better one after a duel.

        Where the server's model of one has learned nothing, the loss before local training decides: that after it may
        be what clients learn by themselves. The default wins where it is hardly higher; but not where nobody has
        learned anything and its loss, which is cut in the scores, is far above the other's.
        """
        scores = self._scores(evidence, smaller_of_both, untrained, self.rung)
        before = {
            arm: self._before([r for r in evidence.records[arm] if r.round > self.rung], untrained)
            for arm in (leader, rival)
        }
        if not all(math.isfinite(score[0]) for score in scores.values()) or max(before.values()) <= LEARNED * untrained:
            return best(scores, 2)[0]
        default, other = (leader, rival) if leader == 0 else (rival, leader)
        wild = {arm: typical(evidence.records[arm], self.rung) for arm in (default, other)}
        if min(before.values()) > LEARNED * untrained and wild[default] > WILDER * max(untrained, wild[other]):
            return other
        return other if before[other] < before[default] - HARDLY * untrained else default

    def _before(self, records: Sequence[Record], untrained: float) -> float:
        return discounted([min(r.loss_before, untrained) for r in records], self.discount)

    def _first_scores(self, evidence: Evidence, untrained: float) -> dict[int, Score]:
        """Return the scores of arms that have hardly begun; wrecks are behind all others.

        Where no arm's server model has learned anything yet, their scores are noise, or what clients learn by
        themselves. The step is then too small rather than too large, unless an arm's loss is far above the untrained
        one: the more local training changes, the better.
        """
        scores = self._scores(evidence, sum_of_both, untrained)
        wrecks = [arm for arm, records in evidence.records.items() if worse_than_none(records)]
        if len(wrecks) < len(scores):
            scores |= {arm: (math.inf, scores[arm][1]) for arm in wrecks}
        finite = [arm for arm, score in scores.items() if math.isfinite(score[0])]
        if any(self._before(evidence.records[arm], untrained) <= LEARNED * untrained for arm in finite):
            return scores
        bold = {}
        for arm, records in evidence.records.items():
            wild = math.isinf(scores[arm][0]) or records[-1].loss_before > 1.1 * untrained
            moved = [abs(r.loss_after - r.loss_before) for r in records if math.isfinite(r.loss_after - r.loss_before)]
            bold[arm] = (math.inf if wild or not moved else -sum(moved) / len(moved), scores[arm][0])
        return bold

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
        self, parent: Key | None, first: int, out: tuple[int, ...], change: Change | None = None
    ) -> Generator[Step, Evidence, Key]:
        """Train one arm to the end, going back where its score rises or stays; return the model to take."""
        arm, at, left = first, parent[1] if parent else 0, self.run
        piece, returns, untrained = max(1, self.run // PIECES), 0, math.nan
        start = {arm: Start(parent=parent, change=change, horizon=None if isinstance(change, Plain) else at + left)}
        smoothed, lowest, kept = math.nan, math.inf, (arm, at)
        fallen, since, fell = math.inf, 0, False  # the score when it last fell, pieces since, and whether it did at all
        again = 0  # returns to the same model
        while True:
            until = at + min(piece, left)
            keep = (kept,) if lowest < math.inf else ()
            evidence = yield Step({arm: until}, start, out, keep)
            records, ended = evidence.records[arm], arm in evidence.ended
            now = records[-1].round if ended else until
            if math.isnan(untrained):  # the first piece
                untrained, new = untrained_loss(records), records
            else:
                new = records[len(records) - (now - at) :]
            smoothed = ema([smaller_of_both(r, untrained) for r in new], smoothed)
            left, at, start, out = left - (now - at), now, {}, ()
            if smoothed < lowest and not ended:
                lowest, kept = smoothed, (arm, at)
            if smoothed < fallen - FALLEN * untrained:
                fallen, since, fell = smoothed, 0, True
            else:
                since += 1
            wrecked = ended or smoothed > lowest + RISE * untrained
            # Where the score has not fallen with a smaller step, the step is not what keeps it up.
            stayed = piece > 1 and since >= STALLED
            stalled = stayed and fell and smoothed > LOW * untrained and returns < self.returns
            if not left or (ended and lowest == math.inf) or (wrecked and returns == self.returns):
                return kept if wrecked and lowest < math.inf else (arm, at)
            if wrecked or stalled:
                again = again + 1 if kept[0] != arm else 1
                arm, at, smoothed, returns = arm + 1, kept[1], lowest, returns + 1
                fallen, since, fell = lowest, 0, False
                start = {arm: Start(parent=kept, change=SmallerStep(self.step, again), horizon=at + left)}


def untrained_loss(records: Sequence[Record]) -> float:
    """Return the mean loss of the model before its first round; infinite if nobody validated it."""
    first = records[0].loss_before if records else math.nan
    return first if math.isfinite(first) else math.inf


def overshoots(records: Sequence[Record], untrained: float) -> bool:
    """Return whether the server's model was worse than the untrained one in too many of these rounds."""
    return sum(r.loss_before > untrained for r in records) >= max(OFTEN, OVERSHOT * len(records))


def no_longer_learns(records: Sequence[Record], untrained: float) -> bool:
    """Return whether the loss before local training has not fallen from one half of a long duel to the other."""
    half = len(records) // 2
    first, second = (
        sum(min(r.loss_before, untrained) for r in of) / max(1, len(of)) for of in (records[:half], records[half:])
    )
    return len(records) >= MANY and first - second < FLAT * untrained


def typical(records: Sequence[Record], since: int) -> float:
    """Return the median over rounds after one of the loss before local training."""
    losses = sorted(r.loss_before for r in records if r.round > since and not math.isnan(r.loss_before))
    return losses[len(losses) // 2] if losses else math.inf


def worse_than_none(records: Sequence[Record]) -> bool:
    """Return whether local training ends clearly worse from the server's model than it did from the untrained one.

    Such a model is a wreck, whatever its loss: one with dead units, say. By the errors of the later half of the rounds,
    the first of which trained the untrained model.
    """
    if not records:  # an arm that failed at once
        return False
    errors = [r.error_after for r in records]
    bound = errors[0] + WORSE * records[0].error_before
    known = [e for e in errors[(len(errors) + 1) // 2 :] if not math.isnan(e)]
    return bool(known) and sum(known) / len(known) > bound


def sum_of_both(record: Record, untrained: float) -> float:
    """Return the loss before local training and a quarter of that after it, each client's cut at the untrained one.

    The first says what the server's model has learned. The second alone would be low also where clients only learn
    which labels they have.
    """
    return _mean(record, lambda before, after: min(before, untrained) + AFTER * min(after, untrained))


def smaller_of_both(record: Record, untrained: float) -> float:
    """Return the smaller of the mean losses before and after local training, each client's cut at the untrained one."""
    before = _mean(record, lambda before, after: min(before, untrained))
    after = _mean(record, lambda before, after: min(after, untrained))
    return min(before, after)


def _mean(record: Record, value: Callable[[float, float], float]) -> float:
    """Return the mean over the round's clients by |V|; of the round's means, where single clients are not known."""
    if record.diverged:
        return math.inf
    rows: Sequence[Row] = [row for row in record.rows if row.validated]
    if not rows:
        return value(record.loss_before, record.loss_after)
    return sum(value(r.loss_before, r.loss_after) * r.validated for r in rows) / sum(r.validated for r in rows)


def ema(values: Sequence[float], before: float) -> float:
    """Return the exponential mean of rounds, given that of the rounds before; rounds without a value are left out."""
    for value in values:
        if not math.isnan(value):
            before = value if math.isnan(before) else SMOOTHING * before + (1 - SMOOTHING) * value
    return before


@dataclass(frozen=True)
class Plain:
    """The change of the default that trains as it would have without a search."""

    optimiser: str  # the server's; empty: it stays

    def __call__(self, space: Space, arm: Arm, rng: Rng) -> tuple[Config, Config]:
        """Return its configurations, with the server's optimiser."""
        return arm.client, {**arm.server, "optimiser": self.optimiser} if self.optimiser else arm.server


@dataclass(frozen=True)
class SmallerStep:
    """The change of an arm that divides one of its client hyperparameters."""

    name: str
    times: int = 1

    def __call__(self, space: Space, arm: Arm, rng: Rng) -> tuple[Config, Config]:
        """Return the arm's configurations with a smaller step."""
        value = arm.client.get(self.name)
        if isinstance(value, (str, bool)) or value is None:
            return arm.client, arm.server
        return {**arm.client, self.name: value / LOWER**self.times}, arm.server
