"""Arms proposed by Optuna's samplers: TPE, a Gaussian process, CMA-ES, or its random draws.

An arm's proposal is a function of the seed, its number and the arms before it: each is asked for from a fresh Optuna
study in memory, made of those arms, with a sampler of its own seed. With Hyperband TPE makes it BOHB (Falkner et al.,
ICML 2018): as there, the model is of the scores at the largest rung that enough finished arms have reached, so that
only equally long trainings are compared. Where it differs from BOHB: no fixed share of random arms (TPE's prior
explores), and arms of a bracket are proposed knowing of each other (Optuna's constant liar), not of their scores.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedtuner import checks
from fedtuner.core.sampler import Configs, Past
from fedtuner.core.schedule import Schedule, outline
from fedtuner.domains import Choice, Domain, Float, Int, OneMinus, PowerOfTwo, Value
from fedtuner.errors import SpecError, StoreError
from fedtuner.rng import number, stream
from fedtuner.samplers.uniform import uniform
from fedtuner.space import Space, absent, fixed, flat, settled, unconditional
from fedtuner.tables import kind_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

_ASKED = 100  # proposals until one is drawn uniformly among those that constraints allow
KINDS = ("tpe", "random", "gp", "cmaes")


@dataclass(frozen=True)
class Optuna:
    """One of Optuna's samplers as the proposer of a study's arms: ``tune(..., sampler=optuna("tpe"))``.

    ``tpe``, ``gp`` (a Gaussian process) and ``cmaes`` learn from the arms that have finished: between the brackets of
    Hyperband, or in random search that starts some arms ``together``. ``random`` draws as Optuna does. ``startup`` arms
    must have reached a rung before tpe and gp learn from it; until then arms are drawn as without Optuna. (Optuna's own
    number is 10; here arms are few, and each is costly.)
    """

    kind: str = "tpe"  # tpe, random, gp or cmaes
    startup: int = 5  # tpe, gp: finished arms before they are learned from; until then arms are drawn uniformly

    def __post_init__(self) -> None:
        checks.one_of("sampler", self.kind, KINDS)
        checks.settle(self, startup=checks.whole("sampler.startup", self.startup))

    @property
    def learns(self) -> bool:
        return self.kind != "random"

    def check(self, space: Space, schedule: Schedule) -> None:
        """Refuse a schedule that gives it nothing to learn from, and a space that Optuna has no words for."""
        _import(self.kind)
        axes(space)
        course, name = outline(schedule), kind_of(type(schedule))
        if self.learns and sum(course.children.isdisjoint(group) for group in course.groups) < 2:
            raise SpecError(
                f"sampler = {self.kind!r} learns from finished arms, but {name} starts all {course.proposed} at "
                "once: use hyperband with several brackets, or random_search with together = 1"
            )
        if self.kind == "cmaes" and len(set(course.rungs.values())) > 1:
            raise SpecError(
                f"sampler = 'cmaes' compares arms of equal length, which those of {name} are not: "
                "use random_search with together = 1, or tpe"
            )

    def propose(self, space: Space, seed: int, id: int, first: int, past: Sequence[Past]) -> Configs:
        with quiet(), _one_thread(self.kind == "gp"):
            if self.kind == "cmaes":
                return self._replay(space, seed, [*((p.first, p) for p in past), (first, None)])
            finished, running = _comparable(past, self.startup), [p for p in past if not p.scores]
            if self.learns and not finished:
                return uniform.propose(space, seed, id, first, past)
            known = [_trial(space, p, score) for p, score in finished] if self.learns else []
            known += [_trial(space, p, None) for p in running] if self.learns else []
            study = _study()
            study.add_trials(known)
            study.sampler = self._sampler(seed, id)
            return _allowed(study, space, seed, id)[0]

    def _replay(self, space: Space, seed: int, arms: Sequence[tuple[int, Past | None]]) -> Configs:
        """Ask for all arms in order, telling each its score when its bracket had finished: CMA-ES keeps a state."""
        study, numbers = _study(), list[int]()
        scored = 0
        for id, (first, past) in enumerate(arms):
            while scored < first:
                score = _worst_if_infinite(arms[scored][1], [p for _, p in arms[:first] if p])
                study.tell(numbers[scored], score)
                scored += 1
            study.sampler = self._sampler(seed, id)
            configs, number = _allowed(study, space, seed, id)
            numbers.append(number)
            if past is not None and not _same(past, configs):
                raise StoreError(f"CMA-ES does not propose arm {id} as it was: use the Optuna that it began with")
        return configs

    def _sampler(self, seed: int, id: int) -> BaseSampler:
        from optuna import samplers

        own = number(seed, "arm", id, "optuna") % 2**32
        if self.kind == "tpe":
            return samplers.TPESampler(n_startup_trials=1, multivariate=True, constant_liar=True, seed=own)
        if self.kind == "gp":
            return samplers.GPSampler(n_startup_trials=1, seed=own)
        if self.kind == "cmaes":
            return samplers.CmaEsSampler(seed=own, warn_independent_sampling=False)
        return samplers.RandomSampler(seed=own)

    def describe(self) -> Any:
        return self.kind if self.startup == Optuna().startup else {"kind": self.kind, "startup": self.startup}


optuna = Optuna


def _comparable(past: Sequence[Past], startup: int) -> list[tuple[Past, float]]:
    """Return the finished arms that reached the largest rung that enough of them did, with their scores there."""
    for rung in sorted({r for p in past for r in p.scores}, reverse=True):
        there = [p for p in past if rung in p.scores]
        if len(there) >= startup:
            return [(p, _finite(p.scores[rung], [q.scores[rung] for q in there])) for p in there]
    return []


def _finite(score: float, others: Sequence[float]) -> float:
    """Return the score; one that is not finite counts as the worst that is."""
    return score if math.isfinite(score) else max((s for s in others if math.isfinite(s)), default=1.0)


def _worst_if_infinite(past: Past | None, known: Sequence[Past]) -> float:
    assert past is not None
    return _finite(past.scores[max(past.scores)], [p.scores[max(p.scores)] for p in known if p.scores])


@dataclass(frozen=True)
class Axis:
    """A domain as Optuna samples it, and the way there and back."""

    distribution: BaseDistribution
    domain: Domain

    def value(self, inner: Any) -> Value:
        """Return the hyperparameter that Optuna's value stands for."""
        if isinstance(self.domain, Choice):
            return self.domain.values[int(inner)]
        if isinstance(self.domain, PowerOfTwo):
            return 1 << int(inner)
        if isinstance(self.domain, OneMinus):
            return 1.0 - float(inner)
        return int(inner) if isinstance(self.domain, Int) else float(inner)

    def inner(self, value: Any) -> Any:
        """Return Optuna's value for a hyperparameter."""
        if isinstance(self.domain, Choice):
            return self.domain.values.index(value)
        if isinstance(self.domain, PowerOfTwo):
            return int(value).bit_length() - 1
        if isinstance(self.domain, OneMinus):  # 1 - (1 - x) is not x to the bit
            return min(max(1.0 - value, self.domain.inner.low), self.domain.inner.high)
        return value


