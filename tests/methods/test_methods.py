"""Every method keeps the shared laws; each reduces to another where its algebra says so."""

from dataclasses import replace

import numpy as np
import pytest

from fedtuner import methods
from fedtuner.core.method import Server, check, defaults
from fedtuner.core.records import Tally
from fedtuner.core.tally import weighted
from fedtuner.errors import SpecError
from fedtuner.methods.fedpa import posterior_delta
from fedtuner.methods.server import average
from fedtuner.space import Float, Space
from fedtuner.testing import MethodLaws, toys
from fedtuner.testing.rounds import a_round, advance, an_arm, bits, reported, settle
from fedtuner.testing.toys import optimum, quadratics

MEMBERS = {
    "fedavg": (methods.fedavg, {}, {}),
    "fedprox": (methods.fedprox, {}, {}),
    "reptile": (methods.reptile, {}, {}),
    "scaffold": (methods.scaffold, {}, {}),
    "scaffold, option I": (methods.scaffold, {"option": "I"}, {}),
    "feddyn": (methods.feddyn, {"epochs": 20}, {"alpha": 0.3}),  # its theory has the clients solve their problems
    "fedpa": (methods.fedpa, {"epochs": 3, "batch": 4}, {}),
    "ditto": (methods.ditto, {}, {}),
    "maml": (methods.maml, {}, {"lr": 0.1}),
    "maml of minibatches": (methods.maml, {"full_batch": False, "batch": 4, "steps": 3}, {"lr": 0.1}),
    "fedadam": (methods.fedavg, {}, {"optimiser": "adam", "lr": 0.1, "momentum": 0.9}),
    "fedexp": (methods.fedavg, {}, {"optimiser": "fedexp"}),
    "scaffold by fedexp": (methods.scaffold, {}, {"optimiser": "fedexp"}),
    "feddyn by fedexp": (methods.feddyn, {"epochs": 20}, {"alpha": 0.3, "optimiser": "fedexp"}),
    "fedhyper": (methods.fedavg, {}, {"optimiser": "fedhyper"}),
    "scaffold by fedhyper": (methods.scaffold, {}, {"optimiser": "fedhyper"}),
    "maml by fedhyper": (methods.maml, {}, {"optimiser": "fedhyper"}),
    "deltasgd": (methods.deltasgd, {}, {}),
    "deltasgd of small batches": (methods.deltasgd, {"epochs": 3, "batch": 4}, {}),
    "deltasgd by fedexp": (methods.deltasgd, {"epochs": 2, "batch": 4}, {"optimiser": "fedexp"}),
    "local adam": (methods.fedavg, {"optimiser": "adam", "lr": 0.05, "momentum": 0.9}, {}),
}


@pytest.mark.parametrize(
    "member",
    [pytest.param(m, marks=pytest.mark.slow) if " " in m else m for m in MEMBERS],  # variants of what is there alone
)
class TestEveryMethod(MethodLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, member):
        self.method, self.client, self.server = MEMBERS[member]


def test_no_method_is_left_out():
    assert {method.name for method, _, _ in MEMBERS.values()} == set(methods.ALL)


def prepared(method, client=None, server=None, cohort=4, problem=None):
    """The rounds of a method on quadratics, and an arm with these hyperparameters."""
    return a_round(method, problem or quadratics(), cohort=cohort), an_arm(method, client, server)


def trained(method, rounds=5, client=None, server=None, **more):
    round, arm = prepared(method, client, server, **more)
    return advance(round, arm, rounds)


def pack(state):
    return bits(a_round(methods.fedavg, quadratics()), state)


CLIENT = {"lr": 0.2, "momentum": 0.5, "weight_decay": 0.01, "epochs": 2, "batch": 5}


# Reductions


def test_fedprox_without_its_term_is_fedavg():
    plain = trained(methods.fedavg, client=CLIENT)
    assert pack(trained(methods.fedprox, client=CLIENT | {"mu": 0.0})) == pack(plain)
    assert not np.allclose(trained(methods.fedprox, client=CLIENT | {"mu": 1.0}).w, plain.w)


def test_reptile_with_alpha_one_is_fedavg():
    plain = trained(methods.fedavg, client=CLIENT)
    assert pack(trained(methods.reptile, client=CLIENT, server={"lr": 1.0})) == pack(plain)
    assert not np.allclose(trained(methods.reptile, client=CLIENT).w, plain.w)


def test_fedpa_with_one_sample_is_fedavg():
    plain = trained(methods.fedavg, client=CLIENT)
    assert pack(trained(methods.fedpa, client=CLIENT | {"samples": 1})) == pack(plain)
    assert not np.allclose(trained(methods.fedpa, client=CLIENT | {"samples": 3}).w, plain.w)


