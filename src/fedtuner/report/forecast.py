"""What a study will do and take, as a person reads it."""

from __future__ import annotations

from fedtuner.errors import counted
from fedtuner.report.console import console
from fedtuner.run.forecast import Forecast, Group
from fedtuner.run.words import duration, size


def print_forecast(found: Forecast, done: int = 0) -> None:
    """Print a forecast; ``done`` rounds are in the store already."""
    from rich.table import Table

    table = Table("", "before it runs", box=None, pad_edge=False, header_style="dim")
    for n, group in enumerate(found.groups):
        table.add_row("arms and rungs" if not n else "", _arms(group))
    kept = f", of which {done} are done" if done else ""
    table.add_row("rounds", f"{found.rounds}{kept}, at most {found.longest} for one model; {found.cohort} clients each")
    each = f"{size(found.sent)} to a client, {size(found.received)} back"
    table.add_row("messages", f"{found.messages:,}; {size(found.bytes)} in all ({each})")
    examples = "" if found.examples is None else f", on about {found.examples:,} examples in all"
    table.add_row("local work", f"{found.trainings:,} trainings{examples}")
    if found.at_once > 1:
        table.add_row("", f"one device trains up to {found.at_once} times in the same round")
    if found.seconds is not None:
        table.add_row("time", f"about {duration(found.seconds)} on this machine")
    console().print(table)


def _arms(group: Group) -> str:
    first, *rest = group.rungs
    begin = f"{counted(group.arms, 'arm')}{' from the model of another' if group.children else ''} to round {first[0]}"
    return "; ".join([begin, *(f"{arms} of them to round {round}" for round, arms in rest)])