def axes(space: Space) -> dict[str, Axis]:
    """Return what Optuna samples, by names such as client.lr; what has one value only is left out."""
    tuned = {n: unconditional(d) for n, d in flat(space.client, space.server).items() if not fixed(d)}
    return {name: Axis(_distribution(domain, name), domain) for name, domain in tuned.items()}


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions of a space."""
    return {name: axis.distribution for name, axis in axes(space).items()}


def _distribution(domain: Domain, name: str) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, OneMinus):
        domain = domain.inner
    if isinstance(domain, Float):
        return FloatDistribution(domain.low, domain.high, log=domain.log)
    if isinstance(domain, Int):
        return IntDistribution(domain.low, domain.high, log=domain.log)
    if isinstance(domain, PowerOfTwo):
        return IntDistribution(domain.low.bit_length() - 1, domain.high.bit_length() - 1)
    if isinstance(domain, Choice):
        return CategoricalDistribution(range(len(domain.values)))
    raise SpecError(f"{name}: Optuna has no distribution for {type(domain).__name__}: use Float, Int or a list")


def _configs(space: Space, params: Mapping[str, Any]) -> Configs:
    named = axes(space)
    found: list[dict[str, Value]] = []
    for side, domains in (("client", space.client), ("server", space.server)):
        config: dict[str, Value] = {}
        for name, domain in domains.items():
            axis = named.get(f"{side}.{name}")
            config[name] = axis.value(params[f"{side}.{name}"]) if axis else domain.ends()[0]
        found.append(settled(domains, config))
    return found[0], found[1]


def _allowed(study: Any, space: Space, seed: int, id: int) -> tuple[Configs, int]:
    """Return what Optuna proposes, and the number of its trial; proposals that constraints forbid have failed."""
    from optuna.trial import TrialState

    for _ in range(_ASKED):
        trial = study.ask(distributions(space))
        configs = _configs(space, trial.params)
        if space.allows(*configs):
            return configs, trial.number
        study.tell(trial.number, state=TrialState.FAIL)
    return space.draw(stream(seed, "arm", id, "allowed")), study.ask(distributions(space)).number


def _trial(space: Space, past: Past, score: float | None) -> FrozenTrial:
    """Return an arm as a trial: complete with its score, or running."""
    from optuna.trial import TrialState, create_trial

    named = axes(space)
    config: dict[str, Any] = {}
    for side, domains, given in (("client", space.client, past.arm.client), ("server", space.server, past.arm.server)):
        left_out = absent(domains, given)  # Optuna gets the middle of the range in their place
        config |= {f"{side}.{n}": v for n, v in given.items()}
        config |= {f"{side}.{n}": domains[n].at(0.5) for n in left_out}  # type: ignore[attr-defined]
    return create_trial(
        state=TrialState.RUNNING if score is None else TrialState.COMPLETE,
        value=score,
        params={name: axis.inner(config[name]) for name, axis in named.items()},
        distributions={name: axis.distribution for name, axis in named.items()},
    )


def _same(past: Past, configs: Configs) -> bool:
    kept = (past.arm.client, past.arm.server)
    return all(own[name] == value for own, config in zip(kept, configs, strict=True) for name, value in config.items())


def _study() -> Any:
    import optuna

    return optuna.create_study(direction="minimize", storage=optuna.storages.InMemoryStorage())


def _import(kind: str) -> None:
    try:
        for name in ("optuna", *{"cmaes": ("cmaes",), "gp": ("scipy", "torch")}.get(kind, ())):
            importlib.import_module(name)
    except ImportError as error:
        extra = "optuna,torch" if kind == "gp" else "optuna"
        raise SpecError(f"sampler = {kind!r} needs {error.name}: pip install 'fedtuner[{extra}]'") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from logging anything but what went wrong."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def _one_thread(torchs: bool) -> Iterator[None]:
    """Keep torch, where a sampler uses it, on one thread and its generator as it was: for the same bits."""
    if not torchs:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
