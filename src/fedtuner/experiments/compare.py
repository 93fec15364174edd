"""Compare studies over seeds: means with intervals, paired differences with tests, the published numbers beside them.

A run is a line of a suite's results (``fedtuner bench``) or the folder of a study (``fedtuner run``). Runs that differ
in nothing but their seed are one study.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from fedtuner.core.metric import Metric
from fedtuner.core.place import Place
from fedtuner.errors import SpecError, StoreError, counted, suggest
from fedtuner.experiments import results
from fedtuner.experiments.statistics import Paired, Summary, holm, paired, summary
from fedtuner.report import summary as summary_of
from fedtuner.run.store import at
from fedtuner.run.words import without_examples

METRICS = ("target", "global", "personalized")


@dataclass(frozen=True)
class Study:
    """One study over several seeds."""

    labels: Mapping[str, str]  # by axis
    problem: str
    target: str
    errors: Mapping[int, float]  # by seed
    rounds: float  # mean over seeds
    trainings: float  # local trainings, mean over seeds
    arms: int  # over all seeds, and those of them that diverged
    diverged: int
    broken: int  # clients' updates that were not finite, over all seeds
    dropped: int  # clients that gave no report, over all seeds
    paper: tuple[float, ...] = ()  # published mean, standard deviation and half the interval, in percent
    runs: tuple[results.Result, ...] = ()  # by seed, as they were read

    @property
    def name(self) -> str:
        """The names of its axes' values."""
        return " / ".join(self.labels.values())

    @property
    def summary(self) -> Summary:
        """Mean, standard deviation and interval over its seeds."""
        return summary(list(self.errors.values()))


@dataclass(frozen=True)
class Faults:
    """What went wrong in several runs. Arms that studies of a suite share are counted once, and so are their rounds."""

    arms: int = 0
    diverged: int = 0
    stalled: int = 0
    broken: int = 0  # clients' updates that were not finite
    dropped: int = 0  # clients that gave no report


