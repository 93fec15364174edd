"""What you have today: the arm that tuning has to beat, and the baseline that it is compared with."""

import inspect

import pytest

import fedtuner as ft
import toys
from fedtuner import methods
from fedtuner.core.setup import Setup
from fedtuner.errors import FedtunerWarning, SpecError, StoreError
from fedtuner.run import spec
from fedtuner.space import Float, Int, PowerOfTwo, Space, When

ADAM = {"optimiser": "adam", "lr": 0.01}


def of_the_default(study):
    """Return the configuration of the arm that is the default."""
    arm = study.run(progress=False).journal.arms[0]
    return arm.client, arm.server


def of_the_baseline(study):
    arm = ft.untuned(study, progress=False, rounds=1).journal.arms[0]
    return arm.client, arm.server


@pytest.mark.parametrize(
    "given",
    [
        {"space": Space(ADAM)},
        {"space": Space({**ADAM, "epochs": [1, 2]})},
        {"space": Space({"momentum": 0.5, "batch": 8}), "include": [{"client": {"lr": 0.2, "batch": 16}}]},
        {"space": Space({"epochs": 2}, constraints=["server.lr * lr <= 1"])},
        {"include": [{"client": {"lr": 0.2}}]},
        {"method": "fedprox", "space": Space({"mu": 0.5})},
        {"space": Space(ADAM), "method": methods.fedavg.with_defaults(client={"epochs": 2})},
    ],
    ids=["fixed", "fixed-beside-a-range", "included-too", "constrained", "included", "method", "defaults"],
)
def test_the_baseline_is_the_default_arm_but_for_the_step_that_the_budget_chose(given):
    study = ft.prepare(toys.problem(), budget=10, cohort=3, **given)
    client, server = of_the_default(study)
    baseline = of_the_baseline(study)
    assert server["optimiser"] == "fedexp"
    assert baseline == (client, {**server, "optimiser": "sgd"})


@pytest.mark.parametrize(
    "given",
    [
        {"space": Space(server={"optimiser": "adam"})},
        {"space": Space(ADAM, {"optimiser": "adam", "lr": 0.03})},
        {"space": Space(ADAM, {"momentum": 0.5})},
        {"include": [{"client": ADAM, "server": {"optimiser": "adam"}}]},
    ],
    ids=["fixed", "fixed-with-its-step", "momentum", "included"],
)
def test_a_servers_step_of_your_own_is_the_baselines_too(given):
    study = ft.prepare(toys.problem(), budget=10, cohort=3, **given)
    assert of_the_baseline(study) == of_the_default(study)


@pytest.mark.parametrize("server", [{}, {"optimiser": "adam"}])
def test_without_a_budget_the_included_one_and_what_is_fixed_are_the_baseline(server):
    include = [{"client": {"lr": 0.05}, "server": server}, {"client": {"lr": 0.3}}]
    space = Space({"epochs": 2, "batch": [4, 32]})
    study = ft.prepare(toys.problem(), space, include=include, schedule=ft.random_search(4, 2), cohort=3)
    client, held = of_the_default(study)
    assert (client["lr"], client["epochs"]) == (0.05, 2)
    assert of_the_baseline(study) == (client, held)


def test_a_recipe_without_a_default_arm_keeps_what_is_fixed():
    study = ft.prepare(toys.problem(), Space(ADAM), recipe=ft.paper(60, longest=10, k=2), cohort=3)
    client, _ = of_the_baseline(study)
    assert client == {**study.describe()["defaults"]["client"], **ADAM}


def test_what_a_warm_start_found_is_not_your_own():
    earlier = toys.tune(fedex=None)
    space = Space({"optimiser": "adam"})
    for own in ({}, {"include": [{"client": {"lr": 0.07}}]}):
        study = ft.prepare(toys.problem(), space, schedule=ft.random_search(8, 2), start_from=earlier, cohort=3, **own)
        client, _ = of_the_baseline(study)
        assert client["lr"] == (0.07 if own else study.describe()["defaults"]["client"]["lr"])
        assert client["optimiser"] == "adam"


