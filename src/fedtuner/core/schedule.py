"""Which arms run, up to which round, and which survive: the protocol of schedules, and how arms are scored.

``Schedule.steps`` is a generator. It yields steps (start these arms, train those up to a round), receives their scores
as ``Evidence``, and returns the winner. It knows neither seed nor space, so it can be tested on a table of numbers.

Lower scores are better. A score that is not finite (diverged, or never validated) comes after all finite ones. Equal
scores are ordered by the arm's other metric, then by its number.

A round's loss is infinite if a client's is. An arm's score is infinite while its latest round's is; after that, such
rounds enter a discounted score as clearly worse than the arm's finite rounds (``beyond``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol, cast, runtime_checkable

from fedtuner import checks
from fedtuner.core.model import beyond
from fedtuner.core.records import Arm, Key, Record, Row
from fedtuner.rng import Generator as Rng
from fedtuner.rng import stream
from fedtuner.space import Config, Space

Score = tuple[float, float]  # the score and its tie-breaker
Change = Callable[[Space, Arm, Rng], tuple[Config, Config]]  # a child's configurations, from those of an arm
METRICS = ("error", "loss")
TARGETS = ("personalized", "global")


@dataclass(frozen=True)
class Start:
    """How an arm begins: proposed by the sampler, or as a child that continues another arm's state."""

    parent: Key | None = None
    change: Change | None = None  # what becomes of the configuration; None: it stays
    horizon: int | None = None  # the round at which its training ends, if known
    like: int | None = None  # the arm whose configuration a child has; None: its parent's


@dataclass(frozen=True)
class Step:
    """Start arms, then train arms up to a round each, then compare them."""

    until: Mapping[int, int]  # arm -> round
    start: Mapping[int, Start] = field(default_factory=dict)  # by arm
    out: tuple[int, ...] = ()  # arms eliminated since the last step
    keep: tuple[Key, ...] = ()  # states that later steps may continue, beside each arm's latest


@dataclass(frozen=True)
class Evidence:
    """What a schedule receives for the arms of a step."""

    scores: Mapping[int, Score]
    records: Mapping[int, Sequence[Record]] = field(default_factory=dict)
    ended: Mapping[int, str] = field(default_factory=dict)  # "diverged" or "stalled", by arm
    arms: Mapping[int, Arm] = field(default_factory=dict)


@dataclass(frozen=True)
class Scoring:
    """How an arm is scored by its rounds."""

    metric: str = "error"  # error or loss; the other one breaks ties
    discount: float = 0.0  # weight of a round relative to the next one; 0: only the latest round counts

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
    """Return a round's error or loss before local training (global) or after it; infinite if the arm has diverged."""
    if record.diverged:
        return math.inf
    when = "before" if target == "global" else "after"
    return float(getattr(record, f"{metric}_{when}"))


def discounted(scores: Sequence[float], discount: float) -> float:
    """Return the mean of an arm's scores by round, in which each weighs ``discount`` times the next one.

    Rounds that nobody validated in (NaN) are left out. The score is infinite if no round is left or the last one is
    infinite; earlier infinite rounds count as clearly worse than the finite ones.
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


class RunningScore:
    """An arm's score while its rounds come: ``Scoring.score`` up to rounding, but each round is read once."""

    def __init__(self, scoring: Scoring, target: str) -> None:
        self.rounds = 0
        self._scoring, self._target = scoring, target
        self._latest = math.nan
        self._sum = self._infinite = self._weight = 0.0  # discounted: finite values, infinite rounds, all rounds
        self._low, self._high = math.inf, -math.inf  # of the finite values

    def add(self, records: Iterable[Record]) -> None:
        """Take an arm's next rounds."""
        discount = self._scoring.discount
        for record in records:
            self.rounds += 1
            value = value_of(record, self._scoring.metric, self._target)
            if math.isnan(value):
                continue
            self._latest, infinite = value, value == math.inf
            self._sum = discount * self._sum + (0.0 if infinite else value)
            self._infinite = discount * self._infinite + infinite
            self._weight = discount * self._weight + 1.0
            if not infinite:
                self._low, self._high = min(self._low, value), max(self._high, value)

    @property
    def value(self) -> float:
        if math.isnan(self._latest) or self._latest == math.inf:
            return math.inf
        return (self._sum + self._infinite * beyond((self._low, self._high))) / self._weight


def best(scores: Mapping[int, Score], n: int) -> list[int]:
    """Return the n best arms, best first."""
    return sorted(scores, key=lambda arm: (*(s if math.isfinite(s) else math.inf for s in scores[arm]), arm))[:n]


@runtime_checkable
class Schedule(Protocol):
    """Decides which arms start and how long each trains. A frozen dataclass: its fields are those of a study.toml."""

    @property
    def budget(self) -> int:
        """The most communication rounds that it uses, over all arms."""

    @property
    def longest(self) -> int:
        """The rounds of the longest arm."""

    @property
    def scoring(self) -> Scoring:
        """How arms are scored."""

    @property
    def needs(self) -> frozenset[str]:
        """What it needs beside scores: "rows" if it reads single clients' values in records.

        "shared" if arms must have the same clients in each round, and begin from the same weights.
        """

    def steps(self) -> Generator[Step, Evidence, Key]:
        """Yield steps, receive the evidence of their arms, and return the winner and the round to take it at."""


