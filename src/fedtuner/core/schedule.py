"""Which arms run, up to which round, and which survive: the protocol of schedules, and how arms are scored.

A schedule is a value. ``steps()`` is a coroutine that asks for arms to be started and advanced, is sent evidence, and
returns the winner. It knows neither a seed nor a space, so it can be tested on a table of numbers.

Order of scores: lower is better; a score that is not finite (diverged, or never validated) comes after all finite
ones; equal scores are ordered by the tie-breaker (the arm's other metric) and then by the arm's number.

A round's loss is infinite where a client's is. An arm whose latest round is such has an infinite score. Once it has
recovered it can be compared again: in a discounted score its infinite rounds count as clearly worse than all others of
its own (``beyond`` them), and are forgotten at the rate of the discount.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, cast, runtime_checkable

from fedtuner import checks
from fedtuner.core.model import beyond
from fedtuner.core.records import Arm, Key, Record, Row
from fedtuner.rng import Generator as Rng
from fedtuner.rng import stream
from fedtuner.space import Config, Space

Score = tuple[float, float]  # the score and its tie-breaker
Change = Callable[[Space, Arm, Rng], tuple[Config, Config]]  # a child's client and server configuration, of its parent
METRICS = ("error", "loss")
TARGETS = ("personalized", "global")


@dataclass(frozen=True)
class Start:
    """How an arm begins: proposed by the sampler, or from another arm's state, with changed hyperparameters."""

    parent: Key | None = None
    change: Change | None = None  # None: the parent's own configuration
    horizon: int | None = None  # the round at which its training will end, if that is known


@dataclass(frozen=True)
class Step:
    """Start some arms, advance some to a round each, then compare them."""

    until: Mapping[int, int]
    start: Mapping[int, Start] = field(default_factory=dict)
    out: tuple[int, ...] = ()  # arms eliminated since the last step
    keep: tuple[Key, ...] = ()  # states that later steps may name, beside each arm's latest


@dataclass(frozen=True)
class Evidence:
    """What a schedule is told of the arms that it has advanced."""

    scores: Mapping[int, Score]
    records: Mapping[int, Sequence[Record]] = field(default_factory=dict)
    ended: Mapping[int, str] = field(default_factory=dict)  # why an arm gets no more rounds


@dataclass(frozen=True)
class Scoring:
    """How an arm is scored by its rounds."""

    metric: str = "error"  # what arms are compared by: error or loss; the other one breaks ties
    discount: float = 0.0  # weight of a round's score against the next one's; 0 is the latest round alone

    def __post_init__(self) -> None:
        checks.one_of("schedule.score", self.metric, METRICS)
        checks.settle(self, discount=checks.number("schedule.discount", self.discount, 0, 1))

    def score(self, records: Sequence[Record], target: str) -> Score:
        """Return an arm's score and its tie-breaker after these rounds."""
        by_error, by_loss = (self._discounted(records, metric, target) for metric in METRICS)
        return (by_error, by_loss) if self.metric == "error" else (by_loss, by_error)

    def _discounted(self, records: Sequence[Record], metric: str, target: str) -> float:
        if self.discount == 0:  # the latest round in which anybody validated
            values = (value_of(r, metric, target) for r in reversed(records))
            return next((v for v in values if not math.isnan(v)), math.inf)
        return discounted([value_of(r, metric, target) for r in records], self.discount)


def value_of(record: Record, metric: str, target: str) -> float:
    """Return what a round says of its arm: the error or loss before local training (global) or after it."""
    if record.diverged:
        return math.inf
    when = "before" if target == "global" else "after"
    return float(getattr(record, f"{metric}_{when}"))


def discounted(scores: Sequence[float], discount: float) -> float:
    """Return the mean of an arm's scores by round, each weighing ``discount`` times the next one; 0 is the last alone.

    Rounds in which nobody validated (NaN) are left out; where no other round is left, the score is infinite, as it is
    after an infinite round. Earlier ones count as clearly worse than the arm's finite rounds.
    """
    known = [s for s in scores if not math.isnan(s)]
    if not known or known[-1] == math.inf:
        return math.inf
    if discount == 0:
        return known[-1]
    if math.inf in known:
        worst = beyond([s for s in known if s != math.inf])
        known = [min(s, worst) for s in known]
    weights = [discount**age for age in range(len(known) - 1, -1, -1)]
    return sum(w * s for w, s in zip(weights, known, strict=True)) / sum(weights)


def best(scores: Mapping[int, Score], n: int) -> list[int]:
    """Return the n best arms, best first."""
    return sorted(scores, key=lambda arm: (*(s if math.isfinite(s) else math.inf for s in scores[arm]), arm))[:n]


@runtime_checkable
class Schedule(Protocol):
    """Decides which arms are started and advanced. A frozen dataclass, so that it can stand in a study.toml."""

    @property
    def budget(self) -> int:
        """The communication rounds that it may use, over all arms."""
        ...

    @property
    def longest(self) -> int:
        """The rounds of the longest arm."""
        ...

    @property
    def scoring(self) -> Scoring:
        """How arms are scored."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """What it reads beside scores: "rows" where it reads single clients' values in records."""
        ...

    def steps(self) -> Generator[Step, Evidence, Key]:
        """Yield steps, be sent the evidence of their arms, and return the winner and the round to take it at."""
        ...


