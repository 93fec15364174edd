"""A suite: a TOML file that stands for many studies and seeds, as a product of axes.

    title = "Tuned FedAvg, with FedEx and without"
    seeds = 5                          # 0..4, or a list of them
    online = 0                         # n: evaluate the incumbent every n rounds of an arm, too; 0: the winner alone
    every_arm = false                  # true: evaluate every arm that was trained to its end, too
    columns = "data"                   # the axis that the printed table has as columns (none: a line per study)
    along = "tuning"                   # the axis whose values are compared in pairs with its first (default: the last)
    [base]                             # settings of all studies, as in a study.toml; preset = "digits" begins with one
    [axes.data]                        # an axis: names, each with the settings that it stands for
    digits = { preset = "digits" }
    [axes.eps]                         # an axis of one setting
    key = "fedex.eps"
    values = [0.0, 0.1, 1.0]
    [paper]                            # published numbers in percent: mean, standard deviation, half the interval
    "digits / 0.1" = [14.79, 1.55, 0.90]
    [[figures]]                        # pictures of the results (figures.py)
    kind = "sweep"

An axis' settings may also name seeds, online and every_arm, for its own studies.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from fedtuner.core.schedule import outline
from fedtuner.errors import SpecError, brief, one_line, suggest
from fedtuner.run import spec
from fedtuner.run.spec import Spec

_OURS = ("seeds", "online", "every_arm")  # settings that are the suite's, not a study's
_KNOWN = (*_OURS, "title", "columns", "along", "base", "axes", "paper", "figures")
_BETWEEN = " / "
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Entry:
    """One study of a suite with one seed."""

    labels: Mapping[str, str]  # by axis
    table: Mapping[str, Any]  # its study.toml
    online: int = 0
    every_arm: bool = False

    @property
    def seed(self) -> int:
        return int(self.table["seed"])

    @property
    def name(self) -> str:
        """The names of its axes' values, without the seed."""
        return _BETWEEN.join(self.labels.values())

    @cached_property
    def spec(self) -> Spec:
        return spec.parse(self.table)

    @cached_property
    def alone(self) -> bool:
        """Whether its arms depend on its schedule and its target, so that no other study has the same.

        They do where a sampler learns from scores, where arms start from other arms' states, where the rounds at which
        arms are compared differ with the scores, and where privacy's noise is made for the schedule's budget. Elsewhere
        schedules and targets only read the arms' rounds.
        """
        known, *others = (outline(self.spec.schedule, "draw", n) for n in range(5))
        differ = any(other.rungs != known.rungs for other in others)
        return self.spec.sampler.learns or bool(known.children) or differ or "privacy" in self.table

    @property
    def family(self) -> str:
        """What its arms depend on, and where they are evaluated: studies of one family share arms."""
        if self.alone:
            return json.dumps([self.table, self.online], sort_keys=True)
        kept = {key: value for key, value in self.table.items() if key not in ("schedule", "target")}
        horizons = list(outline(self.spec.schedule).horizons.values()) if kept.get("cooling") else []
        return json.dumps([kept, self.online, horizons[:1] if len(set(horizons)) == 1 else horizons], sort_keys=True)

    @property
    def family_name(self) -> str:
        """Its family in a few letters."""
        return hashlib.blake2b(self.family.encode(), digest_size=8).hexdigest()

    def matches(self, pattern: str) -> bool:
        """Whether a pattern such as ``*SHA*seed0``, or some whole words of the name, are of this study."""
        whole = f"{self.name} seed{self.seed}".lower()
        pattern = pattern.lower()
        if set("*?[") & set(pattern):
            return fnmatch.fnmatch(whole, pattern)
        return re.search(rf"(?<!\w){re.escape(pattern)}(?!\w)", whole) is not None


