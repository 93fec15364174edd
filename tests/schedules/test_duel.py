"""The schedule of ``auto``: a rung, a duel from the best arm's model, and the winner's long run."""

import math

import pytest

from fedtuner.core.records import Arm, Record, Row
from fedtuner.core.schedule import Evidence, Play, Start, outline
from fedtuner.errors import SpecError
from fedtuner.schedules import Alone, Duel
from fedtuner.schedules.long_run import Plain, SmallerStep
from fedtuner.testing import ScheduleLaws


@pytest.mark.slow
class TestDuel(ScheduleLaws):
    def schedule(self):
        return Duel(200)


class TestAlone(ScheduleLaws):
    def schedule(self):
        return Duel(40)


class TestTheUntunedDefault(ScheduleLaws):
    def schedule(self):
        return Alone(20, mark=7)


class TestFew(ScheduleLaws):
    def schedule(self):
        return Duel(40, arms=2)


@pytest.mark.parametrize(
    ("budget", "arms", "rung", "run"),
    [(10, 1, 0, 10), (67, 1, 0, 67), (68, 3, 3, 41), (100, 7, 3, 61), (150, 9, 4, 90), (500, 9, 13, 305)],
)
def test_the_rounds_of_a_budget(budget, arms, rung, run):
    made = Duel(budget)
    assert (made.arms, made.rung, made.run) == (arms, rung, run)
    assert outline(made).cost == budget


# What it decides by the losses of its arms


def record(arm, round, before, after, diverged=False, error_after=0.5):
    rows = () if diverged else tuple(Row(i, 0, 1, 1, before, after, 0.5, error_after) for i in range(3))
    return Record(
        arm=arm, round=round, clients=3, dropped=0, broken=0, bounded=0, examples=3, validated=3, trainings=3,
        loss_before=before, loss_after=after, error_before=0.5, error_after=error_after, loss=after, error=0.5,
        entropy=0.0, mode=0, confidence=1.0, diverged=diverged, rows=rows,
    )  # fmt: skip


def played(
    schedule, losses, ended=lambda arm, at: "", error_after=lambda arm, at: 0.5, lr=lambda arm: 0.1, first=2.0
):  # fmt: skip
    """Play a schedule whose arms have these losses before and after local training; return its steps and winner."""
    course, steps, begun = Play(schedule), [], {}
    while course.step is not None:
        step = course.step
        steps.append(step)
        begun |= {arm: start.parent[1] if start.parent else 0 for arm, start in step.start.items()}
        records, why = {}, {}
        for arm, until in step.until.items():
            last = next((t for t in range(begun[arm] + 1, until + 1) if ended(arm, t)), until)
            records[arm] = [record(arm, 1, first, first)]
            records[arm] += [
                record(arm, t, *losses(arm, t), bool(ended(arm, t)), error_after(arm, t)) for t in range(2, last + 1)
            ]
            if ended(arm, last):
                why[arm] = ended(arm, last)
        arms = {arm: Arm(arm, {"lr": lr(arm)}, {}) for arm in step.until}
        course.tell(Evidence(dict.fromkeys(step.until, (0.5, 0.5)), records, why, arms))
    return steps, course.winner


def test_the_best_arm_meets_the_default_in_a_duel_from_its_own_model():
    steps, winner = played(Duel(100), lambda arm, t: (0.3, 0.3) if arm in (3, 8) else (1.0, 1.0))
    rung, duel, *run = steps
    assert rung.until == dict.fromkeys(range(7), 3)
    assert duel.start == {7: Start(parent=(3, 3), like=0)}
    assert duel.until == {3: 12, 7: 12}
    assert set(duel.out) == {0, 1, 2, 4, 5, 6}
    assert run[0].start == {8: Start(parent=(3, 12), horizon=70)}
    assert run[0].out == (7,)
    assert [step.start for step in run[-2:]] == [{9: Start((8, 66), SmallerStep("lr"), horizon=66)}, {}]
    assert winner == (8, 70)


def overshooting(t, usual=1.6, rung=3):
    """Return losses that are above the untrained one's, 2.0, in every third round of the duel."""
    return (2.5, usual) if t > rung and t % 3 == 1 else (usual, usual)


