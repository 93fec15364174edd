"""FedEx by a kernel: its distances and its gradient by hand, FedEx in the limit, and what it gains by neighbours."""

import math
from dataclasses import replace

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner.core.records import Arm, Seen
from fedtuner.errors import SpecError
from fedtuner.rng import stream
from fedtuner.run import spec
from fedtuner.space import Choice, Float, Int, Space, When
from fedtuner.tuners import FedEx, Kernel
from fedtuner.tuners.fedex import exponentiate
from fedtuner.tuners.kernel import kernel, squared_distances
from fedtuner.tuners.theta import uniform

LINE = Space({"lr": Float(1e-3, 1.0, log=True)})


def begun(tuner, client=None, space=LINE, seed=0):
    return tuner.begin(Arm(0, client or {"lr": 0.03}, {}), space, seed, None)


def test_distances_by_hand():
    """lr over three decades: one decade is 1/3. epochs 1 to 5: one more is 1/5. Another optimiser is 1 away."""
    space = Space({"lr": Float(1e-3, 1.0, log=True), "epochs": Int(1, 5), "optimiser": ["sgd", "adam"]})
    configs = [
        {"lr": 0.1, "epochs": 2, "optimiser": "sgd", "own": 3},
        {"lr": 0.01, "epochs": 3, "optimiser": "sgd", "own": 4},  # what the space does not have is not compared
        {"lr": 0.1, "epochs": 2, "optimiser": "adam", "own": 3},
    ]
    expected = [[0, 1 / 9 + 1 / 25, 1], [1 / 9 + 1 / 25, 0, 1 / 9 + 1 / 25 + 1], [1, 1 / 9 + 1 / 25 + 1, 0]]
    np.testing.assert_allclose(squared_distances(configs, space), expected, atol=1e-12)


def test_what_one_has_and_the_other_has_not_is_one_away():
    space = Space({"optimiser": Choice(["sgd", "adam"]), "beta2": When(Float(0.0, 1.0), optimiser="adam")})
    configs = [{"optimiser": "sgd"}, {"optimiser": "adam", "beta2": 0.5}, {"optimiser": "adam", "beta2": 0.75}]
    expected = [[0, 2, 2], [2, 0, 1 / 16], [2, 1 / 16, 0]]
    np.testing.assert_allclose(squared_distances(configs, space), expected, atol=1e-12)


def test_the_gradient_by_hand():
    """Two candidates with kappa 1/2 between them, theta = (1/2, 1/2), one client with candidate 0 and value 3.

    sum_l kappa(j, l) theta_l is 3/4 for both. gradient = (3 * 1 / (3/4), 3 * 1/2 / (3/4)) = (4, 2). The constant step
    is eta = sqrt(2 log 2), so log theta_0 - log theta_1 = -eta (4 - 2).
    """
    spread = np.array([[1.0, 0.5], [0.5, 1.0]])
    moved = exponentiate(uniform(2), [0], [3.0], [1.0], "constant", spread=spread)
    assert moved.log_theta[0] - moved.log_theta[1] == pytest.approx(-2 * math.sqrt(2 * math.log(2)))
    assert moved.baseline == 3.0


def test_the_gradient_of_several_tries_by_hand():
    """Three candidates, the first two with kappa 1/2; full information: every candidate is tried with probability 1.

    Values (1, 4, 0): the numerators are 1 + 4/2, 1/2 + 4, 0, the denominators 1 + 1/2, 1 + 1/2, 1; gradient (2, 3, 0).
    """
    spread = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    moved = exponentiate(uniform(3), [[0, 1, 2]], [[1.0, 4.0, 0.0]], [1.0], "constant", spread=spread)
    eta = math.sqrt(2 * math.log(3))
    assert (moved.log_theta[2] - moved.log_theta).tolist() == pytest.approx([2 * eta, 3 * eta, 0])


def test_the_kernel_and_its_width():
    """kappa at one width is exp(-1/2). The width falls with theta's entropy: at half of it, exp(-2)."""
    assert kernel(np.array([[0.0, 0.01]]), 0.1).tolist() == [[1.0, pytest.approx(math.exp(-0.5))]]
    assert kernel(np.array([[0.0, 0.01]]), 0.05).tolist() == [[1.0, pytest.approx(math.exp(-2))]]
    assert kernel(np.array([[0.0, 0.01, 1.0]]), 0.0).tolist() == [[1.0, 0.0, 0.0]]


def moves(tuner, belief, rounds=5):
    for t in range(rounds):
        chosen = tuner.choose(belief, 6, lambda use, t=t: stream(1, use, t))
        seen = [Seen((c.label,), (abs(math.log10(c.config["lr"]) + 1),), 1.0 + c.label % 2) for (c,) in chosen]
        belief = tuner.update(belief, seen)
    return tuner.offers(belief)[1]


