"""How a session opens a store: what it writes to a new one, and whether an old one holds the same study."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from fedtuner import tables
from fedtuner.core import code
from fedtuner.core.federation import Federation, described
from fedtuner.core.schedule import Schedule
from fedtuner.core.setup import Setup
from fedtuner.core.store import Begun, Extended
from fedtuner.errors import FedtunerWarning, StoreError, one_line
from fedtuner.run.store.lines import FORMAT
from fedtuner.run.versions import command, versions
from fedtuner.schedules.longer import extended, links, original

# Differences that follow from another budget.
_FOLLOWS = re.compile(r"schedule(\.first)*\.(budget|longest|arms): |sampler\.rest\.(rest\.)?arms: ")


def first_event(setup: Setup, federation: Federation) -> Begun:
    """Return the event with which a study begins, but for what does not belong to setup and federation."""
    first = replace(setup, schedule=original(setup.schedule))
    layout = [asdict(part) for part in federation.model.layout()]
    groups: dict[str, list[str | int]] = {}
    for id, group in federation.groups.items():
        groups.setdefault(group, []).append(id)
    about, problem, parts = map(tables.plain, (first.describe(), described(federation), layout))
    return Begun(FORMAT, about, problem, parts, versions={}, code=dict(federation.code), groups=groups)


def with_versions(event: Begun) -> Begun:
    """Return the event with the versions of packages and the command that began the study."""
    return replace(event, versions=versions(), command=command())


def refuse_another(name: str, old: Begun, new: Begun) -> None:
    """Raise an error if a store holds another study."""
    was, now = ({**begun.setup, "problem": begun.federation, "layout": begun.layout} for begun in (old, new))
    # In settings 0 equals 0.0, but in a space a range of whole numbers is sampled differently.
    now |= {key: _as_stored(was.get(key), value) for key, value in now.items() if key not in ("client", "server")}
    changed = [
        "problem.fingerprint: the clients' data has changed" if one.startswith("problem.fingerprint: ") else one
        for one in tables.differences(was, now)
    ]
    of_code = [f"{part}: its code, or what it holds, has changed" for part in code.changed(old.code, new.code)]
    stored, asked = (table["schedule"]["budget"] for table in (was, now))
    if asked > stored and all(_FOLLOWS.match(one) for one in changed) and not of_code:
        raise StoreError(
            f"budget = {stored} in the store, {asked} now: {name} holds a study of {stored} rounds. To go on with it "
            f"keep budget = {stored} and give --extend {asked} (study.extend({asked})); for another study use another "
            "--store (store=)"
        )
    changed = sorted(changed, key=lambda one: not one.startswith("schedule.budget: "))  # the others follow from it
    changed += of_code
    if changed:
        first = one_line("; ".join(changed[:5]), 240)
        raise StoreError(
            f"{name} holds another study ({first}{' ...' if len(changed) > 5 else ''}). "
            "Use another --store (store=), or run with the stored settings to continue"
        )


def _as_stored(old: Any, new: Any) -> Any:
    """Return a setting, with the store's numbers where they are equal."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {key: _as_stored(old.get(key), value) for key, value in new.items()}
    return old if old == new else new


def warn_of_versions(name: str, began: Mapping[str, Any]) -> None:
    """Warn where a study goes on with other versions than it began with."""
    now = versions() if began else {}
    others = [f"{key} {began[key]}, now {now[key]}" for key in began if key in now and now[key] != began[key]]
    if others:
        warnings.warn(
            f"{name} was begun with other versions ({'; '.join(others)}): from here on its numbers may differ from "
            "those of the versions that it began with",
            FedtunerWarning,
            stacklevel=1,
        )


def extensions(name: str, schedule: Schedule, stored: list[Extended]) -> tuple[Schedule, list[Extended]]:
    """Return a schedule with the extensions that a store has, and the events of those that the store has not."""
    kept, asked = tuple((one.budget, one.by) for one in stored), links(schedule)
    if asked[: len(kept)] != kept and kept[: len(asked)] != asked:
        raise StoreError(f"{name} was extended otherwise: to {kept[-1][0]} rounds")
    new = [Extended(budget, by) for budget, by in asked[len(kept) :]]
    return extended(schedule, kept[len(asked) :]), new
