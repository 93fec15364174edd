"""FedPop's global evolution: who is replaced by whom on tables of scores, and that it keeps the laws of schedules."""

from __future__ import annotations

import math
import time

import pytest

from fedtuner import schedules, tables
from fedtuner.core.records import Arm
from fedtuner.core.schedule import Evidence, Play, Scoring, Start, discounted, outline
from fedtuner.errors import SpecError
from fedtuner.rng import stream
from fedtuner.schedules import Population, fedpop
from fedtuner.schedules.population import Perturb
from fedtuner.space import Choice, Float, Int, Space
from fedtuner.testing import ScheduleLaws
from fedtuner.testing.schedules import constant, noisy, play

SCHEDULES = {
    "the paper's, as on FEMNIST": fedpop(2000, 200),
    "the paper's, as on CIFAR-10": fedpop(4000, 800),
    "the paper's, inside halving": fedpop(2000, 200, eliminations=3),
    "paired": fedpop(500, paired=True),
    "a small budget": fedpop(37),
    "an interval that looks do not divide": fedpop(100, 30, interval=9),
    "one arm": fedpop(7, 7),
    "halving by two, half of them replaced": fedpop(84, 10, eta=2, eliminations=2, interval=3, share=0.5),
    "nobody is replaced": fedpop(40, 10, share=0),
}


SLOW = {name for name in SCHEDULES if name.startswith("the paper's")}  # up to 160 steps


@pytest.mark.parametrize("which", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in SCHEDULES])
class TestPopulation(ScheduleLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, which):
        self.which = which

    def schedule(self):
        return SCHEDULES[self.which]

    def test_what_describes_it_makes_it(self):
        assert tables.read(schedules.KINDS, tables.table(self.schedule()), "schedule", "none") == self.schedule()

    def test_its_outline_is_what_it_costs(self):
        """Where no arm ends, all is spent that the bracket without evolution would spend."""
        known = outline(self.schedule())
        assert known.cost == self.schedule().bracket.cost == play(self.schedule(), constant(0.5)).spent
        assert known.proposed == self.schedule().bracket.arms
        for seed in range(3):
            assert play(self.schedule(), noisy(seed)).spent == known.cost  # looks find arms whose score is not finite

    def test_as_many_arms_train_at_any_time(self):
        for table in self.tables():
            for step in play(self.schedule(), table).steps:
                n = next(
                    alive
                    for alive, rung in zip(
                        (self.schedule().bracket.arms, *self.schedule().bracket.keep),
                        self.schedule().bracket.rungs,
                        strict=False,
                    )
                    if max(step.until.values()) <= rung
                )
                assert len(step.until) == n
                assert len(set(step.until.values())) == 1


def stepped(schedule, scores, ended=lambda arm, at: ""):
    """Play a schedule on a table of scores; return its steps and its winner."""
    course, steps = Play(schedule), []
    while course.step is not None:
        step = course.step
        steps.append(step)
        why = {arm: ended(arm, at) for arm, at in step.until.items() if ended(arm, at)}
        course.tell(Evidence({arm: (scores(arm, at), 0.0) for arm, at in step.until.items()}, {}, why))
    return steps, course.winner


def test_the_paper_s_constants():
    made = fedpop(2000, 200)
    assert (made.interval, made.look, made.share, made.eps, made.fresh, made.bracket.arms) == (20, 5, 0.3, 0.1, 0.1, 10)
    assert made.scoring == Scoring("loss", 0.0)
    assert made.needs == frozenset()
    assert made.tuner == {"kind": "fedpop", "every": 5, "young": 20}
    assert (fedpop(2000).longest, fedpop(4000, 800).bracket.arms) == (200, 5)
    inside = fedpop(2000, 200, eliminations=3)
    assert inside.bracket.arms == 27
    assert inside.bracket.keep == (9, 3, 1, 1)


def test_the_worst_continue_the_best():
    """Ten arms whose losses are their numbers, 40 rounds each: one evolution, after round 20.

    ceil(0.3 * 10) = 3: arms 7, 8 and 9 are replaced by children, 10 to 12, of arms 0, 1 and 2. Looks before and after
    it, in rounds 5, 10, 15, 25, 30 and 35, change nothing.
    """
    steps, winner = stepped(fedpop(400, 40, interval=20), lambda arm, at: float(arm) if arm < 10 else 5.5)
    assert [max(step.until.values()) for step in steps] == [5, 10, 15, 20, 25, 30, 35, 40]
    evolved = steps[4]
    assert [n for n, step in enumerate(steps) if step.start] == [0, 4]
    assert evolved.out == (7, 8, 9)
    assert set(evolved.start) == {10, 11, 12}
    for start in evolved.start.values():
        assert start.parent[0] in (0, 1, 2)
        assert start == Start((start.parent[0], 20), Perturb(0.1, 0.1), horizon=40)
    assert set(evolved.until) == {0, 1, 2, 3, 4, 5, 6, 10, 11, 12}
    assert winner == (0, 40)


