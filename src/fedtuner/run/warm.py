"""Warm starts: what another study has found, as arms of this one and as a prior of their thetas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtuner.core.method import Method
from fedtuner.core.model import Model
from fedtuner.core.place import Url, place
from fedtuner.core.store import Store
from fedtuner.core.tuner import Tuner
from fedtuner.errors import SpecError, StoreError, brief
from fedtuner.run.result import Results, load
from fedtuner.space import Config
from fedtuner.tables import Table

MOST = 3  # arms that are taken over
Found = tuple[tuple[Config, ...], tuple[float, ...], Config]  # an arm's candidates, its theta, its server configuration


def found_by(source: Any, method: Method, model: Model) -> tuple[list[Table], list[Table]]:
    """Return the best configurations of a study or an export, best first, and their priors.

    What the method and the model do not have is left out; with an optimiser that the method does not have, all that the
    server had.
    """
    client = set(model.hyperparameters) | (set() if model.own_training else set(method.client))
    anything = model.own_training and not model.hyperparameters
    configs, priors = list[Table](), list[Table]()
    for candidates, theta, server in _read(source):
        if server.get("optimiser", "sgd") not in method.optimisers:
            server = {}
        kept = tuple({n: v for n, v in c.items() if anything or n in client} for c in candidates)
        best = max(range(len(theta)), key=theta.__getitem__)
        config = {"client": kept[best], "server": {n: v for n, v in server.items() if n in method.server}}
        if config not in configs and len(configs) < MOST:
            configs.append(config)
            priors.append({"candidates": kept, "theta": theta})
    return configs, priors


def with_prior(tuner: Tuner, priors: list[Table]) -> Tuner:
    """Return a tuner that begins with what is known; itself, if it takes no prior."""
    fields: Mapping[str, Any] = getattr(tuner, "__dataclass_fields__", {})
    return replace(tuner, prior=tuple(priors)) if "prior" in fields else tuner  # type: ignore[type-var]


def _read(source: Any) -> Iterable[Found]:
    if not isinstance(source, (Results, Store)):
        if not isinstance(source, (str, Path, Url)):
            raise SpecError(f"start_from = {brief(source)}, but must be a study, its store, or an exported folder")
        path = place("start_from", source)
        if isinstance(path, Path):
            path = path / "configuration.json" if path.is_dir() else path
            if path.is_file():
                return [_exported(path)]
    study = source if isinstance(source, Results) else load(source)
    return _arms(study)


def _exported(path: Path) -> Found:
    try:
        found = json.loads(path.read_text())
        candidates, theta = tuple(map(dict, found["candidates"])), tuple(map(float, found["theta"]))
        if not candidates or len(candidates) != len(theta):
            raise ValueError("candidates and theta do not fit")
        return candidates, theta, dict(found["server"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(
            f"{path} is no exported configuration ({brief(str(error))}): 'fedtuner export' writes one"
        ) from error


def _arms(study: Results) -> Iterable[Found]:
    """Yield the winner and then the other arms: those that were trained longest first, the better ones first."""
    if not study.finished:
        raise SpecError(f"start_from = {study.path}, but that study is not finished: run it to the end")
    journal, rows = study.journal, study.arms()
    for row in sorted(rows, key=lambda row: (row["status"] != "won", -row["rounds"], row["score"], row["arm"])):
        arm = row["arm"]
        at = (arm, journal.saved_round(arm) or 0)
        if row["status"] == "won":
            found = journal.trained(study.winner)
            arm, at = found.arm, (found.arm, found.last)
        candidates, theta = journal.offers(at)
        yield candidates, theta, journal.arms[arm].server