@pytest.mark.parametrize("budget", [100, 500])
def test_a_default_that_wins_on_the_model_of_an_arm_that_overshoots_goes_back_to_its_own(budget):
    schedule = Duel(budget, default_optimiser="sgd")
    rung, rival = schedule.rung, schedule.arms

    def losses(arm, t):
        low = 1.5 - t / 200
        return overshooting(t, rung=rung) if arm == 3 else (low, low) if arm >= rival else (1.8, 1.8)

    steps, winner = played(schedule, losses)
    assert steps[1].keep == ((0, rung),)
    start = steps[2].start[rival + 1]
    assert start.parent == (0, rung)
    assert set(steps[2].out) == {3, rival}
    end = rung + schedule.run - schedule.last
    assert winner[1] == end
    # After a long duel it trains as it would have without a search: with the server's own step, without cooling.
    assert start.change == (Plain("sgd") if budget == 500 else None)
    assert start.horizon == (None if budget == 500 else end)
    config = Plain("sgd", 0.5)(None, Arm(0, {"lr": 1.0}, {"optimiser": "fedexp", "lr": 1.0}), None)
    assert config == ({"lr": 1.0}, {"optimiser": "sgd", "lr": 0.5})


@pytest.mark.parametrize("leader", [lambda t: (1.6, 1.6), lambda t: overshooting(t, 0.6)])
def test_a_default_that_wins_on_a_sound_model_or_one_that_has_learned_most_goes_on_with_it(leader):
    low = 1.5 if leader(3) == (1.6, 1.6) else 0.4

    def losses(arm, t):
        return leader(t) if arm == 3 else (low - t / 200, low - t / 200) if arm in (7, 8) else (1.8, 1.8)

    steps, winner = played(Duel(100), losses)
    assert steps[2].start == {8: Start(parent=(7, 12), horizon=70)}
    assert winner[1] == 70


@pytest.mark.parametrize(("falls", "back"), [(0.0, True), (0.02, False)])
def test_a_default_that_wins_a_long_duel_without_learning_in_it_trains_as_without_a_search(falls, back):
    def losses(arm, t):
        low = 1.5 - falls * t
        return (1.6, 1.6) if arm == 3 else (low, low) if arm in (9, 10) else (1.8, 1.8)

    schedule = Duel(500)
    steps, _ = played(schedule, losses)
    assert steps[2].start[10].parent == ((0, 13) if back else (9, 52))


def test_a_leader_that_overshoots_runs_with_a_smaller_step():
    steps, _ = played(Duel(100), lambda arm, t: overshooting(t, 1.0) if arm in (3, 8) else (1.8, 1.8))
    assert steps[2].start == {8: Start(parent=(3, 12), change=SmallerStep("lr"), horizon=70)}
    steps, _ = played(Duel(100), lambda arm, t: (2.5 if t == 6 else 1.0, 1.0) if arm in (3, 8) else (1.8, 1.8))
    assert steps[2].start == {8: Start(parent=(3, 12), horizon=70)}  # once is chance


def test_a_leader_that_overshoots_gives_way_to_a_better_model_that_has_settled():
    """Its clients' models are better after local training, so it would win; its server's model is not."""

    def losses(arm, t, until=5):
        if arm == 3:
            return (2.5, 0.5) if t > 3 and t % 3 == 1 else (1.7, 0.5)
        return (2.2 if t < until else 1.2, 1.1) if arm == 7 else (1.9, 1.9)

    steps, _ = played(Duel(100), losses)
    assert steps[2].start[8] == Start(parent=(7, 12), horizon=70)
    steps, _ = played(Duel(100), lambda arm, t: losses(arm, t, until=12))
    assert steps[2].start[8] == Start(parent=(3, 12), change=SmallerStep("lr"), horizon=70)


def test_a_duel_is_not_won_by_clients_that_learn_by_themselves():
    """Where the server's model has learned nothing, its clients' losses after local training say nothing of it."""

    def losses(arm, t):
        return (2.0, 0.5) if arm == 3 else (1.8 if t > 5 else 2.0, 1.6)

    steps, _ = played(Duel(100), losses)
    assert steps[1].until == {3: 12, 0: 12}
    assert steps[2].start[7].parent == (0, 12)


