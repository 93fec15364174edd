"""Studies with FedPop: the lineage that is kept, shown and exported; what is spent; kills, workers and settings."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from functools import partial

import pytest

import fedtuner as ft
import toys
from crashes import assert_same
from fedtuner.core.evolution import perturbed
from fedtuner.core.schedule import Scoring, outline
from fedtuner.errors import SpecError
from fedtuner.report import summary
from fedtuner.rng import stream
from fedtuner.run import spec
from fedtuner.run.journal import Held
from fedtuner.run.reading import read
from fedtuner.run.store import Folder
from fedtuner.schedules import Population
from fedtuner.schedules.population import Perturb
from fedtuner.testing.toys import quadratics
from fedtuner.tuners import FedEx, FedPop, none

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
SCHEDULE = ft.fedpop(32, 8, interval=2)  # 4 arms of 8 rounds; after rounds 2, 4 and 6 two of them are replaced
INSIDE = FedPop(k=3, every=1, young=2)


def tune(**changed):
    return toys.tune(**{"schedule": SCHEDULE, "fedex": None, "tuner": INSIDE, "space": toys.MIXED, **changed})


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return tune(store=tmp_path_factory.mktemp("whole") / "s")


def test_every_round_of_the_budget_is_spent_once(study):
    assert study.rounds_used == 32 == len({(r.arm, r.round) for r in study.history}) == outline(SCHEDULE).cost
    assert len(study.journal.arms) == 4 + 3 * 2
    for t in range(1, 9):
        assert sum(r.round == t for r in study.history) == 4


def test_children_have_changed_hyperparameters_and_the_journal_has_their_lineage(study):
    arms = read(Folder(study.path), "s").arms
    assert arms == study.journal.arms
    for id in range(4, 10):
        child, parent = arms[id], arms[arms[id].parent[0]]
        assert child.parent[1] == 2 * (1 + (id - 4) // 2)
        expected = Perturb(0.1, 0.1)(study.setup.space, parent, stream(0, "arm", id, "change"))
        assert (child.client, child.server) == expected
        assert (child.client, child.server) != (parent.client, parent.server)


def test_who_is_replaced_follows_from_the_losses(study):
    """Of four arms ceil(0.3 * 4) = 2 are replaced, the two of the highest loss in the last round."""
    journal = study.journal
    for at, children in ((2, (4, 5)), (4, (6, 7)), (6, (8, 9))):
        losses = {r.arm: r.loss for r in study.history if r.round == at}
        ranked = sorted(losses, key=losses.get)
        assert {arm for arm, gone in journal.eliminated.items() if gone.round == at} == set(ranked[2:])
        assert {journal.arms[child].parent[0] for child in children} <= set(ranked[:2])
    last = {r.arm: r.loss for r in study.history if r.round == 8}
    assert study.winner == (min(last, key=last.get), 8)


def test_client_vectors_are_tried_and_evolve(study):
    """In an arm's first two rounds its three clients have three vectors; then all have the best."""
    for own in study.journal.own_records.values():
        first = own[0].round
        for record in own:
            labels = sorted(row.label for row in record.rows)
            assert labels == [0, 1, 2] if record.round < first + 2 else len(set(labels)) == 1
    moved = [key for key in study.journal.moved if key[0] < 4]
    assert moved  # vectors were replaced after the first round


def test_the_best_has_its_hyperparameters_over_the_rounds(study):
    held, journal = study.best.schedule, study.journal
    assert all(isinstance(one, Held) for one in held)
    assert [one.first for one in held] == [1, *(one.last + 1 for one in held[:-1])]
    assert held[-1].last == 8
    assert held[-1].arm == study.best.arm
    assert (held[-1].server, held[-1].client) == (study.best.server, study.best.client)
    arms = [one.arm for one in held]
    for arm, before in itertools.pairwise(reversed(arms)):
        assert journal.arms[arm].parent == (before, next(one.last for one in held if one.arm == before))
    assert journal.arms[arms[0]].parent is None
    for one in held:
        assert one.server == journal.arms[one.arm].server
        labels = {row.label for r in journal.own_records[one.arm] if r.round == one.last for row in r.rows}
        assert one.client in [journal.offers((one.arm, one.last))[0][label] for label in labels]


def test_an_arm_without_ancestors_has_one_configuration():
    held = toys.tune().best.schedule
    assert [(one.first, one.last) for one in held] == [(1, 10)]


def test_the_export_has_the_schedule(study, tmp_path, fedtuner):
    code, _, _ = fedtuner("export", study.path, "--to", tmp_path / "x")
    assert code == 0
    kept = json.loads((tmp_path / "x" / "configuration.json").read_text())["schedule"]
    assert [Held(**one) for one in kept] == list(study.best.schedule)
    card = (tmp_path / "x" / "README.md").read_text()
    for one in study.best.schedule:
        assert f"| {one.first} to {one.last} | {one.arm} | " in card


