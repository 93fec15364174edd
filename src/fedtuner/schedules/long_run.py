"""The winner's long run: its rounds are watched, and its last ones are trained once more with a smaller step.

Where its smoothed score rises clearly above its lowest, where it has not fallen for a quarter of the run, or where it
diverges, training goes back to the model that it had there, with a smaller step: at most ``returns`` times. If it
diverges before it has a score, it goes back to the model that it began with. The default first goes back to the
server's own step, as it would have been trained without a search, and keeps that.

What the server's model learns with is not always what its clients should fine-tune it with. So the last rounds but one
are trained once more, by a third of the step and on the same cohorts if arms share them. Where clients end better by
that, the very last round, in which the server's step is small, has it too: the result is the run's own model, and its
clients' step is the smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from fedtuner.core.records import Arm, Key, Record
from fedtuner.core.schedule import Change, Evidence, Start, Step
from fedtuner.rng import Generator as Rng
from fedtuner.schedules.judging import ema, left, losses, mean_of_both, smaller_of_both, untrained_loss
from fedtuner.space import Config, Space

RISE = 0.2  # of the untrained model's loss: how far the smoothed score may rise above its lowest
LOWER = 3.0  # a return divides the step by it
PIECES = 24  # of the run; after each, its rounds are looked at
STALLED = 6  # pieces, of two rounds or more, in which the smoothed score has not fallen
FALLEN = 0.01  # of the untrained model's loss: by how much it falls, if it does
KNOWS = 0.9  # of the untrained model's loss: below it, a model has learned something for certain
LOW = 0.25  # of the untrained model's loss: below it, a score need not fall any more
SETTLING = 1 / 3  # of the run: its last part, in which the server's step is small
LAST = 20  # of a run, one part in so many: its last rounds, which are trained twice
BETTER = 0.98  # times the loss of the same clients: a lower one is better


@dataclass(frozen=True)
class LongRun:
    """The rounds of a winner, after the duel."""

    rounds: int  # in all, with those that are trained twice
    smaller: SmallerStep  # what a return changes
    returns: int
    own: Plain | None  # where the default trains as without a search; None: as in the search
    last: int  # rounds that are trained twice

    def steps(
        self, parent: Key | None, first: int, out: tuple[int, ...] = (), change: Change | None = None,
        *, default: bool = False,
    ) -> Generator[Step, Evidence, Key]:  # fmt: skip
        """Train one arm to the end, going back where its score rises or stays; return the model to take."""
        arm, at, last = first, parent[1] if parent else 0, self.last
        rest = self.rounds - last  # rounds to go
        piece, returns, untrained = max(1, self.rounds // PIECES), 0, math.nan
        start = {arm: Start(parent, change, None if isinstance(change, Plain) else at + rest)}
        begun, mark = at, at + rest - 1 - last  # where the arm's own rounds begin, and its last
        smoothed, progress, before, lowest, kept = math.nan, math.nan, math.nan, math.inf, parent
        falling, plain = Falling(), change if isinstance(change, Plain) else None
        again = change.times if isinstance(change, SmallerStep) else 0  # how often the step was divided for one model
        while True:
            soon = at + (piece if kept else 1)  # with nothing to go back to, as soon as there is
            until = min(t for t in (soon, mark, mark + last, at + rest) if t > at)
            keep = ((kept,) if kept else ()) + (((arm, mark),) if at >= mark > begun else ())
            evidence = yield Step({arm: until}, start, out, keep)
            records, ended = evidence.records[arm], arm in evidence.ended
            now = (records[-1].round if records else at) if ended else until
            if math.isnan(untrained):  # the first piece
                untrained, new = untrained_loss(records), records
            else:
                new = records[len(records) - (now - at) :]
            smoothed = ema([smaller_of_both(r, untrained) for r in new], smoothed)
            progress = ema([mean_of_both(r, untrained) for r in new], progress)
            before = ema([min(r.loss_before, untrained) for r in new], before)
            rest, at, start, out = rest - (now - at), now, {}, ()
            if smoothed < lowest and not ended:
                lowest, kept = smoothed, (arm, at)
            falling.add(progress, FALLEN * abs(untrained))
            wrecked = ended or smoothed > lowest + RISE * abs(untrained)
            # Where the score has not fallen with a smaller step either, or where the server's model has learned little,
            # the step is not what keeps it up. At the end the server's step is small already.
            stayed = piece > 1 and falling.since >= STALLED and falling.fell and rest > SETTLING * self.rounds
            high = smoothed > left(untrained, LOW) and before <= left(untrained, KNOWS)
            stalled = stayed and high and returns < self.returns
            if rest == 1 and last and mark > begun and not wrecked:
                return (yield from self._once_more((arm, mark), records, untrained))
            if not rest or (ended and not kept) or (wrecked and returns == self.returns):
                return kept if wrecked and kept else (arm, at)
            if wrecked or stalled:
                assert kept is not None
                again = again + 1 if kept[0] != arm else 1
                if default and self.own and not plain:
                    plain, again = self.own, again - 1
                arm, at, returns = arm + 1, kept[1], returns + 1
                smoothed, progress = (v if math.isfinite(v) else math.nan for v in (lowest, falling.low))
                falling = Falling(falling.low)
                if rest <= 1 + last:  # too few to train any of them twice
                    rest, last = rest + last, 0
                smaller = replace(self.smaller, times=again, plain=plain) if again else plain
                start = {arm: Start(kept, smaller, at + rest)}
                begun, mark = at, at + rest - 1 - last

    def _once_more(self, parent: Key, usual: Sequence[Record], untrained: float) -> Generator[Step, Evidence, Key]:
        """Train an arm's last rounds but one once more, and the last by the step that its clients end better by.

        The server's step is the least there is, as it would be the whole again if these arms began to cool anew.
        """
        arm, at, change = parent[0], parent[1] + self.last, self.smaller
        evidence = yield Step({arm + 1: at}, {arm + 1: Start(parent, change, parent[1])}, (), (parent,))
        own, other = ([losses(r, untrained)[1] for r in of[-self.last :]] for of in (usual, evidence.records[arm + 1]))
        pairs = [pair for pair in zip(own, other, strict=False) if not math.isnan(sum(pair))]
        first, second = (sum(pair[i] for pair in pairs) for i in (0, 1))
        better = arm + 1 not in evidence.ended and second < left(first, BETTER)
        start = {arm + 2: Start((arm, at), change, at)} if better else {}
        [last] = start or [arm]
        evidence = yield Step({last: at + 1}, start, (arm + 1,), ((arm, at),))
        return (arm, at) if last in evidence.ended else (last, at + 1)


class Falling:
    """A smoothed value that is to fall."""

    def __init__(self, low: float = math.inf) -> None:
        self.low = low  # the value when it last fell
        self.since = 0  # values since then
        self.fell = False

    def add(self, value: float, by: float) -> None:
        """Take the next value; it has fallen if it is lower by so much."""
        if value < self.low - by:
            self.low, self.since, self.fell = value, 0, True
        else:
            self.since += 1


@dataclass(frozen=True)
class Plain:
    """The change of the default that trains as it would have without a search."""

    optimiser: str  # the server's; empty: it stays, with its learning rate
    lr: float = 1.0  # the server's

    def __call__(self, space: Space, arm: Arm, rng: Rng) -> tuple[Config, Config]:
        """Return its configurations, with the server's optimiser and learning rate."""
        if not self.optimiser:
            return arm.client, arm.server
        return arm.client, {**arm.server, "optimiser": self.optimiser, "lr": self.lr}


@dataclass(frozen=True)
class SmallerStep:
    """The change of an arm that divides one of its client hyperparameters."""

    name: str
    times: int = 1
    least: float = 0.0  # that the hyperparameter may be
    plain: Plain | None = None  # of a default that has gone back to the server's own step

    def __call__(self, space: Space, arm: Arm, rng: Rng) -> tuple[Config, Config]:
        """Return the arm's configurations with a smaller step."""
        client, server = self.plain(space, arm, rng) if self.plain else (arm.client, arm.server)
        value = client.get(self.name)
        if isinstance(value, (str, bool)) or value is None:
            return client, server
        return {**client, self.name: min(value, max(self.least, value / LOWER**self.times))}, server
