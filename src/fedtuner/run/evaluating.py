"""How a state is evaluated: on all clients, in one plan or block after block, or on a sample of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from fedtuner.core.across import ALL, GROUP, MEAN, TENTH, spread
from fedtuner.core.executor import Executor
from fedtuner.core.federation import Federation, HasData
from fedtuner.core.metric import Metric
from fedtuner.core.records import Arm, State, Tally
from fedtuner.core.round import Round
from fedtuner.core.store import Evaluation
from fedtuner.core.survey import survey
from fedtuner.run.columns import Columns, Ints, gathered
from fedtuner.run.sampling import draw, estimate

WHOLE = 10_000  # up to so many clients are evaluated by one plan
BLOCK = 2_000  # clients of a plan, where there are more
Tell = Callable[[int, int], None]  # clients done, of how many


@dataclass(frozen=True)
class Evaluate:
    """An evaluation to do."""

    arm: Arm
    state: State
    split: str
    config: str = "mode"
    sample: int | None = None  # clients to draw; None: all clients


def evaluate(round: Round, executor: Executor, asked: Evaluate, tell: Tell = lambda done, of: None) -> Evaluation:
    """Return the evaluation of a state."""
    federation = round.federation
    if asked.sample is not None:
        return _sampled(round, executor, asked, tell)
    everyone = federation.everyone()
    if federation.executor is None and len(everyone) > WHOLE:
        blocks = _tallies(round, executor, asked, everyone, tell)
        return streamed(blocks, federation)
    plan = survey(round, asked.arm, asked.state, everyone, asked.split, asked.config)
    return whole(executor.evaluate(plan), federation)


def whole(tally: Tally, federation: Federation) -> Evaluation:
    """Return the evaluation of a tally of all clients."""
    before, after = tally.breakdown.get(ALL, (tally.before, tally.after))
    deviations = (math.nan, math.nan)  # of a pooled value they are not known
    if not federation.model.metric.pooled:
        deviations = spread(tally.rows, "error_before"), spread(tally.rows, "error_after")
    return Evaluation(
        before.loss, after.loss, before.error, after.error, after.count, tally.reported,
        missing=federation.population() - tally.reported, spread_before=deviations[0], spread_after=deviations[1],
        undefined=sum(row.validated > 0 and math.isnan(row.error_after) for row in tally.rows),
        breakdown={name: (b.error, a.error) for name, (b, a) in tally.breakdown.items() if name != ALL},
    )  # fmt: skip


def _tallies(round: Round, executor: Executor, asked: Evaluate, clients: Sequence[int], tell: Tell) -> Iterator[Tally]:
    for start in range(0, len(clients), BLOCK):
        block = clients[start : start + BLOCK]
        yield executor.evaluate(survey(round, asked.arm, asked.state, block, asked.split, asked.config))
        tell(start + len(block), len(clients))


def streamed(tallies: Iterable[Tally], federation: Federation) -> Evaluation:
    """Return the evaluation of all clients from the tallies of blocks of them.

    It is ``whole`` of their tally. Only the worst tenth of a pooled metric is missing: it would need every client's
    sums, which may be thousands of numbers.
    """
    kept, metric = gathered(tallies, federation), federation.model.metric
    parts: dict[str, tuple[float, float]] = {}
    if not metric.pooled:
        parts[TENTH] = _both(lambda side: kept.mean(kept.error[side], kept.worst_tenth(kept.error[side])))
    of_groups = {f"group {name}": _of_group(kept, metric, name) for name in kept.names}
    parts |= of_groups
    if of_groups:
        before, after = (_largest(values) for values in zip(*of_groups.values(), strict=True))
        parts[GROUP] = (before, after)
    if metric.pooled:
        parts[MEAN] = _both(lambda side: kept.mean(kept.error[side]))
    loss = _both(lambda side: kept.mean(kept.loss[side]))
    error = _both(lambda side: _overall(kept, metric, side, ALL, np.flatnonzero(kept.counts)))
    deviations = (math.nan, math.nan) if metric.pooled else _both(lambda side: kept.spread(kept.error[side]))
    return Evaluation(
        loss[0], loss[1], error[0], error[1], int(kept.counts.sum()), kept.reported,
        missing=federation.population() - kept.reported, spread_before=deviations[0], spread_after=deviations[1],
        undefined=kept.undefined, breakdown=parts,
    )  # fmt: skip


def _of_group(kept: Columns, metric: Metric, name: str) -> tuple[float, float]:
    some = np.flatnonzero((kept.groups == kept.names.index(name)) & (kept.counts > 0))
    return _both(lambda side: _overall(kept, metric, side, f"group {name}", some))


def _overall(kept: Columns, metric: Metric, side: str, who: str, some: Ints) -> float:
    """Return the mean error of some clients or, of a pooled metric, the error of all their examples together."""
    sums = kept.sums.get((side, who))
    if sums is None:
        return kept.mean(kept.error[side], some)
    lost = some[~np.isfinite(kept.loss[side][some])]
    return metric.of_sums(sums, int(kept.counts[lost].sum()) / int(kept.counts[some].sum()))


def _both(of: Callable[[str], float]) -> tuple[float, float]:
    return of("before"), of("after")


def _largest(values: Sequence[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _sampled(round: Round, executor: Executor, asked: Evaluate, tell: Tell) -> Evaluation:
    federation = cast(HasData, round.federation)
    assert asked.sample is not None
    everyone, sizes = federation.everyone(), federation.sizes(asked.split)
    places, times = draw(sizes, asked.sample, round.setup.seed, asked.split)
    clients = [everyone[place] for place in places]
    if not clients:
        nan = math.nan
        return Evaluation(nan, nan, nan, nan, 0, 0, sample=asked.sample, population=len(everyone))
    kept = gathered(_tallies(round, executor, asked, clients, tell), federation)
    return estimate(kept, times, sizes[places], asked.sample, len(everyone))