def test_a_default_that_leads_meets_the_second_best():
    steps, _ = played(Duel(100), lambda arm, t: {0: (0.5, 0.5), 5: (0.6, 0.6)}.get(arm, (1.0, 1.0)))
    assert steps[1].start == {7: Start(parent=(0, 3), like=5)}


def test_where_the_leader_has_learned_nothing_each_goes_on_from_its_own_model():
    """Its loss before local training is above the untrained one's: it may have no way back."""
    steps, _ = played(Duel(100), lambda arm, t: (2.5, 0.5) if arm == 3 else (1.9, 1.9))
    assert not steps[1].start
    assert steps[1].until == {3: 12, 0: 12}
    assert set(steps[1].out) == {1, 2, 4, 5, 6}


def test_the_rung_is_not_won_by_fitting_the_labels_of_single_clients():
    """Low losses after local training count a quarter of low losses of the server's model."""
    steps, _ = played(Duel(100), lambda arm, t: {2: (1.9, 0.9), 4: (1.5, 1.4)}.get(arm, (2.0, 2.0)))
    assert 4 in steps[1].until


def test_where_no_arm_has_learned_anything_the_boldest_leads_unless_it_is_wild():
    steps, _ = played(Duel(100), lambda arm, t: {2: (2.0, 2.3), 5: (9.0, 30.0)}.get(arm, (2.0 - arm / 1000, 2.0)))
    assert 2 in steps[1].until


def test_a_model_that_is_a_worse_start_than_an_untrained_one_does_not_lead():
    """Arm 3 has the lowest losses, but its clients end with an error of 0.65; from the first model they had 0.5."""

    def losses(arm, t):
        return (0.5, 0.5) if arm == 3 else (0.8, 0.8) if arm == 4 else (1.5, 1.5)

    steps, _ = played(Duel(100), losses, error_after=lambda arm, t: 0.65 if arm == 3 else 0.5)
    assert steps[1].start[7].parent == (4, 3)
    steps, _ = played(Duel(100), losses, error_after=lambda arm, t: 0.6 if arm == 3 else 0.5)
    assert steps[1].start[7].parent == (3, 3)  # 0.5 + 0.25 * 0.5 is the bound
    steps, _ = played(Duel(100), losses, error_after=lambda arm, t: 0.9)
    assert steps[1].start[7].parent == (3, 3)  # all are: the losses decide


# Nobody's server model has learned anything, while clients learn by themselves: here the default's to 1.6 of 2.0.


def by_themselves(arm, t, after):
    return (2.5, after.get(arm, 1.9)) if arm else (2.2, 1.6)


def test_where_clients_learn_by_themselves_the_arm_whose_clients_end_lowest_leads_if_its_step_is_no_larger():
    def lr(arm):
        return 0.3 if arm == 5 else 0.1

    steps, _ = played(Duel(100), lambda arm, t: by_themselves(arm, t, {3: 1.2, 4: 1.4, 5: 0.8}), lr=lr)
    assert steps[1].until == {3: 12, 0: 12}
    assert not steps[1].start  # each goes on from its own model
    # It stays ahead of the default, so it wins, and losses above the untrained one's are not held against it.
    assert steps[2].start == {7: Start(parent=(3, 12), horizon=70)}


@pytest.mark.parametrize(("late", "wins"), [(1.39, True), (1.41, False), (1.7, False)])
def test_a_lead_of_clients_that_learn_by_themselves_must_last(late, wins):
    """In the rung they are 0.8 / 3 below the default's, as its first round is the untrained model's; then 0.2."""

    def losses(arm, t):
        return by_themselves(arm, t, {3: 1.2 if t <= 3 else late})

    steps, _ = played(Duel(100), losses)
    assert steps[2].start[7].parent == ((3, 12) if wins else (0, 12))


