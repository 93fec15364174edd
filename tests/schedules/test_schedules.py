"""Schedules on tables of numbers: the laws of all, the paper's rungs, the order of scores, and what is refused."""

import itertools
import math
import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

import toys
from fedtuner import methods, schedules, tables
from fedtuner.core.schedule import METRICS, Evidence, Scoring, Start, Step, best, discounted, imagined, outline
from fedtuner.errors import SpecError
from fedtuner.schedules import Bracket, Longer, duel, halving, hyperband, random_search, rungs
from fedtuner.testing import ScheduleLaws
from fedtuner.testing.schedules import constant, noiseless, noisy, play

SCHEDULES = {
    "the paper's halving": halving(4000, 800),
    "the default halving": halving(),
    "halving by two": halving(20, 8, eta=2, eliminations=2),
    "halving that ends at an elimination": halving(18, 6, eta=2, eliminations=2),
    "halving with rounds to spare": halving(84, 10, eta=4, eliminations=2),
    "one arm": halving(10, 10, eliminations=0),
    "the paper's random search": random_search(4000, 800),
    "random search with rounds to spare": random_search(29, 10),
    "random search of one arm": random_search(7, 7),
    "the standard hyperband": hyperband(25 * 81, 81),
    "the default hyperband": hyperband(),
    "hyperband with rounds to spare": hyperband(1000, 30, eta=2),
    "hyperband of one bracket": hyperband(20, 10),
    "hyperband that fills its budget": hyperband(2000, 200, fill=True),
    "random search one by one": random_search(60, 10, together=1),
    "random search in threes": random_search(109, 10, together=3),
}


@pytest.mark.parametrize("which", SCHEDULES)
class TestEverySchedule(ScheduleLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, which):
        self.which = which

    def schedule(self):
        return SCHEDULES[self.which]

    def test_the_cost_is_what_is_spent(self):
        spent = {play(self.schedule(), table).spent for table in self.tables()}
        assert spent == {outline(self.schedule()).cost} == {sum(b.cost for b in self.schedule().brackets)}

    def test_the_winner_is_the_best_of_those_at_the_end(self):
        for seed in range(5):
            table = noisy(seed)
            played = play(self.schedule(), table)
            final = {arm: table(arm, played.at[arm]) for arm in finalists(played)}
            assert played.winner == (best(final, 1)[0], self.schedule().longest)

    def test_whoever_is_not_out_goes_on_or_is_at_the_end(self):
        for seed in range(5):
            played = play(self.schedule(), noisy(seed))
            for before, after in itertools.pairwise(played.steps):
                gone = set(before.until) - set(after.until) - set(after.out)
                assert gone <= finalists(played)
                at_the_end = set(before.until.values()) == {self.schedule().longest}
                assert len(gone) == at_the_end  # the survivor of a bracket

    def test_among_equals_the_first_arm_wins(self):
        for score in (0.0, math.nan, math.inf):
            assert play(self.schedule(), constant(score)).winner == (0, self.schedule().longest)

    def test_what_describes_a_schedule_makes_it(self):
        table = tables.table(self.schedule())
        assert tables.read(schedules.KINDS, table, "schedule", "none") == self.schedule()

    def test_its_outline_is_what_it_does(self):
        known, played = outline(self.schedule()), play(self.schedule(), noisy(0))
        assert known.groups == tuple(tuple(step.start) for step in played.steps if step.start)
        assert known.arms == len(played.at)
        assert sorted(known.reach.values()) == sorted(played.at.values())
        assert known.horizons == dict.fromkeys(played.at, self.schedule().longest)
        assert not known.children
        for arm, round in played.at.items():
            assert round in known.rungs[arm]
            assert known.rungs[arm][-1] == self.schedule().longest


def finalists(played):
    """The arms that no other was advanced further than."""
    furthest = max(played.at.values())
    return {arm for arm, reached in played.at.items() if reached == furthest}


