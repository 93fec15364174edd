"""Which part of a budget's schedule an arm is: of the rung, the duel, the long run, its last rounds or further ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fedtuner.core.records import Arm
from fedtuner.errors import counted
from fedtuner.run.journal import Journal
from fedtuner.run.spec import schedule as read_schedule
from fedtuner.schedules import KINDS, Duel

RUNG, DUEL, RUN, RETURN = "rung", "duel", "run", "return"
AGAIN, LAST, FURTHER = "last rounds again", "last round", "further rounds"


def stage(journal: Journal, id: int) -> str:
    """Return an arm's part in the schedule that a budget alone gives."""
    table, arm = journal.setup["schedule"], journal.arms[id]
    if table["kind"] != Duel.kind or table["kind"] not in KINDS:
        return ""
    schedule = read_schedule(table)
    assert isinstance(schedule, Duel)
    if arm.parent is None:
        return RUN if schedule.arms == 1 else RUNG
    run = _run(journal, schedule)
    if id <= run:
        return RUN if id == run else DUEL
    if _again(journal, arm, schedule, run):
        return AGAIN
    if _last(journal, arm, schedule, run):
        return LAST
    return FURTHER if _goes_on(journal, arm) else RETURN


def told(stages: Sequence[str]) -> str:
    """Return in words what the parts of a study's arms are, once the long run has begun; empty before that."""
    if RUN not in stages:
        return ""
    duel = "from the best one's model" if DUEL in stages else "of two, each from its own model"
    search = f"A rung of {counted(stages.count(RUNG), 'arm')}, a duel {duel}, and a" if RUNG in stages else "A"
    times = stages.count(RETURN)
    back = {0: "", 1: " that went back once"}.get(times, f" that went back {times} times")
    why = "with a smaller step, to see what clients should fine-tune with"
    again = f" Its last rounds were trained again {why}." if AGAIN in stages else ""
    further = " After that the winner's training went on for further rounds." if FURTHER in stages else ""
    return f"{search} long run{back}.{again}{further}"


def _run(journal: Journal, schedule: Duel) -> int:
    """Return the number of the arm that the long run begins with: the first one after the rung and the duel."""
    assert schedule.arms is not None
    if schedule.arms == 1:
        return 0
    first = journal.arms.get(schedule.arms)
    if first is None or first.parent is None or first.parent[1] != schedule.rung or first.horizon is not None:
        return schedule.arms  # both went on by themselves in the duel
    # A run may begin there, too, if both have diverged; but an arm of the duel has another one's configuration.
    others = [journal.arms[id] for id in range(schedule.arms) if id != first.parent[0]]
    return schedule.arms + any(map(partial(_alike, first), others))


def _again(journal: Journal, arm: Arm, schedule: Duel, run: int) -> bool:
    """Return whether an arm of the run trains the last rounds of the one before it once more.

    Its horizon is the round that it begins after. Where nothing is cooled, arms have no horizon: then the run's rounds
    are counted, all of which but one are used when it begins.
    """
    assert arm.parent is not None
    parent, at = arm.parent
    reached = journal.round_of(parent)
    if arm.horizon is not None:
        return arm.horizon == at < reached
    begun, end = journal.arms[parent].parent, at + schedule.last
    used = sum(len(journal.own_records[one]) for one in range(run, parent)) + end - (begun[1] if begun else 0)
    short = len(journal.own_records[arm.id]) <= schedule.last
    return arm.id - 1 == parent and at < end <= reached and used == schedule.run - schedule.last - 1 and short


def _last(journal: Journal, arm: Arm, schedule: Duel, run: int) -> bool:
    """Return whether an arm trains the run's last round, as clients ended better in the last rounds again."""
    assert arm.parent is not None
    parent, at = arm.parent
    if arm.horizon is not None:
        return arm.horizon == at == journal.round_of(parent)
    before = journal.arms[arm.id - 1]
    return before.parent == (parent, at - schedule.last) and _again(journal, before, schedule, run)


def _goes_on(journal: Journal, arm: Arm) -> bool:
    """Return whether an arm was started by an extension.

    Each starts one, with the configuration of the winner, or with that which the winner's last round was begun after.
    """
    assert arm.parent is not None
    extensions, winner = sum(one.by != "rest" for one in journal.extended), journal.arms[arm.parent[0]]
    latest = sorted(journal.arms)[-extensions:] if extensions else []
    trained = [winner, *([journal.arms[winner.parent[0]]] if winner.parent else ())]
    return arm.id in latest and any(map(partial(_alike, arm), trained))


def _alike(arm: Arm, other: Arm) -> bool:
    return (arm.client, arm.server) == (other.client, other.server)
