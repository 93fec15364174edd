"""A study: its settings, what it spends, and its results."""

from __future__ import annotations

import io
import json
import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

import fedtuner as ft
import toys
from crashes import Evolving
from fedtuner.core.model import Hyper
from fedtuner.core.records import Choice, Job, Plan
from fedtuner.core.round import Round
from fedtuner.core.schedule import best, outline
from fedtuner.errors import FedtunerError, FedtunerWarning, SpecError
from fedtuner.rng import stream
from fedtuner.run import session as sessions
from fedtuner.run import watch
from fedtuner.run.store import Folder, InMemory
from fedtuner.run.watch import showing
from fedtuner.tuners import fedex

# Other tests may have left threads of libraries in this process; the workers do not use them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SCHEDULES = {
    "halving": toys.SCHEDULE,
    "halving with a tail": ft.halving(budget=33, longest=15, eta=3, eliminations=1),
    "random search": ft.random_search(budget=32, longest=6),
    "hyperband": ft.hyperband(budget=80, longest=8, eta=2),
    "one arm": ft.random_search(budget=4, longest=4),
    "children": Evolving(),
}


def score(study, arm, until):
    """What an arm is compared by after a round, and its tie-breaker."""
    return study.schedule.scoring.score(study.journal.records(arm, until), study.setup.target)


def rounds(study, arm):
    return study.journal.round_of(arm)


def winner(study):
    return study.winner[0]


@pytest.fixture(autouse=True)
def _every_status(monkeypatch):
    monkeypatch.setattr(watch, "_MOMENT", 0.0)


@pytest.fixture(scope="module")
def study():
    return toys.tune()


# The budget and the history


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_budget_is_never_exceeded(name, workers):
    schedule = SCHEDULES[name]
    statuses = []
    study = toys.tune(schedule=schedule, workers=workers, progress=statuses.append)
    cost = outline(schedule).cost
    assert study.rounds_used == cost <= schedule.budget
    assert all(s.planned == cost for s in statuses)
    assert [s.used for s in statuses] == sorted(s.used for s in statuses)
    assert statuses[0].used == 0
    assert statuses[-1].used == cost
    assert max(rounds(study, arm) for arm in study.journal.arms) == schedule.longest
    assert len(study.journal.arms) == outline(schedule).arms


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_history_is_tidy_and_in_order(name):
    study = toys.tune(schedule=SCHEDULES[name])
    history = study.history
    assert len(history) == study.rounds_used
    by_arm = defaultdict(list)
    for record in history:
        by_arm[record.arm].append(record.round)
    assert list(by_arm) == sorted(by_arm)
    for arm, met in by_arm.items():
        begun = (study.journal.arms[arm].parent or (0, 0))[1]
        assert met == list(range(begun + 1, rounds(study, arm) + 1))
    flat = [{k: v for k, v in vars(r).items() if k not in ("rows", "unusable")} for r in history]
    assert all(isinstance(v, (int, float)) for row in flat for v in row.values())
    assert all(row.keys() == flat[0].keys() for row in flat)


def test_a_record_tells_what_happened_in_its_round(study):
    for record in study.history:
        assert (record.clients, record.dropped, record.broken, record.diverged) == (3, 0, 0, False)
        assert record.validated > 0
        assert 0 <= record.entropy <= math.log(3) + 1e-12
        assert record.confidence == pytest.approx(1 / 3, abs=2 / 3)
        assert (record.error, record.loss) == (record.error_after, record.loss_after)
        assert len(record.rows) == 3
        assert sum(row.validated for row in record.rows) == record.validated
        assert sum(row.examples for row in record.rows) == record.examples
        after = sum(row.validated * row.error_after for row in record.rows) / record.validated
        assert record.error_after == pytest.approx(after, rel=1e-12)