def test_parents_are_drawn_from_all_of_the_best():
    """80 rounds with three evolutions of three arms each; a table in which the same three stay the best."""
    steps, _ = stepped(fedpop(800, 80, interval=20), lambda arm, at: float(arm) if arm < 10 else 100.0 + arm)
    parents = [start.parent[0] for step in steps[1:] for start in step.start.values()]
    assert len(parents) == 9
    assert set(parents) == {0, 1, 2}


def test_a_child_may_win():
    """Arm 10, the first child, has the lowest loss from its first look on."""
    _, winner = stepped(fedpop(400, 40, interval=20), lambda arm, at: -1.0 if arm == 10 else float(arm))
    assert winner == (10, 40)


@pytest.mark.parametrize("how", ["nan", "inf", "diverged", "stalled"])
def test_an_arm_that_is_broken_is_replaced_at_the_next_look(how):
    """Arm 3 breaks between rounds 5 and 10: at the look after round 10, not only at the evolution after round 20."""

    def scores(arm, at):
        return float(how) if how in ("nan", "inf") and arm == 3 and at >= 6 else float(arm)

    steps, _ = stepped(
        fedpop(400, 40, interval=20),
        scores,
        lambda arm, at: how if how in ("diverged", "stalled") and arm == 3 and at >= 6 else "",
    )
    assert steps[1].start == {}
    assert steps[2].out == (3,)
    [(child, start)] = steps[2].start.items()
    assert child == 10
    assert start.parent[0] in {0, 1, 2, 4, 5, 6, 7, 8, 9}
    assert start.parent[1] == 10
    assert 3 not in steps[2].until


def test_broken_arms_do_not_become_parents():
    """Of five arms four are broken at round 20: all four continue the one that is sound, also as the worst two."""
    steps, _ = stepped(fedpop(200, 40, interval=20), lambda arm, at: 1.0 if arm == 2 or at < 20 else math.nan)
    assert steps[4].out == (0, 1, 3, 4)
    assert {start.parent for start in steps[4].start.values()} == {(2, 20)}


def test_where_all_are_broken_nobody_is_replaced():
    steps, winner = stepped(fedpop(200, 40, interval=20), lambda arm, at: math.nan, lambda arm, at: "diverged")
    assert all(not step.start for step in steps[1:])
    assert winner == (0, 40)


def test_inside_halving_arms_are_eliminated_and_evolve_in_between():
    """Rungs 50, 100, 150, 200: evolutions after rounds 20 and 40, none where nobody is left to compare with.

    27 arms whose losses are their numbers: ceil(0.3 * 27) = 9 are replaced after round 20 and, as children lose here,
    9 after round 40; then arms 0 to 8 survive the rung at 50. Of nine, three are replaced after rounds 60 and 80; of
    three, one after 120 and 140. At round 100, a rung, arms are only eliminated.
    """
    steps, winner = stepped(fedpop(2000, 200, eliminations=3), lambda arm, at: float(arm))
    started = {max(step.until.values()): len(step.start) for step in steps if step.start}
    # A step that starts children leads to the look after their evolution, 5 rounds later.
    assert started == {5: 27, 25: 9, 45: 9, 65: 3, 85: 3, 125: 1, 145: 1}
    assert [len(step.until) for step in steps if max(step.until.values()) in (50, 55, 100, 105, 150, 200)] == [
        27,
        9,
        9,
        3,
        3,
        1,
    ]
    assert winner == (0, 200)


def test_a_short_arm_has_evolutions_too():
    made = fedpop(200)
    assert (made.longest, made.interval, made.look) == (20, 4, 1)
    assert made.tuner == {"kind": "fedpop", "every": 1, "young": 4}


def test_paired_scores_are_of_the_rounds_since_the_last_evolution():
    """0.1^(1/20) = 0.891251: rounds before the last 20 weigh 0.891251^20 = 0.1 of all."""
    made = fedpop(2000, 200, paired=True)
    assert made.scoring == Scoring("loss", 0.891251)
    assert made.discount**20 == pytest.approx(0.1, rel=1e-4)
    assert made.needs == {"shared"}
    assert fedpop(2000, 200, paired=True, discount=0.5).scoring.discount == 0.5


def test_pairing_undoes_the_luck_of_a_round():
    """Arm 0 is better than arm 1 by 0.1 in every round, but in the last round it alone has a hard cohort."""
    hard = [2.0, 1.0, 3.0, 1.5]
    by_round = {0: [h - 0.1 for h in hard[:3]] + [1.6], 1: hard}  # the last one's cohort is not shared
    paired = Scoring("loss", fedpop(80, 8, interval=4, paired=True).discount)
    assert discounted(by_round[0], 0.0) > discounted(by_round[1], 0.0)
    shared = {0: [h - 0.1 for h in hard], 1: hard}
    scores = {arm: discounted(losses, paired.discount) for arm, losses in shared.items()}
    assert scores[1] - scores[0] == pytest.approx(0.1, rel=1e-12)


