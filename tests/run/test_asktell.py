"""A study through ask and tell is the study through tune, whoever does the rounds, and however often it is killed."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import random
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest

import fedtuner as ft
import toys
from crashes import Crash, Crashing, Evolving, Snapshots, assert_same
from fedtuner.core import memory
from fedtuner.core.model import Metrics
from fedtuner.core.records import Tally
from fedtuner.core.round import Round
from fedtuner.core.store import Done
from fedtuner.errors import SpecError, StoreError
from fedtuner.run import watch
from fedtuner.run.reading import read
from fedtuner.run.store import Folder, InMemory

# Other tests may have left threads of libraries in this process; forks do not use them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

HALVING = {"schedule": ft.halving(budget=6, longest=3, eta=2, eliminations=1)}  # two arms of three rounds
STUDIES = {
    "memory": {},
    "plain": {"fedex": None, "method": ft.methods.fedavg},
    "several tries": {"fedex": ft.FedEx(k=3, eps=0.3, tries=2)},
    "scaffold": {"method": ft.methods.scaffold, "space": ft.Space()},
    "hyperband": {"schedule": ft.hyperband(budget=80, longest=8, eta=2, score="loss", discount=0.5)},
    "diverging": {"space": ft.Space(server={"lr": [1.0, 3e38]}), "schedule": ft.random_search(30, 5)},
    "all diverge": {"space": toys.DIVERGING},
    "children": {"schedule": Evolving()},
}  # fmt: skip


def prepare(**changed) -> ft.Study:
    settings = toys.settings(**changed)
    del settings["progress"]
    return ft.prepare(**settings)


def work(study, plan):
    """Every client's report."""
    return [Round(study.setup, study.problem).work(plan, job) for job in plan.jobs]


def drive(study, rounds=10**9) -> ft.Study:
    """Do rounds one after the other until there are none."""
    while rounds and (plan := study.ask()) is not None:
        study.tell(plan, work(study, plan))
        rounds -= 1
    return study


def journal_of(path):
    return read(Folder(path), str(path))


def said(study):
    """All that a finished study says, to the bit."""
    return study.history, study.winner, study.best.model.tobytes(), study.best.theta.tobytes(), study.evaluate()


@pytest.fixture
def asked():
    """A study with one round in flight, and that round's plan and reports."""
    study = prepare()
    plan = study.ask()
    return study, plan, work(study, plan)


