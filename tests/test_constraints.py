"""Hyperparameters that depend on others: conditions and constraints, in every sampler, in FedEx, in TOML."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtuner as ft
import toys
from fedtuner import constraints, methods, samplers
from fedtuner.core.records import Arm
from fedtuner.core.sampler import Past
from fedtuner.core.setup import bound
from fedtuner.errors import SpecError
from fedtuner.rng import stream
from fedtuner.run import spec
from fedtuner.space import Choice, Float, Int, PowerOfTwo, Space, When, domain

SPACE = bound(
    Space(
        client={
            "lr": Float(1e-3, 1.0, log=True),
            "epochs": Int(1, 5),
            "optimiser": ["sgd", "adam"],
            "beta2": When(Float(0.9, 0.99), optimiser="adam"),
            "batch": When(PowerOfTwo(8, 64), {"epochs": [1, 2]}),
        },
        server={"lr": Float(0.3, 3.0, log=True), "momentum": When([0.5, 0.9], optimiser="sgd")},
        constraints=["lr * epochs <= 0.5", "server.lr * client.lr < 0.4 or epochs == 1"],
    ),
    methods.fedavg.client,
    methods.fedavg.server,
)


def check(client, server):
    assert client["lr"] * client["epochs"] <= 0.5
    assert server["lr"] * client["lr"] < 0.4 or client["epochs"] == 1
    assert (client["beta2"] <= 0.99) == (client["optimiser"] == "adam")  # else it is 0.999, its default
    assert client["batch"] in ((8, 16, 32, 64) if client["epochs"] <= 2 else (32,))
    assert server["momentum"] in (0.5, 0.9)


def past(id, configs, score):
    return Past(Arm(id, *configs), id, {5: score})


SAMPLERS = {
    "uniform": samplers.uniform,
    "ball": samplers.Ball(0.3),
    "stratified": samplers.stratified(9),
    "centred": samplers.stratified(9, {"lr": 0.1}, 1.0),
    "random": samplers.optuna("random"),
    "tpe": samplers.optuna("tpe", startup=2),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # Optuna's experimental arguments
def test_every_sampler_keeps_conditions_and_constraints(name):
    if name in ("random", "tpe"):
        pytest.importorskip("optuna")
    known, arms = [], 12 if name != "tpe" else 5
    for id in range(arms):
        proposed = SAMPLERS[name].propose(SPACE, 3, id, id, known)
        check(*proposed)
        assert SAMPLERS[name].propose(SPACE, 3, id, id, known) == proposed
        known.append(past(id, proposed, 0.1 * id))


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 1.0]))
def test_candidates_of_fedex_keep_them_too(seed, eps):
    client, server = SPACE.draw(stream(seed))
    arm = Arm(0, {**client, "momentum": 0.5}, server)
    for candidate in ft.FedEx(k=5, eps=eps).begin(arm, SPACE, seed, None).candidates:
        check(candidate, server)
        assert candidate["momentum"] == 0.5  # what the space does not have stays


def test_a_stratum_is_kept_where_it_is_allowed():
    free = Space({"lr": Float(0.0, 1.0)})
    half = Space({"lr": Float(0.0, 1.0)}, constraints=["lr < 0.5"])
    sampler = samplers.stratified(8)
    for id in range(8):
        (one, _), (other, _) = (sampler.propose(space, 0, id, 0, ()) for space in (free, half))
        assert other["lr"] < 0.5
        assert one == other or one["lr"] >= 0.5


def test_what_does_not_apply_is_left_out_where_no_default_is_known():
    space = bound(
        Space({"kind": ["a", "b"], "size": When(Int(1, 9), kind="b"), "deep": When([1], size=[1, 2])}), {}, {}
    )
    drawn = [space.draw(stream(0, n))[0] for n in range(200)]
    assert all(("size" in c) == (c["kind"] == "b") for c in drawn)
    assert all(("deep" in c) == (c.get("size", 9) <= 2) for c in drawn)
    assert any("deep" in c for c in drawn)
    near = [space.near({"kind": "a"}, 1.0, stream(1, n)) for n in range(100)]
    assert any("size" in c for c in near)
    assert all(("size" in c) == (c["kind"] == "b") for c in near)


def test_conditions_and_constraints_in_toml_mean_the_same():
    table = {
        "problem": "toys:problem",
        "constraints": ["lr * epochs <= 1"],
        "client": {
            "lr": {"low": 0.1, "high": 1.0}, "optimiser": ["sgd", "adam"],
            "beta2": {"low": 0.9, "high": 0.99, "when": {"optimiser": "adam"}},
            "momentum": {"values": [0.0, 0.9], "when": {"optimiser": ["sgd"]}},
        },
    }  # fmt: skip
    study = spec.parse({**table, "cohort": 3}).study(None, 1, toys.problem())
    made = study.setup.space
    assert made.client["beta2"] == When(Float(0.9, 0.99), optimiser="adam", otherwise=0.999)
    assert made.client["momentum"] == When(Choice([0.0, 0.9]), optimiser="sgd", otherwise=0.0)
    assert made.client["epochs"] == Choice([1])  # a constraint names it, and it is not tuned
    assert Space.of(study.describe()) == made
    assert domain(made.client["beta2"].describe()) == made.client["beta2"]


@pytest.mark.filterwarnings("ignore::fedtuner.errors.FedtunerWarning")
@pytest.mark.parametrize("settings", [{"fedex": ft.FedEx(k=3), "schedule": ft.random_search(8, 2)}, {"budget": 100}])
def test_a_study_has_only_arms_and_candidates_that_are_allowed(settings, tmp_path):
    space = Space({"lr": Float(0.01, 1.0, log=True), "epochs": Int(1, 4)}, constraints=["lr * epochs <= 0.4"])
    study = ft.tune(toys.problem(), space, cohort=3, workers=1, store=tmp_path / "s", **settings)
    found = [c for candidates in study.journal.candidates.values() for c in candidates]
    assert len({c["lr"] for c in found}) > 2
    assert all(c["lr"] * c["epochs"] <= 0.4 for c in found)
    assert study.journal.setup["constraints"] == ["lr * epochs <= 0.4"]


@pytest.mark.parametrize(
    ("text", "client", "server", "allowed"),
    [
        ("lr * epochs <= 1", {"lr": 0.5, "epochs": 2}, {}, True),
        ("lr * epochs <= 1", {"lr": 0.5, "epochs": 3}, {}, False),
        ("lr < server.lr", {"lr": 0.5}, {"lr": 1.0}, True),
        ("client.lr / (1 - client.momentum) <= 2", {"lr": 1.0, "momentum": 0.5}, {}, True),
        ("lr / (1 - momentum) <= 2", {"lr": 1.0, "momentum": 1.0}, {}, False),  # a division by 0
        ("optimiser != 'adam' or lr <= 0.1", {"optimiser": "adam", "lr": 0.2}, {}, False),
        ("0.1 < lr < 0.3 and not epochs == 2", {"lr": 0.2, "epochs": 3}, {}, True),
        ("client['batch-size'] ** 2 >= 64", {"batch-size": 8}, {}, True),
        ("log10(lr) > -2 and max(lr, 0.5) == 0.5", {"lr": 0.1}, {}, True),
        ("optimiser < 3", {"optimiser": "adam"}, {}, False),
        ("hidden > 3", {"lr": 0.1}, {}, True),  # it does not apply
    ],
)
def test_what_a_constraint_means(text, client, server, allowed):
    assert constraints.holds(text, client, server) is allowed


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Space(constraints="lr < 1"), r"constraints = 'lr < 1', but must be a list"),
        (lambda: Space(constraints=["lr *"]), r"constraint 'lr \*' cannot be read, but must compare"),
        (lambda: Space(constraints=["'a' * 9999999999 != lr"]), r"constraint .* has \"'a' \* 9+\", but must compare"),
        (lambda: Space(constraints=["lr * 2"]), r"constraint 'lr \* 2' compares nothing"),
        (lambda: Space(constraints=["1 < 2"]), r"constraint '1 < 2' names no hyperparameter"),
        (lambda: Space(constraints=["__import__('os') == 1"]), r"has \"__import__\('os'\)\", but must compare"),
        (lambda: Space(constraints=["lr.real < 1"]), r"has 'lr.real'"),
        (lambda: Space(constraints=["[x for x in lr] == 1"]), r"but must compare"),
        (lambda: Space(constraints=["(" * 300 + "lr" + ")" * 300 + " < 1"]), r"constraint"),
        (lambda: Space(constraints=[3]), r"constraint 3, but must compare"),
        (lambda: When(Float(0, 1)), r"give what it depends on, such as optimiser='adam'"),
        (lambda: When(When(0.1, lr=1), lr=2), r"give all that it depends on at once"),
        (
            lambda: tuned({"lr": When(Float(0, 1), optimizer="adam")}),
            r"client.lr depends on 'optimizer', .* mean 'optimiser'",
        ),
        (
            lambda: tuned({"lr": When(Float(0, 1), optimiser="adam")}),
            r"client.lr depends on optimiser = \['adam'\], which",
        ),
        (lambda: tuned({"lr": When(0.1, epochs=1), "epochs": When([1, 2], lr=0.1)}), r"client.lr depends on itself"),
        (lambda: tuned({"lr": Float(1, 2)}, ["lr < 0.5"]), r"of 1000 configurations drawn none meets lr < 0.5: widen"),
        (lambda: tuned({"lr": Float(1, 2)}, ["rl < 0.5"]), r"constraint 'rl < 0.5' has server 'rl', which is no hyper"),
    ],
)
def test_what_cannot_be_met_or_read_is_refused(make, said):
    with pytest.raises(SpecError, match=said):
        make()


def tuned(client, constraints=()):
    return ft.prepare(toys.problem(), Space(client, constraints=constraints), cohort=3)


def test_nothing_is_computed_with_texts():
    """The product of a text and a number is a text that may fill the memory."""
    texts = ("optimiser * 99999999999999 == lr", "max('a', 'b') * 99999999999999 != lr", "optimiser + optimiser != lr")
    for text in texts:
        assert not constraints.holds(text, {"optimiser": "sgd", "lr": 0.1}, {})
    assert constraints.holds("optimiser == 'sgd' or lr < 0", {"optimiser": "sgd", "lr": 0.1}, {})
