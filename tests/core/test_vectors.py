"""Large vectors: a change is made in the memory of the client's model, and a sum says whether all are numbers."""

from dataclasses import replace

import numpy as np
import pytest

from fedtuner import methods
from fedtuner.core.model import LARGE, finite
from fedtuner.methods import Update
from fedtuner.testing.rounds import a_round, an_arm, reported
from fedtuner.testing.toys import quadratics


def moved(client, plan, job):
    return plan.w + np.float32(job.client + 1)


LOCALS = {
    "its own": lambda client, plan, job: Update(moved(client, plan, job)),
    "kept by the client": lambda client, plan, job: Update(w := moved(client, plan, job), memory={"last": w[:3]}),
    "sent twice": lambda client, plan, job: Update(w := moved(client, plan, job), {"again": w}),
    "the server's": lambda client, plan, job: Update(plan.w),
    "a view": lambda client, plan, job: Update(np.stack([moved(client, plan, job)] * 2)[0]),
}


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
@pytest.mark.parametrize("large", [1, 10**6])
def test_a_change_leaves_all_other_vectors_alone(local, large, monkeypatch):
    """In place or not, by how many entries are called large."""
    monkeypatch.setattr("fedtuner.core.work.LARGE", large)
    round = a_round(replace(methods.fedavg, local=local), quadratics())
    state = round.begin(an_arm(methods.fedavg))
    w = state.w.copy()
    plan, reports = reported(round, an_arm(methods.fedavg), state)
    assert np.array_equal(plan.w, w)
    for job, report in zip(plan.jobs, reports, strict=True):
        made = local(None, plan, job)
        assert np.array_equal(report.change, made.w - w)
        for kept, vectors in ((report.memory, made.memory), (report.extra, made.extra)):
            assert kept.keys() == vectors.keys()
            assert all(np.array_equal(kept[name], vectors[name]) for name in vectors)


def test_a_large_change_is_made_where_the_clients_model_was(monkeypatch):
    monkeypatch.setattr("fedtuner.core.work.LARGE", 1)
    made = []
    local = lambda client, plan, job: made.append(Update(moved(client, plan, job))) or made[-1]  # noqa: E731
    round, arm = a_round(replace(methods.fedavg, local=local), quadratics()), an_arm(methods.fedavg)
    _, reports = reported(round, arm, round.begin(arm))
    assert all(report.change is update.w for report, update in zip(reports, made, strict=True))


HUGE = np.finfo(np.float32).max


@pytest.mark.parametrize("size", [4, LARGE, LARGE + 7])
@pytest.mark.parametrize(
    ("ends", "sound"),
    [((1, 2), True), ((HUGE, HUGE), True), ((HUGE, -HUGE), True), ((np.nan, 1), False), ((np.inf, 1), False),
     ((np.inf, -np.inf), False)],
)  # fmt: skip
def test_all_entries_are_numbers_or_not(size, ends, sound):
    """Also where they are too large to be added up."""
    v = np.zeros(size, np.float32)
    v[0], v[-1] = ends
    assert finite(v) is sound
    assert finite(np.zeros(3, np.float32), v) is sound
    assert finite()
