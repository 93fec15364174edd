"""What FedPop's local and global evolution have in common: who is replaced, and how a configuration is perturbed.

Chen et al., "FedPop: Federated Population-Based Hyperparameter Tuning", AAAI 2025. A perturbation is a small random
step of each hyperparameter, in its own scale:

    a real number    x + U(-1, 1) eps width, in its sampling scale: the logarithm where it has one
    a whole number   one less, the same or one more, each with probability 1/3
    a power of two   a half, the same or twice, each with probability 1/3
    a choice         with probability 1/2 another of its values

The result is clipped to the range and, around a ``centre``, to eps width of its value (to one step of a whole number).
As elsewhere, a value outside the range extends the range as far as itself, and one that the scale does not have (0
where it is logarithmic) stays. Whole numbers on a logarithmic scale are perturbed as real ones and rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedtuner.domains import Choice, Config, Domain, Float, Int, OneMinus, PowerOfTwo, Value
from fedtuner.rng import Generator
from fedtuner.space import TRIES, Space, absent, settled, unconditional


def extremes(order: Sequence[int], share: float) -> tuple[Sequence[int], Sequence[int]]:
    """Return the best and the worst of a ranking, best first: ceil(share n) of each, and nobody in both.

    >>> extremes([4, 2, 0, 1, 3], 0.3)
    ([4, 2], [1, 3])
    """
    n = math.ceil(round(share * len(order), 9))
    return order[:n], order[max(n, len(order) - n) :]


def around(
    space: Space, client: Config, server: Config, eps: float, rng: Generator, *, centre: Config | None = None
) -> dict[str, Value]:
    """Return a client configuration perturbed among those that are allowed; as it was, if none is found."""
    for _ in range(TRIES):
        made = perturbed(space.client, client, eps, rng, centre)
        if space.allows(made, server):
            return made
    return dict(client)


def perturbed(
    domains: Mapping[str, Domain], config: Config, eps: float, rng: Generator, centre: Config | None = None
) -> dict[str, Value]:
    """Return a configuration perturbed; what it has beside the domains stays, and what newly applies is drawn."""
    new = absent(domains, config) | (domains.keys() - config.keys())
    moved: dict[str, Value] = {}
    for name in sorted(domains):
        known = unconditional(domains[name])
        held = None if centre is None else centre.get(name)
        moved[name] = known.draw(rng) if name in new else perturb(known, config[name], eps, rng, held)
    return merged(domains, config, settled(domains, {name: moved[name] for name in domains}))


def merged(domains: Mapping[str, Domain], config: Config, made: Config) -> dict[str, Value]:
    """Return a configuration with new values for what the domains name."""
    return {n: v for n, v in {**config, **made}.items() if n in made or n not in domains}


def perturb(domain: Domain, x: Any, eps: float, rng: Generator, centre: Any = None) -> Value:
    """Return the value of one hyperparameter perturbed; around ``centre``, if there is one."""
    if isinstance(domain, OneMinus):
        inside = None if centre is None else 1.0 - float(centre)
        moved = _real(domain.inner, 1.0 - float(x), eps, rng, inside)
        return float(x) if moved == 1.0 - float(x) else 1.0 - moved
    if isinstance(domain, Float):
        return _real(domain, float(x), eps, rng, None if centre is None else float(centre))
    if isinstance(domain, Int) and domain.log:
        units = Float(domain.low - 0.5, domain.high + 0.5, log=True)
        moved = round(_real(units, float(x), eps, rng, None if centre is None else float(centre)))
        return int(min(max(moved, min(domain.low, x)), max(domain.high, x)))
    if isinstance(domain, Int):
        return _step(int(x), domain.low, domain.high, rng, None if centre is None else int(centre))
    if isinstance(domain, PowerOfTwo):
        low, high, at = map(_exponent, (domain.low, domain.high, x))
        moved = _step(at, low, high, rng, None if centre is None else _exponent(centre))
        return int(x) if moved == at else int(2**moved)  # x may be no power
    if isinstance(domain, Choice):
        others = [value for value in domain.values if value != x]
        flips, place = rng.random() < 0.5, rng.random()
        return others[int(place * len(others))] if flips and others else x
    return domain.near(x, eps, rng)  # one of the user's own


def _real(domain: Float, x: float, eps: float, rng: Generator, centre: float | None) -> float:
    u = rng.uniform(-1.0, 1.0)
    known = [value for value in (x, centre) if value is not None]
    if eps == 0 or (domain.log and min(known) <= 0):
        return x
    to, back = (math.log, math.exp) if domain.log else (float, float)
    width = eps * (to(domain.high) - to(domain.low))
    moved = to(x) + u * width
    if centre is not None:
        moved = min(max(moved, to(centre) - width), to(centre) + width)
    low, high = min(domain.low, *known), max(domain.high, *known)
    if moved <= to(low) or moved >= to(high):  # exp(log(low)) may be another number
        return low if moved <= to(low) else high
    return min(max(back(moved), low), high)


def _step(x: int, low: int, high: int, rng: Generator, centre: int | None) -> int:
    moved = x + int(rng.integers(-1, 1, endpoint=True))
    if centre is not None:
        moved = min(max(moved, centre - 1), centre + 1)
    known = [value for value in (x, centre) if value is not None]
    return min(max(moved, min(low, *known)), max(high, *known))


def _exponent(value: Any) -> int:
    return max(int(value), 1).bit_length() - 1