class Play:
    """A schedule under way: ``step`` waits for its evidence; at the end it is None and there is a ``winner``."""

    def __init__(self, schedule: Schedule) -> None:
        self.step: Step | None = None
        self.winner: Key | None = None
        self._steps = schedule.steps()
        self._go(lambda: next(self._steps))

    def tell(self, evidence: Evidence) -> None:
        """Give the step's evidence; ``step`` is then the next one."""
        self._go(lambda: self._steps.send(evidence))

    def _go(self, move: Callable[[], Step]) -> None:
        try:
            self.step = move()
        except StopIteration as end:
            self.step, self.winner = None, end.value


@dataclass(frozen=True)
class Outline:
    """What a schedule does on arms that learn, each to a random level.

    For most schedules only which arms survive depends on the scores.
    """

    groups: tuple[tuple[int, ...], ...]  # the arms started by each step
    rungs: Mapping[int, tuple[int, ...]]  # by arm: the rounds at which it is compared while it survives
    reach: Mapping[int, int]  # by arm: the last round
    cost: int  # rounds used, if no arm ends early
    horizons: Mapping[int, int | None]  # by arm: ``Start.horizon``
    children: frozenset[int]  # arms that start from other arms' states

    @property
    def arms(self) -> int:
        return sum(map(len, self.groups))

    @property
    def proposed(self) -> int:
        """The arms that a sampler proposes; the others are their descendants."""
        return self.arms - len(self.children)


def outline(schedule: Schedule, *path: Any) -> Outline:
    """Play a schedule on arms that learn, to random levels, and return what it asked for; ``path`` names the draw."""
    known = cast(Hashable, schedule)
    try:
        return _outline(known, path)
    except TypeError:  # a schedule that cannot be hashed
        return _outline.__wrapped__(known, path)


def unused(schedule: Schedule) -> int:
    """Return the rounds of its budget that a schedule does not use, if no arm ends early."""
    return schedule.budget - outline(schedule).cost


@lru_cache(maxsize=256)
def _outline(known: Hashable, path: tuple[Any, ...]) -> Outline:
    schedule = cast(Schedule, known)
    play, groups, reach, begun = Play(schedule), [], dict[int, int](), dict[int, int]()
    of_group: dict[int, dict[int, None]] = {}  # first arm of a group -> rounds at which it is compared
    first: dict[int, int] = {}
    horizons: dict[int, int | None] = {}
    children = set[int]()
    while play.step is not None:
        step = play.step
        if step.start:
            groups.append(tuple(step.start))
            first |= dict.fromkeys(step.start, min(step.start))
            begun |= {arm: start.parent[1] if start.parent else 0 for arm, start in step.start.items()}
            horizons |= {arm: start.horizon for arm, start in step.start.items()}
            children |= {arm for arm, start in step.start.items() if start.parent}
        for arm, until in step.until.items():
            reach[arm] = max(until, reach.get(arm, 0))
            of_group.setdefault(first.get(arm, arm), {})[until] = None
        play.tell(imagined(step.until, lambda arm, at: _draw(at, *path, arm), schedule.scoring.metric))
    rungs = {arm: tuple(sorted(of_group.get(first.get(arm, arm), ()))) for arm in reach}
    cost = sum(until - begun.get(arm, 0) for arm, until in reach.items())
    return Outline(tuple(groups), rungs, reach, cost, horizons, frozenset(children))


def _draw(at: int, *path: Any) -> Score:
    """Return the scores of an arm that learns, to a level that is drawn."""
    first, second = stream(0, "outline", *path).random(2) * (0.1 + 1.9 / at)
    return float(first), float(second)


def imagined(until: Mapping[int, int], table: Callable[[int, int], Score], metric: str = "error") -> Evidence:
    """Return evidence without training: ``table`` gives the score of an arm at a round."""
    records = {arm: _ImaginedRounds(arm, range(1, at + 1), table, metric) for arm, at in until.items()}
    return Evidence({arm: table(arm, at) for arm, at in until.items()}, records)


@dataclass(frozen=True)
class _ImaginedRounds(Sequence[Record]):
    """The rounds of one arm with a table's scores: a record is made only when a schedule reads it."""

    arm: int
    rounds: range
    table: Callable[[int, int], Score]
    metric: str

    def __len__(self) -> int:
        return len(self.rounds)

    def __getitem__(self, at: Any) -> Any:
        return replace(self, rounds=self.rounds[at]) if isinstance(at, slice) else self._record(self.rounds[at])

    def _record(self, round: int) -> Record:
        score, other = self.table(self.arm, round)
        error, loss = (score, other) if self.metric == "error" else (other, score)
        spread = stream(0, "imagined", self.arm, round).uniform(0.9, 1.1, _IMAGINED).tolist()  # clients differ
        rows = tuple(Row(i, 0, 1, 1, x * loss, x * loss, x * error, x * error) for i, x in enumerate(spread))
        return Record(
            arm=self.arm, round=round, clients=_IMAGINED, dropped=0, broken=0, bounded=0, examples=_IMAGINED,
            validated=_IMAGINED, trainings=_IMAGINED, loss_before=loss, loss_after=loss, error_before=error,
            error_after=error, loss=loss, error=error, entropy=0.0, mode=0, confidence=1.0, diverged=False, rows=rows,
        )  # fmt: skip


_IMAGINED = 10  # clients of an imagined round