@given(
    st.integers(1, 300),
    st.integers(1, 40),
    st.integers(2, 5),
    st.integers(0, 4),
    st.sampled_from(["halving", "random_search", "hyperband"]),
)
def test_any_schedule_is_within_its_budget(budget, longest, eta, eliminations, kind):
    settings = {"halving": {"eta": eta, "eliminations": eliminations}, "hyperband": {"eta": eta}}.get(kind, {})
    try:
        schedule = schedules.KINDS[kind](budget, longest, **settings)
    except SpecError:
        return
    assert sum(bracket.cost for bracket in schedule.brackets) <= budget
    for bracket in schedule.brackets:
        assert bracket.rungs[-1] == longest
        assert all(0 < s < t for s, t in itertools.pairwise(bracket.rungs))
        assert all(m >= n >= 1 for m, n in itertools.pairwise((bracket.arms, *bracket.keep)))
        assert bracket.keep[-1] == 1
        assert len(bracket.keep) == len(bracket.rungs)


# The laws can be broken: schedules of nine arms, at most 20 rounds each and 179 in all, that go wrong in their own way.


def everyone(until, arms=9, **more):
    return Step(dict.fromkeys(range(arms), until), dict.fromkeys(range(arms), Start()), **more)


def the_best(evidence, until):
    return best(evidence.scores, 1)[0], until


def run_all(self):
    return the_best((yield everyone(20)), 20)


def run_backwards(self):
    yield everyone(10)
    return the_best((yield Step({0: 5, 1: 5})), 5)


def stand_still(self):
    yield everyone(10)
    return the_best((yield Step({0: 10, 1: 10})), 10)


def run_too_far(self):
    winner, _ = the_best((yield everyone(2)), 2)
    yield Step({winner: 21})
    return winner, 21


def run_who_never_started(self):
    yield everyone(2, arms=8)
    return the_best((yield Step({8: 3})), 3)


def leave_out_a_number(self):
    return the_best((yield Step({0: 2, 2: 2}, {0: Start(), 2: Start()})), 2)


def start_an_arm_twice(self):
    yield everyone(2)
    return the_best((yield Step({0: 3}, {0: Start()})), 3)


def run_nobody(self):
    evidence = yield everyone(2)
    yield Step({})
    return the_best(evidence, 2)


def never_end(self):
    while True:
        yield Step({})


def revive(self):
    evidence = yield everyone(2)
    yield Step(dict.fromkeys(best(evidence.scores, 3), 4), out=tuple(best(evidence.scores, 9)[3:]))
    return best(evidence.scores, 9)[-1], 2


def crown_a_state_that_is_gone(self):
    yield everyone(2)
    return the_best((yield Step(dict.fromkeys(range(9), 3))), 2)


def crown_the_future(self):
    return the_best((yield everyone(2)), 3)


def crown_a_stranger(self):
    yield everyone(2)
    return 9, 2


def keep_the_worst(self):
    evidence = yield everyone(2)
    return the_best((yield Step(dict.fromkeys(best(evidence.scores, 9)[-3:], 4))), 4)


def believe_minus_infinity(self):
    evidence = yield everyone(2)
    return min(evidence.scores, key=lambda arm: evidence.scores[arm]), 2


def run_who_is_out(self):
    yield everyone(2)
    return the_best((yield Step({0: 3, 1: 3}, out=(1, 2, 3))), 3)


def crown_who_is_out(self):
    yield everyone(2)
    yield Step({0: 3, 1: 3})
    yield Step({1: 4}, out=(0,))
    return 0, 3


def crown_nobody(self):
    evidence = yield everyone(2)
    finite = [arm for arm in best(evidence.scores, 9) if math.isfinite(evidence.scores[arm][0])]
    return (finite[0], 2) if finite else None


def start_from_a_state_that_is_gone(self):
    yield everyone(2)
    yield Step({0: 4})
    return the_best((yield Step({9: 3}, {9: Start((0, 2))})), 3)


def start_from_who_is_out(self):
    yield everyone(2)
    yield Step({0: 4}, out=(1,))
    return the_best((yield Step({9: 3}, {9: Start((1, 2))})), 3)


def keep_what_never_was(self):
    yield everyone(2)
    return the_best((yield Step({0: 4}, keep=((0, 3),))), 4)


RUNS = itertools.count()


def remember_other_runs(self):
    until = 2 + next(RUNS) % 2
    return the_best((yield everyone(until)), until)


