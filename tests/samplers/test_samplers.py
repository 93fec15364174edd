"""Who proposes the arms: the same ones for any number of workers and after any stop, and better ones with a memory."""

from __future__ import annotations

import math
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import fedtuner as ft
import toys
from crashes import assert_same
from fedtuner import samplers
from fedtuner.core.records import Arm
from fedtuner.core.schedule import outline
from fedtuner.core.store import Done, Eliminated, Started, Won
from fedtuner.errors import Interrupted, SpecError, StoreError
from fedtuner.experiments import results
from fedtuner.run import spec, study
from fedtuner.run.store import Folder
from fedtuner.run.store.lines import encode
from fedtuner.samplers import Past, by_optuna
from fedtuner.testing import SamplerLaws

pytest.importorskip("optuna")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


SPACE = toys.MIXED
BOHB = ft.hyperband(budget=120, longest=8, eta=2)  # 7 arms, 5 arms, 5 arms
ONE_BY_ONE = ft.random_search(budget=24, longest=3, together=1)
PAIRS = ft.random_search(budget=24, longest=3, together=2)
EVERY = [
    pytest.param("tpe", BOHB, id="bohb", marks=pytest.mark.slow),
    pytest.param("tpe", ONE_BY_ONE, id="tpe"),
    pytest.param("gp", PAIRS, id="gp", marks=pytest.mark.slow),
    pytest.param("cmaes", ONE_BY_ONE, id="cmaes"),
    pytest.param("random", toys.SCHEDULE, id="random"),
]
MEMBERS = {
    "uniform": samplers.uniform,
    "ball": samplers.Ball(),
    "a wide ball": samplers.Ball(1.0),
    "stratified": samplers.stratified(4, {"lr": 0.1}),
    "include": samplers.Include([], samplers.stratified(3)),
    "tpe": samplers.optuna("tpe", startup=3),
    "gp": samplers.optuna("gp", startup=3),
    "cmaes": samplers.optuna("cmaes"),
    "random": samplers.optuna("random"),
}


@pytest.mark.parametrize(
    "member",
    [pytest.param(m, marks=pytest.mark.slow) if m == "gp" else m for m in MEMBERS],  # it fits for a second
)
class TestEverySampler(SamplerLaws):
    arms = 6

    @pytest.fixture(autouse=True)
    def _choose(self, member):
        self.member = member

    def sampler(self):
        return MEMBERS[self.member]


def test_no_kind_of_optuna_is_left_out():
    assert {s.kind for s in MEMBERS.values() if isinstance(s, samplers.Optuna)} == set(samplers.KINDS)


def settings(kind, schedule, **changed):
    usual = {"space": SPACE, "method": ft.methods.fedavg, "fedex": ft.FedEx(k=2), "schedule": schedule}
    return usual | {"sampler": samplers.optuna(kind, startup=3)} | changed


def tune(kind, schedule, **changed):
    return toys.tune(**settings(kind, schedule, **changed))


def arm(id, lr, server_lr=1.0):
    client = {"lr": lr, "batch": 4, "epochs": 2, "optimiser": "sgd", "weight_decay": 0.001}
    return Arm(id, client, {"lr": server_lr, "gamma": 0.999})


def ready(n=30, best=0.1):
    """Arms whose score is how far their client.lr is from the best one."""
    rates = np.exp(np.random.default_rng(0).uniform(np.log(1e-3), 0, n))
    return [Past(arm(i, float(lr)), i, {3: abs(math.log(lr / best))}) for i, lr in enumerate(rates)]