def test_the_survivors_are_the_best_at_each_rung(study):
    first = {a: score(study, a, 5) for a in range(4)}
    survivors = {a for a in range(4) if rounds(study, a) == 10}
    assert survivors == set(best(first, 2))
    final = {a: score(study, a, 10) for a in survivors}
    assert winner(study) == best(final, 1)[0]
    out = study.journal.eliminated
    assert {a: (e.round, e.score) for a, e in out.items() if e.round == 5} == {
        a: (5, first[a]) for a in set(range(4)) - survivors
    }
    assert out.keys() == set(range(4)) - {winner(study)}


# The winner


def test_best_is_the_winner_with_all_its_parts(study):
    found, state, arm = study.best, study.state(study.winner), study.journal.arms[winner(study)]
    assert (found.arm, found.rounds) == study.winner == (winner(study), 10)
    assert found.score == study.journal.records(found.arm)[-1].error
    assert found.server == arm.server
    assert found.candidates == study.journal.candidates[arm.id]
    assert len(found.candidates) == len(found.theta) == 3
    assert found.theta.sum() == pytest.approx(1)
    assert found.client == found.candidates[int(np.argmax(found.theta))]
    assert found.model is state.w


def test_a_study_that_has_not_run_has_no_winner():
    study = unrun()
    assert study.rounds_used == study.local_work == 0
    assert study.history == []
    assert not study.finished
    with pytest.raises(SpecError, match="not finished, so it has no winner yet"):
        _ = study.best
    with pytest.raises(SpecError, match="no winner yet"):
        study.evaluate()


def unrun(**changed):
    settings = toys.settings(**changed)
    del settings["progress"]
    return ft.prepare(**settings)


def test_a_prepared_study_runs_when_it_is_told_to(study):
    prepared = unrun()
    assert prepared.run(False) is prepared
    assert prepared.finished
    assert prepared.history == study.history
    assert prepared.run(False).history == study.history  # again: nothing is done


def test_local_work_counts_what_clients_try(study):
    assert study.local_work == 30 * 3
    assert toys.tune(fedex=ft.FedEx(k=3, tries=2)).local_work == 30 * 3 * 2


def test_a_study_says_what_it_is(study):
    described = json.loads(json.dumps(study.describe(), allow_nan=False))
    assert described["method"] == "remembering"
    assert described["schedule"]["budget"] == 30
    assert described["problem"]["clients"] == 6
    assert described["tuner"]["k"] == 3


def test_a_state_can_be_asked_for_while_it_is_kept(study):
    assert study.state(study.winner).round == 10
    with pytest.raises(FedtunerError, match="after round 3 is no longer kept"):
        study.state((0, 3))
    for wrong in ("x", 3, (0, 1, 2), (0, "1")):
        with pytest.raises(SpecError, match=r"must be a pair \(arm, round\)"):
            study.state(wrong)


def test_a_seed_decides_everything():
    a, b, c = toys.tune(seed=5), toys.tune(seed=5), toys.tune(seed=6)
    assert a.history == b.history
    assert a.winner == b.winner
    assert a.best.model.tobytes() == b.best.model.tobytes()
    assert a.history != c.history


# Evaluation


def by_hand(study, split, config, metric):
    """The two errors from their definition: |split|-weighted means over all clients."""
    problem, arm, state = study.problem, study.journal.arms[winner(study)], study.state(study.winner)
    round, theta = Round(study.setup, problem), state.belief.theta
    before, after, counts = [], [], []
    for i, client in enumerate(problem.clients):
        data = problem.data(i, split)
        j = int(np.argmax(theta.p))
        if config == "sample":
            [j] = fedex.choose(theta, 1, stream(study.setup.seed, "evaluate", split, client.id))
        job = Job(i, (Choice(j, state.belief.candidates[j]),), state.memory.get(i, {}))
        plan = Plan(study.setup.seed, arm.id, state.round, split, arm.server, 0.0, state.w, state.slots, (job,))
        tuned = state.w + round.work(plan, job).change
        before.append(getattr(problem.task.evaluate(state.w, data), metric))
        after.append(getattr(problem.task.evaluate(tuned, data), metric))
        counts.append(len(data))
    return {"global": np.average(before, weights=counts), "personalized": np.average(after, weights=counts)}


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize("config", ["mode", "sample"])
@pytest.mark.parametrize("metric", ["error", "loss"])
def test_evaluation_is_what_it_says(study, split, config, metric):
    # The change is rounded to float32 in between, so losses differ in their last bits.
    assert study.evaluate(split, config, metric) == pytest.approx(by_hand(study, split, config, metric), rel=1e-6)


