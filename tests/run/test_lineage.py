"""Arms that go on from another arm's state, with changed hyperparameters: what is recorded, spent, kept and resumed."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

import fedtuner as ft
import toys
from crashes import assert_same
from fedtuner.core.round import Round
from fedtuner.core.schedule import Evidence, Scoring, Start, Step, best, discounted, outline
from fedtuner.core.store import Started
from fedtuner.rng import stream
from fedtuner.run.reading import read
from fedtuner.run.store import Folder
from fedtuner.testing import ScheduleLaws
from fedtuner.testing.rounds import advance, bits
from fedtuner.testing.toys import quadratics

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def slower(space, parent, rng):
    """A child's hyperparameters: its parent's, with a smaller rate."""
    return {**parent.client, "lr": parent.client["lr"] * float(rng.uniform(0.4, 0.8))}, parent.server


@dataclass(frozen=True)
class Branching:
    """Two arms to round 2; the better one to round 5, its state kept; then two children from the kept state to 5.

    Child 2 is a copy, child 3 has a smaller rate. The best of the three wins, at round 5.
    """

    budget: int = 13
    longest: int = 5
    discount: float = 0.0

    needs = frozenset[str]()

    @property
    def scoring(self) -> Scoring:
        return Scoring("loss", self.discount)

    def steps(self) -> Generator[Step, Evidence, tuple[int, int]]:
        evidence = yield Step({0: 2, 1: 2}, {0: Start(horizon=5), 1: Start(horizon=5)})
        first, last = best(evidence.scores, 2)
        evidence = yield Step({first: 5}, out=(last,), keep=((first, 2),))
        self.check(evidence)
        scores = dict(evidence.scores)
        children = {2: Start((first, 2)), 3: Start((first, 2), slower, horizon=5)}
        evidence = yield Step({2: 5, 3: 5}, children)
        self.check(evidence)
        return best(scores | dict(evidence.scores), 1)[0], 5

    def check(self, evidence: Evidence) -> None:
        """What the schedule hears is tested by a subclass."""


HEARD = []


class Listening(Branching):
    def check(self, evidence):
        HEARD.append(evidence)


class TestBranching(ScheduleLaws):
    def schedule(self):
        return Branching()


def test_an_outline_knows_of_children():
    known = outline(Branching())
    assert known.children
    assert known.groups == ((0, 1), (2, 3))
    assert known.cost == 2 * 2 + 3 + 2 * 3 == Branching().budget
    assert known.arms == 4


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return toys.tune(schedule=Branching(), store=tmp_path_factory.mktemp("whole") / "s")


def first_of(study):
    return study.journal.arms[2].parent[0]


def test_the_journal_has_the_lineage(study):
    first = first_of(study)
    parent, copy, child = (study.journal.arms[i] for i in (first, 2, 3))
    assert parent.parent is None
    assert copy.parent == child.parent == (first, 2)
    assert (copy.client, copy.server) == (parent.client, parent.server)
    assert child == replace(
        parent, id=3, parent=(first, 2), client=slower(None, parent, stream(0, "arm", 3, "change"))[0]
    )
    read_back = read(Folder(study.path), "s")
    assert read_back.arms == study.journal.arms
    started = {e.arm.id: e for e in Folder(study.path).events() if isinstance(e, Started)}
    assert [bool(started[i].state) for i in range(4)] == [False, False, True, True]
    assert started[3].candidates[0] == child.client


def test_records_of_a_child_include_its_ancestors(study):
    first, journal = first_of(study), study.journal
    for arm in (2, 3):
        assert [(r.arm, r.round) for r in journal.records(arm)] == [
            (first, 1),
            (first, 2),
            (arm, 3),
            (arm, 4),
            (arm, 5),
        ]
        assert [r.round for r in journal.records(arm, 3)] == [1, 2, 3]
        assert [r.round for r in journal.own_records[arm]] == [3, 4, 5]
        assert journal.round_of(arm) == 5


def test_the_schedule_is_told_of_all_rounds(study):
    HEARD.clear()
    toys.tune(schedule=Listening(discount=0.5))
    heard = HEARD[-1]  # earlier ones are of outlines
    for arm in (2, 3):
        losses = [record.loss for record in heard.records[arm]]
        assert len(losses) == 5
        assert heard.scores[arm][0] == discounted(losses, 0.5)
    assert heard.ended == {}


def test_each_round_is_spent_once(study):
    assert study.rounds_used == 13 == len(study.history)
    assert len({(r.arm, r.round) for r in study.history}) == 13
    assert study.local_work == 13 * 3


def test_a_child_begins_from_its_parents_state(study):
    """Model, slots and client memory go on; a copy keeps theta, and a changed child begins with its own candidates."""
    round, first = Round(study.setup, study.problem), first_of(study)
    arms = study.journal.arms
    at = advance(round, arms[first], 2)
    for arm in (2, 3):
        begun = round.begin(arms[arm], at)
        assert (begun.round, begun.w.tobytes(), begun.memory) == (2, at.w.tobytes(), at.memory)
        expected = advance(round, arms[arm], 5, begun)
        assert bits(round, study.state((arm, 5))) == bits(round, expected)
    assert round.begin(arms[2], at).belief is at.belief
    assert np.allclose(round.begin(arms[3], at).belief.theta.p, 1 / 3)


def test_a_copy_meets_clients_of_its_own(study):
    """Its streams are named by its number, so it is another draw of the same training."""
    first = first_of(study)
    rows = [[row.client for r in study.journal.own_records[a] if r.round > 2 for row in r.rows] for a in (first, 2)]
    assert rows[0] != rows[1]


def killed_after(events, path):
    """Run the study in this process, and kill it after so many events."""
    left = itertools.count(events - 1, -1)
    toys.tune(schedule=Branching(), store=path, watch=lambda event: next(left) or toys.die())


@pytest.mark.slow
def test_killed_after_any_event_it_continues_to_the_same_end(study, tmp_path):
    """Also between steps: after an arm is out, after a child has started, before its first round."""
    for n in itertools.count(1):
        path = tmp_path / str(n)
        code = toys.forked(partial(killed_after, n, path))
        for workers in (1, 2):
            again = tmp_path / f"{n} with {workers}"
            shutil.copytree(path, again)
            toys.tune(schedule=Branching(), store=again, workers=workers)
            assert_same(again, study.path)
        if code == 0:
            break
    assert n > 15


@dataclass(frozen=True)
class Early(Branching):
    """The winner is taken at round 2, although it went on to round 5."""

    budget: int = 7

    def steps(self):
        evidence = yield Step({0: 2, 1: 2}, {0: Start(), 1: Start()})
        first, last = best(evidence.scores, 2)
        yield Step({first: 5}, out=(last,), keep=((first, 2),))
        return first, 2


class TestEarly(ScheduleLaws):
    def schedule(self):
        return Early()


@pytest.mark.parametrize("store", [None, "s"])
def test_a_winner_may_be_taken_at_a_round_that_was_kept(store, tmp_path):
    study = toys.tune(schedule=Early(), store=store and tmp_path / store)
    arm, at = study.winner
    assert at == study.best.rounds == 2
    assert study.rounds_used == 7
    round = Round(study.setup, study.problem)
    assert study.best.model.tobytes() == advance(round, study.journal.arms[arm], 2).w.tobytes()
    assert study.best.score == study.journal.records(arm)[1].loss
    assert math.isfinite(study.evaluate("test")["personalized"])


def test_horizons_are_part_of_an_arm_where_the_step_cools():
    assert {arm.horizon for arm in toys.tune(schedule=Branching()).journal.arms.values()} == {None}
    cooled = toys.tune(schedule=Branching(), cooling=0.5, method=ft.methods.fedavg)
    assert [cooled.journal.arms[i].horizon for i in range(4)] == [5, 5, None, 5]


def test_children_of_an_arm_that_has_ended_begin_where_it_ended():
    """An arm that diverges in its first round has no state after round 2: the state that it ended with is taken."""
    problem = quadratics(spread=30.0)
    study = toys.tune(
        problem=problem,
        schedule=Branching(),
        space=ft.Space({"lr": ft.Float(0.1, 0.2)}, {"lr": 3e38}),
        method=ft.methods.fedavg,
        fedex=None,
    )
    assert study.journal.arms[3].parent == (0, 1)
    assert [study.journal.round_of(arm) for arm in range(4)] == [1, 1, 2, 2]
    assert study.best.score == math.inf