# One answer


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "schedule"), EVERY)
def test_the_number_of_workers_changes_nothing(tmp_path, kind, schedule):
    one, two = (tune(kind, schedule, workers=n, store=tmp_path / str(n)) for n in (1, 2))
    assert one.journal.arms == two.journal.arms
    assert len(one.journal.arms) == outline(schedule).arms
    assert_same(tmp_path / "1", tmp_path / "2")
    assert one.rounds_used == outline(schedule).cost <= schedule.budget


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "schedule"), EVERY)
def test_a_stopped_study_continues_to_the_same_arms(tmp_path, monkeypatch, kind, schedule):
    whole = tune(kind, schedule, store=tmp_path / "whole")
    for stop in (1, 2 * outline(schedule).cost // 3):
        with monkeypatch.context() as patched:
            patched.setattr(study, "stoppable", partial(stopping, stop))
            with pytest.raises(Interrupted):
                tune(kind, schedule, store=tmp_path / f"cut{stop}")
        again = tune(kind, schedule, store=tmp_path / f"cut{stop}", workers=2)
        assert again.journal.arms == whole.journal.arms
        assert_same(tmp_path / f"cut{stop}", tmp_path / "whole")


@contextmanager
def stopping(after, ours):
    """Yield a function that says stop once it has been asked so many times."""
    asked = iter(range(10**6))
    yield lambda: next(asked) > after


def test_arms_are_written_down_and_read_back(tmp_path, monkeypatch):
    """Of a study whose rounds are lost, its arms are left: another Optuna would propose others."""
    whole = tune("tpe", ONE_BY_ONE, store=tmp_path / "s")
    rewrite(tmp_path / "s", lambda event: None if isinstance(event, (Done, Eliminated, Won)) else event)
    monkeypatch.setattr(by_optuna.Optuna, "propose", pytest.fail)
    again = tune("tpe", ONE_BY_ONE, store=tmp_path / "s")
    assert again.journal.arms == whole.journal.arms
    assert repr(again.history) == repr(whole.history)


def rewrite(folder, change):
    """Change the events of a study's journal; None leaves one out."""
    store = Folder(folder)
    events = [changed for event in store.events() if (changed := change(event)) is not None]
    store.journal.write_bytes(encode(events))


def test_cmaes_refuses_to_go_on_from_arms_that_it_would_not_propose(tmp_path):
    tune("cmaes", ONE_BY_ONE, store=tmp_path / "s")
    last = outline(ONE_BY_ONE).arms - 1

    def another(event):
        if isinstance(event, Started):
            if event.arm.id == last:
                return None
            if event.arm.id == 2:
                return replace(event, arm=replace(event.arm, server={**event.arm.server, "lr": 1.25}))
        if isinstance(event, Done) and event.record.arm == last:
            return None
        return None if isinstance(event, (Eliminated, Won)) else event

    rewrite(tmp_path / "s", another)
    with pytest.raises(StoreError, match=r"does not propose arm 2 as it was"):
        tune("cmaes", ONE_BY_ONE, store=tmp_path / "s")


def test_another_sampler_is_another_study(tmp_path):
    tune("tpe", ONE_BY_ONE, store=tmp_path / "s")
    with pytest.raises(StoreError, match=r"sampler"):
        tune("cmaes", ONE_BY_ONE, store=tmp_path / "s")


@pytest.mark.slow
def test_uniform_arms_do_not_depend_on_the_schedule():
    one, other = (
        toys.tune(space=SPACE, method=ft.methods.fedavg, fedex=ft.FedEx(k=2), schedule=schedule).journal
        for schedule in (BOHB, ft.random_search(17, 1))
    )
    assert one.arms == other.arms
    assert one.candidates == other.candidates
    client, server = samplers.uniform.propose(SPACE, 0, 5, 0, ())
    assert (one.arms[5].client | client, one.arms[5].server | server) == (one.arms[5].client, one.arms[5].server)


def test_a_ball_is_the_candidates_of_arm_0():
    """Its arms are what FedEx would try in the first arm: with its b, and the c_j that are drawn around its c_1."""
    arms = [samplers.Ball(0.2).propose(SPACE, 3, id, 0, ()) for id in range(4)]
    client, server = samplers.uniform.propose(SPACE, 3, 0, 0, ())
    belief = ft.FedEx(k=4, eps=0.2).begin(Arm(0, client, server), SPACE, 3, None)
    assert arms == [(candidate, server) for candidate in belief.candidates]
    with pytest.raises(SpecError, match=r"sampler\.eps = -1"):
        samplers.Ball(-1)


# What is proposed


@pytest.mark.parametrize(("kind", "schedule"), EVERY)
def test_values_are_in_their_domains_and_candidates_near_the_centre(kind, schedule):
    journal = tune(kind, schedule, fedex=ft.FedEx(k=4, eps=0.1)).journal
    reach = 0.1 * math.log(1e3) + 1e-9
    for id, made in journal.arms.items():
        centre, *others = journal.candidates[id]
        assert all(centre[name] in domain for name, domain in SPACE.client.items())
        assert all(made.server[name] in domain for name, domain in SPACE.server.items())
        assert type(centre["batch"]) is type(centre["epochs"]) is int
        assert all(abs(math.log(other["lr"] / centre["lr"])) <= reach for other in others)
        assert len({other["lr"] for other in others}) == 3
    configs = {(*made.client.values(), *made.server.values()) for made in journal.arms.values()}
    assert len(configs) == outline(schedule).arms


@pytest.mark.slow
def test_an_arms_own_configuration_does_not_depend_on_fedex():
    """The first group's arms, which no score has reached, are the same with one candidate and with five."""
    one, five = (tune("tpe", BOHB, fedex=ft.FedEx(k=k)).journal.arms for k in (1, 5))
    assert [one[id] for id in range(7)] == [five[id] for id in range(7)]


@pytest.mark.parametrize("kind", ["tpe", pytest.param("gp", marks=pytest.mark.slow)])
def test_until_enough_arms_have_finished_they_are_drawn_uniformly(kind):
    past = ready(n=5)
    sampler = samplers.optuna(kind, startup=5)
    assert sampler.propose(SPACE, 0, 9, 9, past[:4]) == samplers.uniform.propose(SPACE, 0, 9, 9, ())
    assert sampler.propose(SPACE, 0, 9, 9, past) != samplers.uniform.propose(SPACE, 0, 9, 9, ())


@pytest.mark.parametrize("kind", ["tpe", pytest.param("gp", marks=pytest.mark.slow)])
def test_proposals_are_where_the_scores_were_good(kind):
    """Where the best rate is 0.1, half of a learned sampler's proposals are within a factor 3; of uniform ones 1/3."""
    past, sampler = ready(), samplers.optuna(kind)
    rates = [sampler.propose(SPACE, 0, id, 30, past)[0]["lr"] for id in range(30, 40)]
    near = sum(abs(math.log(rate / 0.1)) < math.log(3) for rate in rates)
    assert near >= 6
    elsewhere = [sampler.propose(SPACE, 0, id, 30, ready(best=0.002))[0]["lr"] for id in range(30, 40)]
    assert sum(rate < 0.01 for rate in elsewhere) >= 6


@pytest.mark.slow
def test_cmaes_moves_toward_the_good_arms():
    """Replayed on a table: the arms of the last generations score better than those of the first."""
    sampler, past = samplers.optuna("cmaes"), []
    space = ft.Space(client={"lr": ft.Float(1e-3, 1.0, log=True), "momentum": ft.Float(0.0, 1.0)})
    for id in range(40):
        client, server = sampler.propose(space, 0, id, id, past)
        score = abs(math.log(client["lr"] / 0.5)) + abs(client["momentum"] - 0.9)
        past.append(Past(Arm(id, client, server), id, {3: score}))
    scores = [p.scores[3] for p in past]
    assert np.mean(scores[-10:]) < 0.5 * np.mean(scores[:10])


@pytest.mark.slow
def test_arms_of_a_bracket_know_of_each_other():
    """A Gaussian process would propose its favourite again and again, if it did not know who is running there."""
    past, sampler = ready(), samplers.optuna("gp")
    client, server = sampler.propose(SPACE, 0, 30, 30, past)
    running = [*past, Past(Arm(30, client, server), 30)]
    alone, knowing = (sampler.propose(SPACE, 0, 31, 30, known) for known in (past, running))
    assert alone != knowing


def test_the_scores_compared_are_those_of_the_largest_rung_that_enough_arms_reached():
    """Five arms reach round 2, three of them 4, one 8. Three are enough for 4, four only for 2, six for none."""
    reached = [{2: 0.5}, {2: 0.4}, {2: 0.3, 4: 0.25}, {2: 0.2, 4: math.inf}, {2: 0.1, 4: 0.05, 8: 0.01}]
    past = [Past(arm(i, 0.1), 0, scores) for i, scores in enumerate(reached)] + [Past(arm(5, 0.1), 5)]
    chosen = {n: [(p.arm.id, score) for p, score in by_optuna._comparable(past, n)] for n in (1, 3, 4, 6)}
    assert chosen[1] == [(4, 0.01)]
    assert chosen[3] == [(2, 0.25), (3, 0.25), (4, 0.05)]  # what is not finite counts as the worst that is
    assert chosen[4] == [(0, 0.5), (1, 0.4), (2, 0.3), (3, 0.2), (4, 0.1)]
    assert chosen[6] == []


@pytest.mark.parametrize("kind", ["tpe", pytest.param("gp", marks=pytest.mark.slow), "cmaes"])
def test_arms_that_all_diverge_still_lead_to_a_proposal(kind):
    sampler, past = samplers.optuna(kind, startup=2), []
    for id in range(5):
        client, server = sampler.propose(SPACE, 0, id, id, past)
        past.append(Past(Arm(id, client, server), id, {3: math.inf}))
        assert client["lr"] in SPACE.client["lr"]


@pytest.mark.slow
def test_optuna_is_left_as_it_was():
    import optuna
    import torch

    before = optuna.logging.get_verbosity(), torch.get_num_threads(), torch.get_rng_state().tolist()
    samplers.optuna("gp").propose(SPACE, 0, 30, 30, ready())
    assert (optuna.logging.get_verbosity(), torch.get_num_threads(), torch.get_rng_state().tolist()) == before


# What is refused


@pytest.mark.parametrize(
    ("kind", "schedule", "message"),
    [
        ("tpe", toys.SCHEDULE, r"learns from finished arms, but halving starts all 4 at once: use hyperband"),
        ("gp", ft.random_search(30, 3), r"random_search starts all 10 at once: .* together = 1"),
        ("cmaes", BOHB, r"compares arms of equal length"),
    ],
)
def test_schedules_that_leave_nothing_to_learn_are_refused(kind, schedule, message):
    with pytest.raises(SpecError, match=message):
        tune(kind, schedule)


def test_mistakes_are_told(monkeypatch):
    with pytest.raises(SpecError, match=r"sampler = 'tpee', but must be one of .* did you mean 'tpe'"):
        samplers.optuna("tpee")
    with pytest.raises(SpecError, match=r"sampler.startup = 0, but must be a whole number >= 1"):
        samplers.optuna("tpe", startup=0)
    with pytest.raises(SpecError, match=r"such as fedtuner.samplers.optuna"):
        tune("tpe", BOHB, sampler="tpe")

    class Own:
        draw = near = describe = __contains__ = lambda self, *a: 0.5
        ends = lambda self: (0.5,)  # noqa: E731

    with pytest.raises(SpecError, match=r"client.lr: Optuna has no distribution for Own"):
        tune("tpe", BOHB, space=ft.Space(client={"lr": Own()}))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SpecError, match=r"sampler = 'tpe' needs optuna: pip install 'fedtuner\[optuna\]'"):
        tune("tpe", BOHB)