def test_sampled_configurations_are_not_the_mode():
    study = toys.tune(fedex=ft.FedEx(k=27, eps=1.0, cutoff=100.0))  # theta stays uniform
    assert study.best.theta.max() < 0.1
    assert (
        study.evaluate(metric="loss")["personalized"] != study.evaluate(config="sample", metric="loss")["personalized"]
    )
    assert study.evaluate(metric="loss")["global"] == study.evaluate(config="sample", metric="loss")["global"]


def test_fine_tuning_helps_here(study):
    assert study.evaluate("train", metric="loss")["personalized"] < study.evaluate("train", metric="loss")["global"]


@pytest.mark.parametrize("harm", [-0.1, 0.1])
def test_whether_fine_tuning_pays_is_read_from_the_last_rounds_that_somebody_validated(harm):
    study = toys.tune(fedex=None, schedule=ft.random_search(8, 8))
    own = study.journal.own_records[0]
    own[:5] = [replace(r, error_before=0.5, error_after=0.5 - harm) for r in own[:5]]
    own[5] = replace(own[5], error_before=0.5, error_after=0.5 + harm)
    own[6:] = [replace(r, error_before=math.nan, error_after=math.nan) for r in own[6:]]
    assert study.journal.fine_tuning_pays is (harm < 0)


def test_evaluations_are_kept_with_the_store(tmp_path, monkeypatch):
    study = toys.tune(store=tmp_path / "s")
    first = [study.evaluate(), study.evaluate("valid", "sample", "loss")]
    monkeypatch.setattr(sessions, "open_executor", pytest.fail)  # nothing is computed again
    for kept in (study, toys.tune(store=tmp_path / "s")):
        assert [kept.evaluate(), kept.evaluate("valid", "sample", "loss")] == first
        assert kept.evaluate(metric="loss").keys() == {"global", "personalized"}  # the other metric of the same one
    assert {(split, how) for _, split, how in study.journal.evaluated} == {("test", "mode"), ("valid", "sample")}


def test_evaluation_without_examples_is_nan(tmp_path):
    clients = [ft.Client(c.id, c.train, c.valid) for c in toys.clients()]
    study = toys.tune(problem=ft.Simulation(toys.Softmax(), clients), store=tmp_path / "s")
    again = toys.tune(problem=study.problem, store=tmp_path / "s")
    for one in (study, study, again):  # computed, then read
        with pytest.warns(FedtunerWarning, match="no client has test examples"):
            found = one.evaluate("test")
        assert all(math.isnan(v) for v in found.values())
    assert not math.isnan(study.evaluate("valid")["global"])


def test_an_evaluation_of_clients_some_of_whom_were_away_is_made_again(monkeypatch, study):
    study = toys.tune()
    monkeypatch.setattr(toys.ft.Simulation, "everyone", lambda self: range(4))
    assert study.evaluate()["missing"] == 2.0
    monkeypatch.undo()
    assert "missing" not in study.evaluate()
    monkeypatch.setattr(sessions, "open_executor", pytest.fail)
    assert study.evaluate() == study.evaluate()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"split": "tset"}, "split = 'tset', but must be one of .*did you mean 'test'"),
        ({"config": "modal"}, "config = 'modal', but must be one of .*did you mean 'mode'"),
        ({"metric": "eror"}, "metric = 'eror', but must be one of .*did you mean 'error'"),
        ({"split": 3}, "split = 3, but must be one of"),
    ],
)
def test_evaluation_refuses_what_it_does_not_know(study, arguments, said):
    with pytest.raises(SpecError, match=said):
        study.evaluate(**arguments)


