"""A study as a program reads it: read from its journal alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedtuner.core.across import spread
from fedtuner.core.place import Place
from fedtuner.core.schedule import METRICS
from fedtuner.core.store import Evaluation
from fedtuner.report import served
from fedtuner.run.journal import Journal
from fedtuner.run.reading import read
from fedtuner.run.result import arm_rows
from fedtuner.run.store import at


def summary(path: Place) -> dict[str, Any]:
    """Return what there is to say about a study: its spec, how far it is, its winner, its evaluations."""
    study = journal_of(path)
    default = journal_of(path / study.untuned) if at(path / study.untuned).exists() else None
    again = {one.name: journal_of(one) for one in at(path).beside("retrained-.*") if at(one).exists()}
    return {
        "store": str(path),
        "spec": spec(study),
        "rounds_used": study.rounds_used,
        "budget": study.budget,
        "local_work": study.trainings,
        "examples_processed": study.processed,
        "arms": [_arm(study, row) for row in arm_rows(study)],
        "unusable": study.unusable,
        "late": study.late_by_client,
        "failed": {str(arm): error for arm, error in sorted(study.failed.items())},
        "result": None if study.won is None else result(study),
        "cooled": _cooled(study),
        "evaluations": evaluations(study, default, again),
        "spreads": {
            name: {how: {"global": e.spread_before, "personalized": e.spread_after} for how, e in kept.items()}
            for name, kept in _all_evaluated(study, default, again).items()
        },
        "untuned_rounds": {} if default is None else _untuned_rounds(study, default),
        "across": breakdowns(study),
        "untuned_across": {} if default is None else breakdowns(default),
        "served": _served(study),
    }


def breakdowns(study: Journal) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the winner's errors over the worst tenth of clients and groups, by names such as ``test mode``."""
    return {how: dict(found.breakdown) for how, found in _evaluated(study).items()}


def _served(study: Journal) -> dict[str, Any] | None:
    """Return the validation errors of all clients, the worst tenth and each group; None where no client is known.

    They are those of the winner, or of the arm with the most rounds, over the later half of these.
    """
    arms = [arm for arm, own in study.own_records.items() if own]
    if not arms:
        return None
    arm = min(arms, key=lambda a: (-study.round_of(a), a)) if study.won is None else study.won.arm
    records = served.later(study.records(arm, None if study.won is None else study.won.round))
    whom = served.whom(served.by_client(records), study.group_of)
    if not whom:
        return None
    return {"arm": arm, "from": records[0].round, "until": records[-1].round, "whom": served.table(whom)}


def evaluations(
    study: Journal, default: Journal | None, again: Mapping[str, Journal] | None = None
) -> dict[str, dict[str, dict[str, float]]]:
    """Return what was evaluated of a study's winner, of the untuned default, and of the winner trained again."""
    return {
        name: {f"{how} {metric}": e.mean(metric) for how, e in kept.items() for metric in METRICS}
        for name, kept in _all_evaluated(study, default, again or {}).items()
    }


def _all_evaluated(
    study: Journal, default: Journal | None, again: Mapping[str, Journal]
) -> dict[str, dict[str, Evaluation]]:
    found = {"tuned": _evaluated(study)}
    if default is not None:
        found |= {name: _evaluated(default, rounds) for name, rounds in _untuned_rounds(study, default).items()}
    found |= {name: _evaluated(one) for name, one in again.items()}
    return {name: kept for name, kept in found.items() if kept}


def _untuned_rounds(study: Journal, default: Journal) -> dict[str, int]:
    """Return after how many rounds the untuned default is shown: after all, and after fewer, if it was evaluated then.

    Those are as many as the winner has, where that is known, else as many as the longest arm may have.
    """
    if default.won is None:
        return {}
    fewer = {at[1] for at, _, _ in default.evaluations if at[0] == default.won.arm} - {default.won.round}
    shown = study.won.round if study.won is not None and study.won.round in fewer else max(fewer, default=0)
    return {"untuned": default.won.round} | ({"untuned_as_long": shown} if fewer else {})


