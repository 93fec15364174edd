"""A study that is stopped after an arm has ended, and continued: its schedule sees what it saw at first."""

import pytest
from test_failing import SLOW, tired

import fedtuner as ft
import toys
from crashes import Crash, assert_same

BUDGET = {"recipe": ft.auto(40, arms=1), "include": [{"client": {"lr": 0.1, "epochs": 1, "batch": 64}}]}
SETTINGS = {
    "failing, a budget": (tired(20), {"space": SLOW, "failing": "end", **BUDGET}),
    "failing, halving": (tired(7), {"space": SLOW, "failing": "end", "schedule": ft.halving(30, 10, 2, 2)}),
}


def tune(kind, store, watch=None):
    problem, settings = SETTINGS[kind]
    return ft.tune(problem, store=store, watch=watch, cohort=3, workers=1, progress=False, **settings)


@pytest.mark.parametrize("kind", SETTINGS)
def test_an_end_changes_nothing_of_what_was_before_it(kind, tmp_path):
    seen = []
    whole = tune(kind, tmp_path / "whole", seen.append)
    assert whole.journal.failed
    first = next(n for n, event in enumerate(seen) if event.event == "failed")
    for at in range(first + 1, len(seen), 3):
        told = []

        def stop(event, told=told, at=at):
            told.append(event)
            if len(told) == at:
                raise Crash

        with pytest.raises(Crash):
            tune(kind, tmp_path / str(at), stop)
        tune(kind, tmp_path / str(at))
        assert_same(tmp_path / str(at), whole.path)


def diverging(store, stop_after=None):
    """A budget whose only arm diverges in its 31st round, by ask and tell; return its winner."""
    space = ft.Space({"lr": ft.Float(0.01, 1.0, log=True)})
    federation = ft.Outside({"w": toys.np.zeros(3, toys.np.float32)}, 8)
    study = ft.prepare(
        federation, space, recipe=ft.auto(100, arms=1), include=[{"client": {"lr": 0.1}}], cohort=3, store=store
    )
    done = 0
    while plan := study.ask():
        loss = float(((plan.w - 1) ** 2).mean())
        change = 0.3 * plan.jobs[0].config["lr"] * (1 - plan.w)
        if (plan.arm, plan.round) == (0, 30):
            change = toys.np.full(3, toys.np.inf)
        before, after = ft.Metrics(loss, loss, 30), ft.Metrics(0.9 * loss, 0.9 * loss, 30)
        study.tell(plan, plan.tally(change, 60, before, after, {0: (loss, 30.0)}))
        done += 1
        if done == stop_after:
            study.close()
            return diverging(store)
    return study.winner


@pytest.mark.parametrize("after", [32, 60])
def test_a_budget_that_has_gone_back_ends_as_it_would_have(after, tmp_path):
    assert diverging(tmp_path / "stopped", after) == diverging(tmp_path / "whole")