# What is tuned


def test_with_and_without_fedex_the_arms_are_the_same():
    many, one, none = toys.tune(fedex=ft.FedEx(k=5)), toys.tune(fedex=ft.FedEx(k=1)), toys.tune(fedex=None)
    assert many.journal.arms == one.journal.arms == none.journal.arms
    for i in range(4):
        assert len(many.journal.candidates[i]) == 5
        first = many.journal.candidates[i][0]
        assert (first,) == one.journal.candidates[i] == none.journal.candidates[i]
    assert none.history == one.history
    assert none.best.theta.tolist() == [1.0]
    assert none.best.client == none.best.candidates[0]


def test_identical_candidates_are_a_plain_arm_to_the_bit():
    """eps = 0: whoever is chosen trains with the same configuration."""
    copies, plain = toys.tune(fedex=ft.FedEx(k=4, eps=0.0)), toys.tune(fedex=None)
    assert [(r.arm, r.round, r.loss, r.error) for r in copies.history] == [
        (r.arm, r.round, r.loss, r.error) for r in plain.history
    ]
    assert copies.best.model.tobytes() == plain.best.model.tobytes()


def test_arms_differ_and_stay_within_the_space(study):
    drawn = [study.journal.arms[i] for i in range(4)]
    assert len({json.dumps(a.server) for a in drawn}) == 4
    for arm in drawn:
        assert all(arm.server[name] in domain for name, domain in toys.SPACE.server.items())
        for candidate in study.journal.candidates[arm.id]:
            assert all(candidate[name] in domain for name, domain in toys.SPACE.client.items())
            assert candidate["epochs"] == 1  # not named: the method's default


def test_the_space_is_by_default_the_methods_and_the_models():
    task = toys.Softmax(hyperparameters={"heat": Hyper(ft.Float(0.0, 0.5), 0.25, about="how hot")})
    study = toys.tune(problem=ft.Simulation(task, toys.clients()), space=None, method=ft.methods.fedavg)
    assert {"lr", "momentum", "weight_decay", "epochs", "batch", "heat"} <= set(study.best.client)
    assert 0.0 <= study.best.client["heat"] <= 0.5
    assert {"lr", "momentum", "gamma"} <= set(study.best.server)


def spy_on_plans(monkeypatch):
    planned = []
    really = Round.plan

    def plan(*args):
        planned.append(really(*args))
        return planned[-1]

    monkeypatch.setattr(Round, "plan", plan)
    return planned


@pytest.mark.parametrize("cohorts", ["shared", "independent"])
def test_shared_cohorts_are_the_same_for_all_arms(monkeypatch, cohorts):
    planned = spy_on_plans(monkeypatch)
    toys.tune(cohorts=cohorts)
    met = defaultdict(dict)
    for plan in planned:
        met[plan.round][plan.arm] = [job.client for job in plan.jobs]
    assert all(len(set(cohort)) == 3 for by_arm in met.values() for cohort in by_arm.values())
    same = [len({tuple(cohort) for cohort in by_arm.values()}) == 1 for by_arm in met.values()]
    assert all(same) if cohorts == "shared" else not all(same)
    assert len({tuple(by_arm[min(by_arm)]) for by_arm in met.values()}) > 1  # but other clients in other rounds


