"""A finished study as an Optuna study, to be opened in optuna-dashboard: one trial per arm.

A trial's parameters are the arm's server configuration and its client configuration (the mode of theta where there are
several candidates); its intermediate values are the arm's scores after each round, and so at each rung; an arm that was
trained to its end or has won is complete, one that was eliminated is pruned, one that diverged has failed. The winner
is shown as of the round at which it was taken.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtuner.core.place import Place
from fedtuner.errors import SpecError, StoreError, brief
from fedtuner.report.summary import journal_of, spec
from fedtuner.run.journal import Journal
from fedtuner.samplers.by_optuna import quiet
from fedtuner.space import Choice, Config, Domain, Float, Int, OneMinus, PowerOfTwo, Space, flat, unconditional

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


def export(path: Place, url: str, name: str | None = None) -> tuple[str, int]:
    """Write a finished study to an Optuna storage; return the study's name there and the number of trials.

    ``url`` is such as ``sqlite:///studies.db``, or the name of a journal file. A study of that name must not be there.
    """
    if not url.strip() or (url.startswith("sqlite:") and url.removeprefix("sqlite:").strip("/") in ("", ":memory:")):
        rule = "must be a storage that stays, such as sqlite:///studies.db, or the name of a journal file"
        raise SpecError(f"--to optuna {brief(url)}, but {rule}")
    journal = journal_of(path)
    if journal.won is None:
        raise SpecError(f"{path} is not finished, so there is no winner: 'fedtuner run' continues it")
    try:
        import optuna
    except ImportError as error:
        raise SpecError("--to optuna needs Optuna: pip install 'fedtuner[optuna]'") from error
    name = name or (path.resolve().name if isinstance(path, Path) else path.name)
    trials = [_trial(journal, arm) for arm in sorted(journal.arms) if journal.records(arm)]
    described = spec(journal)
    with quiet(), _storage_errors(url):
        try:
            study = optuna.create_study(storage=storage(url), study_name=name, direction="minimize")
        except optuna.exceptions.DuplicatedStudyError as error:
            raise StoreError(
                f"{url} already has a study {name!r}: give it another --name, or delete that one"
            ) from error
        for key in ("problem", "method", "target", "seed", "schedule", "tuner", "fedex"):
            study.set_user_attr(key, described[key])
        study.add_trials(trials)
    return name, len(trials)


def _trial(journal: Journal, arm: int) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    won = journal.won if journal.won is not None and journal.won.arm == arm else None
    done = won.round if won else journal.round_of(arm)
    records = journal.records(arm, done)
    curve = {record.round: journal.score(arm, record.round)[0] for record in records}
    whole = won is not None or done >= journal.setup["schedule"]["longest"]
    ended = TrialState.COMPLETE if whole else TrialState.PRUNED
    if records[-1].diverged or not math.isfinite(curve[done]):
        ended = TrialState.FAIL
    candidates, _ = journal.offers((arm, done))
    client, server = candidates[records[-1].mode], journal.arms[arm].server
    values, domains = distributions(journal, client, server)
    return create_trial(
        state=ended,
        value=None if ended == TrialState.FAIL else curve[done],
        params=values,
        distributions=domains,
        intermediate_values={t: score for t, score in curve.items() if math.isfinite(score)},
        user_attrs={
            "arm": arm,
            "winner": won is not None,
            "rounds": done,
            "diverged": records[-1].diverged,
            "candidates": len(candidates),
            "confidence": records[-1].confidence,
        },
    )


def distributions(
    journal: Journal, client: Config, server: Config
) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """Return what was tuned of an arm, and the distributions, by names such as client.lr."""
    space = Space.of(journal.setup)
    domains, every = flat(space.client, space.server), flat(client, server)
    values, beside = {name: every[name] for name in domains if name in every}, _included(journal)
    return values, {name: _distribution(domains[name], [value, *beside[name]]) for name, value in values.items()}


def _included(journal: Journal) -> defaultdict[str, list[Any]]:
    """Return the values of included arms, which may lie outside: in all trials they are a distribution's, too.

    An Optuna study that is in a database has the same choices of a hyperparameter in every trial, and the same scale.
    """
    sampler, found = journal.setup["sampler"], defaultdict[str, list[Any]](list)
    defaults = journal.setup.get("defaults", {"client": {}, "server": {}})
    for config in sampler.get("configs", ()) if isinstance(sampler, Mapping) else ():
        client, server = ({**defaults[side], **config[side]} for side in ("client", "server"))
        for name, value in flat(client, server).items():
            found[name].append(value)
    return found


def _distribution(domain: Domain, seen: Sequence[Any]) -> BaseDistribution:
    """Return the distribution of a hyperparameter as it is shown: in its own units, with the values that were seen."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    domain = unconditional(domain)
    if isinstance(domain, (Float, Int, OneMinus)):  # an included arm may lie outside; and 1 - x rounds
        low, high = (f(end, *seen) for f, end in zip((min, max), domain.ends(), strict=True))
        log = isinstance(domain, (Float, Int)) and domain.log and low > 0
        return IntDistribution(low, high, log=log) if isinstance(domain, Int) else FloatDistribution(low, high, log=log)
    assert isinstance(domain, (PowerOfTwo, Choice))  # a Space from a file has no other kind
    return CategoricalDistribution([*domain.values, *sorted({v for v in seen if v not in domain.values}, key=str)])


def storage(url: str) -> Any:
    """Return the storage of a database or of a journal file."""
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
