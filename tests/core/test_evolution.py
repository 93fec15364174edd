"""FedPop's perturbation and its ranks, on numbers that are derived by hand."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtuner.core.evolution import around, extremes, perturb, perturbed
from fedtuner.rng import stream
from fedtuner.space import PAPER_CLIENT, PAPER_SERVER, Choice, Float, Int, OneMinus, PowerOfTwo, Space, When


class Draws:
    """A generator whose uniform draws from [-1, 1] and [0, 1] and whose steps are given."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def uniform(self, low: float, high: float) -> float:
        assert (low, high) == (-1.0, 1.0)
        return self.values.pop(0)

    def random(self) -> float:
        return self.values.pop(0)

    def integers(self, low: int, high: int, endpoint: bool) -> int:
        assert (low, high, endpoint) == (-1, 1, True)
        return int(self.values.pop(0))


LR = Float(1e-4, 1.0, log=True)  # four decades
MOMENTUM = Float(0.0, 1.0)
GAMMA = OneMinus(Float(1e-4, 1e-2, log=True))  # two decades of 1 - gamma


@pytest.mark.parametrize(
    ("domain", "x", "draws", "centre", "expected"),
    [
        # eps = 0.1 of four decades is 0.4 of a decade: u = 0.5 is 0.2 of one up, u = -1 is 0.4 of one down.
        (LR, 0.01, [0.5], None, 10**-1.8),
        (LR, 0.01, [-1.0], None, 10**-2.4),
        (LR, 0.5, [1.0], None, 1.0),  # 10^(-0.301 + 0.4) = 1.26 is above the range
        (LR, 2e-4, [-1.0], None, 1e-4),  # 10^(-3.699 - 0.4) is below it
        # Around the centre 10^-2 values are from 10^-2.4 to 10^-1.6: 10^(-1.8 + 0.4) is clipped to 10^-1.6.
        (LR, 10**-1.8, [1.0], 0.01, 10**-1.6),
        (LR, 10**-1.8, [-0.25], 0.01, 10**-1.9),  # 0.1 of a decade down, inside
        # On a linear scale eps = 0.1 of [0, 1] is 0.1.
        (MOMENTUM, 0.4, [0.3], None, 0.43),
        (MOMENTUM, 0.4, [-1.0], 0.45, 0.35),  # 0.3 is clipped to 0.45 - 0.1
        (MOMENTUM, 0.05, [-1.0], None, 0.0),
        # 1 - gamma = 10^-3, and eps = 0.1 of two decades is 0.2 of a decade: 10^-2.9.
        (GAMMA, 1 - 10**-3, [0.5], None, 1 - 10**-2.9),
        # One more, the same, one less; not below 1; around the centre 3 not above 4.
        (Int(1, 5), 3, [1], None, 4),
        (Int(1, 5), 3, [0], None, 3),
        (Int(1, 5), 1, [-1], None, 1),
        (Int(1, 5), 4, [1], 3, 4),
        # Twice, the same, a half; not above 128; around the centre 32 not below 16.
        (PowerOfTwo(8, 128), 32, [1], None, 64),
        (PowerOfTwo(8, 128), 128, [1], None, 128),
        (PowerOfTwo(8, 128), 16, [-1], 32, 16),
        (PowerOfTwo(8, 128), 32, [-1], 32, 16),
        # The server's momentum: a draw below 1/2 flips it.
        (Choice([0.0, 0.9]), 0.0, [0.4, 0.7], None, 0.9),
        (Choice([0.0, 0.9]), 0.9, [0.4, 0.7], None, 0.0),
        (Choice([0.0, 0.9]), 0.9, [0.5, 0.7], None, 0.9),
        (Choice(["a", "b", "c"]), "b", [0.1, 0.6], None, "c"),  # 0.6 of the two others is the second
        (Choice(["a"]), "a", [0.1, 0.6], None, "a"),
        # Defaults that are outside: 0 has no logarithm; 2 extends the range as far as itself, and no further.
        (Float(1e-5, 0.1, log=True), 0.0, [0.5], None, 0.0),
        (MOMENTUM, 2.0, [0.5], None, 2.0),
        (MOMENTUM, 2.0, [-0.5], None, 1.95),
        (GAMMA, 1.0, [0.5], None, 1.0),
    ],
)
def test_a_perturbation(domain, x, draws, centre, expected):
    rng = Draws(*draws)
    made = perturb(domain, x, 0.1, rng, centre)
    assert made == (pytest.approx(expected, rel=1e-12) if isinstance(expected, float) else expected)
    assert type(made) is type(expected)
    assert not rng.values


