"""Which arms run, up to which round, and which survive: Algorithm 1 of the paper and its kin.

A schedule is a value; ``steps()`` is a coroutine that asks for arms to be advanced and is told their scores. It does
not know what an arm is, so it can be tested on a table of numbers.

Order of scores: lower is better; a score that is not finite (diverged, or never validated) comes after all finite
ones; equal scores are ordered by the tie-breaker (the arm's other metric) and then by the arm's number.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from fedtuner.errors import SpecError, suggest

Score = tuple[float, float]  # the score and its tie-breaker
KINDS = ("halving", "random_search", "hyperband")
SCORES = ("error", "loss")


@dataclass(frozen=True)
class Step:
    """Advance these arms to round ``until``, then compare them."""

    arms: tuple[int, ...]
    until: int
    out: tuple[int, ...] = ()  # arms eliminated since the last step


@dataclass(frozen=True)
class Bracket:
    """``arms`` arms compared at each rung; ``keep[r]`` of them go on after rung r; the last keeps one."""

    arms: int
    rungs: tuple[int, ...]
    keep: tuple[int, ...]

    @property
    def cost(self) -> int:
        """Rounds that the bracket uses when no arm diverges."""
        alive = (self.arms, *self.keep)
        return sum(n * (t - s) for n, t, s in zip(alive, self.rungs, (0, *self.rungs), strict=False))


@dataclass(frozen=True)
class Schedule:
    """A list of brackets under one budget of communication rounds, and how arms are scored."""

    kind: str
    budget: int
    longest: int
    brackets: tuple[Bracket, ...]
    eta: int = 3
    eliminations: int = 0
    discount: float = 0.0  # weight of a round's score against the next one's; 0 is the latest round alone
    score: str = "error"  # what arms are compared by: error or loss
    together: int | None = None  # random search: how many arms start at once; None is all of them
    fill: bool = False  # hyperband: as many arms as the budget pays for

    def __post_init__(self) -> None:
        if not isinstance(self.discount, (int, float)) or not 0 <= self.discount <= 1:
            raise SpecError(f"schedule.discount = {self.discount!r}, but must be in [0, 1]")
        if self.score not in SCORES:
            raise SpecError(
                f"schedule.score = {self.score!r}, but must be one of {SCORES}{suggest(self.score, SCORES)}"
            )

    @property
    def arms(self) -> int:
        """How many arms start."""
        return sum(bracket.arms for bracket in self.brackets)

    @property
    def cost(self) -> int:
        """Rounds used when no arm diverges; never more than the budget."""
        return sum(bracket.cost for bracket in self.brackets)

    def place(self, arm: int) -> tuple[int, Bracket]:
        """Return the first arm of an arm's bracket, and the bracket: all arms before that one finish before it starts.

        >>> first, bracket = random_search(60, 10, together=2).place(3)
        >>> first, bracket.rungs
        (2, (10,))
        """
        first = 0
        for bracket in self.brackets:
            if arm < first + bracket.arms:
                return first, bracket
            first += bracket.arms
        raise SpecError(f"no arm {arm}: the schedule has {self.arms}")

    def steps(self) -> Generator[Step, Mapping[int, Score], int]:
        """Yield steps, be sent the scores of their arms, and return the winner."""
        final: dict[int, Score] = {}
        out: tuple[int, ...] = ()
        first = 0
        for bracket in self.brackets:
            alive = tuple(range(first, first + bracket.arms))
            first += bracket.arms
            for until, keep in zip(bracket.rungs, bracket.keep, strict=True):
                scores = yield Step(alive, until, out)
                kept = tuple(sorted(best(scores, keep)))
                alive, out = kept, tuple(arm for arm in alive if arm not in kept)
            final.update({arm: scores[arm] for arm in alive})
        return best(final, 1)[0]

    def describe(self) -> dict[str, object]:
        """Return the ``[schedule]`` table."""
        table: dict[str, object] = {"kind": self.kind, "budget": self.budget, "longest": self.longest}
        if self.kind != "random_search":
            table["eta"] = self.eta
        if self.kind == "halving":
            table["eliminations"] = self.eliminations
        if self.together is not None:
            table["together"] = self.together
        if self.fill:
            table["fill"] = True
        return table | {"discount": self.discount, "score": self.score}


def best(scores: Mapping[int, Score], n: int) -> list[int]:
    """Return the n best arms, best first."""
    return sorted(scores, key=lambda arm: (*(s if math.isfinite(s) else math.inf for s in scores[arm]), arm))[:n]


def discounted(scores: Sequence[float], discount: float) -> float:
    """Return the mean of an arm's scores by round, each weighing ``discount`` times the next one; 0 is the last alone.

    A round in which nobody validated (NaN) tells nothing and is passed over; with no other round it is infinity.
    """
    known = [s for s in scores if not math.isnan(s)]
    if not known:
        return math.inf
    if discount == 0:
        return known[-1]
    weights = [discount**age for age in range(len(known) - 1, -1, -1)]
    return sum(w * s for w, s in zip(weights, known, strict=True)) / sum(weights)


def rungs(budget: int, longest: int, eta: int = 3, eliminations: int = 3) -> list[int]:
    """Return the rounds at which arms are compared; the last is ``longest``.

    The appendix's formula: eta^R arms, R equal steps of (T - M) / ((eta^(R+1) - 1)/(eta - 1) - R - 1) rounds, then the
    survivor trains to M. What whole steps leave over lengthens the earliest steps that it can pay for (one round more
    of step i costs one round for each arm alive in it and saves the survivor one), so no schedule of this form uses
    more of the budget.

    >>> rungs(4000, 800)
    [89, 177, 268, 800]
    >>> rungs(2000, 200)
    [50, 100, 150, 200]
    """
    _check_rounds(budget, longest)
    _check_whole(least=0, eliminations=eliminations)
    if eliminations == 0:
        return [longest]
    _check_whole(least=2, eta=eta)
    prices = [eta**r - 1 for r in range(eliminations, 0, -1)]
    step, left = divmod(budget - longest, sum(prices))
    if step < 1:
        arms = eta**eliminations
        raise SpecError(
            f"budget = {budget} cannot give {arms} arms (eta {eta}, eliminations {eliminations}) one round each and "
            f"one of them {longest}: raise budget to {longest + sum(prices)} or more, or lower eliminations"
        )
    lengths = []
    for price in prices:
        extra, left = divmod(left, price)
        lengths.append(step + extra)
    times = [sum(lengths[: i + 1]) for i in range(eliminations)]
    if times[-1] > longest:
        raise SpecError(
            f"the last elimination would be at round {times[-1]}, past longest = {longest} (budget {budget}, eta "
            f"{eta}, eliminations {eliminations}): raise longest, lower budget, or raise eliminations for more arms"
        )
    return times if times[-1] == longest else [*times, longest]


def halving(
    budget: int = 2000,
    longest: int = 200,
    eta: int = 3,
    eliminations: int = 3,
    discount: float = 0.0,
    score: str = "error",
) -> Schedule:
    """Successive halving: of eta^eliminations arms the best 1/eta survive each rung; the last trains to longest."""
    times = tuple(rungs(budget, longest, eta, eliminations))
    # The survivor of the last elimination trains on to `longest`, unless the elimination is there already.
    keep = tuple(max(1, eta ** (eliminations - r)) for r in range(1, eliminations + 1))
    keep += (1,) * (len(times) - len(keep))
    bracket = Bracket(eta**eliminations, times, keep)
    return Schedule("halving", budget, longest, (bracket,), eta, eliminations, discount, score)


def random_search(
    budget: int = 2000,
    longest: int = 200,
    discount: float = 0.0,
    score: str = "error",
    together: int | None = None,
) -> Schedule:
    """Random search: budget // longest arms, each trained to ``longest``; the best wins.

    All arms start at once. With ``together`` so many do, and the next ones only when these have finished: a sampler
    that learns from finished arms (``samplers.optuna``) then has something to learn from, most with ``together=1``.
    """
    _check_rounds(budget, longest)
    arms = budget // longest
    if together is not None:
        _check_whole(together=together)
    size = min(together or arms, arms)
    brackets = tuple(Bracket(min(size, arms - first), (longest,), (1,)) for first in range(0, arms, size))
    return Schedule("random_search", budget, longest, brackets, discount=discount, score=score, together=together)


def hyperband(
    budget: int = 3200,
    longest: int = 200,
    eta: int = 3,
    discount: float = 0.0,
    score: str = "error",
    fill: bool = False,
) -> Schedule:
    """Hyperband (Li et al., JMLR 2018): brackets from many short arms to few long ones, an equal share of budget each.

    With S + 1 brackets, bracket s starts n = ceil(B/M * eta^s / (s + 1)) arms at M / eta^s rounds, B = budget / (S + 1)
    and M = ``longest``; S is the largest, at most floor(log_eta M), for which every bracket can end with a whole arm:
    budget >= (S + 1)^2 M. At equality these are the standard brackets. Arms continue where they paused, so a bracket
    may use less than its share; n is lowered where it would use more. With ``fill`` n is raised to what the share pays
    for, and what is left over goes to brackets of shorter arms: for comparisons with other schedules at equal rounds.
    """
    _check_rounds(budget, longest)
    _check_whole(least=2, eta=eta)
    most = 0
    while eta ** (most + 1) <= longest and (most + 2) ** 2 * longest <= budget:
        most += 1
    brackets: list[Bracket] = []
    for s in range(most + 1):  # the dearest arms first: short ones can use what they leave
        left = budget - sum(bracket.cost for bracket in brackets)
        brackets.append(_bracket(left // (most + 1 - s) if fill else budget // (most + 1), longest, eta, s, fill))
    return Schedule("hyperband", budget, longest, tuple(brackets[::-1]), eta, discount=discount, score=score, fill=fill)


def _bracket(share: int, longest: int, eta: int, s: int, fill: bool) -> Bracket:
    def of(arms: int) -> Bracket:
        keep = (*(max(1, arms // eta ** (i + 1)) for i in range(s)), 1)
        return Bracket(arms, tuple(max(1, longest // eta ** (s - i)) for i in range(s + 1)), keep)

    arms = math.ceil(share * eta**s / (longest * (s + 1)))
    while of(arms).cost > share:
        arms -= 1
    while fill and of(arms + 1).cost <= share:
        arms += 1
    return of(arms)


def _check_rounds(budget: int, longest: int) -> None:
    _check_whole(budget=budget, longest=longest)
    if budget < longest:
        raise SpecError(f"budget = {budget} is less than longest = {longest}: raise budget or lower longest")


def _check_whole(least: int = 1, **settings: int) -> None:
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SpecError(f"schedule.{name} = {value!r}, but must be a whole number >= {least}")