# The same study


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("spilled", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["in states", "in files"])
def test_the_same_bits_as_tune(tmp_path, monkeypatch, name, spilled):
    if spilled:
        monkeypatch.setattr(memory, "LIMIT", 0)
    tuned = toys.tune(store=tmp_path / "tuned", **STUDIES[name])
    settled = drive(prepare(store=tmp_path / "asked", **STUDIES[name]))
    assert settled.finished
    assert said(settled) == said(tuned)
    assert_same(tmp_path / "asked", tmp_path / "tuned")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["memory", "hyperband", "diverging", "children"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_rounds_in_flight_may_be_told_in_any_order(name, seed):
    rng, study, flying, most = random.Random(seed), prepare(**STUDIES[name]), [], 0
    while not study.finished:
        while rng.random() < 0.8 and (plan := study.ask()) is not None:
            flying.append(plan)
        assert len({plan.arm for plan in flying}) == len(flying)  # one of each arm
        most = max(most, len(flying))
        if flying:
            plan = flying.pop(rng.randrange(len(flying)))
            study.tell(plan, work(study, plan))
    assert most > 1
    assert not flying
    assert said(study) == said(toys.tune(**STUDIES[name]))


def test_there_is_nothing_to_ask_for_while_the_study_waits_and_once_it_is_finished():
    study = prepare()
    plans = [study.ask() for _ in range(4)]
    assert [plan.arm for plan in plans] == [0, 1, 2, 3]
    assert study.ask() is None
    assert not study.finished
    study.tell(plans[2], work(study, plans[2]))
    again = study.ask()
    assert (again.arm, again.round) == (2, 1)
    assert study.ask() is None
    for plan in (again, plans[0], plans[1], plans[3]):
        study.tell(plan, work(study, plan))
    drive(study)
    assert study.finished
    assert study.ask() is None
    assert study.ask() is None


def test_survivors_wait_for_all_arms_of_their_rung():
    study, waiting = prepare(), []
    while (plan := study.ask()) is not None:
        if plan.arm == 3 and plan.round == 4:
            waiting.append(plan)
        else:
            study.tell(plan, work(study, plan))
    assert [study.journal.round_of(arm) for arm in range(4)] == [5, 5, 5, 4]
    [last] = waiting
    study.tell(last, work(study, last))
    assert study.ask().round == 5


def test_what_is_known_can_be_read_on_the_way(asked):
    study, plan, reports = asked
    assert (study.rounds_used, study.history) == (0, [])
    study.tell(plan, reports)
    assert study.rounds_used == 1
    [record] = study.history
    assert (record.arm, record.round) == (plan.arm, 1)


def test_plans_may_be_sent_elsewhere(asked):
    study, plan, reports = asked
    study.tell(pickle.loads(pickle.dumps(plan)), pickle.loads(pickle.dumps(reports)))
    assert said(drive(study)) == said(toys.tune())


def test_what_clients_remember_is_in_the_plan(monkeypatch):
    monkeypatch.setattr(memory, "LIMIT", 0)
    study, seen = prepare(), 0
    while (plan := study.ask()) is not None:
        seen += sum(bool(job.remembered) for job in plan.jobs)
        study.tell(plan, work(study, plan))
    assert seen > 30


# Tallies, and clients that do not answer


def test_a_tally_in_place_of_reports():
    study = prepare()
    while (plan := study.ask()) is not None:
        tally = Round(study.setup, study.problem).tally(plan, work(study, plan))
        study.tell(plan, tally)
    assert said(study) == said(toys.tune())


def test_clients_that_do_not_answer_are_none(asked):
    study, plan, reports = asked
    study.tell(plan, [reports[0], None, reports[2]])
    [record] = study.history
    assert (record.clients, record.dropped, len(record.rows)) == (3, 1, 2)
    round, arm = Round(study.setup, study.problem), study.journal.arms[plan.arm]
    state, expected = round.settle(arm, round.begin(arm), round.tally(plan, [reports[0], None, reports[2]]))
    assert record == expected
    assert study.ask().w.tobytes() == state.w.tobytes()


def test_a_round_that_nobody_answered_is_a_round(asked):
    study, plan, _ = asked
    study.tell(plan, [None] * 3)
    [record] = study.history
    assert (record.dropped, record.validated, record.examples) == (3, 0, 0)
    assert np.isnan(record.error)
    following = study.ask()
    assert following.w.tobytes() == plan.w.tobytes()
    study.tell(following, work(study, following))
    assert drive(study).finished


# Mistakes


def test_a_plan_is_told_once(asked):
    study, plan, reports = asked
    study.tell(plan, reports)
    before = study.history
    with pytest.raises(SpecError, match=r"arm 0, round 1 is not in flight: tell each plan that ask\(\) gave once"):
        study.tell(plan, reports)
    study.ask()
    with pytest.raises(SpecError, match="arm 0, round 1 is not in flight"):
        study.tell(plan, reports)
    assert study.history == before


@pytest.mark.parametrize(
    "foreign",
    [
        lambda plan: replace(plan, seed=1),
        lambda plan: replace(plan, w=plan.w + 1),
        lambda plan: replace(plan, w=plan.w[:-1]),
        lambda plan: replace(plan, jobs=plan.jobs[::-1]),
        lambda plan: prepare(seed=3).ask(),
        lambda plan: prepare(cohort=2).ask(),
    ],
    ids=["seed", "model", "size", "clients", "another study", "another cohort"],
)
def test_a_plan_of_another_study_is_refused(asked, foreign):
    study, plan, reports = asked
    with pytest.raises(SpecError, match="arm 0, round 1 is in flight, but this plan is another one: was it asked of"):
        study.tell(foreign(plan), reports)
    study.tell(plan, reports)


def test_a_plan_that_was_never_asked_for_is_refused(asked):
    study, plan, reports = asked
    for other in (replace(plan, arm=1), replace(plan, arm=99), replace(plan, round=1)):
        with pytest.raises(SpecError, match=r"arm \d+, round \d is not in flight"):
            study.tell(other, reports)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r[:2], "arm 0, round 1: 2 reports, but the plan has 3 jobs: give None for a client that did not"),
        (lambda r: [*r, None], "4 reports, but the plan has 3 jobs"),
        (lambda r: [], "0 reports, but the plan has 3 jobs"),
        (lambda r: [r[1], r[0], r[2]], r"report 0 is of client \d, but job 0 is of client \d: give reports in"),
        (lambda r: [r[0], r[0], r[2]], "report 1 is of client"),
        (lambda r: [r[0], {"loss": 1.0}, None], r"report 1 is dict, but must be a Report: see plan\.report\(\)"),
        (lambda r: [replace(r[0], change=r[0].change[:-1]), *r[1:]], r"the change is of shape \(12,\), but .* \(13,\)"),
        (lambda r: [replace(r[0], tried=()), *r[1:]], r"tried \[\], but its job has the choices \[\d\]"),
        (lambda r: [replace(r[0], tried=r[0].tried * 2), *r[1:]], r"tried \[\d, \d\], but its job has the choices"),
        (lambda r: Tally(change=np.ones(3, np.float32)), r"the change is of shape \(3,\), but the model is \(13,\)"),
    ],
    ids=["few", "many", "none", "order", "twice", "no report", "shape", "not tried", "tried twice", "tally"],
)  # fmt: skip
def test_reports_that_are_not_the_plans_are_refused_and_the_round_stays_in_flight(asked, change, said):
    study, plan, reports = asked
    with pytest.raises(SpecError, match=said):
        study.tell(plan, change(reports))
    assert study.rounds_used == 0
    study.tell(plan, reports)
    assert study.rounds_used == 1