def test_clients_of_a_wreck_do_not_learn_by_themselves():
    """From the default's models clients end worse than from the untrained one, so they say nothing of its step."""

    def losses(arm, t):
        return by_themselves(arm, t, {2: 0.1})

    steps, _ = played(Duel(100), losses, error_after=lambda arm, t: 0.5 if arm else 0.9, lr=lambda arm: 0.1 + arm)
    assert 2 in steps[1].until


def test_a_default_that_wins_keeps_its_step_though_it_overshoots():
    steps, _ = played(Duel(100), lambda arm, t: overshooting(t, 1.0) if arm == 0 else (1.8, 1.8))
    assert steps[2].start == {8: Start(parent=(0, 12), horizon=70)}


def test_a_default_that_rises_first_goes_back_to_the_servers_own_step():
    def losses(arm, t):
        return (1.0 / t, 1.0 / t) if t < 30 and arm == 0 else (3.0, 3.0)

    steps, _ = played(Duel(67, default_optimiser="sgd"), losses)
    changes = [start.change for step in steps for start in step.start.values()][1:]
    plain = Plain("sgd")
    assert changes == [plain, SmallerStep("lr", 1, plain=plain), SmallerStep("lr", 2, plain=plain)]
    arm = Arm(0, {"lr": 0.9}, {"optimiser": "fedexp", "lr": 1.0})
    assert changes[2](None, arm, None) == ({"lr": 0.9 / 9}, {"optimiser": "sgd", "lr": 1.0})


def test_a_default_that_trains_by_the_servers_own_step_already_gets_a_smaller_step_at_once():
    schedule = Duel(500, default_optimiser="sgd")
    rung, rival = schedule.rung, schedule.arms

    def losses(arm, t):
        low = 1.5 - min(t, 120) / 200
        if arm > rival:
            return (low, low) if t < 120 else (1.9, 1.9)
        return overshooting(t, rung=rung) if arm == 3 else (low, low) if arm == rival else (1.8, 1.8)

    steps, _ = played(schedule, losses)
    changes = [start.change for step in steps[2:] for start in step.start.values()]
    plain = Plain("sgd")
    assert changes[:2] == [plain, SmallerStep("lr", 1, plain=plain)]


def test_a_run_that_diverges_at_once_goes_back_to_the_model_of_the_duel():
    steps, winner = played(
        Duel(500),
        lambda arm, t: (2.0 / t, 2.0 / t) if arm in (3, 10, 11) else (1.9, 1.9),
        lambda arm, t: "diverged" if (arm, t) == (10, 55) else "",
    )
    starts = {arm: start for step in steps for arm, start in step.start.items()}
    assert starts[10].parent == starts[11].parent == (3, 52)
    assert starts[11].change == SmallerStep("lr")
    assert winner == (11, starts[11].horizon)
    assert starts[11].horizon == 52 + Duel(500).run - Duel(500).last - 3  # all rounds are used


def test_a_study_of_one_arm_that_diverges_early_goes_back_to_its_first_round():
    schedule = Duel(500, arms=1)
    steps, winner = played(
        schedule, lambda arm, t: (2.0 / t, 2.0 / t), lambda arm, t: "diverged" if (arm, t) == (0, 6) else ""
    )
    starts = {arm: start for step in steps for arm, start in step.start.items()}
    assert starts[1].parent == (0, 1)
    assert winner == (1, starts[1].horizon)


@pytest.mark.parametrize("sound", [True, False])
def test_a_duel_in_which_both_diverge_goes_back_to_a_sound_model_of_the_rung(sound):
    """The default's; or, where that had diverged in the rung, the leader's, with a smaller step."""

    def ended(arm, t):
        wreck = (arm in (3, 9) and t == 20) or (arm == 0 and t == 5 and not sound)
        return "diverged" if wreck else ""

    steps, winner = played(Duel(500), lambda arm, t: (2.0 / t, 2.0 / t) if arm in (3, 9) else (1.5, 1.5), ended)
    home = (0, 13) if sound else (3, 13)
    assert steps[1].keep == (home,)
    first = max(steps[1].until) + 1 if steps[1].start else Duel(500).arms
    start = steps[2].start[first]
    assert start.parent == home
    assert start.change == (None if sound else SmallerStep("lr"))
    assert winner[0] >= first


