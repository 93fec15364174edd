"""``tune(problem, budget=...)``: what is chosen for a budget, and what is left as it is given."""

import signal

import pytest

import fedtuner as ft
import toys
from crashes import assert_same
from fedtuner import methods
from fedtuner.core.records import Arm
from fedtuner.errors import FedtunerWarning, Interrupted, SpecError
from fedtuner.report import show
from fedtuner.run import spec, watch
from fedtuner.run.auto import guess
from fedtuner.run.study import searched_in_words
from fedtuner.schedules import Duel
from fedtuner.schedules.long_run import SmallerStep
from fedtuner.space import Choice, Float, Int, PowerOfTwo, Space


def interrupt_at(n):
    """A progress that presses Ctrl-C once n rounds are done."""

    def show(status):
        if status.used >= n:
            signal.raise_signal(signal.SIGINT)

    return show


def prepared(budget=100, problem=None, **more):
    recipe = {} if "recipe" in more else {"budget": budget}
    return ft.prepare(problem or toys.problem(), cohort=more.pop("cohort", 3), **recipe, **more).setup


def arms(setup, n=None):
    n = setup.schedule.arms if n is None else n
    return [setup.sampler.propose(setup.space, setup.seed, id, 0, ()) for id in range(n)]


def test_what_a_budget_means():
    setup = prepared(500)
    assert setup.schedule == Duel(500, 9, default_optimiser="sgd")
    assert (setup.cohorts, setup.weights, setup.cooling) == ("shared", "shared", 0.5)
    assert setup.tuner.labels == 1
    assert setup.method.server["optimiser"].default == "fedexp"
    assert set(setup.space.client) == {"lr", "epochs", "batch"}
    assert not setup.space.server


@pytest.mark.slow
def test_the_first_arm_is_the_default_and_the_others_are_around_it():
    setup = prepared(500)
    first, *rest = arms(setup)
    assert first == ({}, {})
    rates = sorted(client["lr"] for client, _ in rest)
    assert rates[0] >= 0.1 / 10**1.5
    assert rates[-1] <= 1.0
    assert len({client["epochs"] for client, _ in rest}) == 5
    started = ft.prepare(toys.problem(), budget=100, cohort=3).run(progress=False).journal.arms
    assert started[0].client == {name: hyper.default for name, hyper in methods.fedavg.client.items()}


@pytest.mark.parametrize("method", methods.ALL.values(), ids=lambda m: m.name)
def test_every_method(method):
    setup = prepared(method=method)
    varied = {name for name, hyper in method.client.items() if hyper.role in ("step", "work", "batch") and hyper.domain}
    assert set(setup.space.client) == varied
    assert "lr" in varied
    plain = method.name not in ("feddyn", "maml")
    assert (setup.method.server["optimiser"].default == "fedexp") == plain


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.ALL.values(), ids=lambda m: m.name)
def test_every_method_runs_and_ends_with_numbers(method):
    pytest.importorskip("torch")
    problem = spec.load_problem("digits")
    study = ft.tune(problem, budget=70, method=method, progress=False)
    assert study.rounds_used == 70
    assert study.evaluate("test")["global"] < 0.5  # chance is 0.9


@pytest.mark.slow
def test_the_bits_do_not_depend_on_workers_or_on_a_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "_MOMENT", 0.0)  # every round is shown, and may be the last

    def study(name, workers=1):
        return ft.prepare(toys.problem(), budget=70, cohort=3, workers=workers, store=tmp_path / name)

    study("one").run(progress=False)
    study("two", workers=2).run(progress=False)
    assert_same(tmp_path / "two", tmp_path / "one")
    for rounds in (2, 20, 50, 69):  # in the rung, the duel, the run and the last rounds, once more
        with pytest.raises(Interrupted):
            study(f"stopped{rounds}").run(progress=interrupt_at(rounds))
        study(f"stopped{rounds}").run(progress=False)
        assert_same(tmp_path / f"stopped{rounds}", tmp_path / "one")


