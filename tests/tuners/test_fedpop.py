"""FedPop's local evolution: which client vectors are replaced by which, on losses that are ranked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedtuner import FedPop
from fedtuner.core.metric import Metrics
from fedtuner.core.records import Arm, Seen, Tried
from fedtuner.errors import SpecError
from fedtuner.rng import stream
from fedtuner.space import Float, Int, Space

SPACE = Space({"lr": Float(1e-4, 1.0, log=True)})
ARM = Arm(3, {"lr": 0.01, "epochs": 2}, {})


def begun(**settings):
    """Return a tuner whose perturbations are of size 0, so that a child shows its parent, and ten different vectors."""
    tuner = FedPop(**settings)
    return replace(tuner, eps=0.0), tuner.begin(ARM, SPACE, 0, None)


def after(tuner, belief, *rounds):
    """Let rounds pass; each has the losses of the vectors by their labels, None where nobody tried one."""
    for losses in rounds:
        seen = [Seen((j,), (loss,), 4.0) for j, loss in enumerate(losses) if loss is not None]
        belief = tuner.update(belief, seen)
    return belief


def rates(belief):
    return [config["lr"] for config in belief.vectors]


def test_vectors_are_perturbations_of_the_base():
    """eps = 0.1 of four decades is 0.4 of a decade, on either side of 10^-2."""
    _, belief = begun()
    assert len(set(rates(belief))) == 10
    assert all(-2.4 - 1e-9 <= math.log10(rate) <= -1.6 + 1e-9 for rate in rates(belief))
    assert all(config["epochs"] == 2 for config in belief.vectors)  # the space does not name it


def test_the_worst_three_of_ten_become_one_of_the_best_three():
    """Losses 0.5, 0.1, 0.9, 0.3, ... in every round: 1, 3 and 5 are the best, 2, 7 and 9 the worst; the rest stays."""
    tuner, belief = begun(fresh=0.0)
    losses = [0.5, 0.1, 0.9, 0.3, 0.6, 0.2, 0.4, 0.8, 0.55, 0.7]
    four = after(tuner, belief, *[losses] * 4)
    assert rates(four) == rates(belief)
    five = after(tuner, four, losses)
    before, now = rates(belief), rates(five)
    assert [j for j in range(10) if now[j] != before[j]] == [2, 7, 9]
    assert {now[2], now[7], now[9]} <= {before[1], before[3], before[5]}
    for j in (2, 7, 9):  # who is drawn
        rng = stream(0, "arm", 3, "vector", 5, j)
        rng.random()  # whether from the base
        assert now[j] == before[(1, 5, 3)[int(rng.integers(3))]]
    assert tuner.best(five) == belief.vectors[1]
    assert five.total.tolist() == five.mass.tolist() == [0.0] * 10


def test_later_rounds_weigh_more():
    """0 then 1 is (0.9 * 0 + 1) / 1.9 = 0.526, 1 then 0 is (0.9 * 1 + 0) / 1.9 = 0.474: the second is better."""
    tuner, belief = begun(k=2, every=2, young=4, fresh=0.0)
    one = after(tuner, belief, [0.0, 1.0])
    assert one.total.tolist() == [0.0, 1.0]
    two = after(tuner, one, [1.0, 0.0])
    assert two.selected == 1
    assert rates(two) == [rates(belief)[1]] * 2
    # Without a discount both have 0.5, and the first is taken.
    assert after(replace(tuner, discount=1.0), belief, [0.0, 1.0], [1.0, 0.0]).selected == 0


def test_clients_that_share_a_vector_weigh_by_their_validation_examples():
    """1 of one example and 0 of three is 0.25, which is better than 0.3."""
    tuner, belief = begun(k=2, every=1)
    seen = [Seen((0,), (1.0,), 1.0), Seen((1,), (0.3,), 4.0), Seen((0,), (0.0,), 3.0)]
    assert tuner.update(belief, seen).selected == 0


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_the_worst_until_the_next_evolution(odd):
    tuner, belief = begun(k=3, every=2, fresh=0.0)
    made = after(tuner, belief, [odd, 5.0, 9.0], [0.0, 5.0, 9.0])
    assert made.selected == 1
    assert rates(made) == [rates(belief)[1], rates(belief)[1], rates(belief)[2]]
    assert after(tuner, made, [0.0, 5.0, 9.0], [0.0, 5.0, 9.0]).selected == 0


def test_a_vector_that_nobody_tried_is_neither_replaced_nor_copied():
    """Of the three that were tried, ceil(0.9) = 1 is replaced."""
    tuner, belief = begun(k=5, every=1, fresh=0.0)
    made = after(tuner, belief, [None, 0.2, None, 0.1, 0.4])
    assert made.selected == 3
    assert [j for j in range(5) if rates(made)[j] != rates(belief)[j]] == [4]
    assert rates(made)[4] == rates(belief)[3]


def test_with_some_probability_the_base_is_perturbed():
    tuner, belief = begun(k=4, every=1, fresh=1.0)
    made = after(tuner, belief, [0.1, 0.2, 0.3, 0.4])
    assert rates(made) == [*rates(belief)[:2], 0.01, 0.01]


def test_vectors_stay_near_the_base():
    """However often they evolve toward higher rates, none is above 10^-1.6."""
    tuner = FedPop(k=10, every=1, young=200)
    belief = tuner.begin(ARM, SPACE, 0, None)
    for _ in range(150):
        belief = after(tuner, belief, [-rate for rate in rates(belief)])
    assert max(rates(belief)) == pytest.approx(10**-1.6, rel=1e-9)
    assert tuner.best(belief)["lr"] == max(rates(belief))


def test_once_it_is_not_young_all_clients_use_the_best():
    tuner, belief = begun(k=3, every=1, young=2, fresh=0.0)

    def streams(purpose):
        return stream(7, purpose)

    labels = [choices[0].label for choices in tuner.choose(belief, 7, streams)]
    assert sorted(labels[:3]) == sorted(labels[3:6]) == [0, 1, 2]
    assert tuner.summary(belief).entropy == pytest.approx(math.log(3))
    one = after(tuner, belief, [0.3, 0.2, 0.1])
    assert [j for j in range(3) if rates(one)[j] != rates(belief)[j]] == [0]
    old = after(tuner, one, [0.3, 0.1, 0.2])
    assert rates(old) == rates(one)  # the last evolution only says which is the best
    assert [choices[0].label for choices in tuner.choose(old, 4, streams)] == [1, 1, 1, 1]
    assert tuner.offers(old)[1].tolist() == [0.0, 1.0, 0.0]
    assert after(tuner, old, [0.0, 9.0, 9.0]) is old


def test_a_child_with_another_base_is_young_again():
    tuner, belief = begun(k=3, every=1, young=2)
    old = after(tuner, belief, [0.3, 0.2, 0.1], [0.3, 0.2, 0.1])
    child = tuner.begin(Arm(9, {"lr": 0.1, "epochs": 2}, {"lr": 1.0}, (3, 2)), SPACE, 0, old)
    assert (child.age, child.selected, child.base["lr"], child.arm) == (0, 0, 0.1, 9)
    same = tuner.begin(Arm(9, ARM.client, {"lr": 1.0}, (3, 2)), SPACE, 0, old)
    assert (same.age, same.arm, same.server) == (2, 9, {"lr": 1.0})
    assert same.vectors == old.vectors


def test_a_value_is_the_loss_or_the_error_after_local_training():
    tried = Tried(0, Metrics(5.0, 0.9, 3), Metrics(1.5, 0.25, 3))
    assert FedPop().value(tried) == 1.5
    assert FedPop(metric="error").value(tried) == 0.25


def test_arms_draw_vectors_of_their_own():
    tuner = FedPop()
    assert rates(tuner.begin(ARM, SPACE, 0, None)) != rates(tuner.begin(replace(ARM, id=4), SPACE, 0, None))
    space = Space({"lr": Float(1e-4, 1.0, log=True), "epochs": Int(1, 5)})
    assert {c["epochs"] for c in tuner.begin(ARM, space, 0, None).vectors} <= {1, 2, 3}


def test_a_packed_belief_is_of_numbers():
    tuner, belief = begun()
    packed = tuner.pack(after(tuner, belief, [0.5] * 10))
    assert all(np.isfinite(np.asarray(array, float)).all() for array in packed.values())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"k": 0}, "tuner.k = 0, but must be a whole number >= 1"),
        ({"eps": -1}, "tuner.eps = -1, but must be >= 0"),
        ({"every": 0}, "tuner.every = 0, but must be a whole number >= 1"),
        ({"young": 2.5}, "tuner.young = 2.5, but must be a whole number >= 1"),
        ({"share": 0.7}, "tuner.share = 0.7, but must be in [0, 0.5]"),
        ({"discount": 1.1}, "tuner.discount = 1.1, but must be in [0, 1]"),
        ({"fresh": -0.1}, "tuner.fresh = -0.1, but must be in [0, 1]"),
        ({"metric": "los"}, "did you mean 'loss'?"),
    ],
)
def test_bad_settings_are_refused(settings, said):
    with pytest.raises(SpecError) as caught:
        FedPop(**settings)
    assert said in str(caught.value)
