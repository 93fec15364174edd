"""What the page calls an arm is what the schedule started it for, whatever the losses were."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner.core.records import Arm, Key, Record
from fedtuner.core.schedule import Evidence, Play, Start, Step
from fedtuner.core.store import Begun, Done, Extended, Started, Won
from fedtuner.page.stages import stage, told
from fedtuner.run.journal import Journal
from fedtuner.schedules import Duel
from fedtuner.schedules.long_run import LongRun

RUNG_OF_THREE = Duel(100, 3)  # a rung of 4 rounds, a duel to round 16, a run of 64 rounds with 3 last ones


def record(arm: int, at: int, loss: float, diverged: bool = False) -> Record:
    return Record(
        arm=arm, round=at, clients=3, dropped=0, broken=0, bounded=0, examples=3, validated=3, trainings=3,
        loss_before=loss, loss_after=loss, error_before=0.5, error_after=0.5, loss=loss, error=0.5, entropy=0.0,
        mode=0, confidence=1.0, diverged=diverged,
    )  # fmt: skip


def journal(schedule: Duel) -> Journal:
    """A study that has begun."""
    table = {"kind": "duel", **asdict(schedule)}
    return Journal([Begun(1, {"schedule": table}, {}, [], {})])


def add(study: Journal, id: int, parent: Key | None, horizon: int | None, until: int, lr: float = 0.1) -> None:
    """An arm that was trained to a round."""
    study.add(Started(Arm(id, {"lr": lr}, {}, parent, horizon), ({"lr": lr},)))
    for at in range(parent[1] if parent else 0, until):
        study.add(Done(record(id, at + 1, 1.0)))


def stages(study: Journal) -> list[str]:
    return [stage(study, id) for id in study.arms]


def rung(study: Journal, *until: int) -> None:
    """Three arms, the first ones of a study, that were trained to these rounds."""
    for id, t in enumerate(until):
        add(study, id, None, None, t, lr=0.1 * 2**id)


@pytest.mark.parametrize("cooled", [True, False])
def test_an_arm_that_goes_on_from_its_own_model_after_the_duel_is_the_run(cooled):
    study = journal(RUNG_OF_THREE)
    rung(study, 4, 16, 4)
    add(study, 3, (1, 4), None, 16)
    add(study, 4, (0, 4), 65 if cooled else None, 65)  # the default, from its own model
    add(study, 5, (4, 61), 61 if cooled else None, 64)
    assert stages(study) == ["rung"] * 3 + ["duel", "run", "last rounds again"]


@pytest.mark.parametrize("cooled", [True, False])
def test_arms_that_met_in_the_duel_without_a_common_model_are_of_the_rung(cooled):
    study = journal(RUNG_OF_THREE)
    rung(study, 16, 16, 4)
    add(study, 3, (1, 16), 77 if cooled else None, 77)
    add(study, 4, (3, 20), 81 if cooled else None, 30)
    assert stages(study) == ["rung"] * 3 + ["run", "return"]


@pytest.mark.parametrize("cooled", [True, False])
def test_a_run_that_goes_back_behind_the_duel_is_no_duel(cooled):
    """Both arms of the duel have diverged."""
    study = journal(RUNG_OF_THREE)
    rung(study, 9, 8, 4)
    add(study, 3, (0, 4), 65 if cooled else None, 40)
    assert stages(study) == ["rung"] * 3 + ["run"]


@pytest.mark.parametrize("cooled", [True, False])
def test_a_return_to_the_latest_model_is_no_last_round(cooled):
    """A run that has not fallen for long goes on from where it is."""
    study = journal(Duel(120, 1))
    add(study, 0, None, 114 if cooled else None, 70)
    add(study, 1, (0, 70), 114 if cooled else None, 113)
    add(study, 2, (1, 107), 107 if cooled else None, 113)
    add(study, 3, (1, 113), 113 if cooled else None, 114)
    assert stages(study) == ["run", "return", "last rounds again", "last round"]


@pytest.mark.parametrize("cooled", [True, False])
@pytest.mark.parametrize("behind", [6, 7])
def test_a_return_by_as_many_rounds_as_are_trained_again_is_a_return(cooled, behind):
    study = journal(Duel(120, 1))
    add(study, 0, None, 114 if cooled else None, 50)
    add(study, 1, (0, 50 - behind), 114 - behind if cooled else None, 50)
    assert stages(study) == ["run", "return"]


@pytest.mark.parametrize("cooled", [True, False])
@pytest.mark.parametrize("lr", [0.3, 1.0])
def test_the_rounds_of_an_extension_are_further_ones(cooled, lr):
    """They have the step of the last round, or that of the rounds before it."""
    study = journal(Duel(60, 1))
    add(study, 0, None, 57 if cooled else None, 56, lr=1.0)
    add(study, 1, (0, 53), 53 if cooled else None, 56, lr=0.3)
    add(study, 2, (0, 56), 56 if cooled else None, 57, lr=0.3)
    for id, by in ((3, "run"), (4, "winner")):
        at = study.round_of(id - 1)
        study.add(Won(id - 1, at, (0.5, 0.5)))
        study.add(Extended(at + 63, by))
        assert stages(study)[2] == "last round"
        add(study, id, (id - 1, at), at + 60 if cooled else None, at + 60, lr=lr)
    assert stages(study) == ["run", "last rounds again", "last round", "further rounds", "further rounds"]


def test_the_rest_that_a_timeout_left_is_no_extension():
    study = journal(Duel(120, 1))
    add(study, 0, None, 114, 50)
    study.add(Won(0, 50, (0.5, 0.5)))
    study.add(Extended(120, "rest"))
    add(study, 1, (0, 40), 104, 60)  # a return that changes nothing: its step is a name
    assert stages(study) == ["run", "return"]


@pytest.mark.parametrize("lr", [0.1, 1.0])
def test_a_real_study_that_was_extended_has_further_rounds(lr):
    usual = {"fedex": None, "schedule": None, "space": None, "method": ft.methods.fedavg}
    study = toys.tune(**usual, budget=60, include=[{"client": {"lr": lr, "epochs": 3}}]).extend(70)
    assert stage(study.journal, study.winner[0]) == "further rounds"


# For any losses


def by_who_starts_it(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """What each arm is, by the part of the schedule's code that starts it."""
    found: dict[int, str] = {}

    def noting(play: Any, *names: str) -> Any:
        """Note the names of the arms that a generator starts: the last one is that of all the others."""

        def noted(*given: Any, **named: Any) -> Generator[Step, Evidence, Key]:
            course, left = play(*given, **named), iter(names[:-1])
            step = next(course)
            while True:
                for arm in step.start.keys() - found.keys():
                    found[arm] = next(left, names[-1])
                try:
                    step = course.send((yield step))
                except StopIteration as end:
                    return end.value

        return noted

    monkeypatch.setattr(LongRun, "_once_more", noting(LongRun._once_more, "last rounds again", "last round"))
    monkeypatch.setattr(LongRun, "steps", noting(LongRun.steps, "run", "return"))
    return found