def journal_of(path: Place) -> Journal:
    """Return the journal of a study's store, which need not be open."""
    return read(at(path), str(path))


def spec(study: Journal) -> dict[str, Any]:
    """Return what a study is, by the names of a study.toml; ``fedex`` is there for any tuner, with k = 1."""
    assert study.begun is not None
    tuner = study.setup["tuner"]
    tuner = tuner if isinstance(tuner, Mapping) else {"kind": tuner}
    fedex = {name: value for name, value in tuner.items() if name != "kind"} if is_fedex(tuner) else {"k": 1}
    about = {"format": study.begun.format, "problem": study.begun.federation}
    return {**about, **study.setup, "tuner": tuner, "fedex": fedex, "layout": study.begun.layout}


def is_fedex(tuner: Any) -> bool:
    """Return whether a tuner's table is that of FedEx."""
    return isinstance(tuner, Mapping) and tuner.get("kind") == "fedex"


def _arm(study: Journal, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of ``arm_rows`` with its configuration by side, and what went wrong in its rounds."""
    arm, own = row["arm"], study.own_records[row["arm"]]
    records = study.records(arm)
    metric = f"{study.setup['schedule']['score']}_{'before' if study.setup['target'] == 'global' else 'after'}"
    return {
        **{name: value for name, value in row.items() if "." not in name and name not in ("theta", "confidence")},
        "diverged": records[-1].diverged,
        "spread": spread(records[-1].rows, metric),
        "broken": sum(r.broken for r in own),
        "dropped": sum(r.dropped for r in own),
        "entropy": records[-1].entropy,
        **{
            side: {name.partition(".")[2]: v for name, v in row.items() if name.startswith(f"{side}.")}
            for side in ("client", "server")
        },
    }


def result(study: Journal) -> dict[str, Any]:
    """Return the winner as plain values; the same for any number of workers."""
    won = study.won
    assert won is not None
    candidates, theta = study.offers((won.arm, won.round))
    return {
        "arm": won.arm,
        "rounds": won.round,
        "score": won.score[0],
        "fine_tune": study.fine_tuning_pays,
        "rounds_used": study.rounds_used,
        "budget": study.budget,
        **{why: sorted(arm for arm in study.arms if study.ended.get(arm) == why) for why in ("diverged", "stalled")},
        "server": dict(study.arms[won.arm].server),
        "client": dict(candidates[study.records(won.arm, won.round)[-1].mode]),
        "theta": list(theta),
        "candidates": [dict(c) for c in candidates],
        "schedule": [vars(held) for held in study.held((won.arm, won.round))],
    }


def _cooled(study: Journal) -> float:
    """Return over which last part of its arm's rounds the winner's server took a smaller and smaller step.

    An arm without a horizon is not cooled. One that begins at its horizon trains the last rounds of its parent.
    """
    won, cooling = study.won, float(study.setup.get("cooling", 0.0))
    if won is None:
        return 0.0
    arm = study.arms[won.arm]
    if arm.parent is not None and arm.horizon == arm.parent[1]:
        arm = study.arms[arm.parent[0]]
    begun = arm.parent[1] if arm.parent else 0
    if arm.horizon is None or won.round <= begun:
        return 0.0
    whole = arm.horizon - cooling * (arm.horizon - begun)  # the round up to which the step was the whole
    return max(0.0, (won.round - whole) / (won.round - begun))


def _evaluated(study: Journal, rounds: int | None = None) -> dict[str, Evaluation]:
    """Return what was evaluated of the winner, or of it after fewer rounds, by names such as ``test mode``."""
    if study.won is None:
        return {}
    key = (study.won.arm, study.won.round if rounds is None else rounds)
    return {f"{split} {config}": found for (at, split, config), found in study.evaluations.items() if at == key}


def strict(value: Any) -> Any:
    """Return a value for strict JSON: numbers that are not finite, here also as words, become null."""
    if isinstance(value, Mapping):
        return {key: strict(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    if value in ("nan", "inf", "-inf") or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value