def test_fedpa_in_its_burn_in_rounds_is_fedavg():
    burning = trained(methods.fedpa, 5, CLIENT, {"burn_in_rounds": 5})
    assert pack(burning) == pack(trained(methods.fedavg, 5, CLIENT))
    assert not np.allclose(
        trained(methods.fedpa, 6, CLIENT, {"burn_in_rounds": 5}).w, trained(methods.fedavg, 6, CLIENT).w
    )


def test_ditto_trains_its_global_model_as_fedavg():
    own, plain = trained(methods.ditto, client=CLIENT), trained(methods.fedavg, client=CLIENT)
    assert np.array_equal(own.w, plain.w)
    assert own.memory
    assert not plain.memory


def test_ditto_without_its_pull_is_local_training_that_goes_on():
    """With lambda = 0 and all clients in every round, v_i after two rounds is twice as much local training from w_0."""
    round, arm = prepared(methods.ditto, CLIENT | {"lambda": 0.0, "batch": 12, "momentum": 0.0}, cohort=8)
    state, c = advance(round, arm, 2), arm.client
    for i, client in enumerate(round.federation.clients):
        w = round.begin(arm).w
        x, curvature = client.train
        for _ in range(2 * c["epochs"]):  # full batches: no order to get wrong
            w = w - c["lr"] * (curvature * (w - x.mean(axis=0)) + c["weight_decay"] * w)
        np.testing.assert_allclose(state.memory[i]["personal"], w, rtol=1e-5, atol=1e-6)


def test_feddyn_switched_off_is_fedavg():
    off = trained(methods.feddyn, client=CLIENT | {"dyn": False})
    np.testing.assert_allclose(off.w, trained(methods.fedavg, client=CLIENT).w, rtol=1e-6)
    assert not np.allclose(trained(methods.feddyn, client=CLIENT | {"dyn": True}).w, off.w)


def test_the_first_round_of_scaffold_is_that_of_fedavg():
    """All control variates are zero."""
    for option in ("I", "II"):
        first = trained(methods.scaffold, 1, CLIENT | {"option": option})
        assert np.array_equal(first.w, trained(methods.fedavg, 1, CLIENT).w)
        assert not np.allclose(
            trained(methods.scaffold, 2, CLIENT | {"option": option}).w, trained(methods.fedavg, 2, CLIENT).w
        )


def test_scaffolds_second_option_is_the_papers_quotient_for_plain_sgd():
    """c_i' = c_i - c + (w_t - w_i) / (K lr)."""
    client = {"lr": 0.2, "epochs": 2, "batch": 5}
    round, arm = prepared(methods.scaffold, client)
    plan, reports = reported(round, arm, advance(round, arm, 6))
    steps = 2 * 3  # 12 examples in batches of 5, 5 and 2, twice
    seen = 0
    for job, report in zip(plan.jobs, reports, strict=True):
        ours = job.memory.get("control", np.zeros_like(plan.w))
        seen += bool(job.memory)
        quotient = ours - plan.slots["control"] - report.change / (steps * 0.2)
        np.testing.assert_allclose(report.memory["control"], quotient, rtol=1e-3, atol=1e-5)
        sent = 12 * (report.memory["control"] - ours)  # |T| times the change
        np.testing.assert_allclose(report.extra["control"], sent, rtol=1e-4, atol=1e-5)
    assert seen


def test_scaffolds_first_option_is_the_gradient_at_the_servers_model():
    round, arm = prepared(methods.scaffold, {"option": "I"})
    plan, reports = reported(round, arm, round.begin(arm))
    for report in reports:
        x, curvature = round.federation.clients[report.client].train
        expected = curvature * (plan.w - x.mean(axis=0))
        np.testing.assert_allclose(report.memory["control"], expected, rtol=1e-4, atol=1e-6)


def test_the_servers_control_variate_is_the_mean_of_the_clients():
    """With everyone in every round, c = mean c_i, whatever happened before."""
    state = trained(methods.scaffold, 7, {"epochs": 3}, cohort=8)
    np.testing.assert_allclose(
        state.slots["control"], np.mean([m["control"] for m in state.memory.values()], axis=0), rtol=1e-4, atol=1e-5
    )


# Optima


@pytest.mark.slow
@pytest.mark.parametrize("method", [methods.scaffold, methods.feddyn], ids=lambda m: m.name)
def test_heterogeneous_clients_with_many_local_steps(method):
    """SCAFFOLD and FedDyn reach the optimum of the whole; FedAvg stops where the clients' own optima pull it."""
    problem = quadratics(noise=0.0, spread=3.0)
    target = optimum(problem)
    client, server = {"lr": 0.2, "epochs": 20, "batch": 12}, {"alpha": 0.3} if method is methods.feddyn else {}
    plain = trained(methods.fedavg, 150, client, cohort=8, problem=problem)
    ours = trained(method, 150, client, server, cohort=8, problem=problem)
    drift, gap = np.linalg.norm(plain.w - target), np.linalg.norm(ours.w - target)
    assert drift > 0.3
    assert gap < 0.01 * drift