def test_show_has_the_lineage(study, fedtuner):
    _, out, _ = fedtuner("show", study.path)
    assert "FedPop's population of 4 arms, evolving every 2 rounds around 3 client vectors each" in out
    child = study.journal.arms[4]
    assert f"from arm {child.parent[0]} at 2" in " ".join(out.split())
    assert "What changed while its model was trained" in out
    assert summary(study.path)["result"]["schedule"] == [vars(one) for one in study.best.schedule]


def test_the_page_has_the_lineage(study):
    from fedtuner.page.history import History
    from fedtuner.page.view import Views

    shown = Views().view(History(Folder(study.path).events()), "s")
    assert {one["id"]: one["parent"] for one in shown["arms"]} == {
        id: None if arm.parent is None else list(arm.parent) for id, arm in study.journal.arms.items()
    }


# To the bit


@pytest.mark.slow
def test_workers_change_nothing(study, tmp_path):
    tune(store=tmp_path / "two", workers=2)
    assert_same(tmp_path / "two", study.path)


def killed_after(events, path):
    left = itertools.count(events - 1, -1)
    tune(store=path, watch=lambda event: next(left) or toys.die())


@pytest.mark.slow
def test_killed_after_any_event_it_continues_to_the_same_end(study, tmp_path):
    for n in itertools.count(1):
        path = tmp_path / str(n)
        code = toys.forked(partial(killed_after, n, path))
        for workers in (1, 2):
            again = tmp_path / f"{n} with {workers}"
            shutil.copytree(path, again)
            tune(store=again, workers=workers)
            assert_same(again, study.path)
        if code == 0:
            break
    assert n > 40


def test_a_study_that_is_told_its_rounds_is_the_same(study, tmp_path):
    settings = toys.settings(schedule=SCHEDULE, space=toys.MIXED)
    settings |= {"tuner": INSIDE, "store": tmp_path / "told"}
    asked = ft.prepare(**{k: v for k, v in settings.items() if k not in ("fedex", "progress")})
    from fedtuner.core.round import Round

    rounds = Round(asked.setup, asked.problem)
    while (plan := asked.ask()) is not None:
        asked.tell(plan, [rounds.work(plan, job) for job in plan.jobs])
    assert asked.winner == study.winner
    assert asked.best.model.tobytes() == study.best.model.tobytes()


# The paired variant


def test_paired_arms_meet_the_same_clients_from_the_same_weights():
    paired = tune(schedule=ft.fedpop(32, 8, interval=2, paired=True))
    assert (paired.setup.cohorts, paired.setup.weights) == ("shared", "shared")
    by_round = {}
    for record in paired.history:
        by_round.setdefault(record.round, []).append([row.client for row in record.rows])
    assert all(len(cohorts) == 4 and cohorts.count(cohorts[0]) == 4 for cohorts in by_round.values())
    first = {(r.loss_before, r.error_before) for r in paired.history if r.round == 1}
    assert len(first) == 1
    assert paired.setup.schedule.scoring == Scoring("loss", round(0.1**0.5, 6))


@pytest.mark.parametrize("name", ["cohorts", "weights"])
def test_paired_arms_cannot_have_clients_or_weights_of_their_own(name):
    with pytest.raises(SpecError, match=f"{name} = 'independent', but fedpop compares arms on the same clients"):
        tune(schedule=ft.fedpop(32, 8, paired=True), **{name: "independent"})


def test_published_arms_meet_clients_of_their_own(study):
    assert (study.setup.cohorts, study.setup.weights) == ("independent", "independent")


# Arms that diverge


def test_an_arm_that_diverges_is_replaced():
    """Two server rates, one of which makes the model infinite at once: its arms are replaced by children of others."""
    space = ft.Space({"lr": ft.Float(0.05, 0.1)}, {"lr": [1.0, 3e38]})
    study = ft.tune(
        quadratics(spread=30.0), space, schedule=ft.fedpop(40, 8, interval=4, fresh=0.0), fedex=None, cohort=3,
        workers=1, progress=False, seed=4,
    )  # fmt: skip
    ended = [arm for arm, why in study.journal.ended.items() if why == "diverged"]
    assert any(arm < 5 for arm in ended)
    for arm in ended:
        at = study.journal.round_of(arm)
        assert study.journal.eliminated[arm].round == at
    assert study.rounds_used <= 40
    assert math.isfinite(study.best.score)
    assert study.best.server["lr"] == 1.0


# Settings