@pytest.mark.parametrize(
    ("steps", "law", "said"),
    [
        (run_all, "test_the_budget_is_never_exceeded", "180 rounds, but the budget is 179"),
        (never_end, "test_the_budget_is_never_exceeded", "179 steps and no end"),
        (run_backwards, "test_every_arm_only_moves_forward", "arm 0 is at round 10 already"),
        (stand_still, "test_every_arm_only_moves_forward", "arm 0 is at round 10 already"),
        (run_too_far, "test_every_arm_only_moves_forward", "past longest = 20"),
        (run_who_never_started, "test_every_arm_only_moves_forward", "arm 8 has not started"),
        (leave_out_a_number, "test_every_arm_only_moves_forward", "[0, 2] start, but [0, 1] are next"),
        (start_an_arm_twice, "test_every_arm_only_moves_forward", "[0] start, but [9] are next"),
        (run_nobody, "test_every_arm_only_moves_forward", "has no arm"),
        (revive, "test_an_arm_that_is_out_is_gone", "won, but was out"),
        (crown_a_state_that_is_gone, "test_states_that_are_named_are_there", "won, but its state was not kept"),
        (crown_the_future, "test_states_that_are_named_are_there", "won, but its state was not kept"),
        (crown_a_stranger, "test_states_that_are_named_are_there", "arm 9 won, but has not started"),
        (start_from_a_state_that_is_gone, "test_states_that_are_named_are_there", "are parents, but were not kept"),
        (start_from_who_is_out, "test_states_that_are_named_are_there", "are parents, but were not kept"),
        (keep_what_never_was, "test_states_that_are_named_are_there", "the states {(0, 3)} are not there"),
        (run_who_is_out, "test_an_arm_that_is_out_is_gone", "are out"),
        (crown_who_is_out, "test_an_arm_that_is_out_is_gone", "arm 0 won, but was out"),
        (keep_the_worst, "test_the_best_arm_of_a_noiseless_table_wins", "was the best at every round"),
        (believe_minus_infinity, "test_scores_that_are_not_finite_still_give_a_winner", "over arm"),
        (crown_nobody, "test_scores_that_are_not_finite_still_give_a_winner", "None won"),
        (remember_other_runs, "test_the_same_scores_give_the_same_steps", "the same scores, but"),
    ],
)
def test_the_laws_can_be_broken(steps, law, said):
    class Broken:
        budget, longest, scoring, needs = 179, 20, Scoring(), frozenset()

    Broken.steps = steps

    class Laws(ScheduleLaws):
        def schedule(self):
            return Broken()

    with pytest.raises(AssertionError, match=re.escape(said)):
        getattr(Laws(), law)()


def test_the_hook_must_be_overridden():
    with pytest.raises(NotImplementedError, match=r"override schedule\(\)"):
        ScheduleLaws().test_the_budget_is_never_exceeded()


# A schedule that reads records, down to single clients.