@pytest.mark.slow
def test_the_untuned_default_is_as_the_user_has_it():
    study = ft.tune(toys.problem(), budget=70, cohort=3, progress=False)
    default = ft.untuned(study, progress=False)
    assert default.rounds_used == 70
    assert default.best.server["optimiser"] == "sgd"
    assert default.setup.cooling == 0
    assert default.best.client == {name: hyper.default for name, hyper in methods.fedavg.client.items()}
    own = ft.prepare(toys.problem(), budget=10, cohort=3, include=[{"client": {"lr": 0.5}}])
    assert ft.untuned(own, progress=False).best.client == {**default.best.client, "lr": 0.5}


def test_the_result_is_fine_tuned_with_a_smaller_step_where_clients_end_better(tmp_path):
    """The winner is the model of the long run; its last round had a third of its step."""
    large = [{"client": {"lr": 1.0, "epochs": 3}}]
    study = ft.tune(toys.problem(), budget=60, cohort=3, include=large, progress=False, store=tmp_path / "study")
    run, again, winner = study.journal.arms.values()
    assert (again.parent, winner.parent) == ((run.id, 53), (run.id, 56))
    assert study.winner == (winner.id, 57)
    assert study.rounds_used == 60
    assert study.best.client["lr"] == again.client["lr"] == pytest.approx(run.client["lr"] / 3)
    loaded = ft.load(tmp_path / "study")
    assert (loaded.best.arm, loaded.best.client) == (winner.id, study.best.client)
    # What trains a model is the step that trained this one.
    assert study.retrain(3, progress=False).best.client == run.client
    warm = ft.prepare(toys.problem(), budget=60, cohort=3, start_from=study).setup.sampler
    assert warm.configs[0]["client"] == run.client
    # Whether fine-tuning pays is read from the rounds that had the smaller step.
    known = [*study.journal.own_records[again.id], *study.journal.own_records[winner.id]]
    assert len(known) == 4
    assert study.best.fine_tune is (sum(r.error_after for r in known) <= sum(r.error_before for r in known))
    patient = ft.tune(toys.problem(), budget=60, cohort=3, include=large, patience=500, progress=False)
    assert patient.best.client == study.best.client
    assert patient.found(3)["sampler"].configs[0]["client"] == run.client
    longer = study.extend(70, progress=False)
    assert longer.best.client == run.client
    assert longer.winner[1] == 67


def test_examples_processed_count_every_pass():
    space = Space({"epochs": 3})
    study = ft.tune(toys.problem(), space, fedex=None, schedule=ft.random_search(2, 2), cohort=3, progress=False)
    assert study.examples_processed == 3 * sum(row.examples for r in study.history for row in r.rows) > 0


def test_all_configurations_that_are_included_are_arms():
    """Beside a sampler of one's own too, and where the budget alone would search nothing."""
    include = [{"client": {"lr": lr}} for lr in (0.1, 0.5, 0.7, 0.9)]
    for more in ({}, {"sampler": ft.samplers.uniform}):
        for budget in (60, 68, 200):
            setup = prepared(budget, include=include, **more)
            assert setup.schedule.arms >= 4
            assert [client["lr"] for client, _ in arms(setup, 4)] == [0.1, 0.5, 0.7, 0.9]
    assert prepared(200, space=Space(), include=include[:2]).schedule.arms == 2
    assert prepared(recipe=ft.auto(200, arms=3), space=Space(), include=include[:2]).schedule.arms == 2
    with pytest.raises(SpecError, match=r"include has 4 configurations, but arms = 3: raise arms"):
        prepared(recipe=ft.auto(100, arms=3), include=include)


def test_the_default_trains_as_without_a_search_by_the_servers_own_learning_rate():
    assert prepared(method="reptile").schedule.default_lr == methods.reptile.server["lr"].default == 0.5