def faults(runs: Iterable[Mapping[str, Any]]) -> Faults:
    """Return what went wrong in runs; one that does not tell its arms apart (an older line) is counted for itself."""
    arms: dict[tuple[Any, int], list[int]] = {}  # of those who read an arm, the counts of the one who read most of it
    ended: dict[str, set[tuple[Any, int]]] = {"diverged": set(), "stalled": set()}
    broken = dropped = alone = 0
    for n, run in enumerate(runs):
        family = run.get("family", n)
        for why, found in ended.items():
            found |= {(family, arm) for arm in run.get(why, ())}
        for arm, *counts in run.get("by_arm", ()):
            arms[family, arm] = max(arms.get((family, arm), []), counts)
        if "by_arm" not in run:
            broken, dropped, alone = broken + run["broken"], dropped + run["dropped"], alone + run["arms"]
    return Faults(
        alone + len(arms), len(ended["diverged"]), len(ended["stalled"]),
        broken + sum(counts[1] for counts in arms.values()), dropped + sum(counts[2] for counts in arms.values()),
    )  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Two studies on the same seeds."""

    first: Study
    second: Study
    axis: str
    seeds: tuple[int, ...]
    difference: Paired


@dataclass(frozen=True)
class Comparison:
    """Studies, their paired differences, and notes on how to read them."""

    metric: str
    studies: tuple[Study, ...]
    pairs: tuple[Pair, ...]
    columns: str = ""
    title: str = ""
    rates: bool = True  # whether errors are rates; they are then shown in percent
    notes: tuple[str, ...] = field(default=())


def compare(
    paths: Iterable[Place], metric: str = "target", along: str | None = None, columns: str | None = None
) -> Comparison:
    """Return the comparison of runs, from files of results and folders of studies.

    Every value of the axis ``along`` is compared with the first, in pairs of the same seed. The table has the values of
    the axis ``columns`` as columns. By default both axes are those that the suite names.
    """
    if metric not in METRICS:
        raise SpecError(f"metric = {metric!r}, but must be one of {METRICS}{suggest(metric, METRICS)}")
    of_suites: list[results.Result] = []
    of_stores: list[dict[str, Any]] = []
    suites: list[Mapping[str, Any]] = []
    for path in paths:
        if at(path).exists():
            of_stores.append(_of_store(path))
            continue
        file = path if isinstance(path, Path) and (path.exists() or path.suffix == results.SUFFIX) else None
        kept = results.Results({}) if file is None else results.read(file)
        if not kept.studies:
            raise SpecError(f"no runs in {path}: give results of 'fedtuner bench' or folders of 'fedtuner run'")
        of_suites += kept.studies
        suites.append(kept.suite)
    paper = {name: tuple(numbers) for suite in suites for name, numbers in suite.get("paper", {}).items()}
    studies = _studies([*of_suites, *_with_settings(of_stores)], metric, paper)
    suite = next((suite for suite in suites if suite), {})
    axes = list(dict.fromkeys(axis for study in studies for axis in study.labels))
    along = along or suite.get("along") or axes[-1]
    columns = suite.get("columns", "") if columns is None else columns
    for option, axis in (("--along", along), ("--columns", columns)):
        if axis and axis not in axes:
            raise SpecError(f"{option} {axis!r}, but the axes are {axes}{suggest(axis, axes)}")
    pairs = tuple(_pairs(studies, along))
    rates = all(Metric.of(run["problem"]).rate for run in (*of_suites, *of_stores))
    rates &= all(e <= 1 for study in studies for e in study.errors.values() if math.isfinite(e))
    return Comparison(
        metric, tuple(studies), pairs, columns, suite.get("title", ""), rates, notes=tuple(_notes(studies, pairs))
    )


def _of_store(path: Place) -> dict[str, Any]:
    """Return the result of a study that has a folder of its own."""
    stored = summary_of(path)
    described, result = stored["spec"], stored["result"]
    errors = stored["evaluations"].get("tuned", {}).get("test mode error")
    if result is None or errors is None:
        raise StoreError(f"{path} is not finished, or not evaluated on test data: 'fedtuner run' continues it")
    kind = str(described["tuner"].get("kind"))
    own = kind not in ("fedex", "none")  # for these, ``fedex`` says it by the names of a study.toml
    left_out = ("seed", "fedex" if own else "tuner", "layout", "format")
    settings = {key: value for key, value in described.items() if key not in left_out}
    labels = {
        "data": described["problem"]["name"],
        "method": described["method"],
        "wrapper": str(described["schedule"]["kind"]).rpartition(":")[2].replace("_", " "),
        "target": described["target"],
        "tuning": f"+ {kind.rpartition(':')[2]}" if own else "+ FedEx" if described["fedex"]["k"] > 1 else "plain",
    }
    return {
        "labels": labels, "seed": described["seed"], "settings": settings, "problem": described["problem"],
        "target": described["target"], "test": errors, "rounds": result["rounds_used"], "arms": len(stored["arms"]),
        "trainings": stored["local_work"], "diverged": result["diverged"], "stalled": result["stalled"],
        **{fault: sum(arm[fault] for arm in stored["arms"]) for fault in ("broken", "dropped")},
    }  # fmt: skip


def _with_settings(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return runs of stores; if runs with equal labels differ in settings, these become one more axis of all runs."""
    by_name: dict[str, set[str]] = {}
    for run in runs:
        by_name.setdefault(json.dumps(run["labels"]), set()).add(json.dumps(run["settings"], sort_keys=True))
    if all(len(kinds) == 1 for kinds in by_name.values()):
        return runs
    made = []
    for run in runs:
        flat = [_flat(json.loads(kind)) for kind in by_name[json.dumps(run["labels"])]]
        varying = sorted({key for one in flat for key in one if any(one.get(key) != other.get(key) for other in flat)})
        own = _flat(run["settings"])
        words = ", ".join(f"{key} = {own.get(key)}" for key in varying) or "as usual"
        made.append({**run, "labels": {**run["labels"], "settings": words}})
    return made


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found


