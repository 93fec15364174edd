"""FedHyper's global step: alpha by hand, its bounds, and what it does to the server's other rates."""

import math

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner import methods
from fedtuner.core.method import Server, default_space, defaults
from fedtuner.core.privacy import Gaussian
from fedtuner.core.records import Tally
from fedtuner.methods.fedhyper import ALPHA, LAST, fedhyper, following, inner
from fedtuner.run import spec
from fedtuner.testing.rounds import a_round, advance, an_arm
from fedtuner.testing.toys import quadratics

USUAL = defaults(methods.fedavg.with_defaults(server={"optimiser": "fedhyper"}).server)


def vector(*values):
    return np.array(values, np.float32)


def stepped(*changes, **b):
    """Return the models after each round, from 0, and the last slots."""
    w, slots, seen = vector(0, 0), {}, []
    for t, change in enumerate(changes):
        w, slots = fedhyper.step(Server(w, slots, t, 4, fedhyper), vector(*change), Tally(), USUAL | b)
        seen.append(w.tolist())
    return seen, slots


def test_alpha_by_hand():
    """D = (1, 0), (1/2, 1/2), (-1, 1/2).

    alpha_1 = 1:                                                  w = (1, 0)
    alpha_2 = 1 + <(1/2, 1/2), (1, 0)> = 3/2:                      w = (1, 0) + 3/2 (1/2, 1/2) = (7/4, 3/4)
    alpha_3 = 3/2 + <(-1, 1/2), (1/2, 1/2)> = 3/2 - 1/4 = 5/4:     w = (7/4, 3/4) + 5/4 (-1, 1/2) = (1/2, 11/8)
    """
    seen, slots = stepped((1, 0), (0.5, 0.5), (-1, 0.5))
    assert seen == [[1, 0], [1.75, 0.75], [0.5, 1.375]]
    assert slots[ALPHA].tolist() == [1.25]
    assert slots[LAST].tolist() == [-1, 0.5]


def test_alpha_stays_within_its_bounds():
    _, slots = stepped((3, 0), (3, 0))
    assert slots[ALPHA].tolist() == [5]
    _, slots = stepped((3, 0), (-3, 0))
    assert slots[ALPHA].tolist() == pytest.approx([0.2])
    _, slots = stepped((3, 0), (-3, 0), (-0.5, 0))  # from the bound on, not from where it would have been
    assert slots[ALPHA].tolist() == pytest.approx([1.7])


def test_the_servers_rates_apply_to_the_step():
    """lr 1/2 halves the steps of the first test; with momentum 1/2 half of a step is added to the next."""
    seen, _ = stepped((1, 0), (0.5, 0.5), lr=0.5)
    assert seen == [[0.5, 0], [0.875, 0.375]]
    seen, _ = stepped((1, 0), (0.5, 0.5), momentum=0.5)
    assert seen == [[1, 0], [2.25, 0.75]]


def test_what_is_not_a_number_changes_nothing():
    assert following(1.5, math.nan) == 1.5
    assert (following(1.5, math.inf), following(1.5, -math.inf)) == (5.0, 0.2)
    with np.errstate(all="ignore"):
        assert math.isnan(inner(vector(np.inf, -np.inf), vector(1, 1)))


def test_large_vectors_are_multiplied_in_parts():
    rng = np.random.default_rng(0)
    one, other = (rng.standard_normal(100_000).astype(np.float32) for _ in range(2))
    assert inner(one, other) == pytest.approx(float(one.astype(np.float64) @ other), rel=1e-9)


def test_the_first_round_is_the_mean_and_rounds_that_agree_go_further():
    """On quadratics with short local steps all rounds point to the optimum."""
    far, near = (
        [advance(a_round(methods.fedavg, quadratics(), cohort=8), an_arm(methods.fedavg, {"lr": 0.02}, server), t)
         for t in (1, 6)]
        for server in ({"optimiser": "fedhyper"}, {})
    )  # fmt: skip
    assert np.array_equal(far[0].w, near[0].w)
    assert 1 < far[1].slots[ALPHA][0] <= 5
    assert np.linalg.norm(far[1].w - far[0].w) > np.linalg.norm(near[1].w - near[0].w)


def test_it_is_named_in_a_study_and_has_nothing_to_tune():
    method = methods.fedavg.with_defaults(server={"optimiser": "fedhyper"})
    assert default_space(method, {}).server == {}
    assert (USUAL["lr"], USUAL["momentum"], USUAL["gamma"]) == (1.0, 0.0, 1.0)
    read = spec.parse({"problem": "toys:problem", "cohort": 3, "server": {"optimiser": "fedhyper"}})
    assert set(read.study(None, 1).setup.space.server) == {"optimiser"}
    study = ft.tune(
        toys.problem(), ft.Space(), method=method, fedex=None, schedule=ft.random_search(4, 4), cohort=3,
        progress=False, workers=1, privacy=Gaussian(50.0),
    )  # fmt: skip
    assert study.best.server["optimiser"] == "fedhyper"