def test_telling_before_asking(asked):
    _, plan, reports = asked
    with pytest.raises(SpecError, match=r"there is no round in flight: ask\(\) for one first"):
        prepare().tell(plan, reports)


def test_telling_after_the_end(asked):
    study, plan, reports = asked
    study.tell(plan, reports)
    drive(study)
    with pytest.raises(SpecError, match="there is no round in flight: the study is finished"):
        study.tell(plan, reports)


# Kept and continued


def test_what_was_told_is_on_disk(tmp_path):
    study = prepare(store=tmp_path / "s")
    for n in range(1, 8):
        drive(study, 1)
        kept = journal_of(tmp_path / "s")
        assert kept.rounds_used == n
        assert all(kept.saved_round(arm) == kept.round_of(arm) for arm in kept.arms if kept.own_records[arm])
    study.close()


def test_closed_and_asked_again_the_rounds_in_flight_are_the_same(tmp_path):
    study = prepare(store=tmp_path / "s")
    drive(study, 7)
    plans = [study.ask() for _ in range(3)]
    study.close()
    for continued in (study, prepare(store=tmp_path / "s")):
        again = [continued.ask() for _ in range(3)]
        for one, other in zip(plans, again, strict=True):
            assert (one.arm, one.round) == (other.arm, other.round)
            assert one.w.tobytes() == other.w.tobytes()
            assert [(job.client, job.choices) for job in one.jobs] == [(job.client, job.choices) for job in other.jobs]
        continued.close()
    study.ask()
    study.tell(plans[0], work(study, plans[0]))  # the old one is as good


def test_a_plan_cannot_be_told_after_close(asked):
    study, plan, reports = asked
    study.close()
    study.close()
    with pytest.raises(SpecError, match=r"ask\(\) for one first"):
        study.tell(plan, reports)


@pytest.mark.slow
@pytest.mark.parametrize("stores", [lambda path: path, lambda path: InMemory()], ids=["folder", "memory"])
@pytest.mark.parametrize("name", ["memory", "children"])
def test_asking_and_running_take_turns(tmp_path, stores, name):
    store, expected = stores(tmp_path / "s"), said(toys.tune(**STUDIES[name]))
    for rounds in (3, 1, 7):
        with prepare(store=store, **STUDIES[name]) as study:
            drive(study, rounds)
            study.ask()
    assert study.rounds_used == 11
    assert said(study.run(False)) == expected
    assert prepare(store=store, **STUDIES[name]).ask() is None


def test_a_study_that_was_stopped_is_driven_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "_MOMENT", 0.0)

    def stop(status):
        if status.used == 13:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        toys.tune(store=tmp_path / "s", progress=stop)
    assert said(drive(prepare(store=tmp_path / "s"))) == said(toys.tune())


@pytest.mark.slow
@pytest.mark.parametrize("spilled", [False, True], ids=["in states", "in files"])
@pytest.mark.parametrize("changed", [HALVING, {"schedule": Evolving(1)}], ids=["halving", "children"])
def test_killed_at_any_change_of_the_folder(tmp_path, monkeypatch, spilled, changed):
    if spilled:
        monkeypatch.setattr(memory, "LIMIT", 0)
    whole, copies = tmp_path / "whole", tmp_path / "copies"
    drive(prepare(store=Folder(whole, Snapshots(whole, copies)), **changed))
    left = sorted(copies.iterdir())
    assert len(left) > 25
    for path in left:
        before = journal_of(path).rounds_used if list(Folder(path).events()) else 0
        study = prepare(store=path, **changed)
        settled = 0
        while (plan := study.ask()) is not None:
            study.tell(plan, work(study, plan))
            settled += 1
        assert before + settled == study.rounds_used  # no round is done twice
        assert_same(path, whole)
        shutil.rmtree(path)


