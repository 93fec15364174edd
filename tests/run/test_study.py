"""The driver: what a study is told, what it spends, and what it says at its end."""

from __future__ import annotations

import io
import json
import math
from collections import defaultdict

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner import arm as arms
from fedtuner import fedex, schedules
from fedtuner.errors import FedtunerError, SpecError
from fedtuner.methods.base import Job
from fedtuner.progress import showing
from fedtuner.rng import stream
from fedtuner.task import Hyper

# Other tests may have left threads of libraries in this process; the workers do not use them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SCHEDULES = {
    "halving": toys.SCHEDULE,
    "halving with a tail": ft.halving(budget=33, longest=15, eta=3, eliminations=1),
    "random search": ft.random_search(budget=32, longest=6),
    "hyperband": ft.hyperband(budget=80, longest=8, eta=2),
    "one arm": ft.random_search(budget=4, longest=4),
}


@pytest.fixture(scope="module")
def study():
    return toys.tune()


# The budget and the history


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_budget_is_never_exceeded(name, workers):
    schedule = SCHEDULES[name]
    statuses = []
    study = toys.tune(schedule=schedule, workers=workers, progress=statuses.append)
    assert study.rounds_used == schedule.cost <= schedule.budget
    assert max(s.used for s in statuses) == study.rounds_used
    assert all(s.planned == schedule.cost for s in statuses)
    assert max(state.round for state in study.states.values()) == schedule.longest
    assert len(study.states) == schedule.arms


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_history_is_tidy_and_in_order(name):
    study = toys.tune(schedule=SCHEDULES[name])
    history = study.history
    assert len(history) == study.rounds_used
    by_arm = defaultdict(list)
    for record in history:
        by_arm[record.arm].append(record.round)
    assert list(by_arm) == sorted(by_arm)
    for arm, rounds in by_arm.items():
        assert rounds == list(range(1, study.states[arm].round + 1))
    flat = [r.__dict__ for r in history]
    assert all(isinstance(v, (int, float)) for row in flat for v in row.values())
    assert all(row.keys() == flat[0].keys() for row in flat)


def test_a_record_tells_what_happened_in_its_round(study):
    for record in study.history:
        assert (record.clients, record.dropped, record.broken, record.diverged) == (3, 0, 0, False)
        assert record.validated > 0
        assert 0 <= record.entropy <= math.log(3) + 1e-12
        assert record.confidence == pytest.approx(1 / 3, abs=2 / 3)
        assert (record.error, record.loss) == (record.error_after, record.loss_after)


def test_the_survivors_are_the_best_at_each_rung(study):
    first = {a: study.score(a, 5) for a in range(4)}
    survivors = {a for a, s in study.states.items() if s.round == 10}
    assert survivors == set(schedules.best(first, 2))
    final = {a: study.score(a, 10) for a in survivors}
    assert study.winner == schedules.best(final, 1)[0]


# The winner


def test_best_is_the_winner_with_all_its_parts(study):
    best, state, arm = study.best, study.states[study.winner], study.arm(study.winner)
    assert (best.arm, best.rounds) == (study.winner, 10)
    assert best.score == study.history[-1].error or best.score == study.records[best.arm][-1].error
    assert best.server == arm.server
    assert best.candidates == arm.candidates
    assert len(best.candidates) == len(best.theta) == 3
    assert best.theta.sum() == pytest.approx(1)
    assert best.client == best.candidates[int(np.argmax(best.theta))]
    assert best.model is state.w


def test_a_study_that_has_not_run_has_no_winner():
    study = unrun()
    assert study.rounds_used == 0
    assert study.history == []
    with pytest.raises(SpecError, match="not finished, so it has no winner yet"):
        _ = study.best
    with pytest.raises(SpecError, match="no winner yet"):
        study.evaluate()


def unrun(**changed):
    settings = toys.settings(target="personalized", seed=0, store=None, cohorts="independent", **changed)
    del settings["progress"]
    return ft.tuning.prepare(**settings)


def test_the_result_is_plain_and_complete(study):
    result = json.loads(json.dumps(study.result(), allow_nan=False))
    assert result["rounds_used"] == 30
    assert result["budget"] == 30
    assert result["diverged"] == []
    assert result["candidates"][int(np.argmax(result["theta"]))] == result["client"]
    assert result["server"] == dict(study.best.server)


def test_a_seed_decides_everything():
    a, b, c = toys.tune(seed=5), toys.tune(seed=5), toys.tune(seed=6)
    assert a.history == b.history
    assert a.result() == b.result()
    assert a.history != c.history


# Evaluation


