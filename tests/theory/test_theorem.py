"""What the theorem prescribes and bounds, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedtuner.errors import SpecError
from fedtuner.theory import theorem
from fedtuner.theory.theorem import Setting

ODD = Setting(m=4, similarities=(0.0, 0.15), diameter=2.0, lipschitz=3.0, dimensions=3)  # no constant is 1


def test_steps_k_and_eta_by_hand():
    setting = Setting(m=2)  # D = G = b = 1
    np.testing.assert_allclose(theorem.steps(setting, 3), [0.70711, 0.35355, 0.23570], atol=1e-5)
    assert theorem.candidates(setting, 256) == 4  # sqrt(256 / 4) = 8 = 4^(3/2)
    assert theorem.candidates(setting, 256, full=True) == 8
    assert theorem.eta(setting, 4, 256) == pytest.approx(math.sqrt(math.log(4) / 1024) / 2)
    assert theorem.candidates(Setting(m=2, k=5), 256) == 5


def test_the_step_for_a_known_v_minimises_the_bound_on_fixed_steps():
    v, tau = 0.3, 500
    best = float(theorem.known_step(ODD, np.array(v), tau))

    def limit(c):
        spread = ODD.diameter**2 * (1 + math.log(tau)) / tau + v**2
        return spread / (2 * c) + c * ODD.m * ODD.lipschitz**2

    assert all(limit(best) < limit(best * x) for x in (0.5, 0.99, 1.01, 2))


def test_the_bound_s_terms():
    setting, tau, v = Setting(), 10_000, 0.1
    found = theorem.bound(setting, tau, v)
    k = theorem.candidates(setting, tau)
    assert found["feedback"] == pytest.approx(2 * 9 * math.sqrt(k * math.log(k) / tau))
    assert found["similarity"] == pytest.approx(math.sqrt(2) * 0.1 * 3)
    assert found["total"] == pytest.approx(found["feedback"] + found["start"] + found["similarity"])
    assert found["start"] > 0
    far = theorem.bound(setting, 10**15, v)  # all but the V-term vanishes
    assert far["total"] == pytest.approx(far["similarity"], rel=1e-3)
    exponent = math.log(theorem.bound(setting, 10**15, 0)["total"] / theorem.bound(setting, 10**12, 0)["total"], 1000)
    assert exponent == pytest.approx(-1 / 3, abs=0.02)  # and as the theorem says, up to logarithms


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Setting(m=0), "m = 0"),
        (lambda: Setting(k=1), "k = 1"),
        (lambda: Setting(similarities=(0.3,)), "0.288"),
        (lambda: Setting(diameter=0), "diameter"),
    ],
)
def test_settings_that_cannot_be(make, says):
    with pytest.raises(SpecError, match=says):
        make()