def test_a_population_has_its_own_tuner_unless_another_is_given():
    problem, schedule = toys.problem(), ft.fedpop(32, 8, interval=8)
    own = ft.prepare(problem, toys.SPACE, schedule=schedule, cohort=3).setup.tuner
    assert own == FedPop(k=3, every=2, young=8)
    assert ft.prepare(problem, toys.SPACE, schedule=schedule, cohort=0.5).setup.tuner.k == 10
    assert ft.prepare(problem, toys.SPACE, schedule=schedule, cohort=3, tuner=none).setup.tuner == none
    assert ft.prepare(problem, toys.SPACE, schedule=schedule, cohort=3, fedex=FedEx(k=3)).setup.tuner == FedEx(k=3)
    usual = {"problem": problem, "space": toys.SPACE, "schedule": ft.fedpop(4, 1), "cohort": 3}
    usual |= {"workers": 1, "progress": False}
    assert isinstance(ft.tune(**usual).setup.tuner, FedPop)
    assert ft.tune(**usual, fedex=None).setup.tuner == none
    assert ft.tune(**usual, fedex=FedEx(k=2)).setup.tuner == FedEx(k=2)


def test_a_study_toml_names_it():
    table = {"problem": "digits", "cohort": 5, "schedule": {"kind": "fedpop", "budget": 300, "paired": True}}
    made = spec.parse(table)
    assert made.schedule == Population(300, paired=True)
    assert made.tuner == FedPop(k=5, every=1, young=6)
    assert spec.parse({**table, "fedex": False}).tuner == none
    own = spec.parse({**table, "tuner": {"kind": "fedpop", "k": 7, "young": 30}})
    assert own.tuner == FedPop(k=7, young=30)
    with pytest.raises(SpecError, match=r"no setting tuner\.yuong in fedpop; did you mean 'young'"):
        spec.parse({**table, "tuner": {"kind": "fedpop", "yuong": 3}})
    with pytest.raises(SpecError, match=r"no setting schedule\.intervall in fedpop; did you mean 'interval'"):
        spec.parse({**table, "schedule": {"kind": "fedpop", "intervall": 3}})


@pytest.mark.parametrize("what", ["schedules", "tuners"])
def test_the_list_has_it(fedtuner, what):
    _, out, _ = fedtuner("list", what, "--json")
    [found] = [one for one in json.loads(out)[what] if one["name"] == "fedpop"]
    assert "eps" in found["settings"]
    assert "FedPop" in found["about"]


def test_a_sampler_that_learns_has_nothing_to_learn_from():
    """Children are not proposed by it, and all other arms start at once."""
    pytest.importorskip("optuna")
    with pytest.raises(SpecError, match="fedpop starts all 4 at once"):
        tune(sampler=ft.samplers.optuna("tpe"))


def test_a_forecast_counts_its_rounds():
    study = ft.prepare(toys.problem(), toys.SPACE, schedule=SCHEDULE, cohort=3)
    found = study.forecast(seconds=0.01)
    assert (found.rounds, found.longest, found.arms) == (32, 8, 10)
    assert [group.children for group in found.groups] == [False, True, True, True]
    assert found.groups[0].arms == 4


def test_it_can_be_extended(tmp_path):
    """By another population, with the further rounds; the better one of the winners wins."""
    study = tune(store=tmp_path / "s")
    study.extend(48, progress=False)
    assert study.rounds_used == 48
    assert len(study.best.schedule) >= 1


def test_it_trains_without_anything_to_tune():
    study = tune(space=ft.Space(), tuner=none)
    assert study.rounds_used == 32
    assert len({json.dumps(dict(arm.client)) for arm in study.journal.arms.values()}) == 1


def test_conditional_hyperparameters_survive_a_state(tmp_path):
    """Vectors in which a hyperparameter is absent, a word or a whole number are packed and unpacked as they are."""
    space = ft.Space(
        {
            "lr": ft.Float(1e-3, 1.0, log=True),
            "optimiser": ["sgd", "adam"],
            "beta2": ft.When(ft.Float(0.9, 0.999), optimiser="adam"),
            "epochs": ft.Int(1, 3),
        }
    )
    tuner = FedPop(k=5, every=1, young=6)
    arm = toys_arm(space)
    belief = tuner.begin(arm, space, 0, None)
    again = tuner.unpack(tuner.begin(arm, space, 0, None), tuner.pack(belief))
    assert [list(c.items()) for c in again.vectors] == [list(c.items()) for c in belief.vectors]
    assert {"beta2" in c for c in belief.vectors} == {True, False}


def toys_arm(space):
    from fedtuner.core.records import Arm

    base = perturbed(space.client, {"lr": 0.1, "optimiser": "sgd", "epochs": 2, "batch": 8}, 0.0, stream(3, "base"))
    return Arm(0, base, {})