@pytest.mark.slow
def test_they_also_do_with_a_part_of_the_clients():
    problem = quadratics(noise=0.0, spread=3.0)
    target = optimum(problem)
    client = {"lr": 0.1, "epochs": 10, "batch": 12}
    drift = np.linalg.norm(trained(methods.fedavg, 400, client, cohort=4, problem=problem).w - target)
    gap = np.linalg.norm(trained(methods.scaffold, 400, client, cohort=4, problem=problem).w - target)
    assert gap < 0.2 * drift


@pytest.mark.slow
def test_fedpa_corrects_the_bias_of_fedavg():
    """Where the local posteriors can be estimated, their deltas bring the fixed point nearer to the optimum."""
    problem = quadratics(noise=2.0, spread=3.0, examples=60, size=2)
    client = {"lr": 0.3, "epochs": 40, "batch": 4}
    sampling = {"samples": 40, "rho": 10.0, "burn_in": 0.1}
    plain = trained(methods.fedavg, 40, client, {"lr": 0.3}, cohort=8, problem=problem)
    ours = trained(methods.fedpa, 40, client | sampling, {"lr": 0.003}, cohort=8, problem=problem)
    gaps = [np.linalg.norm(state.w - optimum(problem)) for state in (ours, plain)]
    assert gaps[0] < 0.7 * gaps[1]


# The pieces