def test_without_a_step_no_rounds_are_trained_twice():
    schedule = Duel(100, step="")
    steps, winner = played(schedule, lambda arm, t: (1.0 / t, 1.0 / t))
    assert schedule.last == 0
    assert not any(start.change for step in steps for start in step.start.values())
    assert winner[1] == schedule.longest


def test_a_round_that_nobody_validated_decides_nothing():
    """The wild arm would lead as the boldest if its last round had a loss; nor does it where it has none."""

    def losses(arm, t, nothing):
        if arm == 4 and t >= 2:
            return (math.nan, math.nan) if nothing and t == 3 else (9.0, 30.0)
        return (2.0, 2.5) if arm == 2 else (2.0, 2.1)

    for nothing in (True, False):
        steps, _ = played(Duel(100), lambda arm, t, nothing=nothing: losses(arm, t, nothing))
        assert 2 in steps[1].until
        assert 4 not in steps[1].until


def test_losses_may_be_negative():
    """A run that falls is no rise, and a loss that is higher is not better, whatever their sign."""
    steps, winner = played(Duel(60), lambda arm, t: (-1.0 - t / 60, -1.0 - t / 60), first=-1.0)
    assert [arm for step in steps for arm in step.start] == [0, 1]
    assert winner == (0, 57)
    _, winner = played(Duel(60), lambda arm, t: (-9.0, -9.9 if arm else -10.0))
    assert winner == (0, 57)


def test_a_run_whose_model_has_learned_nothing_may_stay():
    """The step is not what keeps its clients' losses at 1.0."""
    steps, _ = played(Duel(120, arms=1), lambda arm, t: (1.9, 1.0))
    assert [arm for step in steps for arm in step.start] == [0, 1]
    assert steps[-2].start[1].parent == (0, 107)  # the last rounds once more


@pytest.mark.parametrize(("after", "better"), [(0.97, True), (0.99, False), (1.1, False)])
def test_the_last_rounds_are_trained_once_more_with_a_smaller_step_which_wins_where_clients_end_better(after, better):
    schedule = Duel(60)
    steps, winner = played(schedule, lambda arm, t: (0.9, after if arm else 1.0))
    assert schedule.last == 3
    again = {1: Start(parent=(0, 53), change=SmallerStep("lr"), horizon=53)}  # cooled from the beginning
    last = {2: Start(parent=(0, 56), change=SmallerStep("lr"), horizon=56)} if better else {}
    assert [step.start for step in steps[-2:]] == [again, last]
    assert winner == (2 if better else 0, 57)


def test_last_rounds_that_diverge_do_not_win():
    _, winner = played(Duel(60), lambda arm, t: (1.0, 1.0 - arm / 2), lambda arm, t: "diverged" if arm == 1 else "")
    assert winner == (0, 57)


def test_a_default_that_explodes_does_not_win_a_tie():
    """Where nobody has learned anything, losses are cut at the untrained one, 2.0; one of 40 is still worse than 5."""

    def losses(arm, t):
        return (40.0, 30.0) if arm == 0 else (5.0, 1.0) if arm == 3 else (5.0, 2.0)

    steps, _ = played(Duel(100), losses)
    assert steps[1].until == {3: 12, 0: 12}
    assert steps[2].start[7].parent == (3, 12)
    steps, _ = played(Duel(100), lambda arm, t: (9.0, 2.0) if arm == 0 else losses(arm, t))
    assert steps[2].start[7].parent == (0, 12)  # 9 is less than twice 5


def test_arms_that_have_ended_do_not_lead():
    steps, _ = played(
        Duel(100),
        lambda arm, t: (0.1, 0.1) if arm == 3 else (1.0, 1.0),
        lambda arm, t: "diverged" if (arm, t) == (3, 3) else "",
    )
    assert 3 in steps[1].out