def test_twice_eps_is_twice_the_step():
    assert perturb(LR, 0.01, 0.2, Draws(0.5)) == pytest.approx(10**-1.6, rel=1e-12)


def test_steps_of_whole_numbers_are_equally_likely():
    rng = stream(0, "steps")
    found = Counter(perturb(Int(1, 9), 5, 0.1, rng) for _ in range(3000))
    assert set(found) == {4, 5, 6}
    assert max(found.values()) - min(found.values()) < 200  # the deviation of a count is 26


@pytest.mark.parametrize(
    ("n", "best", "worst"), [(10, 3, 3), (27, 9, 9), (9, 3, 3), (5, 2, 2), (3, 1, 1), (2, 1, 1), (1, 1, 0), (0, 0, 0)]
)
def test_three_tenths_are_rounded_up(n, best, worst):
    """ceil(0.3 n): 3 of 10, ceil(8.1) = 9 of 27, ceil(2.7) = 3 of 9, ceil(1.5) = 2 of 5. Nobody replaces itself."""
    order = list(range(n))
    assert extremes(order, 0.3) == (order[:best], order[n - worst :])


def test_half_of_an_odd_number_does_not_overlap():
    assert extremes([7, 8, 9], 0.5) == ([7, 8], [9])


DOMAINS = {**PAPER_CLIENT, "optimiser": Choice(["sgd", "adam"]), "steps": Int(1, 1000, log=True)}


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_a_perturbation_is_in_the_range_and_near_its_centre(seed, eps):
    rng = stream(seed, "perturb")
    space = Space(DOMAINS, PAPER_SERVER)
    centre, server = space.draw(rng)
    moved = centre
    for _ in range(4):
        moved = around(space, moved, server, eps, rng, centre=centre)
        assert moved.keys() == centre.keys()
        assert all(moved[name] in domain for name, domain in space.client.items())
    decades = 4 * eps * (1 + 1e-9) + 1e-9
    assert abs(math.log10(moved["lr"] / centre["lr"])) <= decades
    assert abs(moved["epochs"] - centre["epochs"]) <= 1
    assert moved["batch"] / centre["batch"] in (0.5, 1, 2)
    changed = perturbed(space.server, server, eps, rng)
    assert all(changed[name] in domain for name, domain in space.server.items())


def test_what_is_not_tuned_stays_and_what_comes_to_apply_is_drawn():
    domains = {"optimiser": Choice(["sgd", "adam"]), "beta2": When(Float(0.9, 0.999), optimiser="adam")}
    rng = stream(0, "when")
    config = {"lr": 0.1, "optimiser": "sgd"}
    found = [perturbed(domains, config, 0.1, rng) for _ in range(20)]
    assert all(one["lr"] == 0.1 for one in found)
    assert {one["optimiser"] for one in found} == {"sgd", "adam"}
    assert all(("beta2" in one) == (one["optimiser"] == "adam") for one in found)


def test_constraints_hold():
    space = Space({"lr": Float(0.01, 1.0, log=True), "epochs": Int(1, 5)}, constraints=["lr * epochs <= 1"])
    config = {"lr": 0.33, "epochs": 3}
    for n in range(50):
        made = around(space, config, {}, 0.3, stream(n, "held"))
        assert made["lr"] * made["epochs"] <= 1


def test_where_nothing_is_allowed_a_configuration_stays():
    space = Space({"lr": Float(0.01, 1.0)}, constraints=["lr > 2"])
    assert around(space, {"lr": 0.5}, {}, 0.1, stream(0, "none")) == {"lr": 0.5}


def test_a_domain_of_ones_own_gives_its_neighbours():
    class Even:
        def near(self, centre, eps, rng):
            return centre + 2

    assert perturb(Even(), 4, 0.1, stream(0, "own")) == 6