def test_the_targets_are_one_run_read_in_two_ways():
    schedule = ft.random_search(budget=24, longest=6)  # nobody is eliminated: the runs are the same
    ours, theirs = (toys.tune(schedule=schedule, target=t) for t in ("personalized", "global"))
    for a, b in zip(ours.history, theirs.history, strict=True):
        assert (a.error_before, a.loss_before, a.error_after, a.loss_after) == (
            b.error_before, b.loss_before, b.error_after, b.loss_after,
        )  # fmt: skip
        assert (a.error, a.loss) == (a.error_after, a.loss_after)
        assert (b.error, b.loss) == (b.error_before, b.loss_before)


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("metric", ["error", "loss"])
def test_arms_are_compared_by_the_discounted_score(discount, metric):
    study = toys.tune(schedule=ft.random_search(24, 6, discount=discount, score=metric))
    expected = {}
    for arm in study.journal.arms:
        records = study.journal.records(arm)
        weights = [discount ** (6 - r.round) for r in records]  # 0 ** 0 is 1: the last round alone
        expected[arm] = np.average([getattr(r, metric) for r in records], weights=weights)
        other = "loss" if metric == "error" else "error"
        tie = np.average([getattr(r, other) for r in records], weights=weights)
        assert score(study, arm, 6) == pytest.approx((expected[arm], tie))
    assert winner(study) == min(expected, key=expected.get)
    assert study.best.score == pytest.approx(min(expected.values()))


def test_a_score_does_not_look_ahead(study):
    fifth = study.journal.records(winner(study))[4]
    assert score(study, winner(study), 5) == (fifth.error, fifth.loss)


# What goes wrong


def test_a_diverged_arm_spends_no_more_rounds(tmp_path):
    space = ft.Space(client={"lr": 0.5}, server={"lr": ft.Choice([1.0, 3e38]), "momentum": 0.0})
    statuses = []
    study = toys.tune(space=space, store=tmp_path / "s", schedule=ft.random_search(40, 5), progress=statuses.append)
    diverged = sorted(study.journal.ended)
    assert set(study.journal.ended.values()) == {"diverged"}
    assert 0 < len(diverged) < 8
    assert diverged == [a for a in range(8) if study.journal.arms[a].server["lr"] > 1.0]
    for arm in diverged:
        records = study.journal.records(arm)
        assert [r.diverged for r in records][-1:] == [True]
        assert not any(r.diverged for r in records[:-1])
        assert len(records) < 5
        assert math.isinf(score(study, arm, 5)[0])
    assert winner(study) not in diverged
    assert study.rounds_used == sum(rounds(study, arm) for arm in range(8)) < 40
    assert statuses[-1].used == statuses[-1].planned == study.rounds_used  # what they would have used is not awaited


@pytest.mark.parametrize("workers", [1, 2])
def test_if_every_arm_diverges_the_study_says_so(tmp_path, workers):
    statuses = []
    study = toys.tune(space=toys.DIVERGING, store=tmp_path / "s", progress=statuses.append, workers=workers)
    assert winner(study) == 0  # of equals the first
    assert study.best.score == math.inf
    assert study.journal.ended.keys() == {0, 1, 2, 3}
    assert study.rounds_used < 12
    assert statuses[-1].used == statuses[-1].planned == study.rounds_used
    assert set(study.evaluate("test")) == {"global", "personalized"}  # defined: the worst error
    assert study.evaluate("test")["global"] == 1.0


def test_a_continued_study_does_not_await_diverged_arms(tmp_path):
    def stop(status):
        if status.used == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        toys.tune(space=toys.DIVERGING, store=tmp_path / "s", progress=stop)
    statuses = []
    study = toys.tune(space=toys.DIVERGING, store=tmp_path / "s", progress=statuses.append)
    assert statuses[-1].used == statuses[-1].planned == study.rounds_used


def test_clients_without_examples_are_ordinary():
    few = [ft.Client("empty", None, None), *toys.clients(3), ft.Client("no validation", toys.clients(1)[0].train, None)]
    study = toys.tune(problem=ft.Simulation(toys.Softmax(), few))
    assert study.rounds_used == 30
    assert all(math.isfinite(r.loss) or r.validated == 0 for r in study.history)