class Play:
    """A schedule that is followed: the step whose evidence it waits for or, at its end, the winner."""

    def __init__(self, schedule: Schedule) -> None:
        self.step: Step | None = None
        self.winner: Key | None = None
        self._steps = schedule.steps()
        self._go(lambda: next(self._steps))

    def tell(self, evidence: Evidence) -> None:
        """Give the step's evidence, and go on to the next step or to the end."""
        self._go(lambda: self._steps.send(evidence))

    def _go(self, move: Callable[[], Step]) -> None:
        try:
            self.step = move()
        except StopIteration as end:
            self.step, self.winner = None, end.value


@dataclass(frozen=True)
class Outline:
    """What a schedule does on random scores. For most schedules only which arms survive depends on the scores."""

    groups: tuple[tuple[int, ...], ...]  # the arms that are started by one step
    rungs: Mapping[int, tuple[int, ...]]  # the rounds at which an arm is compared while it survives
    reach: Mapping[int, int]  # the rounds that each arm got
    cost: int  # rounds used, if no arm ends early
    horizons: Mapping[int, int | None]  # the rounds at which the arms' trainings end, where it is known when they start
    children: bool  # whether arms start from other arms' states

    @property
    def arms(self) -> int:
        """How many arms start."""
        return sum(map(len, self.groups))

    def group_of(self, arm: int) -> tuple[int, ...]:
        """Return the arms that are started together with this one."""
        return next(group for group in self.groups if arm in group)


def outline(schedule: Schedule, *path: Any) -> Outline:
    """Play a schedule on random scores and return what it asked for; ``path`` names the draw of the scores."""
    known = cast(Hashable, schedule)
    try:
        return _outline(known, path)
    except TypeError:  # a schedule that cannot be hashed
        return _outline.__wrapped__(known, path)


def unused(schedule: Schedule) -> int:
    """Return how many rounds of its budget a schedule leaves, if no arm ends early."""
    return schedule.budget - outline(schedule).cost


@lru_cache(maxsize=256)
def _outline(known: Hashable, path: tuple[Any, ...]) -> Outline:
    schedule = cast(Schedule, known)
    play, groups, reach, begun = Play(schedule), [], dict[int, int](), dict[int, int]()
    of_group: dict[int, dict[int, None]] = {}  # by the first arm of a group: the rounds at which it is compared
    first: dict[int, int] = {}
    horizons: dict[int, int | None] = {}
    children = False
    while play.step is not None:
        step = play.step
        if step.start:
            groups.append(tuple(step.start))
            first |= dict.fromkeys(step.start, min(step.start))
            begun |= {arm: start.parent[1] if start.parent else 0 for arm, start in step.start.items()}
            horizons |= {arm: start.horizon for arm, start in step.start.items()}
            children |= any(start.parent for start in step.start.values())
        for arm, until in step.until.items():
            reach[arm] = max(until, reach.get(arm, 0))
            of_group.setdefault(first.get(arm, arm), {})[until] = None
        play.tell(imagined(step.until, lambda arm, at: _draw(*path, arm, at), schedule.scoring.metric))
    rungs = {arm: tuple(sorted(of_group.get(first.get(arm, arm), ()))) for arm in reach}
    cost = sum(until - begun.get(arm, 0) for arm, until in reach.items())
    return Outline(tuple(groups), rungs, reach, cost, horizons, children)


def _draw(*path: Any) -> Score:
    first, second = stream(0, "outline", *path).random(2)
    return float(first), float(second)


def imagined(until: Mapping[int, int], table: Callable[[int, int], Score], metric: str = "error") -> Evidence:
    """Return the evidence of arms that nobody trained: their scores, by arm and round, are those of a table."""
    return Evidence({arm: table(arm, at) for arm, at in until.items()}, _Imagined(until, table, metric))


class _Imagined(Mapping[int, Sequence[Record]]):
    """Records with the scores of a table, made when a schedule reads them: most schedules read only scores."""

    def __init__(self, until: Mapping[int, int], table: Callable[[int, int], Score], metric: str) -> None:
        self._until, self._table, self._metric = until, table, metric

    def __getitem__(self, arm: int) -> list[Record]:
        return [self._record(arm, round) for round in range(1, self._until[arm] + 1)]

    def __iter__(self) -> Iterator[int]:
        return iter(self._until)

    def __len__(self) -> int:
        return len(self._until)

    def _record(self, arm: int, round: int) -> Record:
        score, other = self._table(arm, round)
        error, loss = (score, other) if self._metric == "error" else (other, score)
        spread = stream(0, "imagined", arm, round).uniform(0.9, 1.1, _IMAGINED).tolist()  # clients differ
        rows = tuple(Row(i, 0, 1, 1, x * loss, x * loss, x * error, x * error) for i, x in enumerate(spread))
        return Record(
            arm=arm, round=round, clients=_IMAGINED, dropped=0, broken=0, bounded=0, examples=_IMAGINED,
            validated=_IMAGINED, trainings=_IMAGINED, loss_before=loss, loss_after=loss, error_before=error,
            error_after=error, loss=loss, error=error, entropy=0.0, mode=0, confidence=1.0, diverged=False, rows=rows,
        )  # fmt: skip


_IMAGINED = 10  # clients of an imagined round