# The change of a child


SPACE = Space(
    {"lr": Float(1e-4, 1.0, log=True), "epochs": Int(1, 5)},
    {"lr": Float(0.1, 10.0, log=True), "momentum": Choice([0.0, 0.9])},
)
ARM = Arm(3, {"lr": 0.01, "epochs": 3, "batch": 32}, {"lr": 1.0, "momentum": 0.9, "gamma": 1.0})


def test_a_child_s_base_is_perturbed_by_twice_eps_and_its_server_by_eps():
    """0.2 of four decades is 0.8 of one; 0.1 of two decades is 0.2 of one."""
    made = [Perturb(0.1, 0.0)(SPACE, ARM, stream(n, "change")) for n in range(300)]
    client = [math.log10(c["lr"]) + 2 for c, _ in made]
    server = [math.log10(s["lr"]) for _, s in made]
    assert 0.7 < max(map(abs, client)) <= 0.8 + 1e-9
    assert 0.18 < max(map(abs, server)) <= 0.2 + 1e-9
    flips = sum(s["momentum"] == 0.0 for _, s in made)
    assert 110 < flips < 190  # 150 of 300, with a deviation of 8.7
    assert {c["epochs"] for c, _ in made} == {2, 3, 4}
    assert all(c["batch"] == 32 and s["gamma"] == 1.0 for c, s in made)


def test_a_tenth_is_drawn_afresh():
    """A fresh learning rate is outside 0.8 decades around 0.01 with probability 1 - 1.6 / 4 = 0.6."""
    made = [Perturb(0.1, 0.1)(SPACE, ARM, stream(n, "change")) for n in range(2000)]
    outside = sum(abs(math.log10(c["lr"]) + 2) > 0.8 + 1e-9 for c, _ in made)
    assert 80 < outside < 165  # 120 of 2000, with a deviation of 10.6
    both = sum(abs(math.log10(c["lr"]) + 2) > 0.8 + 1e-9 and abs(math.log10(s["lr"])) > 0.2 + 1e-9 for c, s in made)
    assert both < 25  # the two are drawn by themselves: 0.1 * 0.6 * 0.1 * 0.8 of 2000 is 10


def test_a_change_is_a_function_of_its_arguments():
    assert Perturb()(SPACE, ARM, stream(1, "x")) == Perturb()(SPACE, ARM, stream(1, "x"))
    assert Perturb()(SPACE, ARM, stream(1, "x")) != Perturb()(SPACE, ARM, stream(2, "x"))


def test_a_change_keeps_constraints():
    space = Space(SPACE.client, SPACE.server, ["lr * epochs <= 0.03"])
    for n in range(50):
        client, server = Perturb()(space, ARM, stream(n, "held"))
        assert space.allows(client, server)
    nowhere = Space(SPACE.client, SPACE.server, ["lr > 2"])
    assert Perturb()(nowhere, ARM, stream(0, "none")) == (ARM.client, ARM.server)


# Forecasts


def test_an_outline_is_fast():
    """Twice as many rounds take about twice as long: no step looks at all the steps before it."""

    def seconds(budget):
        begun = time.process_time()
        outline(fedpop(budget, budget // 10), "timed")
        return time.process_time() - begun

    seconds(500)
    assert seconds(8000) < 12 * seconds(2000) + 0.1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"budget": 0}, "schedule.budget = 0, but must be a whole number >= 1"),
        ({"budget": 10, "longest": 20}, "budget = 10 is less than longest = 20"),
        ({"interval": 0}, "schedule.interval = 0, but must be a whole number >= 1"),
        ({"share": 0.6}, "schedule.share = 0.6, but must be in [0, 0.5]"),
        ({"eps": -0.1}, "schedule.eps = -0.1, but must be >= 0"),
        ({"fresh": 2}, "schedule.fresh = 2, but must be in [0, 1]"),
        ({"paired": "yes"}, "schedule.paired = 'yes', but must be true or false"),
        ({"discount": 1.5}, "schedule.discount = 1.5, but must be in [0, 1]"),
        ({"score": "los"}, "did you mean 'loss'?"),
        ({"eliminations": -1}, "schedule.eliminations = -1"),
        ({"budget": 30, "longest": 10, "eliminations": 3}, "cannot give 27 arms"),
        ({"eliminations": 3, "eta": 1}, "schedule.eta = 1, but must be a whole number >= 2"),
    ],
)
def test_bad_settings_are_refused(settings, said):
    with pytest.raises(SpecError) as caught:
        Population(**settings)
    assert said in str(caught.value)