# The default to beat


@pytest.mark.slow
def test_untuned_is_the_default_for_all_rounds(tmp_path):
    study = toys.tune(store=tmp_path / "s", method=ft.methods.fedavg)
    default = ft.untuned(study, progress=False)
    assert default.rounds_used == default.best.rounds == 30
    short = ft.untuned(toys.tune(method=ft.methods.fedavg), progress=False, rounds=10)
    assert short.history == default.history[:10]
    assert default.evaluate("test", rounds=10) == short.evaluate("test")
    assert default.best.client == {n: h.default for n, h in ft.methods.fedavg.client.items()}
    assert default.best.server == {n: h.default for n, h in ft.methods.fedavg.server.items()}
    assert default.path == tmp_path / "s" / "untuned"
    assert (tmp_path / "s" / "untuned" / "journal.jsonl").exists()
    again = ft.untuned(study, progress=False)
    assert again.history == default.history
    assert again.best.model.tobytes() == default.best.model.tobytes()
    assert ft.untuned(toys.tune(method=ft.methods.fedavg), progress=False).history == default.history


def test_untuned_has_the_studys_settings():
    same = {"seed": 7, "cohort": 2, "target": "global", "cohorts": "shared", "weights": "shared", "cooling": 0.5}
    setup = ft.untuned(toys.tune(**same), progress=False).setup
    assert {name: getattr(setup, name) for name in same} == same


# Where it is kept


def test_a_store_may_be_given_as_an_object(tmp_path, study):
    kept, memory = Folder(tmp_path / "s"), InMemory()
    for store in (kept, memory):
        assert toys.tune(store=store).history == study.history
        assert store.exists()
        again = toys.tune(store=store, progress=pytest.fail)  # it is finished
        assert again.best.model.tobytes() == study.best.model.tobytes()
    assert toys.tune(store=kept).path == tmp_path / "s"
    assert toys.tune(store=memory).path is None


def test_an_executor_of_ones_own_does_the_work(study):
    from fedtuner.run.executors import Serial

    opened = []

    def mine(round, blobs, workers):
        opened.append(workers)
        return Serial(round, blobs)

    assert toys.tune(executor=mine, workers=5).history == study.history
    assert opened == [5]


# Bad arguments


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"problem": toys.clients()}, "problem is list, but must be a Simulation"),
        ({"method": 3}, "method = 3, but must be a Method such as fedtuner.methods.fedavg"),
        ({"workers": 0}, "workers = 0, but must be a whole number >= 1"),
        ({"workers": 1.5}, "workers = 1.5, but must be a whole number"),
        ({"workers": True}, "workers = True, but must be a whole number"),
        ({"cohort": 7}, "cohort = 7, but the problem has 6 clients: lower cohort"),
        ({"cohort": 0}, "cohort = 0, but must be a whole number >= 1"),
        ({"cohort": "3"}, "cohort = '3', but must be a whole number"),
        ({"seed": 0.5}, "seed = 0.5, but must be a whole number"),
        ({"target": "personalised"}, "target = 'personalised', .*did you mean 'personalized'"),
        ({"cohorts": "sharde"}, "cohorts = 'sharde', .*did you mean 'shared'"),
        ({"space": ft.Space(client={"leraning_rate": 0.1})}, "no client hyperparameter 'leraning_rate'.*mean 'lr'"),
        ({"space": ft.Space(client={"lr": -0.1})}, "client.lr = -0.1, but must be >= 0"),
        ({"space": ft.Space(server={"momentum": [0.0, 1.5]})}, "server.momentum = 1.5, but must be <= 1"),
        ({"space": ft.Space(client={"epochs": 1.5})}, "client.epochs = 1.5, but must be a whole number"),
        ({"space": ft.Space(client={"dropout": 0.5})}, "the model has no dropout layer"),
    ],
    ids=lambda value: "-".join(f"{k}" for k in value) if isinstance(value, dict) else "",
)
def test_bad_arguments_are_refused_before_any_work(tmp_path, changed, said):
    with pytest.raises(FedtunerError, match=said):
        toys.tune(store=tmp_path / "s", **changed)
    assert not (tmp_path / "s").exists()