@pytest.mark.parametrize(
    ("space", "step"),
    [
        ({"lr_schedule": ["cosine", "constant"], "lr": Float(0.001, 1, log=True)}, "lr"),
        ({"sample_rate": Float(0.1, 1.0), "learning_rate": Float(0.001, 1, log=True)}, "learning_rate"),
        ({"step_size": Int(1, 5), "lr": [0.01, 0.1]}, "lr"),
        ({"iterates": Int(1, 5), "epochs": Int(1, 5)}, ""),
    ],
)
def test_the_step_is_a_step_size_that_is_a_real_number(space, step):
    model = ft.Outside({"w": [[0.0, 0.0]]}, clients=4)
    setup = prepared(problem=model, space=Space(space), include=[{}])
    assert setup.schedule.step == step
    assert setup.schedule.last == (3 if step else 0)


@pytest.mark.parametrize("lr", [2, 2.0, [2]])
def test_a_whole_number_may_be_a_step_size(lr):
    assert prepared(space=Space({"lr": lr})).schedule.step == "lr"


def test_a_budget_that_is_too_small_for_what_is_included_says_so():
    include = [{}, {"client": {"lr": 0.1}}]
    assert prepared(20, include=include).schedule.arms == 2
    with pytest.raises(SpecError, match=r"cannot give the 2 configurations of include .* to 20 or more, or include f"):
        prepared(15, include=include)


def test_adam_by_the_rate_of_sgd_is_told():
    space = Space({"optimiser": "adam"})
    with pytest.warns(FedtunerWarning, match=r"is SGD's: give yours, include=\[{'client': {'lr': 0.001}}\]"):
        prepared(space=space)
    with pytest.warns(FedtunerWarning, match="is SGD's"):
        prepared(include=[{"client": {"optimiser": "adam"}}])
    prepared(space=space, include=[{"client": {"lr": 0.001}}])  # warnings are errors here
    prepared(space=Space({"optimiser": "adam", "lr": 0.001}))


def test_a_step_is_never_smaller_than_what_is_declared_to_be_legal():
    change = SmallerStep("lr", 2, least=0.05)
    assert change(None, Arm(0, {"lr": 0.3}, {}), None)[0] == {"lr": 0.05}
    assert change(None, Arm(0, {"lr": 0.01}, {}), None)[0] == {"lr": 0.01}


def test_what_is_given_stays_as_it_is():
    fedex = ft.FedEx(k=3)
    setup = prepared(
        tuner=fedex, cohorts="independent", weights="independent", cooling=0.25, sampler=ft.samplers.uniform
    )
    assert setup.tuner == fedex
    assert (setup.cohorts, setup.weights, setup.cooling) == ("independent", "independent", 0.25)
    assert setup.sampler == ft.samplers.uniform
    for method in (
        methods.fedavg.with_defaults(server={"lr": 0.5}), methods.fedavg.with_defaults(server={"optimiser": "adam"})
    ):  # fmt: skip
        assert prepared(method=method).method == method
    server = Space({"lr": Float(0.01, 1.0, log=True)}, {"optimiser": "yogi"})
    assert prepared(space=server).method.server["optimiser"].default == "yogi"


def test_a_space_of_ones_own():
    space = Space({"lr": Float(1e-3, 1.0, log=True), "weight_decay": Float(0.0, 0.1), "batch": 8, "epochs": [1, 2]})
    with pytest.warns(FedtunerWarning, match=r"not searched, .*: weight_decay \(a regulariser\); .*'epochs', 'w"):
        setup = prepared(space=space)
    assert set(setup.space.client) == {"lr", "batch", "epochs"}  # what a regulariser is worth shows late
    assert setup.space.client["batch"] == Choice([8])
    assert all(client["batch"] == 8 for client, _ in arms(setup))  # also of the default
    asked = prepared(space=space, recipe=ft.auto(100, vary=["weight_decay"]))
    assert set(asked.space.client) == {"weight_decay", "batch"}
    fixed = prepared(space=Space({"batch": 8}))
    assert fixed.space.client == {**prepared().space.client, "batch": Choice([8])}  # no range is named: the method's
    assert prepared(space=Space()).schedule.arms == 1  # there is nothing to compare