def by_hand(study, split, config, metric):
    """The two errors from their definition: |split|-weighted means over all clients."""
    problem, arm, state = study.problem, study.arm(study.winner), study.states[study.winner]
    before, after, counts = [], [], []
    for i, client in enumerate(problem.clients):
        data = problem.data(i, split)
        j = int(np.argmax(state.belief.theta))
        if config == "sample":
            [j] = fedex.choose(state.belief, 1, stream(study.setting.seed, "evaluate", split, client.id))
        job = Job(
            study.setting.seed, arm.id, state.round, i, j, arm.candidates[j], arm.server, state.w, state.slots,
            state.memory.get(i, {}), split,
        )  # fmt: skip
        tuned = arms.work(study.setting.method, problem, job).update.w
        before.append(getattr(problem.task.evaluate(state.w, data), metric))
        after.append(getattr(problem.task.evaluate(tuned, data), metric))
        counts.append(len(data))
    return {"global": np.average(before, weights=counts), "personalized": np.average(after, weights=counts)}


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize("config", ["mode", "sample"])
@pytest.mark.parametrize("metric", ["error", "loss"])
def test_evaluation_is_what_it_says(study, split, config, metric):
    assert study.evaluate(split, config, metric) == pytest.approx(by_hand(study, split, config, metric), rel=1e-12)


def test_sampled_configurations_are_not_the_mode():
    study = toys.tune(fedex=ft.FedEx(k=27, eps=1.0, cutoff=100.0))  # theta stays uniform
    assert study.best.theta.max() < 0.1
    assert (
        study.evaluate(metric="loss")["personalized"] != study.evaluate(config="sample", metric="loss")["personalized"]
    )
    assert study.evaluate(metric="loss")["global"] == study.evaluate(config="sample", metric="loss")["global"]


def test_fine_tuning_helps_here(study):
    assert study.evaluate("train", metric="loss")["personalized"] < study.evaluate("train", metric="loss")["global"]


def test_evaluations_are_kept_with_the_store(tmp_path, monkeypatch):
    study = toys.tune(store=tmp_path / "s")
    first = [study.evaluate(), study.evaluate("valid", "sample", "loss")]
    kept = json.loads((tmp_path / "s" / "evaluations.json").read_text())
    assert kept == {"test mode error": first[0], "valid sample loss": first[1]}
    monkeypatch.setattr(ft.study, "open_executor", pytest.fail)  # nothing is computed again
    again = toys.tune(store=tmp_path / "s")
    assert [again.evaluate(), again.evaluate("valid", "sample", "loss")] == first


def test_evaluation_without_examples_is_nan(tmp_path):
    clients = [ft.Client(c.id, c.train, c.valid) for c in toys.clients()]
    study = toys.tune(problem=ft.Simulation(toys.Softmax(), clients), store=tmp_path / "s")
    for _ in range(2):  # computed, then read
        assert all(math.isnan(v) for v in study.evaluate("test").values())
    json.loads((tmp_path / "s" / "evaluations.json").read_text(), parse_constant=pytest.fail)
    assert not math.isnan(study.evaluate("valid")["global"])


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
    for i in range(4):
        assert many.arm(i).server == one.arm(i).server == none.arm(i).server
        assert many.arm(i).candidates[0] == one.arm(i).candidates[0] == none.arm(i).candidates[0]
        assert len(many.arm(i).candidates) == 5
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
    drawn = [study.arm(i) for i in range(4)]
    assert len({json.dumps(a.server) for a in drawn}) == 4
    for arm in drawn:
        assert all(arm.server[name] in domain for name, domain in toys.SPACE.server.items())
        for candidate in arm.candidates:
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
    really = arms.plan

    def plan(*args):
        jobs = really(*args)
        planned.extend(jobs)
        return jobs

    monkeypatch.setattr(arms, "plan", plan)
    return planned


@pytest.mark.parametrize("cohorts", ["shared", "independent"])
def test_shared_cohorts_are_the_same_for_all_arms(monkeypatch, cohorts):
    planned = spy_on_plans(monkeypatch)
    toys.tune(cohorts=cohorts)
    met = defaultdict(lambda: defaultdict(list))
    for job in planned:
        met[job.round][job.arm].append(job.client)
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
@pytest.mark.parametrize("score", ["error", "loss"])
def test_arms_are_compared_by_the_discounted_score(discount, score):
    study = toys.tune(schedule=ft.random_search(24, 6, discount=discount, score=score))
    expected = {}
    for arm, records in study.records.items():
        weights = [discount ** (6 - r.round) for r in records]  # 0 ** 0 is 1: the last round alone
        expected[arm] = np.average([getattr(r, score) for r in records], weights=weights)
        other = "loss" if score == "error" else "error"
        tie = np.average([getattr(r, other) for r in records], weights=weights)
        assert study.score(arm, 6) == pytest.approx((expected[arm], tie))
    assert study.winner == min(expected, key=expected.get)
    assert study.best.score == pytest.approx(min(expected.values()))


