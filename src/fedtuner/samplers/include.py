"""Configurations that are arms from the start: the first arms have them, another sampler proposes the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedtuner import checks
from fedtuner.core.sampler import Configs, Past, Sampler
from fedtuner.core.schedule import Schedule
from fedtuner.errors import SpecError, brief, suggest
from fedtuner.space import Choice, Config, Domain, Space, Value
from fedtuner.tables import Table

SIDES = ("client", "server")


@dataclass(frozen=True)
class Include:
    """The first arms are given: ``{"client": {"lr": 0.1}, "server": {}}``. What one leaves out is at its default.

    Values may lie outside their ranges. A hyperparameter that the space fixes to one value has it in these arms, too.
    """

    kind: ClassVar[str] = "include"
    configs: tuple[Table, ...]
    rest: Sampler

    def __post_init__(self) -> None:
        checks.settle(self, configs=both_sides(self.configs))

    @property
    def learns(self) -> bool:
        return self.rest.learns

    def propose(self, space: Space, seed: int, id: int, first: int, past: Sequence[Past]) -> Configs:
        """Return a given configuration, or what the other sampler proposes: it knows nothing of the given ones."""
        n = len(self.configs)
        if id < n:
            given = self.configs[id]
            return _filled(space.client, given["client"]), _filled(space.server, given["server"])
        known = [replace(p, arm=replace(p.arm, id=p.arm.id - n), first=max(0, p.first - n)) for p in past[n:]]
        return self.rest.propose(space, seed, id - n, max(0, first - n), known)

    def check(self, space: Space, schedule: Schedule) -> None:
        self.rest.check(space, schedule)


def _filled(domains: Mapping[str, Domain], config: Config) -> dict[str, Value]:
    fixed = {name: d.values[0] for name, d in domains.items() if isinstance(d, Choice) and len(d.values) == 1}
    return {**fixed, **config}


def both_sides(given: Iterable[Any]) -> tuple[Table, ...]:
    """Return configurations that are given, each as one of the client and one of the server."""
    return tuple(map(_checked, given))


def _checked(given: Any) -> Table:
    if not isinstance(given, Mapping):
        raise SpecError(f"include has {brief(given)}, but must have tables such as {{'client': {{'lr': 0.1}}}}")
    for side, config in given.items():
        if side not in SIDES:
            raise SpecError(f"include has {brief(side)}{suggest(side, SIDES)}: write {{'client': {{'lr': 0.1}}}}")
        if not isinstance(config, Mapping):
            raise SpecError(f"include.{side} = {brief(config)}, but must be values by name, such as {{'lr': 0.1}}")
    return {side: dict(given.get(side, {})) for side in SIDES}