def test_ranges_of_the_server_are_searched_if_they_are_named():
    space = Space({"lr": Float(0.1, 1.0)}, {"lr": Float(0.5, 2.0), "momentum": 0.5})
    with pytest.warns(FedtunerWarning, match=r"not searched, .*: server.lr; .*vary=\['lr', 'server.lr'\]"):
        setup = prepared(space=space)
    assert setup.space.server == {"momentum": Choice([0.5])}
    setup = prepared(space=space, recipe=ft.auto(100, vary=["lr", "server.lr"]))
    assert setup.space.server == space.server
    assert len({server["lr"] for _, server in arms(setup)[1:]}) == len(arms(setup)) - 1
    assert prepared(recipe=ft.auto(100, vary=["server.lr"])).schedule.arms > 1


def test_short_budgets_train_the_default_alone():
    setup = prepared(30)
    assert (setup.schedule.arms, setup.schedule.run) == (1, 30)
    study = ft.tune(toys.problem(), budget=10, cohort=3, progress=False)
    assert study.rounds_used == 10
    assert len(study.journal.arms) == 1


def test_work_has_a_bound():
    assert prepared(recipe=ft.auto(100, max_work=2)).space.client["epochs"] == Int(1, 2)
    assert prepared(recipe=ft.auto(100, max_work=1)).space.client["epochs"] == Int(1, 1)
    twice = methods.fedavg.with_defaults(client={"epochs": 2})
    assert prepared(recipe=ft.auto(100, max_work=2), method=twice).space.client["epochs"] == Int(1, 4)
    for domain, kept in (
        ([1, 2, 5, 10], Choice([1, 2])), ([5, 10], Choice([1])), (PowerOfTwo(1, 8), PowerOfTwo(1, 2)),
    ):  # fmt: skip
        space = Space({"lr": Float(0.01, 1, log=True), "epochs": domain})
        assert prepared(recipe=ft.auto(100, max_work=2), space=space).space.client["epochs"] == kept
    app = {"problem": ft.Outside({"w": [[0.0, 0.0]]}, clients=4), "include": [{"client": {"lr": 0.1}}]}
    with pytest.raises(
        SpecError, match=r"max_work = 2 times the local_epochs that clients have today, but that is not"
    ):
        prepared(recipe=ft.auto(100, max_work=2), space=Space({"lr": 0.1, "local_epochs": Int(1, 9)}), **app)


def test_the_users_default_is_the_first_arm_and_the_centre():
    setup = prepared(500, include=[{"client": {"lr": 0.001, "epochs": 2}}, {"client": {"lr": 0.5}}])
    first, second, *rest = arms(setup)
    assert (first[0], second[0]) == ({"lr": 0.001, "epochs": 2}, {"lr": 0.5})
    assert len(rest) == 7
    assert max(client["lr"] for client, _ in rest) <= 0.001 * 10**1.5


@pytest.mark.slow
def test_what_the_users_default_has_all_arms_keep():
    mine = {"client": {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3}, "server": {"momentum": 0.3}}
    study = ft.prepare(toys.problem(), budget=100, cohort=3, include=[mine, {"client": {"momentum": 0.5}}])
    assert study.setup.method.server["optimiser"].default == "sgd"  # the server's step is the user's
    started = study.run(progress=False).journal.arms
    assert len(started) > 5
    assert {arm.client["weight_decay"] for arm in started.values()} == {1e-3}
    assert {arm.server["momentum"] for arm in started.values()} == {0.3}
    assert {id for id, arm in started.items() if arm.client["momentum"] != 0.9} <= {
        1,
        len(started) - 2,
        len(started) - 1,
    }
    assert started[1].client["momentum"] == 0.5
    assert len({arm.client["lr"] for arm in started.values()}) > 5


