"""A finished study as an Optuna study, to be opened in optuna-dashboard: one trial per arm.

A trial's parameters are the arm's server configuration and its client configuration (the mode of theta where there are
several candidates); its intermediate values are the arm's scores after each round, and so at each rung; an arm that was
trained to its end is complete, one that was eliminated is pruned, one that diverged has failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtuner import methods, samplers, spec, store
from fedtuner.arm import Arm, Record, State
from fedtuner.errors import SpecError, StoreError
from fedtuner.fedex import FedEx
from fedtuner.schedules import Schedule, discounted
from fedtuner.space import Choice, Domain, Float, Int, OneMinus, PowerOfTwo, Space
from fedtuner.task import Hyper

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


def export(path: Path, url: str, name: str | None = None) -> tuple[str, int]:
    """Write a finished study to an Optuna storage; return the study's name there and the number of trials.

    ``url`` is such as ``sqlite:///studies.db``, or the name of a journal file. A study of that name must not be there.
    """
    described, states, records, result = store.read(path)
    if result is None:
        raise SpecError(f"{path} is not finished, so there is no winner: 'fedtuner run' continues it")
    try:
        import optuna
    except ImportError as error:
        raise SpecError("--to optuna needs Optuna: pip install 'fedtuner[optuna]'") from error
    name = name or path.resolve().name
    schedule, space = spec.schedule(described["schedule"]), Space(described["client"], described["server"])
    arms = arms_of(path, described, sorted(states))
    trials = [_trial(arms[a], states[a], records[a], schedule, space, a == result["arm"]) for a in sorted(states)]
    told = {key: described[key] for key in ("problem", "method", "target", "seed", "schedule", "fedex")}
    with _quiet(), _storage_errors(url):
        try:
            study = optuna.create_study(storage=_storage(url), study_name=name, direction="minimize")
        except optuna.exceptions.DuplicatedStudyError as error:
            raise StoreError(
                f"{url} already has a study {name!r}: give it another --name, or delete that one"
            ) from error
        for key, value in told.items():
            study.set_user_attr(key, value)
        study.add_trials(trials)
    return name, len(trials)


def arms_of(path: Path, described: Mapping[str, Any], ids: Sequence[int]) -> dict[int, Arm]:
    """Return the hyperparameters of a study's arms from its folder alone."""
    written = store.read_proposals(path)
    # The method may be one of the user's own, which its folder only names; its defaults are all that is needed.
    client, server = (
        {name: Hyper(None, value) for name, value in described["defaults"][side].items()}
        for side in ("client", "server")
    )
    method = replace(methods.fedavg, name=described["method"], client=client, server=server)
    space = Space(described["client"], described["server"])
    proposer = spec.sampler(described.get("sampler", "uniform"))
    make = samplers.local(space, method, FedEx(**described["fedex"]), described["seed"], proposer)
    return {id: written[id] if id in written else make(id) for id in ids}


def _trial(
    arm: Arm, state: State, records: Sequence[Record], schedule: Schedule, space: Space, won: bool
) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    curve = {r.round: discounted(_metric(records[: n + 1], schedule), schedule.discount) for n, r in enumerate(records)}
    finite = {t: score for t, score in curve.items() if math.isfinite(score)}
    last = curve.get(state.round, math.inf)
    if state.diverged or not math.isfinite(last):
        ended = TrialState.FAIL
    else:
        trained = state.round >= schedule.place(arm.id)[1].rungs[-1]
        ended = TrialState.COMPLETE if trained else TrialState.PRUNED
    client = arm.candidates[state.belief.mode]
    values = {f"client.{n}": client[n] for n in space.client} | {f"server.{n}": arm.server[n] for n in space.server}
    domains = {f"client.{n}": d for n, d in space.client.items()} | {f"server.{n}": d for n, d in space.server.items()}
    return create_trial(
        state=ended,
        value=None if ended == TrialState.FAIL else last,
        params=values,
        distributions={n: _distribution(domains[n], values[n]) for n in values},
        intermediate_values=finite,
        user_attrs={
            "arm": arm.id,
            "winner": won,
            "rounds": state.round,
            "diverged": state.diverged,
            "candidates": len(arm.candidates),
            "confidence": float(state.belief.theta.max()),
        },
    )


def _metric(records: Sequence[Record], schedule: Schedule) -> list[float]:
    return [r.error if schedule.score == "error" else r.loss for r in records]


def _distribution(domain: Domain, value: Any) -> BaseDistribution:
    """Return the distribution of a hyperparameter as it is shown: in its own units."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Float):
        return FloatDistribution(domain.low, domain.high, log=domain.log)
    if isinstance(domain, OneMinus):
        low, high = domain.ends()
        return FloatDistribution(min(float(low), value), max(float(high), value))  # 1 - x rounds
    if isinstance(domain, Int):
        return IntDistribution(domain.low, domain.high, log=domain.log)
    if isinstance(domain, PowerOfTwo):
        return CategoricalDistribution([2**e for e in range(domain.low.bit_length() - 1, domain.high.bit_length())])
    assert isinstance(domain, Choice)  # a Space from a file has no other kind
    return CategoricalDistribution(domain.values)


def _storage(url: str) -> Any:
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    return RDBStorage(url) if "://" in url else JournalStorage(JournalFileBackend(url))


@contextmanager
def _storage_errors(url: str) -> Iterator[None]:
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (OSError, SQLAlchemyError, optuna.exceptions.StorageInternalError, ImportError, ValueError) as error:
        raise StoreError(f"cannot write to {url}: {str(error).splitlines()[0]}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