@pytest.mark.slow
def test_killed(tmp_path):
    """A kill while rounds are in flight loses none that was settled."""
    drive(prepare(store=tmp_path / "whole"))

    def one_life():
        study = prepare(store=tmp_path / "s")
        plans = [plan for _ in range(3) if (plan := study.ask())]
        study.tell(plans[-1], work(study, plans[-1]))
        toys.die()

    for settled in range(1, 13):
        assert toys.forked(one_life) == -signal.SIGKILL
        assert journal_of(tmp_path / "s").rounds_used == settled
    drive(prepare(store=tmp_path / "s"))
    assert_same(tmp_path / "s", tmp_path / "whole")


@pytest.mark.slow
def test_failing_at_any_change_and_told_again(tmp_path):
    """A disk that refuses: the round stays in flight, and ``tell`` succeeds once there is room."""

    class Refusing(Crashing):
        """Refuses a single change."""

        def change(self, doing):
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    drive(prepare(store=tmp_path / "whole", **HALVING))
    refused = 0
    for n in range(1, 80):
        path = tmp_path / str(n)
        study = prepare(store=Folder(path, Refusing(n)), **HALVING)
        while not study.finished:
            try:
                plan = study.ask()
            except StoreError:
                refused += 1
                plan = study.ask()
            try:
                study.tell(plan, work(study, plan))
            except StoreError:
                refused += 1
                study.tell(plan, work(study, plan))
        assert_same(path, tmp_path / "whole")
        shutil.rmtree(path)
    assert refused > 40


# The store is held, and let go


def test_a_study_holds_its_store_until_it_is_closed(tmp_path):
    study = prepare(store=tmp_path / "s")
    other = prepare(store=tmp_path / "s")
    study.ask()
    with pytest.raises(StoreError, match="in use"):
        other.ask()
    study.close()
    assert other.ask() is not None
    other.close()
    with prepare(store=tmp_path / "s") as study:
        study.ask()
    prepare(store=tmp_path / "s").run(False)


@pytest.mark.parametrize(
    "stores", [lambda path: path, Folder, lambda path: InMemory()], ids=["path", "folder", "memory"]
)
def test_a_study_that_is_dropped_lets_go_of_its_store(tmp_path, stores):
    store = stores(tmp_path / "s")
    study = prepare(store=store)
    plan = study.ask()
    study.tell(plan, work(study, plan))
    study.ask()
    del study
    again = prepare(store=store)
    assert again.ask().arm == 0
    assert again.rounds_used == 1
    again.close()


def test_a_cell_that_is_run_again_is_not_refused(tmp_path):
    for _ in range(3):
        study = prepare(store=tmp_path / "s")  # the name's old study goes when the new one is there
        assert study.ask() is not None


def test_a_finished_study_lets_go_of_its_store(tmp_path):
    study = drive(prepare(store=tmp_path / "s"))
    assert prepare(store=tmp_path / "s").ask() is None
    assert study.evaluate() == toys.tune(store=tmp_path / "s").evaluate()


@pytest.mark.parametrize("n", [1, 3, 6])
def test_a_study_that_cannot_begin_lets_go_of_its_store(tmp_path, n):
    with pytest.raises(Crash):
        prepare(store=Folder(tmp_path / "s", Crashing(n))).ask()
    gc.disable()  # not by way of a collection
    try:
        assert prepare(store=tmp_path / "s").ask() is not None
    finally:
        gc.enable()


def test_a_failed_session_leaves_what_was_known(tmp_path):
    study = drive(prepare(store=tmp_path / "s"))
    with prepare(store=tmp_path / "s", seed=0) as other:
        held = Folder(tmp_path / "s")
        held.open()
        with pytest.raises(StoreError, match="in use"):
            study.evaluate("valid")
        assert study.best.rounds == 10
        with pytest.raises(StoreError, match="in use"):
            other.ask()
        held.close()
    assert study.evaluate("valid")


# Clients outside


TARGETS = {"north": 1.0, "south": -1.0, "east": 2.0, "west": 0.5}
OUTSIDE = ft.Space(client={"rate": ft.Float(0.01, 1.0, log=True)}, server={"lr": ft.Float(0.5, 1.0)})