@dataclass(frozen=True)
class Reading:
    """Three arms, of which the one wins whose clients had the lowest median error over its rounds."""

    budget: int = 9
    longest: int = 3

    scoring = Scoring()
    needs = frozenset({"rows"})

    def steps(self):
        evidence = yield everyone(3, arms=3)
        assert not evidence.ended
        medians = {}
        for arm, records in evidence.records.items():
            assert [record.round for record in records] == [1, 2, 3]
            errors = [row.error_after for record in records for row in record.rows]
            medians[arm] = (sorted(errors)[len(errors) // 2], 0.0)
        return best(medians, 1)[0], 3


class TestReading(ScheduleLaws):
    def schedule(self):
        return Reading()


LONGER = {
    "a second halving": Longer(halving(20, 8, eta=2, eliminations=2), 41),
    "a random search and its winner": Longer(Longer(random_search(9, 3, together=1), 20), 27, "winner"),
    "a duel that runs on": Longer(duel(100), 130, "run"),
}


@pytest.mark.slow
@pytest.mark.parametrize("which", LONGER)
class TestLonger(ScheduleLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, which):
        self.which = which

    def schedule(self):
        return LONGER[self.which]


def test_a_schedule_that_reads_records_can_be_outlined_and_run():
    assert outline(Reading()).cost == 9
    study = toys.tune(schedule=Reading(), method=methods.fedavg)
    assert study.rounds_used == 9
    assert study.winner[1] == 3


@pytest.mark.parametrize("metric", METRICS)
def test_imagined_records_have_the_scores_of_their_table(metric):
    table = {(arm, at): (arm + 0.1 * at, -1.0 * arm) for arm in (0, 1) for at in (1, 2, 3)}
    evidence = imagined({0: 2, 1: 3}, lambda arm, at: table[arm, at], metric)
    assert evidence.scores == {0: table[0, 2], 1: table[1, 3]}
    assert {arm: len(records) for arm, records in evidence.records.items()} == {0: 2, 1: 3}
    for arm, records in evidence.records.items():
        for target in ("global", "personalized"):
            assert Scoring(metric).score(records, target) == evidence.scores[arm]


# Rungs.


@pytest.mark.parametrize(
    ("budget", "longest", "eta", "eliminations", "expected", "unused"),
    [
        # The paper's. A round more of step i for the 27, 9, 3 arms alive in it costs 26, 8, 2: the survivor of all
        # would have had it anyway. 3200 = 88 * 36 + 32, and 32 = 26 + 3 * 2: steps of 89, 88, 91.
        (4000, 800, 3, 3, [89, 177, 268, 800], 0),
        (2000, 200, 3, 3, [50, 100, 150, 200], 0),  # 1800 = 50 * 36
        (20, 8, 2, 2, [3, 6, 8], 0),  # costs 3 and 1: 12 = 3 * 4
        (23, 8, 2, 2, [4, 7, 8], 0),  # 15 = 3 * 4 + 3: one more of the first step
        (22, 8, 2, 2, [3, 8], 0),  # 14 = 3 * 4 + 2: two more of the last, which then ends at 8
        (18, 6, 2, 2, [3, 6], 0),  # the last elimination is at the end: no leg of the survivor
        (84, 10, 4, 2, [4, 8, 10], 2),  # costs 15 and 3: 74 = 4 * 18 + 2, and 2 pay for nothing
        (85, 10, 4, 2, [4, 9, 10], 0),
        (50, 10, 5, 1, [10], 0),  # random search of five arms
        (10, 10, 3, 0, [10], 0),  # one arm
        (99, 10, 3, 0, [10], 89),
    ],
)
def test_golden_rungs(budget, longest, eta, eliminations, expected, unused):
    assert rungs(budget, longest, eta, eliminations) == expected
    assert outline(halving(budget, longest, eta, eliminations)).cost == budget - unused


def extras(prices, left, room):
    """Yield every way to spend at most ``left`` on whole numbers of additional rounds of each step, ``room`` in all."""
    if not prices:
        yield ()
        return
    for n in range(min(left // prices[0], room) + 1):
        for rest in extras(prices[1:], left - n * prices[0], room - n):
            yield (n, *rest)


def use(lengths, longest, eta):
    """Return the rounds that steps of these lengths use: eta^R arms, then a 1/eta of them, ..., then one to longest."""
    arms = [eta**r for r in range(len(lengths), 0, -1)]
    return sum(n * length for n, length in zip(arms, lengths, strict=True)) + longest - sum(lengths)


@pytest.mark.parametrize(
    ("eta", "eliminations"), [(2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2), (3, 3), (4, 2), (5, 1)]
)
def test_no_other_rungs_use_more_of_the_budget(eta, eliminations):
    """By trying all: equal steps by the appendix's formula, or as long as fit, then every use of what remains."""
    full = tried_all = 0
    for longest, budget in itertools.product(range(eliminations, 18), range(1, 110)):
        if budget < longest:
            continue
        step = (budget - longest) // ((eta ** (eliminations + 1) - 1) // (eta - 1) - eliminations - 1)
        if step == 0:
            with pytest.raises(SpecError, match="raise budget"):
                rungs(budget, longest, eta, eliminations)
            continue
        step = min(step, longest // eliminations)
        left, room = budget - use([step] * eliminations, longest, eta), longest - step * eliminations
        more = extras([eta**r - 1 for r in range(eliminations, 0, -1)], left, room)
        most = max(use([step + n for n in each], longest, eta) for each in more)
        assert halving(budget, longest, eta, eliminations).brackets[0].cost == most <= budget
        full += most == budget
        tried_all += 1
    assert 20 < full < tried_all


def test_halving_keeps_the_best_third():
    """By hand: budget 9 * 2 + 3 * 2 + 1 * 4 = 28; costs 8 and 2, (28 - 8) / 10 = 2."""
    schedule = halving(28, 8, eta=3, eliminations=2)
    assert schedule.brackets == (Bracket(9, (2, 4, 8), (3, 1, 1)),)
    coroutine = schedule.steps()
    assert next(coroutine) == everyone_of(9, 2, horizon=8)
    errors = [0.9, 0.2, 0.8, 0.3, math.nan, 0.7, 0.3, 0.3, math.inf]
    # 0.2 is arm 1; of 3, 6 and 7 at 0.3 the lower losses are 7's and then 3's.
    losses = [1.0, 1.0, 1.0, 0.6, 0.0, 1.0, 0.7, 0.5, 0.0]
    following = coroutine.send(Evidence({arm: (errors[arm], losses[arm]) for arm in range(9)}))
    assert following == Step({1: 4, 3: 4, 7: 4}, {}, (0, 2, 4, 5, 6, 8))
    following = coroutine.send(Evidence({1: (0.4, 0.0), 3: (0.1, 0.0), 7: (0.2, 0.0)}))
    assert following == Step({3: 8}, {}, (1, 7))
    with pytest.raises(StopIteration) as end:
        coroutine.send(Evidence({3: (math.nan, math.nan)}))
    assert end.value.value == (3, 8)


def everyone_of(arms, until, horizon):
    return Step(dict.fromkeys(range(arms), until), dict.fromkeys(range(arms), Start(horizon=horizon)))


# Random search and Hyperband.


@given(st.integers(2, 12), st.integers(1, 30), st.integers(0, 10))
def test_random_search_is_halving_with_one_rung(arms, longest, seed):
    """The paper: "For random search (RS) with N samples, set eta = N and R = 1"."""
    search, one = random_search(arms * longest, longest), halving(arms * longest, longest, eta=arms, eliminations=1)
    assert search.brackets == one.brackets == (Bracket(arms, (longest,), (1,)),)
    assert play(search, noisy(seed)) == play(one, noisy(seed))


@pytest.mark.parametrize(
    ("budget", "longest", "arms"), [(4000, 800, 5), (2000, 200, 10), (29, 10, 2), (10, 10, 1), (19, 10, 1)]
)
def test_random_search_has_as_many_arms_as_it_can_pay_for(budget, longest, arms):
    known = outline(random_search(budget, longest))
    assert (known.arms, known.cost) == (arms, arms * longest)


def test_golden_the_standard_brackets():
    """Table 1 of Li et al. (JMLR 2018), R = 81 and eta = 3: n_i arms up to r_i rounds."""
    standard = [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]
    schedule = hyperband(budget=25 * 81, longest=81, eta=3)
    found = [list(zip((b.arms, *b.keep), b.rungs, strict=False)) for b in schedule.brackets]
    assert found == standard
    assert [b.arms for b in schedule.brackets] == [81, 34, 15, 8, 5]
    assert outline(schedule).arms == 143


@pytest.mark.parametrize(
    ("budget", "brackets"), [(81, 1), (4 * 81 - 1, 1), (4 * 81, 2), (9 * 81, 3), (25 * 81, 5), (1000 * 81, 5)]
)
def test_hyperband_has_as_many_brackets_as_end_with_a_whole_arm(budget, brackets):
    """S + 1 brackets need (S + 1)^2 longest runs; with longest = 81 and eta = 3 there are at most 5."""
    assert len(hyperband(budget, 81, 3).brackets) == brackets


@given(st.integers(1, 2000), st.integers(1, 100), st.integers(2, 5))
def test_the_brackets_of_hyperband_share_the_budget(budget, longest, eta):
    if budget < longest:
        return
    brackets = hyperband(budget, longest, eta).brackets
    for s, bracket in zip(range(len(brackets) - 1, -1, -1), brackets, strict=True):
        assert bracket.cost <= budget // len(brackets)
        assert bracket.rungs == tuple(longest // eta**i for i in range(s, -1, -1))
        assert bracket.arms // eta**s >= 1


@pytest.mark.parametrize(("budget", "longest", "eta"), [(2000, 200, 3), (4000, 800, 3), (500, 50, 3), (120, 8, 2)])
def test_a_filled_hyperband_leaves_less_than_one_more_arm_would_cost(budget, longest, eta):
    usual, filled = hyperband(budget, longest, eta), hyperband(budget, longest, eta, fill=True)
    assert [bracket.rungs for bracket in filled.brackets] == [bracket.rungs for bracket in usual.brackets]
    assert all(a.arms >= b.arms for a, b in zip(filled.brackets, usual.brackets, strict=True))
    cost = outline(filled).cost
    assert outline(usual).cost < cost <= budget
    shortest = filled.brackets[0]
    assert budget - cost < sum(shortest.rungs) + longest  # an arm more, and perhaps a survivor more at each rung


def test_arms_of_a_bracket_start_together():
    schedule = hyperband(120, 8, eta=2)  # 7, 5 and 5 arms
    known = outline(schedule)
    assert known.groups == (tuple(range(7)), tuple(range(7, 12)), tuple(range(12, 17)))
    assert [known.rungs[arm] for arm in (0, 6, 7, 16)] == [schedule.brackets[i].rungs for i in (0, 0, 1, 2)]


@pytest.mark.parametrize("together", [1, 2, 3, 10, 99, None])
def test_random_search_in_parts_has_the_same_winner(together):
    whole, parts = random_search(100, 10), random_search(100, 10, together=together)
    assert (outline(parts).arms, outline(parts).cost) == (outline(whole).arms, outline(whole).cost)
    for seed in range(20):
        assert play(parts, noisy(seed)).winner == play(whole, noisy(seed)).winner
    assert max(len(step.until) for step in play(parts, noisy(0)).steps) == min(together or 10, 10)


def test_the_winner_of_hyperband_may_come_from_any_bracket():
    schedule = hyperband(25 * 81, 81)
    firsts = [sum(b.arms for b in schedule.brackets[:i]) for i in range(5)]
    assert [play(schedule, noiseless(arm)).winner for arm in firsts] == [(arm, 81) for arm in firsts]


# Scores.


@pytest.mark.parametrize(
    ("scores", "order"),
    [
        ([(0.3, 0), (0.1, 9), (0.2, 5)], [1, 2, 0]),
        ([(0.5, 3), (0.5, 1), (0.5, 2)], [1, 2, 0]),  # a tie: by the other metric
        ([(0.5, 1), (0.5, 1), (0.4, 1), (0.5, 1)], [2, 0, 1, 3]),  # a tie of both: by number
        ([(math.inf, 0), (1e300, 0), (math.nan, 0), (-math.inf, 0)], [1, 0, 2, 3]),  # not finite: last, and equal
        ([(math.nan, 0.9), (math.inf, 0.1), (-math.inf, 0.5)], [1, 2, 0]),
        ([(0.5, math.nan), (0.5, 1e300), (0.5, -math.inf)], [1, 0, 2]),  # nor as a tie-breaker
        ([(math.nan, math.nan)] * 3, [0, 1, 2]),
        ([(0.0, 0), (-0.0, 0), (-1.0, 0)], [2, 0, 1]),
    ],
)
def test_the_order_of_scores(scores, order):
    assert best(dict(enumerate(scores)), len(scores)) == order
    assert best(dict(reversed(list(enumerate(scores)))), len(scores)) == order  # however they are sent
    assert best(dict(enumerate(scores)), 1) == order[:1]


@given(
    st.lists(st.tuples(st.floats(), st.sampled_from([0.0, 1.0, math.nan])), min_size=1, max_size=8), st.integers(1, 8)
)
def test_the_best_are_those_that_no_other_beats(scores, n):
    chosen = best(dict(enumerate(scores)), n)
    assert len(chosen) == len(set(chosen)) == min(n, len(scores))
    for arm, other in itertools.product(chosen, set(range(len(scores))) - set(chosen)):
        assert not math.isfinite(scores[other][0]) or scores[arm][0] <= scores[other][0]


@pytest.mark.parametrize(
    ("scores", "discount", "expected"),
    [
        ([0.9, 0.5, 0.3], 0.0, 0.3),  # the latest
        ([0.9, 0.5, 0.3], 0.5, (0.225 + 0.25 + 0.3) / 1.75),  # weights 1/4, 1/2, 1
        ([0.9, 0.5, 0.3], 1.0, 1.7 / 3),  # the mean
        ([0.9, math.nan, 0.3], 0.5, (0.45 + 0.3) / 1.5),  # nobody validated: as if the round had not been
        ([0.9, 0.3, math.nan], 0.0, 0.3),
        ([math.nan, 0.9, math.nan, 0.3, math.nan], 1.0, 0.6),
        ([0.4], 0.5, 0.4),
        ([0.1, math.inf], 0.0, math.inf),  # diverged is not the same as unknown
        ([0.1, math.inf], 0.5, math.inf),
        ([math.inf, 0.1], 1.0, 0.6),  # it has recovered: the mean of 0.1 and 1.1
        ([math.inf, 0.1], 0.0, 0.1),
        *itertools.product([[], [math.nan], [math.nan] * 3], [0.0, 0.5, 1.0], [math.inf]),
    ],
)
def test_discounted(scores, discount, expected):
    assert discounted(scores, discount) == pytest.approx(expected, rel=1e-15)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_a_discounted_score_is_a_mean(scores, discount):
    found = discounted(scores, discount)
    assert min(scores) - 1e-6 <= found <= max(scores) + 1e-6
    shifted = discounted([s + 1.0 for s in scores], discount)
    assert shifted == pytest.approx(found + 1.0, abs=1e-6)


# What is refused, and that the remedy helps.


@pytest.mark.parametrize(
    ("budget", "longest", "eta", "eliminations"), [(20, 10, 3, 3), (50, 20, 3, 3), (10, 10, 2, 1), (30, 5, 2, 4)]
)
def test_fewer_rounds_than_arms_are_refused(budget, longest, eta, eliminations):
    with pytest.raises(SpecError) as caught:
        rungs(budget, longest, eta, eliminations)
    said = str(caught.value)
    assert f"budget = {budget} cannot give {eta**eliminations} arms" in said
    assert "or lower eliminations" in said
    enough = int(re.search(r"raise budget to (\d+)", said)[1])
    assert rungs(enough, longest, eta, eliminations)[0] == 1
    with pytest.raises(SpecError, match="raise budget"):
        rungs(enough - 1, longest, eta, eliminations)


@pytest.mark.parametrize("make", [halving, random_search, hyperband, rungs])
def test_a_budget_below_the_longest_run_is_refused(make):
    with pytest.raises(SpecError, match="budget = 5 is less than longest = 20: raise budget or lower longest"):
        make(5, 20)


@pytest.mark.parametrize(
    ("make", "settings", "said"),
    [
        (halving, {"budget": 0}, "schedule.budget = 0, but must be a whole number >= 1"),
        (halving, {"budget": 2000.0}, "schedule.budget = 2000.0"),
        (halving, {"budget": "2000"}, "schedule.budget = '2000'"),
        (halving, {"budget": True, "longest": 1}, "schedule.budget = True"),
        (halving, {"longest": -1}, "schedule.longest = -1"),
        (halving, {"longest": None}, "schedule.longest = None"),
        (halving, {"eta": 1}, "schedule.eta = 1, but must be a whole number >= 2"),
        (halving, {"eta": 2.5}, "schedule.eta = 2.5"),
        (halving, {"eliminations": -1}, "schedule.eliminations = -1, but must be a whole number >= 0"),
        (halving, {"eliminations": 1.5}, "schedule.eliminations = 1.5"),
        (random_search, {"budget": -5}, "schedule.budget = -5"),
        (random_search, {"longest": 0}, "schedule.longest = 0"),
        (hyperband, {"longest": 0}, "schedule.longest = 0"),
        (hyperband, {"eta": 1}, "schedule.eta = 1, but must be a whole number >= 2"),
        *(
            (make, settings, said)
            for make in (halving, random_search, hyperband)
            for settings, said in [
                ({"discount": -0.1}, "schedule.discount = -0.1, but must be in [0, 1]"),
                ({"discount": 1.1}, "schedule.discount = 1.1"),
                ({"discount": math.nan}, "schedule.discount = nan"),
                ({"discount": "0.5"}, "schedule.discount = '0.5'"),
                ({"discount": None}, "schedule.discount = None"),
                ({"score": "accuracy"}, "schedule.score = 'accuracy', but must be one of ('error', 'loss')"),
                ({"score": "los"}, "did you mean 'loss'?"),
                ({"score": 5}, "schedule.score = 5"),
            ]
        ),
    ],
)
def test_bad_settings_are_refused(make, settings, said):
    with pytest.raises(SpecError) as caught:
        make(**settings)
    assert said in str(caught.value)


@pytest.mark.parametrize("make", [halving, random_search, hyperband])
def test_good_settings_are_taken(make):
    for discount, score in itertools.product((0, 0.0, 0.5, 1, 1.0), METRICS):
        schedule = make(discount=discount, score=score)
        assert schedule.scoring == Scoring(score, discount)