@pytest.mark.filterwarnings("ignore:not searched")
def test_clients_with_code_of_their_own():
    model = ft.Outside({"w": [[0.0, 0.0]]}, clients=4)
    space = Space(
        {
            "learning-rate": Float(1e-3, 1.0, log=True),
            "local-epochs": Int(1, 3),
            "weight-decay": Float(0, 0.1),
            "width": [1, 2],
        }
    )
    with pytest.warns(FedtunerWarning, match=r"not searched, .*: weight-decay \(a regulariser\)"):
        study = ft.prepare(model, space, budget=100, include=[{}], cohort=3)
    setup = study.setup
    told = (
        "differ in learning-rate (by its name a step size), local-epochs (by its name an amount of local work), width"
    )
    assert told in show.headline(study.describe())
    assert set(setup.space.client) == {"learning-rate", "local-epochs", "width"}
    assert setup.schedule.step == "learning-rate"
    first, *rest = arms(setup)
    assert first == ({}, {})  # what the app has today
    assert max(client["learning-rate"] for client, _ in rest) > 0.1  # there is no centre: all of the range
    with pytest.raises(SpecError, match="give space= with the hyperparameters that it reads"):
        prepared(problem=model)
    with pytest.raises(
        SpecError, match=r"today is not known: give include=\[{'client': {'learning-rate': \.\.\., 'loc"
    ):
        prepared(problem=model, space=space)
    assert prepared(problem=model, space=space, sampler=ft.samplers.uniform).sampler == ft.samplers.uniform
    today = {"learning-rate": 0.1, "local-epochs": 2, "weight-decay": 0.05, "width": 1}
    setup = prepared(problem=model, space=space, include=[{"client": today}])
    assert setup.space.client["weight-decay"] == Choice([0.05])  # its code reads it, though arms do not differ in it
    assert arms(setup)[0] == (today, {})


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("lr", "step"), ("client_lr", "step"), ("learning_rate", "step"), ("eta", "step"), ("step-size", "step"),
        ("num_epochs", "work"), ("local-steps", "work"), ("batch-size", "batch"), ("momentum", "momentum"),
        ("weight_decay", "regulariser"), ("proximal-mu", "regulariser"), ("dropout", "regulariser"), ("depth", ""),
    ],
)  # fmt: skip
def test_roles_that_names_suggest(name, role):
    assert guess(name) == role


def test_the_papers_recipe():
    setup = prepared(recipe=ft.paper(300), cohort=3)
    assert setup.schedule == ft.halving(300, 30)
    assert setup.tuner == ft.FedEx()
    assert setup.sampler == ft.samplers.uniform
    assert (setup.cohorts, setup.cooling) == ("independent", 0.0)
    assert prepared(recipe=ft.paper(300, longest=60, k=5)).tuner == ft.FedEx(5)