def outside(**changed) -> ft.Study:
    federation = ft.Outside({"kernel": np.zeros((2, 3)), "bias": np.zeros(2)}, list(TARGETS), "four corners")
    usual = {"schedule": toys.SCHEDULE, "fedex": ft.FedEx(k=3, eps=0.3), "cohort": 3}
    return ft.prepare(federation, OUTSIDE, **(usual | changed))


def far(w, target) -> Metrics:
    """How far the model is from a client's own, as loss and error."""
    return Metrics(float(np.square(w - target).mean()), float(np.abs(w - target).mean() > 0.5), 10)


def elsewhere(study, plan, absent=()):
    """A training loop outside: each client moves the model toward its own number, by a step of its configuration."""
    reports = []
    for job in plan.jobs:
        name = study.problem.id_of(job.client)
        arrays = study.problem.model.arrays(plan.w)
        assert arrays["kernel"].shape == (2, 3)
        trained = {k: v + job.config["rate"] * (TARGETS[name] - v) for k, v in arrays.items()}
        w = study.problem.model.vector(trained)
        measured = (far(plan.w, TARGETS[name]), far(w, TARGETS[name]))
        reports.append(None if name in absent else plan.report(job, w, 20, measured))
    return reports


def drive_outside(study, rounds=10**9):
    while rounds and (plan := study.ask()) is not None:
        study.tell(plan, elsewhere(study, plan))
        rounds -= 1
    return study


def test_clients_outside_are_tuned(tmp_path):
    study = drive_outside(outside(store=tmp_path / "s"))
    assert study.finished
    assert study.rounds_used == 30
    assert {row.client for record in study.history for row in record.rows} == set(TARGETS)
    losses = [record.loss_before for record in study.journal.records(study.winner[0])]
    assert losses[-1] < losses[0]
    assert study.problem.model.arrays(study.best.model)["bias"].shape == (2,)
    with pytest.raises(SpecError, match=r"outside of fedtuner: ask\(\) for rounds and tell\(\) their reports"):
        study.evaluate()
    with pytest.raises(SpecError, match=r"ask\(\) for rounds"):
        outside().run(False)


def test_a_study_of_clients_outside_continues(tmp_path):
    whole = drive_outside(outside(store=tmp_path / "whole"))
    for _ in range(6):
        drive_outside(outside(store=tmp_path / "s"), 5)  # and is dropped
    study = drive_outside(outside(store=tmp_path / "s"))
    assert study.history == whole.history
    assert_same(tmp_path / "s", tmp_path / "whole")


def test_what_there_is_to_beat_is_asked_and_told_too():
    space, own = ft.Space(client=OUTSIDE.client), [{"client": {"rate": 0.02}}]
    study = drive_outside(ft.prepare(outside().problem, space, budget=80, include=own, cohort=3))
    baseline = ft.untuned(study)
    assert not baseline.finished
    drive_outside(baseline)
    assert baseline.rounds_used == 80
    assert baseline.best.client["rate"] == 0.02
    assert baseline.best.server["optimiser"] == "sgd"


def test_the_weights_that_a_study_began_with_are_kept(tmp_path):
    """All arms begin from them, also if another model is given when the study is continued."""
    drive_outside(outside(store=tmp_path / "s"), 1)
    other = ft.Outside({"kernel": np.ones((2, 3)), "bias": np.zeros(2)}, list(TARGETS), "four corners")
    settings = {"schedule": toys.SCHEDULE, "fedex": ft.FedEx(k=3, eps=0.3), "cohort": 3}
    with ft.prepare(other, OUTSIDE, store=tmp_path / "s", **settings) as study:
        study.ask()
        assert not study.ask().w.any()


def test_clients_outside_may_be_away():
    study, away = outside(), random.Random(0)
    while (plan := study.ask()) is not None:
        study.tell(plan, elsewhere(study, plan, away.sample(list(TARGETS), away.randint(0, 4))))
    assert study.finished
    assert any(record.dropped for record in study.history)


# Watchers


def test_watchers_are_told_what_was_told(tmp_path):
    seen, settled = [], []
    study = prepare(store=tmp_path / "s", watch=seen.append)
    while (plan := study.ask()) is not None:
        study.tell(plan, work(study, plan))
        settled.append((plan.arm, plan.round + 1))
    assert [(e.record.arm, e.record.round) for e in seen if isinstance(e, Done)] == settled
    assert list(map(repr, seen)) == list(map(repr, Folder(tmp_path / "s").events()))