@pytest.mark.parametrize("rho", [0.0, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("samples", [1, 2, 6])
def test_the_posterior_delta_is_the_dense_formula(samples, rho):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((samples, 5)).astype(np.float32)
    start = rng.standard_normal(5).astype(np.float32)
    r = 1 / (1 + (samples - 1) * rho)
    covariance = np.cov(x.T, ddof=1) if samples > 1 else np.zeros((5, 5))
    shrunk = r * np.eye(5) + (1 - r) * covariance
    np.testing.assert_allclose(
        posterior_delta(start, list(x), rho), np.linalg.solve(shrunk, start - x.mean(axis=0)), rtol=1e-4, atol=1e-5
    )


def test_the_aggregation_is_the_papers_equation():
    """(1 - alpha_t) w + alpha_t sum |T_i| w_i / sum |T_i|, alpha_t = lr gamma^t; by hand.

    w = 1, clients 3 and 7 with shares 1/4 and 3/4: their mean is 6. Round t = 2, lr 0.5, gamma 0.8: alpha = 0.32.
    (1 - 0.32) 1 + 0.32 * 6 = 2.6.
    """
    w, changes = np.array([1.0], np.float32), [np.array([change], np.float32) for change in (2.0, 6.0)]
    b = defaults(methods.fedavg.server) | {"lr": 0.5, "gamma": 0.8}
    server = Server(w, {}, 2, 10, methods.fedavg.optimiser(b))
    moved, _ = average(server, Tally(change=weighted([0.25, 0.75], changes)), b)
    np.testing.assert_allclose(moved, [2.6], rtol=1e-6)


def server_steps(changes, **b):
    b = defaults(methods.fedavg.server) | b
    server = Server(np.zeros(1, np.float32), {}, 0, 10, methods.fedavg.optimiser(b))
    seen = []
    for t, change in enumerate(changes):
        w, slots = server.step(np.array([change], np.float32), Tally(), b)
        seen.append(float(w[0]))
        server = replace(server, w=w, slots=slots, round=t + 1)
    return seen


def test_server_momentum_by_hand():
    """Changes 1, 1, -1 at momentum 0.5: velocities 1, 1.5, -0.25; lr 2: 2, 5, 4.5."""
    np.testing.assert_allclose(server_steps([1, 1, -1], lr=2.0, momentum=0.5), [2.0, 5.0, 4.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("optimiser", "squares"),
    [
        # v_0 = tau^2 = 0.01; beta2 = 0.9; changes 1 and 2.
        ("adam", (0.9 * 0.01 + 0.1 * 1, 0.9 * 0.109 + 0.1 * 4)),
        ("yogi", (0.01 + 0.1 * 1, 0.11 + 0.1 * 4)),  # v < change^2 both times: v grows by (1 - beta2) change^2
        ("adagrad", (0.01 + 1, 1.01 + 4)),
    ],
)
def test_adaptive_servers_by_hand(optimiser, squares):
    """m: 0.5 * 1, then 0.5 * 0.5 + 0.5 * 2 = 1.25; w moves by lr m / (sqrt(v) + tau)."""
    first = 0.3 * 0.5 / (np.sqrt(squares[0]) + 0.1)
    second = first + 0.3 * 1.25 / (np.sqrt(squares[1]) + 0.1)
    got = server_steps([1, 2], optimiser=optimiser, lr=0.3, momentum=0.5, beta2=0.9, tau=0.1)
    np.testing.assert_allclose(got, [first, second], rtol=1e-5)


def test_mamls_meta_gradient_on_a_quadratic_by_hand():
    """L_T = a/2 (w - p)^2, L_V = a/2 (w - q)^2 per coordinate: s steps give w_s - p = (1 - lr a)^s (w - p), and the
    meta-gradient is (1 - lr a)^s a (w_s - q); to first order a (w_s - q)."""
    for steps in (0, 1, 3):
        for first_order in (False, True):
            round, arm = prepared(methods.maml, {"lr": 0.1, "steps": steps, "first_order": first_order})
            plan, reports = reported(round, arm, round.begin(arm))
            for report in reports:
                client = round.federation.clients[report.client]
                (p, a), q = (client.train[0].mean(axis=0), client.train[1]), client.valid[0].mean(axis=0)
                shrink = (1 - 0.1 * a) ** steps
                adapted = p + shrink * (plan.w - p)
                expected = a * (adapted - q) * (1 if first_order else shrink)
                np.testing.assert_allclose(plan.w + report.change, adapted, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(report.extra["meta"], expected, rtol=1e-4, atol=1e-5)


def test_a_broken_memory_is_not_kept():
    round, arm = prepared(methods.ditto)
    state = advance(round, arm, 6)
    _, reports = reported(round, arm, state)
    known = next(n for n, r in enumerate(reports) if r.client in state.memory)
    reports[known] = replace(reports[known], memory={"personal": np.full_like(state.w, np.inf)})
    following, _ = settle(round, arm, state, *reports)
    client = reports[known].client
    assert following.memory[client] is state.memory[client]


@pytest.mark.parametrize(
    ("method", "client"), [(methods.fedavg, {}), (methods.fedprox, {"mu": 0.1}), (methods.fedavg, {"momentum": 0.5})]
)
def test_a_client_that_has_diverged_stops_early(method, client, monkeypatch):
    steps = []
    real = toys._Trainer.gradient
    monkeypatch.setattr(toys._Trainer, "gradient", lambda *given: steps.append(1) or real(*given))
    round, arm = prepared(method, {"lr": 1e30, "epochs": 50, "batch": 4} | client)
    plan = round.plan(arm, round.begin(arm), [0])
    assert not round.work(plan, plan.jobs[0]).finite
    assert 1 < len(steps) < 20  # of 150


# What users get wrong


@pytest.mark.parametrize(
    ("method", "space", "words"),
    [
        ("fedavg", Space({"leraning_rate": 0.1}), ["client", "leraning_rate", "fedavg", "did you mean 'lr'"]),
        ("fedavg", Space({"mu": 0.1}), ["'mu'", "fedavg", "lr, momentum"]),
        ("fedavg", Space(server={"alpha": 0.1}), ["server", "'alpha'", "fedavg"]),
        ("feddyn", Space({"alpha": 0.1}), ["client", "'alpha'", "feddyn"]),
        ("fedavg", Space({"lr": -0.1}), ["client.lr = -0.1", ">= 0"]),
        ("fedavg", Space({"epochs": [1, 2.5]}), ["client.epochs = 2.5", "whole number"]),
        ("fedavg", Space({"batch": 0}), ["client.batch = 0", ">= 1"]),
        ("fedavg", Space({"batch": Float(8, 64)}), ["client.batch = Float(8, 64)", "whole number", "give Int(8, 64)"]),
        ("fedavg", Space({"momentum": 1.5}), ["client.momentum = 1.5", "<= 1"]),
        ("fedavg", Space({"lr": "fast"}), ["client.lr = 'fast'", "number"]),
        ("fedavg", Space({"optimiser": "rmsprop"}), ["client.optimiser = 'rmsprop'", "sgd", "adam"]),
        ("scaffold", Space({"option": "III"}), ["client.option = 'III'", "'I', 'II'"]),
        ("fedavg", Space({"dropout": 0.2}), ["dropout", "no dropout layer"]),
    ],
)  # fmt: skip
def test_wrong_hyperparameters(method, space, words):
    with pytest.raises(SpecError) as caught:
        check(methods.named(method), space, {})
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_method_gets_the_nearest_name():
    with pytest.raises(SpecError, match="did you mean 'scaffold'"):
        methods.named("scafold")