@pytest.mark.parametrize("step", ["aggressive", "adaptive", "constant"])
def test_without_a_width_it_is_fedex(step):
    plain, narrow = FedEx(k=7, step=step), Kernel(k=7, step=step, width=0.0)
    np.testing.assert_allclose(moves(narrow, begun(narrow)), moves(plain, begun(plain)), rtol=1e-12)
    wide = Kernel(k=7, step=step, width=0.3)
    assert not np.allclose(moves(wide, begun(wide)), moves(plain, begun(plain)), rtol=1e-3)


def test_copies_move_together():
    """Candidates that are equal are one: their thetas stay equal, whichever of them is drawn."""
    tuner = Kernel(k=4, eps=0.0, width=0.0)
    p = tuner.offers(tuner.update(begun(tuner), [Seen((2,), (0.7,), 1.0)]))[1]
    np.testing.assert_allclose(p, 0.25, rtol=1e-12)


def test_an_update_moves_the_neighbours_of_what_was_seen():
    """A bad value at one end of a line of candidates: the nearer to it, the less of theta is left."""
    tuner = Kernel(k=5, eps=0.5, width=0.2, step="constant", gamma=0.0)
    belief = begun(tuner)
    line = sorted(range(5), key=lambda j: belief.fedex.candidates[j]["lr"])
    p = tuner.offers(tuner.update(belief, [Seen((line[0],), (2.0,), 1.0)]))[1]
    assert [p[j] for j in line] == sorted(p)
    assert len(set(np.round(p, 6))) == 5


@pytest.mark.slow
def test_it_needs_fewer_rounds_where_values_are_smooth():
    """27 candidates on a line, values with noise: after ten rounds of five clients the mode is nearer to the best."""
    found = {}
    for tuner in (FedEx(eps=1.0, gamma=0.5), Kernel(eps=1.0, gamma=0.5)):
        costs = []
        for seed in range(100):
            belief = begun(tuner, seed=seed)
            for t in range(10):
                noise = stream(seed, "noise", t).normal(0, 0.3, 5)
                chosen = tuner.choose(belief, 5, lambda use, at=(seed, t): stream(at[0], use, at[1]))
                cost = [abs(math.log10(c.config["lr"]) + 1.5) for (c,) in chosen]
                values = zip(chosen, cost, noise, strict=True)
                belief = tuner.update(belief, [Seen((c.label,), (x + e,), 1.0) for (c,), x, e in values])
            costs.append(abs(math.log10(tuner.best(belief)["lr"]) + 1.5))
        found[tuner.kind] = np.mean(costs)
    assert found["kernel"] < 0.8 * found["fedex"]


def test_a_child_keeps_its_parents_theta():
    tuner = Kernel(k=3)
    parent = tuner.update(begun(tuner), [Seen((1,), (0.3,), 1.0)])
    child = tuner.begin(Arm(4, {"lr": 0.03}, {}, parent=(0, 1)), LINE, 0, parent)
    assert child.fedex is parent.fedex
    np.testing.assert_array_equal(child.squares, parent.squares)


def test_settings_that_make_no_sense():
    with pytest.raises(SpecError, match=r"tuner.width = -0.1, but must be >= 0"):
        Kernel(width=-0.1)
    with pytest.raises(SpecError, match=r"tuner.k = 1001, but must be at most 1000"):
        Kernel(k=1001)
    with pytest.raises(SpecError, match=r"fedex.step = 'bold'"):
        Kernel(step="bold")


def test_a_study_toml_names_it():
    read = spec.parse({"problem": "toys:problem", "cohort": 3, "tuner": {"kind": "kernel", "k": 4, "width": 0.2}})
    assert read.study(None, 1).setup.tuner == Kernel(k=4, width=0.2)
    with pytest.raises(SpecError, match=r"no setting tuner.widht in kernel; did you mean 'width'"):
        spec.parse({"problem": "toys:problem", "tuner": {"kind": "kernel", "widht": 0.2}})


def test_its_prior_is_what_another_study_found(tmp_path):
    first = toys.tune(tuner=Kernel(k=3, eps=0.5), store=tmp_path / "first")
    second = toys.tune(tuner=Kernel(k=3, eps=0.5), start_from=tmp_path / "first")
    assert second.journal.candidates[0] == tuple(
        c for _, c in sorted(zip(-first.best.theta, first.best.candidates, strict=True), key=lambda pair: pair[0])
    )


def test_it_is_private_and_summed_like_fedex():
    from fedtuner.core.privacy import Gaussian as Noise

    made = toys.tune(
        method=ft.methods.fedavg, tuner=Kernel(k=3), privacy=Noise(50.0), schedule=ft.random_search(4, 2)
    )  # fmt: skip
    assert np.isclose(made.best.theta.sum(), 1.0)
    assert replace(made.setup.tuner, width=0.3).width == 0.3
