"""A report's change is made in the memory of the client's model, but only where nobody else has that memory."""

from dataclasses import replace

import numpy as np
import pytest

from fedtuner import methods
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
def test_a_change_leaves_all_other_vectors_alone(local):
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