def test_tuning_by_a_budget_leaves_fedex_out_unless_it_is_asked_for():
    study = ft.tune(toys.problem(), budget=10, cohort=3, progress=False)
    assert study.setup.tuner.labels == 1
    asked = ft.tune(toys.problem(), budget=10, cohort=3, fedex=ft.FedEx(k=2), progress=False)
    assert asked.setup.tuner == ft.FedEx(k=2)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"budget": 0}, r"schedule.budget = 0, but must be a whole number >= 1"),
        ({"budget": "many"}, r"schedule.budget = 'many', but must be a whole number"),
        ({"budget": 100, "schedule": toys.SCHEDULE}, r"budget and schedule are both given"),
        ({"recipe": ft.paper(300), "schedule": toys.SCHEDULE}, r"recipe and schedule are both given"),
        ({"budget": 100, "recipe": ft.auto(100)}, r"budget and recipe are both given"),
        ({"recipe": 100}, r"recipe = 100, but must be ft.auto\(500\), which is budget=500, or ft.paper\(2"),
        (
            {"recipe": "paper"},
            r"recipe = 'paper', but must be ft.auto\(500\), which is budget=500, or ft.paper\(2000\)",
        ),
        ({"recipe": ft.paper}, r"recipe = <class .*Paper'>, but must be ft.auto\(500\), .* or ft.paper\(2000\)"),
        ({"budget": 100, "include": {"lr": 1}}, r"include = .*, but must be a list of tables"),
    ],
)
def test_what_cannot_be_given_together(settings, match):
    with pytest.raises(SpecError, match=match):
        ft.prepare(toys.problem(), cohort=3, **settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"max_work": 0.5}, r"max_work = 0.5, but must be >= 1"),
        ({"vary": "lr"}, r"vary = 'lr', but must be names of hyperparameters"),
        ({"arms": 0}, r"schedule.arms = 0, but must be a whole number >= 1"),
        ({"arms": 1000}, r"budget = 100 cannot give 1000 arms a round each: raise budget to 2515 or more"),
        ({"decades": -1}, r"decades = -1, but must be in \[0, 100\]"),
    ],
)
def test_recipes_that_are_wrong(settings, match):
    with pytest.raises(SpecError, match=match):
        ft.auto(100, **settings)


def test_what_is_to_vary_must_have_a_range():
    with pytest.raises(SpecError, match="vary has 'lrr', but there is no range of it; did you mean 'lr'"):
        prepared(recipe=ft.auto(100, vary=["lrr"]))


# study.toml


def parsed(text):
    return spec.parse(spec.tomllib.loads(f"problem = 'toys:problem'\ncohort = 3\n{text}")).study(None, 1).setup


def test_a_bare_budget_in_a_file():
    setup = parsed("budget = 100")
    assert setup == prepared(100)
    assert parsed("[auto]\nbudget = 100\nmax_work = 1").space.client["epochs"] == Int(1, 1)


def test_a_file_with_a_budget_keeps_what_it_says():
    setup = parsed("budget = 100\nsampler = 'uniform'\n[client]\nbatch = 8\n[fedex]\nk = 3")
    assert setup.sampler == ft.samplers.uniform
    assert setup.tuner == ft.FedEx(k=3)
    assert setup.space.client["batch"] == Choice([8])
    assert set(setup.space.client) == {"lr", "epochs", "batch"}
    assert setup.method.server["optimiser"].default == "fedexp"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("budget = 100\n[schedule]\nbudget = 100", r"budget and \[schedule\] are both given.*'schedule.budget'"),
        ("budget = 100\n[auto]\nbudget = 100", r"budget = 100 and auto.budget are both given"),
        ("[auto]\narms = 3", r"auto.budget is missing, and has no default"),
        ("[auto]\nbudget = 100\nmax_wrok = 3", r"no setting auto.max_wrok; did you mean 'max_work'"),
        ("budget = 'many'", r"schedule.budget = 'many', but must be a whole number"),
        ("auto = 3", r"auto = 3, but must be a table"),
    ],
)
def test_files_that_are_wrong(text, match):
    with pytest.raises(SpecError, match=match):
        parsed(text)


@pytest.mark.parametrize(
    ("budget", "vary", "says"),
    [
        (
            67,
            None,
            "below 68 rounds nothing is searched, unless [auto] arms is given: the default is trained alone",
        ),
        (68, (), "nothing to search: the default is trained alone"),
        (68, None, "arms differ in lr, epochs, batch"),
    ],
)
def test_what_a_fleet_is_told_of_the_search_before_it_begins(budget, vary, says):
    study = ft.prepare(toys.problem(), method="fedavg", recipe=ft.auto(budget, vary=vary), cohort=3)
    assert searched_in_words(study.schedule, study.describe()) == says
