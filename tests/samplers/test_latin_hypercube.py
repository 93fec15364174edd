"""Stratified arms: each part of every range once; and arms that are given."""

import math

import pytest

import fedtuner as ft
import toys
from fedtuner import samplers
from fedtuner.core.method import defaults
from fedtuner.errors import SpecError
from fedtuner.samplers import Include, Stratified, uniform
from fedtuner.space import Float, Int, PowerOfTwo, Space

SPACE = Space({"lr": Float(1e-4, 1.0, log=True), "epochs": Int(1, 4), "batch": PowerOfTwo(8, 64), "momentum": 0.5})


def proposed(sampler, n, seed=0, space=SPACE):
    return [sampler.propose(space, seed, id, 0, ())[0] for id in range(n)]


@pytest.mark.parametrize("block", [0, 1, 2])
def test_each_part_of_every_range_is_drawn_from_once(block):
    arms = proposed(Stratified(8), 24)[8 * block : 8 * block + 8]
    parts = sorted(int(8 * (4 + math.log10(arm["lr"])) / 4) for arm in arms)
    assert parts == list(range(8))
    assert sorted(arm["epochs"] for arm in arms) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert sorted(arm["batch"] for arm in arms) == [8, 8, 16, 16, 32, 32, 64, 64]
    assert {arm["momentum"] for arm in arms} == {0.5}


def test_ranges_are_dealt_apart_from_each_other_and_from_other_seeds():
    orders = set()
    for seed in range(20):
        arms = proposed(Stratified(4), 4, seed)
        orders.add(tuple(arm["epochs"] for arm in sorted(arms, key=lambda arm: arm["lr"])))
    assert len(orders) > 10


def test_a_centre_cuts_a_logarithmic_range():
    near = [arm["lr"] for arm in proposed(Stratified(10, {"lr": 0.1}, decades=1.5), 10)]
    assert min(near) >= 0.1 / 10**1.5
    assert 0.5 < max(near) <= 1.0  # the range ends before 10^1.5 times the centre
    outside = [arm["lr"] for arm in proposed(Stratified(10, {"lr": 1e-9}), 10)]
    assert min(outside) < 1e-3 < 0.1 < max(outside)  # a centre that is far outside says nothing
    assert [a["epochs"] for a in proposed(Stratified(4, {"lr": 0.1}), 4)] == [
        a["epochs"] for a in proposed(Stratified(4), 4)
    ]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"arms": 0}, r"sampler.arms = 0, but must be a whole number >= 1"),
        ({"centre": 3}, r"sampler.centre = 3, but must be values by name"),
        ({"decades": -1}, r"sampler.decades = -1, but must be in \[0, 100\]"),
    ],
)
def test_settings_that_are_wrong(settings, match):
    with pytest.raises(SpecError, match=match):
        Stratified(**settings)


def test_a_centre_that_is_not_tuned_is_refused():
    with pytest.raises(SpecError, match=r"sampler.centre.mu, but client.mu is not tuned"):
        ft.prepare(toys.problem(), SPACE_OF_LR, sampler=Stratified(4, {"mu": 0.1}), schedule=toys.SCHEDULE, cohort=3)


SPACE_OF_LR = Space({"lr": Float(1e-3, 1.0, log=True)})


def test_given_configurations_come_first_and_may_lie_outside_of_the_ranges():
    given = [{"client": {"lr": 7.0}}, {}]
    sampler = Include(given, uniform)
    arms = proposed(sampler, 4)
    assert arms[0] == {"lr": 7.0, "momentum": 0.5}  # what the space fixes is fixed for all
    assert arms[1] == {"momentum": 0.5}
    assert arms[2:] == proposed(uniform, 2)


@pytest.mark.filterwarnings("ignore:.*outside of the space")
def test_included_arms_are_arms_of_a_study_with_defaults_for_the_rest():
    study = ft.tune(
        toys.problem(), SPACE_OF_LR, fedex=None, include=[{"client": {"lr": 3.0}, "server": {"lr": 0.5}}],
        schedule=ft.random_search(budget=6, longest=2), cohort=3, progress=False,
    )  # fmt: skip
    first, *rest = study.journal.arms.values()
    assert first.client == {**defaults(study.setup.method.client), "lr": 3.0}
    assert first.server["lr"] == 0.5
    assert all(arm.client["lr"] <= 1.0 for arm in rest)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ([3], r"include has 3, but must have tables"),
        ([{"lr": 0.1}], r"include has 'lr'.*write \{'client': \{'lr': 0.1\}\}"),
        ([{"client": 0.1}], r"include.client = 0.1, but must be values by name"),
        ([{"client": {"lrr": 0.1}}], r"no client hyperparameter 'lrr'"),
        ([{"client": {"lr": -1.0}}], r"client.lr = -1.0, but must be >= 0"),
        ([{"client": {"lr": [0.1, 0.2]}}], r"include.client.lr = \[0.1, 0.2\], but must be one value"),
    ],
)
def test_what_cannot_be_included(given, match):
    with pytest.raises(SpecError, match=match):
        ft.prepare(toys.problem(), SPACE_OF_LR, include=given, schedule=toys.SCHEDULE, cohort=3)


def test_the_names_are_public():
    assert samplers.stratified is Stratified
