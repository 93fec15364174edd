"""Median and trimmed mean: a few clients that lie cannot move them far."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner.core.method import defaults
from fedtuner.core.records import Arm
from fedtuner.core.robust import Median, Trimmed
from fedtuner.core.round import Round
from fedtuner.core.tally import mean
from fedtuner.errors import SpecError
from fedtuner.methods import fedavg


def round_of(n: int = 5):
    """A plan and reports whose changes are 1, 2, ... n in every entry."""
    study = ft.prepare(toys.problem(), toys.SPACE, cohort=n)
    rounds = Round(study.setup, study.problem)
    arm = toys_arm(study)
    plan = rounds.plan(arm, rounds.begin(arm), study.problem.present())
    reports = [rounds.work(plan, job) for job in plan.jobs]
    return plan, [replace(r, change=np.full_like(r.change, k)) for k, r in enumerate(reports, 1)]


def toys_arm(study):
    return Arm(0, defaults(fedavg.client), defaults(fedavg.server))


@pytest.mark.parametrize(("combine", "expected"), [(Median(), 3.0), (Trimmed(0.2), 3.0), (Trimmed(0.4), 3.0)])
def test_a_liar_does_not_move_the_middle(combine, expected):
    plan, reports = round_of()
    assert np.allclose(combine(plan, reports).change, expected)
    reports[-1] = replace(reports[-1], change=np.full_like(reports[-1].change, 1e30))
    assert np.allclose(combine(plan, reports).change, expected)
    assert not np.allclose(mean(plan, reports).change, expected)


def test_without_a_cut_it_is_the_plain_mean():
    plan, reports = round_of()
    assert np.allclose(Trimmed(0.0)(plan, reports).change, 3.0)


@pytest.mark.parametrize("combine", [Median(), Trimmed()])
def test_metrics_and_counts_are_those_of_the_mean(combine):
    plan, reports = round_of()
    reports[0] = None
    reports[1] = replace(reports[1], finite=False)
    made, usual = combine(plan, reports), mean(plan, reports)
    assert (made.asked, made.reported, made.broken, made.trained) == (5, 4, 1, 3)
    assert made.before == usual.before
    assert made.after == usual.after


@pytest.mark.parametrize("combine", [Median(), Trimmed()])
def test_nobody_trained(combine):
    plan, reports = round_of()
    assert combine(plan, [None] * len(reports)).change is None


@pytest.mark.parametrize("combine", [Median(), Trimmed()])
def test_a_study_runs_with_it_and_another_mean_is_another_study(tmp_path, combine):
    study = toys.tune(method=fedavg, combine=combine, store=tmp_path / "s")
    assert study.rounds_used == 30
    assert not np.array_equal(study.best.model, toys.tune(method=fedavg).best.model)
    with pytest.raises(ft.FedtunerError, match="combine"):
        toys.tune(method=fedavg, store=tmp_path / "s")


@pytest.mark.parametrize("share", [-0.1, 0.5, "much"])
def test_bad_shares_are_refused(share):
    with pytest.raises(SpecError, match=r"combine\.share = .* must be in \[0, 0.49\]"):
        Trimmed(share)