def test_a_run_that_rises_goes_back_to_its_lowest_with_a_smaller_step():
    def losses(arm, t):
        return (3.0, 3.0) if arm == 0 and t > 30 else (1.0 / t, 1.0 / t)

    schedule = Duel(48, arms=1)
    steps, winner = played(schedule, losses)
    [back] = [step for step in steps if 1 in step.start]
    parent, horizon = back.start[1].parent, back.start[1].horizon
    assert parent[0] == 0
    assert parent[1] <= 32
    spent = steps[steps.index(back) - 1].until[0]
    assert horizon == parent[1] + 48 - schedule.last - spent  # all rounds are used, and none but the last ones twice
    assert back.start[1].change(None, Arm(0, {"lr": 0.3, "epochs": 2}, {}), None) == ({"lr": 0.3 / 3, "epochs": 2}, {})
    assert all((0, parent[1]) in step.keep for step in steps[steps.index(back) :][:1])
    assert winner == (1, horizon)


@pytest.mark.parametrize(("after", "back"), [(0.75, True), (0.6, False)])
def test_a_rise_by_a_fifth_of_the_untrained_loss_is_clear(after, back):
    """The untrained loss is 2.0. The server's model is lost in both cases."""
    steps, _ = played(Duel(120, arms=1), lambda arm, t: (2.5, after) if arm == 0 and t > 60 else (0.4, 0.3))
    starts = {arm: start for step in steps for arm, start in step.start.items()}
    returns = [start.parent for start in starts.values() if start.parent and start.horizon != start.parent[1]]
    assert [arm for arm, _ in returns] == ([0] if back else [])
    assert all(t <= 65 for _, t in returns)


def test_a_run_whose_score_does_not_fall_goes_back_with_a_smaller_step():
    """It stays at 1.0, half of the untrained loss; with a third of the step it falls."""
    schedule = Duel(120, arms=1)
    steps, winner = played(schedule, lambda arm, t: (1.0, 1.0) if arm == 0 else (1.0 - t / 200, 1.0 - t / 200))
    starts = {arm: start for step in steps for arm, start in step.start.items()}
    assert list(starts) == [0, 1, 2]
    assert starts[1].change == SmallerStep("lr")
    assert winner == (1, starts[1].horizon)


@pytest.mark.parametrize("loss", [1.0, 0.4])
def test_a_score_that_a_smaller_step_does_not_lower_or_that_is_low_may_stay(loss):
    """The score starts at the untrained loss, 2.0, and so is still falling in the first rounds."""
    steps, winner = played(Duel(240, arms=1), lambda arm, t: (loss, loss + (1e-3 if arm else 0)))
    starts = [arm for step in steps for arm in step.start]
    assert starts == ([0, 1, 2] if loss == 1.0 else [0, 1])  # the last one trains the last rounds once more
    assert winner[0] == starts[-2]


def test_a_second_return_to_the_same_model_has_a_step_that_is_smaller_still():
    def losses(arm, t):
        return (1.0 / t, 1.0 / t) if t < 30 and arm == 0 else (3.0, 3.0)

    steps, _ = played(Duel(120, arms=1), losses)
    changes = [start.change for step in steps for start in step.start.values()][1:]
    assert changes == [SmallerStep("lr", 1), SmallerStep("lr", 2), SmallerStep("lr", 3)]
    assert changes[2](None, Arm(0, {"lr": 2.7}, {}), None)[0] == {"lr": pytest.approx(0.1)}


def test_a_run_that_diverges_goes_back_at_most_three_times_and_returns_no_wreck():
    steps, winner = played(
        Duel(60, arms=1), lambda arm, t: (1.0, 1.0), lambda arm, t: "diverged" if t == 21 else ""
    )  # fmt: skip
    starts = [arm for step in steps for arm in step.start]
    assert starts == [0, 1, 2, 3]
    assert winner[1] < 21


def test_a_study_without_one_sound_round_still_ends():
    _, winner = played(Duel(30, arms=1), lambda arm, t: (1.0, 1.0), lambda arm, t: "diverged" if t == 1 else "")
    assert winner == (0, 1)


def test_a_budget_that_is_too_small_for_its_arms():
    with pytest.raises(SpecError, match="budget = 30 cannot give 20 arms a round each: raise budget to 65 or more"):
        Duel(30, arms=20)
