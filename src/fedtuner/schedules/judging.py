"""What an arm's rounds say of it: has its model learned, is it a wreck, is its step too large, are its clients ahead?

All of it is read from losses and errors before and after local training. A round's loss counts at most as much as the
untrained model's: what a model says that knows nothing says nothing about how badly. A part of the untrained model's
loss is counted from it downwards (``left``), as losses may be negative. Rounds that nobody validated are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedtuner.core.records import Record, Row

AT_MOST = 2.0  # times the untrained model's loss: what a client's loss counts at most
AFTER = 0.25  # weight of the loss after local training, beside that before it, in an arm's first scores
LEARNED = 0.98  # of the untrained model's loss: above it, a model has learned nothing
WORSE = 0.25  # of the untrained model's error: how much worse clients do that start from a model worse than none
AHEAD, KEPT = 0.02, 0.75  # of the untrained model's loss: a lead in a duel; and how much of the first one it must be
OVERSHOT, OFTEN = 0.1, 2  # of an arm's rounds of the duel, and at least: its model was worse than the untrained one
MANY = 20  # rounds of a long duel
FLAT = 0.03  # of the untrained model's loss: a smaller fall from one half of a long duel to the other is none
SMOOTHING = 0.9


def left(untrained: float, part: float) -> float:
    """Return the loss of which a part of the untrained model's is left; with a part above 1, one so much higher.

    >>> left(2.0, 0.75), left(2.0, 2.0), left(-2.0, 0.75)
    (1.5, 4.0, -2.5)
    """
    return untrained - (1 - part) * abs(untrained) if math.isfinite(untrained) else untrained


def untrained_loss(records: Sequence[Record]) -> float:
    """Return the mean loss of the model before its first round; infinite if nobody validated it."""
    first = records[0].loss_before if records else math.nan
    return first if math.isfinite(first) else math.inf


def overshoots(records: Sequence[Record], untrained: float) -> bool:
    """Return whether the server's model was worse than the untrained one in too many of these rounds."""
    return sum(r.loss_before > untrained for r in records) >= max(OFTEN, OVERSHOT * len(records))


def no_longer_learns(records: Sequence[Record], untrained: float) -> bool:
    """Return whether the loss before local training has not fallen from one half of a long duel to the other."""
    known = [min(r.loss_before, untrained) for r in records if not math.isnan(r.loss_before)]
    half = len(known) // 2
    first, second = (sum(of) / max(1, len(of)) for of in (known[:half], known[half:]))
    return len(known) >= MANY and first - second < FLAT * abs(untrained)


def keeps_ahead(records: Sequence[Record], default: Sequence[Record], since: int, untrained: float) -> bool:
    """Return whether an arm's clients end below the default's, and by about as much later as they did at first.

    What clients learn by themselves shows at once, and the default's clients come closer. By the losses after local
    training in the same rounds: those up to one, and the later half of those after it.
    """
    apart = [
        min(r.loss_after, untrained) - min(d.loss_after, untrained) for r, d in zip(records, default, strict=False)
    ]
    parts = apart[:since], apart[since + (len(apart) - since) // 2 :]
    first, last = ([a for a in part if not math.isnan(a)] for part in parts)
    if not first or not last:
        return False
    early, late = (sum(of) / len(of) for of in (first, last))
    return late < -AHEAD * abs(untrained) and late <= KEPT * early


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
    bound = errors[0] + WORSE * abs(records[0].error_before)
    known = [e for e in errors[(len(errors) + 1) // 2 :] if not math.isnan(e)]
    return bool(known) and sum(known) / len(known) > bound


def sum_of_both(record: Record, untrained: float) -> float:
    """Return the loss before local training and a quarter of that after it, each cut at the untrained one.

    The first says what the server's model has learned. The second alone would be low also where clients only learn
    which labels they have.
    """
    before, after = losses(record, untrained)
    return before + AFTER * after


def smaller_of_both(record: Record, untrained: float) -> float:
    """Return the smaller of the losses before and after local training, each cut at the untrained one."""
    return min(losses(record, untrained))


def mean_of_both(record: Record, untrained: float) -> float:
    """Return the mean of the losses before and after local training, each cut at the untrained one."""
    return sum(losses(record, untrained)) / 2


def losses(record: Record, untrained: float) -> tuple[float, float]:
    """Return a round's mean losses before and after local training, each cut at the untrained one; infinite in a wreck.

    A client's loss counts at most twice as much as the untrained one, so that one of them cannot outweigh the others.
    If it were cut at the untrained one itself, the mean would favour arms whose clients differ: those of few examples
    whose losses are high by chance would count less than those whose losses are low.
    """
    if record.diverged:
        return math.inf, math.inf
    rows: Sequence[Row] = [row for row in record.rows if row.validated]
    if not rows:
        return min(record.loss_before, untrained), min(record.loss_after, untrained)
    most, examples = left(untrained, AT_MOST), sum(r.validated for r in rows)
    before = sum(min(r.loss_before, most) * r.validated for r in rows) / examples
    after = sum(min(r.loss_after, most) * r.validated for r in rows) / examples
    return min(before, untrained), min(after, untrained)


def ema(values: Sequence[float], before: float) -> float:
    """Return the exponential mean of rounds, given that of the rounds before; rounds without a value are left out."""
    for value in values:
        if math.isfinite(value):
            before = value if math.isnan(before) else SMOOTHING * before + (1 - SMOOTHING) * value
    return before