def losses(rng: np.random.Generator) -> Iterator[tuple[float, bool]]:
    """An arm's losses: they fall for a while, then stay or rise; and whether it diverges in the round."""
    loss, end, then = rng.choice([2.0, 1.0, 0.3]), rng.integers(0, 60), rng.choice([1.0, 1.0, 1.2])
    while True:
        yield loss, rng.random() < 0.002
        loss *= (0.97 if end > 0 else then) * rng.uniform(0.999, 1.001)
        end -= 1


def arm_of(study: Journal, id: int, start: Start, *, cooled: bool) -> Arm:
    """The arm that a session would start."""
    horizon = start.horizon if cooled else None
    if start.parent is None:
        return Arm(id, {"lr": 1.0 + id}, {"optimiser": "fedexp", "lr": 1.0}, None, horizon)
    parent, at = start.parent
    model = study.arms[parent if start.like is None else start.like]
    client, server = model.client, model.server
    if start.change is not None:
        client, server = start.change(ft.Space(), model, np.random.default_rng(0))
    return Arm(id, client, server, (parent, min(at, study.round_of(parent))), horizon)


def advance(study: Journal, id: int, until: int, given: Iterator[tuple[float, bool]]) -> None:
    while study.round_of(id) < until and id not in study.ended:
        at, (loss, diverged) = study.round_of(id) + 1, next(given)
        study.add(Done(record(id, at, 2.0 if at == 1 else loss, diverged), ended="diverged" * diverged, state="x"))


def played(schedule: Duel, seed: int, *, cooled: bool) -> Iterator[Journal]:
    """Play a schedule whose arms have random losses; yield the journal after each of its steps."""
    course, study, given = Play(schedule), journal(schedule), dict[int, Iterator[tuple[float, bool]]]()
    while (step := course.step) is not None:
        for id, start in step.start.items():
            study.add(Started(arm_of(study, id, start, cooled=cooled), ({},)))
            given[id] = losses(np.random.default_rng([seed, id]))
        for id, until in step.until.items():
            advance(study, id, until, given[id])
        yield study
        records = {id: study.records(id, until) for id, until in step.until.items()}
        scores = {id: (math.inf if id in study.ended else of[-1].loss, 0.5) for id, of in records.items()}
        ended = {id: study.ended[id] for id in step.until if id in study.ended}
        course.tell(Evidence(scores, records, ended, {id: study.arms[id] for id in step.until}))


@pytest.mark.slow
@pytest.mark.parametrize("cooled", [True, False])
@pytest.mark.parametrize("arms", [1, 3])
def test_a_part_is_named_after_who_starts_it_from_the_arms_first_step_on(arms, cooled, monkeypatch):
    met = set[str]()
    for seed in range(40):
        budget = int(np.random.default_rng(seed).integers(40, 160))
        schedule = Duel(budget, arms, default_optimiser=("", "sgd")[seed % 2])
        with monkeypatch.context() as patch:
            meant = by_who_starts_it(patch)
            for study in played(schedule, seed, cooled=cooled):
                expected = ["rung" if one.parent is None else "duel" for one in study.arms.values()]
                expected = [meant.get(id, other) for id, other in zip(study.arms, expected, strict=True)]
                assert stages(study) == expected, (seed, budget)
        met |= set(expected)
    searched = {"rung", "duel"} if arms > 1 else set[str]()
    assert met == {"run", "return", "last rounds again", "last round"} | searched


# In words


def test_the_parts_in_words():
    search, rungs = ["rung"] * 3, "A rung of 3 arms, a duel"
    again = " Its last rounds were trained again with a smaller step, to see what clients should fine-tune with."
    assert told([]) == told(search) == told([*search, "duel"]) == told(["", ""]) == ""
    assert told([*search, "duel", "run"]) == f"{rungs} from the best one's model, and a long run."
    assert told([*search, "run"]) == f"{rungs} of two, each from its own model, and a long run."
    assert told(["run", "return"]) == "A long run that went back once."
    assert told(["run", "return", "return", "last rounds again", "last round", "further rounds"]) == (
        f"A long run that went back 2 times.{again} After that the winner's training went on for further rounds."
    )