def test_data_that_is_not_finite_is_refused():
    clients = toys.clients()
    clients[0].train[0][0] = np.nan
    with pytest.raises(FedtunerError, match="loss on client 'phone0' is nan: are there NaN"):
        toys.tune(problem=ft.Simulation(toys.Softmax(), clients))


# What is shown


def test_statuses_tell_the_way(study):
    statuses = []
    toys.tune(progress=statuses.append)
    assert statuses[0].alive == 4
    assert statuses[-1].alive == 2
    assert all(s.arms == 4 for s in statuses)
    assert [s.used for s in statuses] == [0, *range(1, 21), 20, *range(21, 31)]  # before and after each round
    assert statuses[0].best is None
    assert statuses[0].left is None
    assert statuses[-1].best <= study.best.score
    assert statuses[-1].left == 0.0
    assert all(s.left >= 0 for s in statuses[1:])


@pytest.mark.parametrize("workers", [1, 2])
def test_statuses_are_not_made_for_every_round(monkeypatch, workers):
    """Of rounds that take less than a moment the first and the last are shown."""
    monkeypatch.setattr(watch, "_MOMENT", 1000.0)
    statuses = []
    toys.tune(progress=statuses.append, workers=workers)
    assert [(s.used, s.planned) for s in statuses] == [(0, 30), (30, 30)]


@pytest.mark.parametrize("mode", [None, False])
def test_without_a_terminal_nothing_is_shown_unasked(capsys, mode):
    toys.tune(progress=mode)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_lines_are_shown_when_asked(capsys):
    toys.tune(progress=True)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[0].startswith("tuning: 0/30 rounds, 4 of 4 arms alive, ? left")
    assert lines[-1].startswith("tuning: 30/30 rounds, 2 of 4 arms alive, best personalized error ")
    assert len([line for line in lines if "30/30" in line]) == 1


def test_a_reader_of_lines_that_goes_away_does_not_stop_the_study():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    with showing(True, out=Gone()) as show:
        study = toys.tune(progress=show)
    assert study.rounds_used == 30


@pytest.mark.parametrize("name", ["evaluate", "extend", "resume_winner", "retrain"])
def test_what_reopened_results_cannot_do_says_how_to_get_it(tmp_path, name):
    store = tmp_path / "s"
    study = toys.tune(store=store, schedule=ft.random_search(2, 1), fedex=None)
    assert callable(getattr(study, name))
    with pytest.raises(
        AttributeError, match=rf"{name}\(\) needs the problem's clients. Call ft.tune\(problem, ..., store="
    ):
        getattr(ft.load(store), name)
    with pytest.raises(AttributeError, match=r"has no attribute 'evaluat'$"):
        _ = ft.load(store).evaluat


def test_a_range_that_no_optimiser_reads_is_told():
    beta = {"beta2": ft.Float(0.9, 0.99)}
    given = {"method": ft.methods.fedavg, "fedex": None, "schedule": ft.random_search(2, 1)}
    with pytest.warns(
        FedtunerWarning, match=r"server\.beta2 is searched, but server\.optimiser = sgd does not .*\(adam"
    ):
        toys.tune(space=ft.Space({"lr": 0.1}, beta), **given)
    for optimiser in ("adam", ["sgd", "adam"]):
        toys.tune(space=ft.Space({"lr": 0.1}, {**beta, "optimiser": optimiser}), **given)
    toys.tune(space=ft.Space({"lr": ft.Float(0.1, 0.2)}, {"beta2": 0.95}), **given)