# TOML


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("uniform", samplers.uniform),
        ("tpe", samplers.optuna("tpe")),
        ({"kind": "gp", "startup": 8}, samplers.optuna("gp", startup=8)),
    ],
)
def test_a_study_names_its_sampler(given, made):
    parsed = spec.parse({"problem": "toys:problem", "sampler": given})
    assert parsed.sampler == made
    assert spec.sampler(made.describe()) == made


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("tpp", r"sampler = 'tpp', but must be one of .* did you mean 'tpe'"),
        (3, "sampler = 3, but must be one of"),
        ({"kind": "tpe", "startups": 3}, r"no setting sampler.startups; did you mean 'startup'"),
    ],
)
def test_a_wrong_sampler_in_a_study_is_told(given, message):
    with pytest.raises(SpecError, match=message):
        spec.parse({"problem": "toys:problem", "sampler": given})


SUITE = """
seeds = 1
[base]
problem = "toys:problem"
cohort = 3
fedex = { k = 3 }
[axes.wrapper]
RS = { schedule = { kind = "random_search", budget = 80, longest = 8 } }
TPE = { sampler = "tpe", schedule = { kind = "random_search", budget = 80, longest = 8, together = 1 } }
HB = { schedule = { kind = "hyperband", budget = 80, longest = 8, eta = 2, fill = true } }
BOHB = { sampler = "tpe", schedule = { kind = "hyperband", budget = 80, longest = 8, eta = 2, fill = true } }
"""


@pytest.mark.slow
def test_a_suite_compares_them_at_equal_rounds(tmp_path, fedtuner):
    """In a suite, whose studies share arms, each ends as it does alone; the budgets are used to a few rounds."""
    (tmp_path / "suite.toml").write_text(SUITE)
    out = tmp_path / "suite.jsonl"
    code, _, _ = fedtuner("bench", tmp_path / "suite.toml", "--out", out, "--workers", 1, "--quiet")
    assert code == 0
    tables = spec.tomllib.loads(SUITE)
    found = {study["labels"]["wrapper"]: study for study in results.read(out).studies}
    for name, settings in tables["axes"]["wrapper"].items():
        alone = spec.parse(tables["base"] | settings).study(None, 1).run(False)
        assert found[name]["winner"]["arm"] == alone.best.arm
        assert found[name]["winner"]["server"] == alone.best.server
        assert 76 <= alone.rounds_used <= 80
