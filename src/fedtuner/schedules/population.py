"""FedPop: a population of arms, in which the worst go on from the best ones' models with changed hyperparameters.

Chen et al., "FedPop: Federated Population-Based Hyperparameter Tuning", AAAI 2025: the global evolution. Every
``interval`` rounds arms are ranked by their last round's validation loss. Each of the worst 30 % is replaced by a child
of one of the best 30 %, drawn at random: it has the parent's model and the server's vectors, its client configuration
perturbed by 2 eps and its server configuration by eps, each with probability 0.1 drawn afresh instead. The number of
arms stays (budget // longest of them, as random search has), or ``eliminations`` leave the best ones, as successive
halving does. The local evolution, of the clients' configurations within an arm, is ``tuners.FedPop``.

Where the paper is silent, or this differs:

- It ends with the arm of the best validation score, not with that of the best test accuracy, as its public code does.
- An arm that has ended (diverged, stalled), or whose loss is not finite, is replaced at the next look at all arms, by a
  child of any sound one, as the paper replaces at once an arm with a client whose loss is NaN. There are four looks
  between two evolutions. Where no arm is sound, nobody is replaced.
- At a rung of successive halving arms are eliminated; there is no evolution in the same round.
- Which of the best an arm continues is drawn from a stream that is the same in all studies: a schedule knows no seed.
- Arms of less than 100 rounds evolve after every fifth of them, as there would be few evolutions otherwise.

The paper ranks arms by one round in which each has met clients of its own. ``paired`` ranks them by several rounds, in
each of which all have met the same clients.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from fedtuner import checks
from fedtuner.core.evolution import extremes, merged, perturbed
from fedtuner.core.records import Arm, Key
from fedtuner.core.schedule import Evidence, Score, Scoring, Start, Step, best
from fedtuner.errors import SpecError, brief
from fedtuner.rng import Generator as Rng
from fedtuner.rng import stream
from fedtuner.schedules.brackets import Bracket, rounds
from fedtuner.schedules.halving_rungs import Halving
from fedtuner.schedules.random_arms import RandomSearch
from fedtuner.space import TRIES, Config, Domain, Space, draw

INTERVAL = 20  # rounds between two evolutions
EVOLUTIONS = 5  # parts of a short arm, of less than INTERVAL rounds each
LOOKS = 4  # at all arms, from one evolution to the next
OLDER = 0.1  # of a paired score: the weight of all rounds before the last evolution


@dataclass(frozen=True)
class Population:
    """FedPop: arms train side by side; the worst are replaced by children of the best, with changed hyperparameters.

    ``paired`` gives all arms the same initial weights and the same clients in each round, and ranks them by the mean
    loss of the rounds since the last evolution, so that arms differ by what they do and not by whom they have met.
    """

    kind: ClassVar[str] = "fedpop"
    budget: int = 2000  # communication rounds, over all arms
    longest: int = None  # type: ignore[assignment]  # rounds of a model, with its ancestors'; None: a tenth of the budget
    eliminations: int = 0  # 0: the number of arms stays; 3: 27 arms, of which 9, 3 and 1 go on
    eta: int = 3  # one arm in eta survives an elimination
    interval: int = None  # type: ignore[assignment]  # rounds between two evolutions; None: 20, or a fifth of short arms
    share: float = 0.3  # of the arms: the worst that are replaced, and the best that they continue
    eps: float = 0.1  # size of a perturbation, as a part of each range
    fresh: float = 0.1  # how often a child's configuration is drawn afresh
    paired: bool = False  # compare arms on the same clients, over several rounds
    discount: float | None = None  # weight of a past round's score; None: 0, or where paired 0.1^(1 / interval)
    score: str = "loss"  # what arms are compared by: error or loss

    def __post_init__(self) -> None:
        budget = checks.whole("schedule.budget", self.budget)
        budget, longest = rounds(budget, max(1, budget // 10) if self.longest is None else self.longest)
        usual = max(1, min(INTERVAL, longest // EVOLUTIONS))
        interval = usual if self.interval is None else checks.whole("schedule.interval", self.interval)
        paired = checks.python(self.paired)
        if not isinstance(paired, bool):
            raise SpecError(f"schedule.paired = {brief(paired)}, but must be true or false")
        discount = self.discount
        if discount is None:
            discount = round(OLDER ** (1 / interval), 6) if paired else 0.0
        checks.settle(
            self, budget=budget, longest=longest, interval=interval, paired=paired, discount=discount,
            eliminations=checks.whole("schedule.eliminations", self.eliminations, 0),
            share=checks.number("schedule.share", self.share, 0, 0.5),
            eps=checks.number("schedule.eps", self.eps), fresh=checks.number("schedule.fresh", self.fresh, 0, 1),
        )  # fmt: skip
        checks.settle(self, discount=self.scoring.discount)
        self.bracket  # noqa: B018 (mistakes show now)

    @cached_property
    def bracket(self) -> Bracket:
        """How many arms there are, and how many go on after which rounds."""
        if self.eliminations:
            return Halving(self.budget, self.longest, self.eta, self.eliminations).brackets[0]
        return RandomSearch(self.budget, self.longest).brackets[0]

    @property
    def look(self) -> int:
        """Rounds between two looks at all arms."""
        return max(1, self.interval // LOOKS)

    @property
    def scoring(self) -> Scoring:
        return Scoring(self.score, self.discount or 0.0)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"shared"} if self.paired else ())

    @property
    def tuner(self) -> dict[str, Any]:
        """The tuner that it was published with: FedPop's local evolution, up to an arm's first global one."""
        return {"kind": "fedpop", "every": self.look, "young": self.interval}

    def steps(self) -> Generator[Step, Evidence, Key]:
        """Train all arms side by side, from look to look."""
        alive = tuple(range(self.bracket.arms))
        start, out = dict.fromkeys(alive, Start(horizon=self.longest)), tuple[int, ...]()
        at, known = 0, self.bracket.arms
        for rung, keep in zip(self.bracket.rungs, self.bracket.keep, strict=True):
            while at < rung:
                at = self._next(at, rung) if len(alive) > 1 else rung
                evidence = yield Step(dict.fromkeys(alive, at), start, out)
                scores = {arm: _of_ended if arm in evidence.ended else s for arm, s in evidence.scores.items()}
                ranked = best(scores, len(alive) if at < rung else keep)
                if at == self.longest:
                    return ranked[0], at
                parents = self._replaced(ranked, scores, at, evolve=at < rung and at % self.interval == 0)
                start = {
                    known + n: Start((parent, at), Perturb(self.eps, self.fresh), self.longest)
                    for n, parent in enumerate(parents.values())
                }
                known += len(start)
                kept = tuple(sorted(arm for arm in ranked if arm not in parents))
                out, alive = tuple(arm for arm in alive if arm not in kept), (*kept, *start)
        raise AssertionError("the last rung is the longest arm's last round")

    def _next(self, at: int, rung: int) -> int:
        """Return the round of the next look, evolution or rung."""
        since = at % self.interval
        return min(rung, at - since + min(self.interval, since - since % self.look + self.look))

    def _replaced(self, ranked: Sequence[int], scores: Mapping[int, Score], at: int, *, evolve: bool) -> dict[int, int]:
        """Return the arms that are replaced, and the arms whose states their children continue."""
        top, worst = extremes(ranked, self.share) if evolve else ((), ())
        sound = [arm for arm in ranked if math.isfinite(scores[arm][0]) and arm not in worst]
        replaced = sorted(arm for arm in ranked if arm not in sound) if sound else ()
        return {arm: _drawn([one for one in sound if arm not in worst or one in top], at, arm) for arm in replaced}


def _drawn(arms: Sequence[int], at: int, arm: int) -> int:
    return arms[int(stream(0, "fedpop", at, arm).integers(len(arms)))]


_of_ended: Score = (math.inf, math.inf)


@dataclass(frozen=True)
class Perturb:
    """The change of a child: its client configuration perturbed by 2 eps, its server's by eps, or drawn afresh."""

    eps: float = 0.1
    fresh: float = 0.1  # how often each of the two is drawn afresh

    def __call__(self, space: Space, arm: Arm, rng: Rng) -> tuple[Config, Config]:
        """Return configurations that are allowed; the parent's, if none is found."""
        for _ in range(TRIES):
            client = self._side(space.client, arm.client, 2 * self.eps, rng)
            server = self._side(space.server, arm.server, self.eps, rng)
            if space.allows(client, server):
                return client, server
        return arm.client, arm.server

    def _side(self, domains: Mapping[str, Domain], config: Config, eps: float, rng: Rng) -> Config:
        if rng.random() < self.fresh:
            return merged(domains, config, draw(domains, rng))
        return perturbed(domains, config, eps, rng)
