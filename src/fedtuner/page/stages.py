"""Which part of a budget's schedule an arm is: of the rung, the duel, the long run or its last rounds."""

from __future__ import annotations

from fedtuner.run.journal import Journal
from fedtuner.run.spec import schedule as read_schedule
from fedtuner.schedules import KINDS, Duel
from fedtuner.schedules.duel_and_run import LONGER


def stage(journal: Journal, id: int) -> str:
    """Return an arm's part in the schedule that a budget alone gives."""
    table, parent = journal.setup["schedule"], journal.arms[id].parent
    if table["kind"] != Duel.kind or table["kind"] not in KINDS:
        return ""
    schedule = read_schedule(table)
    assert isinstance(schedule, Duel)
    if parent is None:
        return "run" if schedule.arms == 1 else "rung"
    if schedule.arms != 1:
        if parent[1] == schedule.rung:
            return "duel"
        until = (1 + LONGER) * schedule.rung
        if id == min((a.id for a in journal.arms.values() if a.parent and a.parent[1] >= until), default=id):
            return "run"
    further = journal.round_of(parent[0]) - parent[1]  # of the parent: those that this arm trains once more
    if parent[0] in journal.ended or further not in (0, schedule.last, schedule.last + 1):
        return "return"
    return "last rounds again" if further else "last round"
