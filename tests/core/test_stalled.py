"""An arm in which every update is broken, round after round, has stalled: it spends no more rounds."""

import math
from dataclasses import replace

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner import methods
from fedtuner.core.round import STALL
from fedtuner.report import journal_of, summary
from fedtuner.run.store.states import unpack
from fedtuner.testing.rounds import a_round, an_arm, bits, history, reported, settle
from fedtuner.testing.toys import quadratics
from fedtuner.tuners import FedEx

BROKEN = {"lr": 1e30, "epochs": 3}


def broken(report):
    return replace(report, finite=False, change=np.full_like(report.change, np.nan))


def on_quadratics(**settings):
    return a_round(methods.fedavg, quadratics(), **settings), an_arm(methods.fedavg)


def after(round, arm, state, *kinds):
    """The state after rounds in which all updates are broken (b), some are (s), none is (n), or nobody answers (0)."""
    for kind in kinds:
        _, reports = reported(round, arm, state)
        found = {"b": map(broken, reports), "s": [broken(reports[0]), *reports[1:]], "n": reports}
        state, record = settle(round, arm, state, *found.get(kind, [None] * len(reports)))
        assert not record.diverged
    return state


def test_it_ends_after_so_many_rounds_in_a_row():
    round, arm = on_quadratics()
    almost = after(round, arm, round.begin(arm), *"b" * (STALL - 1))
    assert (almost.ended, almost.round) == ("", STALL - 1)
    assert after(round, arm, almost, "b").ended == "stalled"
    assert after(round, arm, almost, "n", *"b" * (STALL - 1)).ended == ""
    assert after(round, arm, almost, "s", *"b" * (STALL - 1)).ended == ""
    assert after(round, arm, almost, "0").ended == ""  # nobody said anything
    assert after(round, arm, almost, "0", "b").ended == "stalled"


def test_a_client_without_examples_is_no_update():
    """Its report is fine, but nobody has trained."""
    usual = quadratics()
    problem = ft.Simulation(usual.model, [*usual.clients[:3], ft.Client("empty", None, usual.clients[3].valid)])
    round, arm = a_round(methods.fedavg, problem), an_arm(methods.fedavg)
    state = round.begin(arm)
    for _ in range(STALL):
        _, reports = reported(round, arm, state)
        state, _ = settle(round, arm, state, *(broken(r) if r.examples else r for r in reports))
    assert state.ended == "stalled"


def test_fedex_has_as_many_rounds_as_candidates_to_find_one_that_works():
    round, arm = on_quadratics(tuner=FedEx(k=STALL + 3))
    state = after(round, arm, round.begin(arm), *"b" * (STALL + 2))
    assert state.ended == ""
    assert after(round, arm, state, "b").ended == "stalled"


def test_the_count_is_part_of_the_state():
    """Stopped, saved, loaded and continued, it ends at the same round."""
    round, arm = on_quadratics()
    state = after(round, arm, round.begin(arm), *"b" * (STALL - 4))
    loaded, _ = unpack(bits(round, state))
    assert after(round, arm, replace(loaded, belief=state.belief), *"b" * 4).ended == "stalled"
    assert bits(round, loaded := replace(loaded, belief=state.belief)) == bits(round, state)
    assert unpack(bits(round, after(round, arm, loaded, *"b" * 4)))[0].ended == "stalled"


def test_a_child_of_a_stalled_arm_begins_to_count_anew():
    round, arm = on_quadratics()
    stalled = after(round, arm, round.begin(arm), *"b" * STALL)
    child = round.begin(an_arm(methods.fedavg, id=1), stalled)
    assert child.ended == ""
    assert after(round, an_arm(methods.fedavg, id=1), child, "b").ended == ""


def test_it_spends_no_more():
    round, arm = a_round(methods.fedavg, quadratics()), an_arm(methods.fedavg, BROKEN)
    state, records = history(round, arm, 50)
    assert (state.ended, state.round, len(records)) == ("stalled", STALL, STALL)
    assert all(record.broken == record.clients for record in records)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_study_of_such_arms(tmp_path, workers):
    """Its score is what its records say; the journal and the summary tell why it ended; it continues as it was."""
    settings = {
        "problem": quadratics(),
        "space": ft.Space(client={"lr": [1e30, 0.1], "epochs": 3}),
        "method": methods.fedavg,
        "fedex": None,
        "schedule": ft.random_search(6 * 25, 25),
        "workers": workers,
    }
    study = toys.tune(**settings, store=tmp_path)
    stalled = [arm for arm, known in study.journal.arms.items() if known.client["lr"] == 1e30]
    assert 0 < len(stalled) < 6
    assert study.journal.ended == dict.fromkeys(stalled, "stalled")
    assert study.rounds_used == 25 * (6 - len(stalled)) + STALL * len(stalled)
    assert study.best.arm not in stalled
    assert journal_of(tmp_path).ended == study.journal.ended
    found = summary(tmp_path)
    assert found["result"]["stalled"] == stalled
    assert found["result"]["diverged"] == []
    assert {arm["arm"]: arm["ended"] for arm in found["arms"]} == {
        arm: "stalled" if arm in stalled else "" for arm in range(6)
    }
    for arm in stalled:
        last = study.journal.own_records[arm][-1]
        assert (last.loss, last.error, last.diverged) == (math.inf, 1.0, False)
    again = toys.tune(**settings, store=tmp_path)
    assert again.rounds_used == study.rounds_used