def _studies(runs: Iterable[Mapping[str, Any]], metric: str, paper: Mapping[str, tuple[float, ...]]) -> list[Study]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run["labels"]), []).append(run)
    studies = []
    for kept in groups.values():
        first, seeds = kept[0], [run["seed"] for run in kept]
        name = " / ".join(first["labels"].values())
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            raise SpecError(f"{name} has seed {twice[0]} twice: give each run once")
        errors = {
            run["seed"]: float(run["test"][run["target"] if metric == "target" else metric])
            for run in sorted(kept, key=lambda run: int(run["seed"]))
        }
        means = {name: sum(run[name] for run in kept) / len(kept) for name in ("rounds", "trainings")}
        totals = {name: sum(run[name] for run in kept) for name in ("arms", "broken", "dropped")}
        studies.append(
            Study(
                first["labels"], first["problem"]["name"], first["target"], errors, **means, **totals,
                diverged=sum(len(run["diverged"]) for run in kept), runs=tuple(kept),
                paper=paper.get(name, ()) if metric == "target" else (),
            )
        )  # fmt: skip
    return studies


def _pairs(studies: Sequence[Study], along: str) -> Iterable[Pair]:
    """Yield each study paired with the study that has the axis' first value and otherwise the same labels."""
    firsts: dict[str, Study] = {}
    for study in studies:
        others = json.dumps({axis: label for axis, label in study.labels.items() if axis != along})
        first = firsts.setdefault(others, study)
        seeds = tuple(seed for seed in first.errors if seed in study.errors)
        if first is study or not seeds:
            continue
        a, b = ([one.errors[seed] for seed in seeds] for one in (first, study))
        yield Pair(first, study, along, seeds, paired(a, b))


def _notes(studies: Sequence[Study], pairs: Sequence[Pair]) -> Iterable[str]:
    alone = [study.name for study in studies if len(study.errors) < 2]
    if alone:
        have = counted(len(alone), "study has one", "studies have one")
        yield f"One seed gives no interval: {have} ({alone[0]}); run more seeds."
    fewest = min((pair.difference for pair in pairs if pair.difference.unequal), key=lambda d: d.unequal, default=None)
    if fewest and fewest.unequal < 5:
        few = "one pair that differs" if fewest.unequal == 1 else f"{fewest.unequal} pairs that differ"
        yield (
            f"With {few} signed ranks cannot give a p below {fewest.least:.2g}: "
            "five are the fewest for 0.1, eight for 0.01."
        )
    errors = [e for study in studies for e in study.errors.values()]
    if any(map(math.isinf, errors)):
        yield "Some errors are not finite (every arm diverged): their studies have no mean."
    if any(map(math.isnan, errors)):
        yield f"In some studies {without_examples('test')}: they have no mean."
    enough = [pair for pair in pairs if pair.difference.unequal >= 5]
    if len(enough) > 1:
        which = "" if len(enough) == len(pairs) else " with five pairs that differ, or more,"
        values = [pair.difference.wilcoxon for pair in enough]
        likely, sure = (sum(p < 0.1 for p in some) for some in (values, holm(values)))
        yield (
            f"Of {len(enough)} comparisons{which} {likely} have p < 0.1 by signed ranks; up to {len(enough) / 10:.1f} "
            f"would by chance alone if nothing made a difference. The p-values are not adjusted for this; after Holm's "
            f"adjustment {sure} would be below 0.1."
        )
    if any(set(a.seeds) & set(b.seeds) for a, b in combinations(pairs, 2)):
        yield (
            "Comparisons on the same seeds are not independent: studies that differ in target read the same rounds, "
            "random search and halving begin with the same arms, and a seed draws the same hyperparameters on every "
            "problem with the same space."
        )
