"""Arms that a space does not allow: those that a study has from the start, whatever is searched."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

from fedtuner.constraints import holds, names
from fedtuner.core.method import defaults
from fedtuner.core.model import Hyper
from fedtuner.core.setup import Setup
from fedtuner.errors import FedtunerWarning, brief
from fedtuner.samplers import Include
from fedtuner.space import Choice, Config, Domain, PowerOfTwo, Space, absent, fixed, unconditional

Place = tuple[str, str]  # a side, and the name of one of its hyperparameters


def warn_of_outside(setup: Setup, asked: Space, of_model: Mapping[str, Hyper], warm: int) -> None:
    """Say which of the first arms lie outside of the ranges and constraints that the user gave: one of them may win.

    ``warm`` is how many of the included configurations another study has found.
    """
    if not isinstance(setup.sampler, Include):
        return
    configs, said = setup.sampler.configs, dict[tuple[str, bool], dict[str, Place]]()
    for id, config in enumerate(configs):
        client, server = setup.sampler.propose(setup.space, setup.seed, id, 0, ())
        client = {**defaults({**setup.method.client, **of_model}), **client}
        server = {**defaults(setup.method.server), **server}
        own = min(warm, 1) <= id <= len(configs) - max(warm, 1)  # the best one that was found stands before them
        who = "start_from" if not own else "include" if any(config.values()) else "the default arm"
        for places, text in _outside(setup.space, asked, client, server):
            given = not own or any(name in config[side] for side, name in places)
            said.setdefault((who, given), {}).setdefault(text, places[0])
    for (who, given), texts in said.items():
        side, name = next(iter(texts.values()))
        today = f"give what you have today, include=[{{{side!r}: {{{name!r}: ...}}}}]"
        warnings.warn(
            f"{who} has {'; '.join(texts)}, outside of the space: it is an arm all the same, as it is what tuning has "
            f"to beat, so the result may have it; {'leave it out' if given else today}, or give a wider space",
            FedtunerWarning,
            stacklevel=3,
        )


def _outside(space: Space, asked: Space, client: Config, server: Config) -> Iterator[tuple[list[Place], str]]:
    """Yield the places of values that are searched but not allowed, and these in words."""
    sides = {"client": (space.client, asked.client, client), "server": (space.server, asked.server, server)}
    for side, (searched, domains, config) in sides.items():
        gone = absent(searched, config)
        for name, domain in domains.items():
            free = name in searched and not fixed(searched[name]) and name in config and name not in gone
            if free and config[name] not in unconditional(domain):
                yield [(side, name)], f"{side}.{name} = {brief(config[name])} ({_rule(domain)})"
    for text in asked.constraints:
        if not holds(text, client, server):
            places = [(side or ("client" if name in client else "server"), name) for side, name in names(text)]
            values = [f"{side}.{name} = {brief(sides[side][2][name])}" for side, name in dict.fromkeys(places)]
            yield places, f"{', '.join(values)} (not {text})"


def _rule(domain: Domain) -> str:
    """Return a range in words."""
    plain = unconditional(domain)
    if isinstance(plain, Choice):
        return f"not in {brief(list(plain.values))}"
    low, high = (f"{end:g}" if isinstance(end, (int, float)) else brief(end) for end in plain.ends())
    return f"not from {low} to {high}" + (" by powers of two" if isinstance(plain, PowerOfTwo) else "")
