"""Arms that divide the ranges between them: a Latin hypercube in the domains' own scales, around a centre.

McKay, Beckman and Conover, "A Comparison of Three Methods for Selecting Values of Input Variables", Technometrics 1979.
With few arms, independent draws leave gaps: of nine draws of a learning rate over three decades, often none lies within
a factor of two of the best. In a Latin hypercube of n arms each n-th of every range is drawn from exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from fedtuner import checks
from fedtuner.core.sampler import Configs, Past
from fedtuner.core.schedule import Schedule
from fedtuner.errors import SpecError, brief
from fedtuner.rng import stream
from fedtuner.space import TRIES, Config, Divisible, Domain, Float, Space, Value, When, settled, unconditional


@dataclass(frozen=True)
class Stratified:
    """Of every ``arms`` arms each draws from another part of each range; the parts are dealt at random.

    Logarithmic ranges of client hyperparameters that ``centre`` names are cut to ``decades`` on both sides of it.
    """

    kind: ClassVar[str] = "stratified"
    arms: int = 8
    centre: Config = field(default_factory=dict)
    decades: float = 1.5

    learns = False

    def __post_init__(self) -> None:
        if not isinstance(self.centre, Mapping):
            raise SpecError(f"sampler.centre = {brief(self.centre)}, but must be values by name, such as {{'lr': 0.1}}")
        arms, decades = checks.whole("sampler.arms", self.arms), checks.number("sampler.decades", self.decades, 0, 100)
        checks.settle(self, arms=arms, decades=decades, centre=dict(self.centre))

    def propose(self, space: Space, seed: int, id: int, first: int, past: Sequence[Past]) -> Configs:
        client = {name: self._near_centre(name, domain) for name, domain in space.client.items()}
        for again in range(TRIES):  # where its part of the space is not allowed, an arm is dealt another
            path = (seed, "strata", *(("again", again) if again else ()), id // self.arms)
            drawn = self._drawn(path, "client", client, id), self._drawn(path, "server", space.server, id)
            if space.allows(*drawn):
                return drawn
        return space.draw(stream(seed, "strata", "allowed", id))

    def _drawn(self, path: tuple[Any, ...], side: str, domains: Mapping[str, Domain], id: int) -> dict[str, Value]:
        seed, *purpose = path
        place, made = id % self.arms, dict[str, Value]()
        for name, domain in domains.items():
            parts = stream(seed, *purpose, side, name).permutation(self.arms)
            within = stream(seed, *purpose, side, name, place).random()
            assert isinstance(domain, Divisible)  # as check() has seen
            made[name] = domain.at((int(parts[place]) + within) / self.arms)
        return settled(domains, made)

    def _near_centre(self, name: str, domain: Domain) -> Domain:
        centre = self.centre.get(name)
        if isinstance(domain, When):
            return replace(domain, inner=self._near_centre(name, domain.inner))
        if not isinstance(domain, Float) or not domain.log or isinstance(centre, (str, bool)) or not centre:
            return domain
        factor = 10.0**self.decades
        low, high = max(domain.low, centre / factor), min(domain.high, centre * factor)
        return Float(low, high, log=True) if low <= high else domain  # a centre far outside of the range says nothing

    def check(self, space: Space, schedule: Schedule) -> None:
        """Refuse a centre that names no hyperparameter of the space, and domains of one's own without parts."""
        for side, domains in (("client", space.client), ("server", space.server)):
            for name, domain in domains.items():
                if not isinstance(unconditional(domain), Divisible):
                    raise SpecError(
                        f"{side}.{name}: {type(unconditional(domain)).__name__} has no at(u), so it has no strata"
                    )
        for name in self.centre:
            if name not in space.client:
                raise SpecError(f"sampler.centre.{name}, but client.{name} is not tuned: leave it out")


stratified = Stratified