@dataclass(frozen=True)
class Suite:
    """All that a suite's file says."""

    name: str
    entries: tuple[Entry, ...]
    title: str = ""
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names of the values, by axis
    columns: str = ""
    along: str = ""
    paper: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by the study's name, in percent
    figures: tuple[Mapping[str, Any], ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return what a reader of the results needs to know of the suite."""
        described = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "entries"}
        return json.loads(json.dumps(described))  # type: ignore[no-any-return]


def read(path: str | Path) -> Suite:
    """Return the suite of a TOML file."""
    if not Path(path).is_file():
        raise SpecError(f"no suite {str(path)!r}: give a TOML file such as benchmarks/paper/table1-small.toml")
    name, table = spec.read(str(path))
    return parse(name, table)


def parse(name: str, table: Mapping[str, Any]) -> Suite:
    """Return the suite that a TOML table stands for."""
    for key in table:
        if key not in _KNOWN:
            study = ": this file is a study, which 'fedtuner run' runs" if key == "problem" else suggest(key, _KNOWN)
            raise SpecError(f"no setting {brief(key)} in a suite{study}")
    if not isinstance(table.get("title", ""), str):
        raise SpecError(f"title = {brief(table['title'])}, but must be a string")
    axes = {axis: _axis(axis, value) for axis, value in _table(table, "axes").items()}
    if not axes:
        raise SpecError("the suite has no [axes]: at least one names what is compared")
    ours = {key: table[key] for key in _OURS if key in table}
    entries: list[Entry] = []
    for values in itertools.product(*axes.values()):
        labels = {axis: label for axis, (label, _) in zip(axes, values, strict=True)}
        chosen = [settings for _, settings in values]
        if len({isinstance(settings["fedex"], Mapping) for settings in chosen if "fedex" in settings}) > 1:
            raise SpecError(
                f"{_BETWEEN.join(labels.values())}: one axis has fedex = false, another settings of it: "
                "name both in one axis"
            )
        entries += _entries(labels, [ours, _table(table, "base"), *chosen])
    names = {axis: tuple(label for label, _ in values) for axis, values in axes.items()}
    for key in ("columns", "along"):
        if table.get(key, "") not in ("", *axes):
            raise SpecError(f"{key} = {brief(table[key])}, but must be an axis{suggest(table[key], list(axes))}")
    paper = {study: _numbers(study, value, entries) for study, value in _table(table, "paper").items()}
    figures = table.get("figures", [])
    if not isinstance(figures, list) or not all(isinstance(figure, Mapping) for figure in figures):
        raise SpecError("figures must be tables: [[figures]]")
    made = Suite(
        name, tuple(entries), str(table.get("title", "")), names, table.get("columns", ""),
        table.get("along", "") or list(axes)[-1], paper=paper, figures=tuple(figures),
    )  # fmt: skip
    names_and_seeds = [f"{entry.name}, seed {entry.seed}" for entry in made.entries]
    if len(set(names_and_seeds)) < len(names_and_seeds):
        twice = next(name for name in names_and_seeds if names_and_seeds.count(name) > 1)
        raise SpecError(f"the suite has {twice}, twice: an axis has two values of one name, or seeds has one twice")
    return made


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise SpecError(f"{key} = {brief(value)}, but must be a table: [{key}]")
    return value


def _axis(name: str, given: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return an axis' values: their names and the settings that they stand for."""
    if isinstance(given, Mapping) and set(given) == {"key", "values"}:
        *path, last = str(given["key"]).split(".")
        good = isinstance(given["key"], str) and isinstance(given["values"], list) and given["values"]
        if len(path) > 1 or not good:
            raise SpecError(f"axes.{one_line(name, 60)}: key must be a setting such as 'fedex.eps', values a list")
        return [(str(v), {path[0]: {last: v}} if path else {last: v}) for v in given["values"]]
    if not isinstance(given, Mapping) or not given or not all(isinstance(v, Mapping) for v in given.values()):
        rule = "but must be named tables of settings, or a key with its values"
        raise SpecError(f"axes.{one_line(name, 60)} = {brief(given)}, {rule}")
    return list(given.items())


def _entries(labels: Mapping[str, str], tables: Sequence[Mapping[str, Any]]) -> Iterable[Entry]:
    merged: dict[str, Any] = {}
    for table in tables:
        merged = merge(merged, table)
    name = one_line(_BETWEEN.join(labels.values()), 60)
    preset = merged.pop("preset", None)
    seeds, online, every_arm = merged.pop("seeds", 1), merged.pop("online", 0), merged.pop("every_arm", False)
    if "seed" in merged:
        raise SpecError(f"{name}: seed = {brief(merged['seed'])}, but a suite's seeds are set by seeds: leave seed out")
    if preset is not None:
        merged = merge(spec.read(str(preset))[1], merged)
    how_many = type(seeds) is int
    if how_many and seeds > MOST_SEEDS:
        raise SpecError(f"{name}: seeds = {brief(seeds)}, but must be at most {MOST_SEEDS}")
    made_seeds = list(range(seeds)) if how_many else seeds
    if not isinstance(made_seeds, list) or not made_seeds or not all(type(s) is int for s in made_seeds):
        raise SpecError(f"{name}: seeds = {brief(seeds)}, but must be how many, or a list of them")
    if type(online) is not int or online < 0 or type(every_arm) is not bool:
        raise SpecError(f"{name}: online must be a whole number >= 0, every_arm true or false")
    made = [Entry(labels, {**merged, "seed": seed}, online, every_arm) for seed in made_seeds]
    try:
        made[0].spec  # noqa: B018 (mistakes show now, not after hours)
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from error
    return made


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of both; those above win, within [schedule], [fedex], [client] and [server] one by one."""
    both = [key for key in above if isinstance(above[key], Mapping) and isinstance(below.get(key), Mapping)]
    return {**below, **above, **{key: {**below[key], **above[key]} for key in both}}


def _numbers(study: str, value: Any, entries: Sequence[Entry]) -> tuple[float, ...]:
    names = list(dict.fromkeys(entry.name for entry in entries))
    if study not in names:
        raise SpecError(f"paper.{brief(study)} is no study of the suite{suggest(study, names)}")
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(v, (int, float)) for v in value):
        raise SpecError(f"paper.{study!r} = {brief(value)}, but must be [mean, standard deviation, half the interval]")
    return tuple(float(v) for v in value)