def test_a_files_values_are_the_baselines():
    file = spec.parse({"problem": "toys:problem", "budget": 10, "cohort": 3, "client": ADAM})
    study = file.study(None, 1)
    assert of_the_baseline(study)[0] == of_the_default(study)[0]
    assert of_the_baseline(study)[0]["lr"] == 0.01


# The default is an arm wherever it lies


LOW = Float(1e-4, 1e-3, log=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"space": Space({"lr": LOW})},
         r"the default arm has client.lr = 0.1 \(not from 0.0001 to 0.001\), outside of the space: it is .*, so the"
         r" result may have it; give what you have today, include=\[{'client': {'lr': ...}}\], or give a wider"),
        ({"space": Space({"lr": LOW, "batch": [4, 8]})},
         r"has client.lr = 0.1 .*; client.batch = 32 \(not in \[4, 8\]\),"),
        ({"space": Space({"lr": Float(0.01, 1)}, constraints=["lr * epochs <= 0.05"])},
         r"the default arm has client.lr = 0.1, client.epochs = 1 \(not lr \* epochs <= 0.05\)"),
        ({"space": Space({"batch": PowerOfTwo(2, 8)})}, r"client.batch = 32 \(not from 2 to 8 by powers of two\)"),
        ({"space": Space({"lr": Float(0.1, 1)}, {"lr": Float(0.1, 0.5)}), "recipe": ft.auto(100, vary=["server.lr"])},
         r"the default arm has server.lr = 1.0 \(not from 0.1 to 0.5\)"),
        ({"space": Space({"lr": LOW}), "include": [{"client": {"lr": 0.2}}]},
         r"include has client.lr = 0.2 \(not .*; leave it out, or give a wider space"),
        ({"space": Space({"lr": LOW}), "include": [{"client": {"lr": 0.2}}], "schedule": ft.random_search(4, 2)},
         r"include has client.lr = 0.2"),
        ({"space": Space({"lr": Float(0.01, 1), "batch": [4, 8]}), "include": [{"client": {"lr": 0.2}}]},
         r"include has client.batch = 32 \(not .*; give .*, include=\[{'client': {'batch': ...}}\], or"),
        ({"space": Space({"optimiser": "adam", "beta2": When(Float(0.9, 0.99), optimiser="adam")}),
          "recipe": ft.auto(100, vary=["beta2"])},
         r"the default arm has client.beta2 = 0.999 \(not from 0.9 to 0.99\)"),
    ],
)  # fmt: skip
def test_a_first_arm_outside_of_the_users_space_is_told(given, said):
    given = {"budget": 100, **given}
    if given.keys() & {"recipe", "schedule"}:
        del given["budget"]
    with pytest.warns(FedtunerWarning, match=said) as caught:
        ft.prepare(toys.problem(), cohort=3, **given)
    assert len(caught) == 1


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"space": Space()},
        {"space": Space({"lr": 0.001})},
        {"space": Space({"lr": Float(0.1, 0.5), "batch": PowerOfTwo(8, 32), "epochs": Int(1, 3)})},
        {"space": Space({"lr": LOW}), "include": [{"client": {"lr": 0.001}}]},
        {"space": Space({"lr": LOW}, constraints=["lr <= 0.001"]), "include": [{"client": {"lr": 0.0005}}]},
        {"space": Space({"lr": 0.001}), "include": [{"client": {"lr": 0.1}}]},
        {"space": Space({"optimiser": ["sgd", "adam"], "beta2": When(Float(0.9, 0.99), optimiser="adam")}),
         "vary": ["optimiser", "beta2"]},
    ],
    ids=["no-space", "empty", "fixed", "ends", "included", "constraint", "fixed-and-included", "absent"],
)  # fmt: skip
def test_nothing_is_told_of_a_first_arm_inside(given):
    vary = given.get("vary")
    rest = {key: value for key, value in given.items() if key != "vary"}
    ft.prepare(toys.problem(), cohort=3, recipe=ft.auto(100, vary=vary), **rest)


