"""Adaptive server optimisers have defaults and ranges of their own, where a study fixes one and does not name them."""

import pytest

import fedtuner as ft
import toys
from fedtuner import methods
from fedtuner.core.method import default_space, defaults
from fedtuner.methods.momentum import sgd
from fedtuner.run import spec

USUAL = defaults(methods.fedavg.server)
OWN = {"adam": (0.01, 0.9), "yogi": (0.01, 0.9), "adagrad": (0.1, 0.0)}  # lr and momentum


def study(space=None, method=methods.fedavg):
    return ft.prepare(toys.problem(), space, method=method, cohort=3, schedule=ft.random_search(2, 2))


def server_of(study):
    return study.run(progress=False).best.server


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_what_the_space_does_not_name_is_the_optimisers(name):
    lr, momentum = OWN[name]
    expected = {**USUAL, "optimiser": name, "lr": lr, "momentum": momentum, "beta2": 0.99, "tau": 1e-3}
    assert server_of(study(ft.Space({"batch": [8, 16]}, {"optimiser": name}))) == expected
    assert (
        server_of(study(method=methods.fedavg.with_defaults(server={"optimiser": name}), space=ft.Space())) == expected
    )
    assert (
        server_of(study(method=methods.fedavg.with_optimiser(methods.fedavg.optimisers[name]), space=ft.Space()))
        == expected
    )


@pytest.mark.slow
def test_what_it_names_stays():
    found = server_of(study(ft.Space({"batch": [8, 16]}, {"optimiser": "adam", "lr": 0.5})))
    assert (found["lr"], found["momentum"]) == (0.5, 0.9)
    given = methods.fedavg.with_defaults(server={"momentum": 0.0})  # what sgd has, but said
    for method, space in (
        (given, ft.Space({"batch": [8, 16]}, {"optimiser": "adam"})),
        (given.with_defaults(server={"optimiser": "adam"}), ft.Space()),
        (given.with_optimiser(methods.fedavg.optimisers["adam"]), ft.Space()),
        (methods.fedavg.with_defaults(server={"optimiser": "adam", "momentum": 0.0}), ft.Space()),
    ):
        found = server_of(study(space, method))
        assert (found["optimiser"], found["lr"], found["momentum"]) == ("adam", 0.01, 0.0)


def test_several_optimisers_keep_the_common_ranges():
    made = study(ft.Space(server={"optimiser": ["sgd", "adam"]}))
    assert defaults(made.setup.method.server) == USUAL


def test_naming_the_default_optimiser_changes_nothing():
    for method in methods.ALL.values():
        name = str(method.server["optimiser"].default)
        assert study(ft.Space(server={"optimiser": name}), method).setup.method == method


@pytest.mark.parametrize("name", OWN)
def test_a_study_toml_has_the_optimisers_ranges(name):
    """There, what is not named is tuned: over what the optimiser says."""
    read = spec.parse({"problem": "toys:problem", "cohort": 3, "server": {"optimiser": name}})
    domains = read.study(None, 1).setup.space.server
    lr, momentum = OWN[name]
    assert lr in domains["lr"]
    assert momentum in domains["momentum"]
    assert max(domains["lr"].ends()) == pytest.approx(10 * lr)
    assert max(domains["momentum"].ends()) == 0.9  # sgd's is up to 0.5
    assert domains["gamma"] == default_space(methods.fedavg, {}).server["gamma"]


def test_untuned_is_the_same_optimiser():
    """The thing to beat is FedAdam with its defaults, where FedAdam is tuned."""
    tuned = study(ft.Space(server={"optimiser": "adam", "lr": ft.Float(0.001, 0.1)})).run(progress=False)
    server = ft.untuned(tuned, progress=False).best.server
    assert (server["optimiser"], server["lr"], server["momentum"]) == ("adam", 0.01, 0.9)


def test_methods_whose_step_means_something_else_keep_their_own():
    """Reptile's half step is SGD's; MAML's rates are those of a meta-gradient, whatever the optimiser."""
    reptile = study(ft.Space(server={"optimiser": "adam"}), methods.reptile).setup.method
    assert (reptile.server["lr"].default, methods.reptile.server["lr"].default) == (0.01, 0.5)
    for name in ("sgd", "yogi", "adagrad"):
        maml = study(ft.Space(server={"optimiser": name}), methods.maml).setup.method
        assert (maml.server["lr"], maml.server["momentum"]) == (
            methods.maml.server["lr"],
            methods.maml.server["momentum"],
        )


def test_sgds_own_are_the_usual():
    assert all(methods.fedavg.server[name] == hyper for name, hyper in sgd.hypers.items())
