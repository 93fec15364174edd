"""What you have today: the arm that tuning has to beat, and the baseline that it is compared with."""

import pytest

import fedtuner as ft
import toys
from fedtuner import methods
from fedtuner.run import spec
from fedtuner.space import Space

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
    space = Space({"epochs": 2, "batch": [4, 8]})
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