def test_ranges_that_are_not_searched_are_told_as_such_alone():
    with pytest.warns(FedtunerWarning, match="not searched, though the space has ranges of them: momentum") as caught:
        ft.prepare(toys.problem(), Space({"lr": Float(0.01, 1), "momentum": Float(0.5, 0.9)}), cohort=3, budget=100)
    assert len(caught) == 1


def test_what_another_study_found_outside_is_told_as_such():
    earlier = toys.tune(fedex=None)
    space = Space({"lr": Float(1e-9, 1e-8)})
    with pytest.warns(FedtunerWarning, match=r"start_from has client.lr = \S+ \(not from 1e-09 to 1e-08\)") as caught:
        ft.prepare(toys.problem(), space, schedule=ft.random_search(8, 2), start_from=earlier, cohort=3)
    assert len(caught) == 1
    with pytest.warns(FedtunerWarning) as caught:
        ft.prepare(toys.problem(), space, budget=100, start_from=earlier, cohort=3)
    assert sorted(str(one.message).split(" has ")[0] for one in caught) == ["start_from", "the default arm"]


# What a budget alone means, and what is refused


def test_of_few_clients_all_take_part_unless_a_cohort_is_given():
    for given in ({"budget": 10}, {"schedule": ft.random_search(2, 2)}, {"budget": 10, "cohort": None}):
        assert ft.prepare(toys.problem(), **given).setup.cohort == 6
    assert ft.tune(toys.problem(), budget=2, progress=False, workers=1).setup.cohort == 6
    assert spec.parse({"problem": "toys:problem", "budget": 10}).study(None, 1).setup.cohort == 6
    population = spec.parse({"problem": "toys:problem", "schedule": {"kind": "fedpop"}}).study(None, 1)
    assert (population.setup.cohort, population.setup.tuner.k) == (6, 6)
    for few in (lambda: ft.prepare(toys.problem(), budget=10, cohort=7), lambda: ft.tune(toys.problem(), cohort=7)):
        with pytest.raises(SpecError, match="cohort = 7, but the problem has 6 clients: lower cohort"):
            few()


def test_of_many_clients_ten_take_part():
    assert ft.prepare(ft.Simulation(toys.Softmax(), toys.clients(12)), budget=10).setup.cohort == 10


def test_a_name_says_how_updates_are_combined_as_in_a_file():
    named = ft.prepare(toys.problem(), budget=10, combine="median").setup.combine
    assert named == spec.parse({"problem": "toys:problem", "combine": "median"}).combine
    assert "combine" in ft.tune.__doc__


def test_help_names_every_setting():
    said = {line.split()[0] for line in ft.tune.__doc__.splitlines() if line.startswith("    ") and line.split()}
    settings = {*Setup.__dataclass_fields__, *inspect.signature(ft.tune).parameters, "include", "patience", "watch"}
    assert settings - {"problem", "settings", "seed", "tuner"} <= said
    assert "Setup" not in ft.tune.__doc__


def test_another_budget_in_a_store_is_said_first(tmp_path):
    def of(budget):
        return ft.prepare(toys.problem(), budget=budget, cohort=3, store=tmp_path / "s", workers=1)

    of(70).run(progress=False)
    more = (
        r"^budget = 70 in the store, 100 now: .*keep budget = 70 and give --extend 100 \(study.extend\(100\)\).*--store"
    )
    with pytest.raises(StoreError, match=more) as error:
        of(100).run(progress=False)
    assert "sampler" not in str(error.value)
    with pytest.raises(StoreError, match=r"holds another study \(schedule.budget: 70 in the store, 40 now; "):
        of(40).run(progress=False)
    with pytest.raises(StoreError, match=r"holds another study \(schedule.budget: 70 .* 100 now; sampler.configs"):
        ft.prepare(toys.problem(), budget=100, cohort=3, include=[{"client": {"lr": 0.3}}], store=tmp_path / "s").run(
            progress=False
        )
    of(70).extend(100, progress=False)  # as the message says
    with pytest.raises(StoreError, match=r"holds another study \(.*seed: 0 in the store, 1 now"):
        ft.prepare(toys.problem(), budget=100, cohort=3, seed=1, store=tmp_path / "s").run(progress=False)