def test_a_score_does_not_look_ahead(study):
    winner = study.winner
    assert study.score(winner, 5) == (study.records[winner][4].error, study.records[winner][4].loss)


# What goes wrong


def test_a_diverged_arm_spends_no_more_rounds(tmp_path):
    space = ft.Space(client={"lr": 0.5}, server={"lr": ft.Choice([1.0, 3e38]), "momentum": 0.0})
    statuses = []
    study = toys.tune(space=space, store=tmp_path / "s", schedule=ft.random_search(40, 5), progress=statuses.append)
    diverged = [a for a, s in study.states.items() if s.diverged]
    assert 0 < len(diverged) < 8
    assert diverged == [a for a in range(8) if study.arm(a).server["lr"] > 1.0]
    for arm in diverged:
        assert [r.diverged for r in study.records[arm]][-1:] == [True]
        assert len(study.records[arm]) < 5
        assert math.isinf(study.score(arm, 5)[0])
    assert study.winner not in diverged
    assert study.result()["diverged"] == diverged
    assert study.rounds_used == sum(len(r) for r in study.records.values()) < 40
    assert statuses[-1].used == statuses[-1].planned == study.rounds_used  # what they would have used is not awaited


def test_if_every_arm_diverges_the_study_says_so(tmp_path):
    statuses = []
    study = toys.tune(space=toys.DIVERGING, store=tmp_path / "s", progress=statuses.append)
    assert study.winner == 0  # of equals the first
    assert study.best.score == math.inf
    assert all(state.diverged for state in study.states.values())
    assert study.rounds_used < 12
    assert statuses[-1].used == statuses[-1].planned == study.rounds_used
    result = json.loads((tmp_path / "s" / "result.json").read_text(), parse_constant=pytest.fail)
    assert result["score"] == "inf"
    assert result["diverged"] == [0, 1, 2, 3]
    assert set(study.evaluate("test")) == {"global", "personalized"}  # defined: the worst error
    assert study.evaluate("test")["global"] == 1.0


def test_a_continued_study_does_not_await_diverged_arms(tmp_path):
    toys.tune(space=toys.DIVERGING, store=tmp_path / "s")
    (tmp_path / "s" / "arms" / "3.safetensors").unlink()
    statuses = []
    study = toys.tune(space=toys.DIVERGING, store=tmp_path / "s", progress=statuses.append)
    assert statuses[-1].used == statuses[-1].planned == study.rounds_used


def test_clients_without_examples_are_ordinary():
    few = [ft.Client("empty", None, None), *toys.clients(3), ft.Client("no validation", toys.clients(1)[0].train, None)]
    study = toys.tune(problem=ft.Simulation(toys.Softmax(), few))
    assert study.rounds_used == 30
    assert all(math.isfinite(r.loss) or r.validated == 0 for r in study.history)


# The default to beat


def test_untuned_is_the_default_for_as_long_as_the_longest_arm(tmp_path):
    study = toys.tune(store=tmp_path / "s", method=ft.methods.fedavg)
    default = ft.untuned(study, progress=False)
    assert default.rounds_used == default.best.rounds == 10
    assert default.best.client == {n: h.default for n, h in ft.methods.fedavg.client.items()}
    assert default.best.server == {n: h.default for n, h in ft.methods.fedavg.server.items()}
    assert default.path == tmp_path / "s" / "untuned"
    assert (tmp_path / "s" / "untuned" / "result.json").exists()
    again = ft.untuned(study, progress=False)
    assert again.result() == default.result()
    assert ft.untuned(toys.tune(method=ft.methods.fedavg), progress=False).history == default.history


def test_untuned_has_the_studys_setting():
    study = toys.tune(seed=7, cohort=2, target="global", cohorts="shared")
    setting = ft.untuned(study, progress=False).setting
    assert (setting.seed, setting.cohort, setting.target, setting.cohorts) == (7, 2, "global", "shared")


# Bad arguments


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"problem": toys.clients()}, "problem is list, but must be a Simulation"),
        ({"method": "fedavg"}, "method = 'fedavg', but must be a Method such as fedtuner.methods.fedavg"),
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
    assert statuses[0].best is None
    assert statuses[-1].best == study.best.score
    assert statuses[-1].left == 0.0


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
    assert lines[0].startswith("tuning: 0/30 rounds, 4 of 4 arms alive, best -, ? left")
    assert lines[-1].startswith("tuning: 30/30 rounds, 2 of 4 arms alive, best 0.")
    assert len([line for line in lines if "30/30" in line]) == 1


def test_a_reader_of_lines_that_goes_away_does_not_stop_the_study():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    with showing(True, out=Gone()) as show:
        study = toys.tune(progress=show)
    assert study.rounds_used == 30
