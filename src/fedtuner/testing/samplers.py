"""The laws that every sampler keeps. Subclass in your tests and return your sampler:

class TestMine(fedtuner.testing.SamplerLaws):
    def sampler(self): return MySampler()
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable

from fedtuner import tables
from fedtuner.core.records import Arm
from fedtuner.core.sampler import Configs, Past, Sampler
from fedtuner.core.schedule import Schedule
from fedtuner.schedules import random_search
from fedtuner.space import Float, Int, OneMinus, PowerOfTwo, Space

SPACE = Space(
    client={
        "lr": Float(1e-3, 1.0, log=True), "batch": PowerOfTwo(2, 8), "epochs": Int(1, 3), "optimiser": ["sgd", "adam"],
        "weight_decay": 0.001,
    },
    server={"lr": Float(0.5, 1.5), "gamma": OneMinus(Float(1e-4, 1e-2, log=True))},
)  # fmt: skip


class SamplerLaws:
    """Laws of a sampler, on scores from a table; override ``sampler``, and ``schedule`` if it needs another one."""

    space: Space = SPACE
    arms = 8  # how many are proposed, one after the other

    def sampler(self) -> Sampler:
        raise NotImplementedError("override sampler()")

    def schedule(self) -> Schedule:
        return random_search(30, 3, together=1)

    def test_it_takes_its_space_and_schedule(self) -> None:
        """``check`` refuses neither, and the sampler can stand in a study's journal."""
        sampler = self.sampler()
        assert isinstance(sampler, Sampler)
        sampler.check(self.space, self.schedule())
        json.dumps(tables.plain(sampler), allow_nan=False)

    def test_proposals_are_in_their_domains(self) -> None:
        """Every hyperparameter of the space has a value of its domain, and no other is named."""
        for past in self._past(_distance):
            for config, domains in ((past.arm.client, self.space.client), (past.arm.server, self.space.server)):
                assert config.keys() == domains.keys()
                assert all(config[name] in domain for name, domain in domains.items())
                assert all(type(value) in (int, float, str, bool) for value in config.values())

    def test_a_proposal_is_a_function_of_what_was_before(self) -> None:
        """The same seed, number and past give the same proposal, in any order and from any instance."""
        past = self._past(_distance)
        for id in (len(past) - 1, 0, len(past) // 2):
            for sampler in (self.sampler(), self.sampler()):
                configs = sampler.propose(self.space, 0, id, id, past[:id])
                assert configs == (past[id].arm.client, past[id].arm.server)

    def test_another_seed_proposes_other_arms(self) -> None:
        one, other = (self.sampler().propose(self.space, seed, 0, 0, ()) for seed in (0, 1))
        assert one != other

    def test_only_a_sampler_that_learns_reads_the_past(self) -> None:
        """Where ``learns`` is false, an arm does not depend on the arms before it, nor on who starts with it."""
        sampler = self.sampler()
        if not sampler.learns:
            past, last = self._past(_distance), self.arms - 1
            assert sampler.propose(self.space, 0, last, 0, ()) == sampler.propose(self.space, 0, last, last, past[:-1])

    def test_arms_that_start_together_are_proposed_without_each_others_scores(self) -> None:
        """A group of arms is proposed after all that came before has finished; none of its own has a score."""
        sampler, past = self.sampler(), self._past(_distance)
        group: list[Past] = []
        for id in range(len(past), len(past) + 3):
            configs = sampler.propose(self.space, 0, id, len(past), [*past, *group])
            group.append(_as_past(id, len(past), configs, None))
        again = sampler.propose(self.space, 0, len(past) + 1, len(past), [*past, *group[:1]])
        assert again == (group[1].arm.client, group[1].arm.server)

    def test_scores_that_are_not_finite_still_lead_to_a_proposal(self) -> None:
        """Where every arm before has diverged, or some have."""
        for odd in (math.inf, math.nan):
            assert len(self._past(lambda configs, odd=odd: odd)) == self.arms  # type: ignore[misc]
            assert len(self._past(lambda configs, odd=odd: odd if configs[0]["epochs"] == 2 else 0.5)) == self.arms  # type: ignore[misc]

    def _past(self, score: Callable[[Configs], float]) -> list[Past]:
        """Return arms that the sampler proposed one after the other, with their scores."""
        sampler, past = self.sampler(), list[Past]()
        for id in range(self.arms):
            configs = sampler.propose(self.space, 0, id, id, tuple(past))
            past.append(_as_past(id, id, configs, score(configs)))
        return past


def _as_past(id: int, first: int, configs: Configs, score: float | None) -> Past:
    return Past(Arm(id, *configs), first, {} if score is None else {3: score})


def _distance(configs: Configs) -> float:
    """Return how far a learning rate is from 0.1, in decades: the table that samplers learn."""
    return abs(math.log10(float(configs[0]["lr"]) / 0.1))
