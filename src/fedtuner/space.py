"""Hyperparameter spaces: domains by name, the conditions under which they apply, and constraints between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedtuner import checks
from fedtuner.checks import is_number, python
from fedtuner.constraints import check as check_constraints
from fedtuner.constraints import holds
from fedtuner.domains import Choice, Config, Divisible, Domain, Float, Int, OneMinus, Ordered, PowerOfTwo, Value
from fedtuner.errors import SpecError, brief, suggest
from fedtuner.rng import Generator

T = TypeVar("T")
TRIES = 1000  # draws before constraints are taken for impossible


@dataclass(frozen=True, init=False)
class When:
    """A domain of a hyperparameter that is there only with certain values of others of its side.

    ``When(Float(0.9, 0.999), optimiser="adam")``; several values as a list, other names as a table in second place.
    Where it does not apply, the hyperparameter is ``otherwise``: by default its default; an app's own is left out.
    """

    inner: Domain
    on: tuple[tuple[str, tuple[Value, ...]], ...]
    otherwise: Value | None = None

    def __init__(self, inner: Any, on: Any = None, otherwise: Value | None = None, **more: Any) -> None:
        made = domain(inner)
        if not isinstance(on, (Mapping, tuple, type(None))) or not (on or more):
            raise SpecError(f"When({brief(inner)}): give what it depends on, such as optimiser='adam'")
        if isinstance(made, When):
            raise SpecError(f"When({brief(inner)}): give all that it depends on at once")
        named = {
            n: given if isinstance(given, (list, tuple)) else [given] for n, given in {**dict(on or {}), **more}.items()
        }
        values = tuple((name, Choice(list(given)).values) for name, given in named.items())
        checks.settle(self, inner=made, on=values, otherwise=python(otherwise))

    def draw(self, rng: Generator) -> Value:
        return self.inner.draw(rng)

    def near(self, centre: Any, eps: float, rng: Generator) -> Value:
        return self.inner.near(centre, eps, rng)

    def at(self, u: float) -> Value:
        assert isinstance(self.inner, Divisible)  # samplers that use parts of ranges check it
        return self.inner.at(u)

    def __contains__(self, value: object) -> bool:
        return value in self.inner

    def ends(self) -> tuple[Value, ...]:
        return self.inner.ends()

    def describe(self) -> dict[str, Any]:
        inner = self.inner.describe()
        table = dict(inner) if isinstance(inner, Mapping) else {"values": inner if isinstance(inner, list) else [inner]}
        more = {} if self.otherwise is None else {"otherwise": self.otherwise}
        return {**table, "when": {name: list(values) for name, values in self.on}, **more}


def unconditional(domain: Domain) -> Domain:
    """Return a domain without the conditions under which it applies."""
    return domain.inner if isinstance(domain, When) else domain


def absent(domains: Mapping[str, Domain], config: Config) -> set[str]:
    """Return the hyperparameters that do not apply to a configuration."""
    conditions = {name: d.on for name, d in domains.items() if isinstance(d, When)}
    found: set[str] = set()
    for _ in conditions:  # what depends on what is absent is absent, too
        found |= {n for n, on in conditions.items() if any(m in found or config.get(m) not in vs for m, vs in on)}
    return found


def settled(domains: Mapping[str, Domain], config: dict[str, Value]) -> dict[str, Value]:
    """Return a configuration in which hyperparameters that do not apply are as they otherwise are, or left out."""
    for name in absent(domains, config):
        otherwise = domains[name].otherwise  # type: ignore[attr-defined]
        if otherwise is None:
            del config[name]
        else:
            config[name] = otherwise
    return config


def flat(client: Mapping[str, T], server: Mapping[str, T]) -> dict[str, T]:
    """Return what both sides have, by names such as client.lr."""
    return {f"client.{n}": x for n, x in client.items()} | {f"server.{n}": x for n, x in server.items()}


def fixed(domain: Domain) -> bool:
    """Return whether a domain is one value."""
    return isinstance(domain, Choice) and len(domain.values) == 1


def domain(value: Any, name: str = "hyperparameter") -> Domain:
    """Return the domain that a literal stands for: a list is a Choice, a single value is fixed, a table is a range."""
    value = python(value)
    if isinstance(value, Domain) and not isinstance(value, type):
        return value
    if isinstance(value, (bool, str)) or is_number(value):
        return Choice([value])
    if isinstance(value, (int, float)):
        raise SpecError(f"{name} = {brief(value)}, but must be a number of at most 64 bits")
    if isinstance(value, (list, Mapping)):
        try:
            return Choice(value) if isinstance(value, list) else _from_table(dict(value), name)
        except SpecError as error:
            raise SpecError(str(error) if str(error).startswith(name) else f"{name}: {error}") from None
    how = "give Float(low, high), Int(low, high), a list of values or one value"
    raise SpecError(f"{name} = {brief(value)} is no domain: {how}")


def _from_table(table: dict[str, Any], name: str) -> Domain:
    if "when" in table:
        on, otherwise = table.pop("when"), table.pop("otherwise", None)
        inner = table["values"] if table.keys() == {"values"} else table
        return When(domain(inner, name), on, otherwise)
    if "one_minus" in table:
        if len(table) > 1:
            raise SpecError(f"{name}: one_minus stands alone, but is beside {sorted(set(table) - {'one_minus'})}")
        inner = domain(table["one_minus"], name)
        if not isinstance(inner, Float):
            raise SpecError(f"{name}: one_minus takes a range of real numbers, got {brief(table['one_minus'])}")
        return OneMinus(inner)
    known = {"low", "high", "log", "power_of_two"}
    for key in table:
        if key not in known:
            raise SpecError(f"{name}: no key {brief(key)} in a range{suggest(key, known | {'one_minus'})}")
    if "low" not in table or "high" not in table:
        raise SpecError(f"{name} = {brief(table)}: a range needs low and high")
    for key in ("log", "power_of_two"):
        if not isinstance(table.get(key, False), bool):
            raise SpecError(f"{name}: {key} = {brief(table[key])}, but must be true or false")
    low, high, log = table["low"], table["high"], table.get("log", False)
    if table.get("power_of_two", False):
        if log:
            raise SpecError(f"{name}: power_of_two and log are both given, but powers are logarithmic: leave log out")
        return PowerOfTwo(low, high)
    whole = checks.is_whole(low) and checks.is_whole(high)
    return Int(low, high, log) if whole else Float(low, high, log)


def _domains(side: str, given: Any) -> Mapping[str, Domain]:
    if not isinstance(given, Mapping):
        raise SpecError(f"{side} = {brief(given)}, but must be a mapping of names to domains, such as {{'lr': 0.1}}")
    for name in given:
        if not isinstance(name, str):
            raise SpecError(f"{side} has the name {brief(name)}, but a hyperparameter's name must be a string")
    return {name: domain(value, f"{side}.{name}") for name, value in given.items()}


@dataclass(frozen=True)
class Space:
    """The hyperparameters to tune: ``client`` are those of local training (c), ``server`` of aggregation (b).

    Only ranges (and lists) that are named are searched; if none is named, the method's own ranges are, except of what
    is set to one value. ``Space()`` searches nothing. With a budget the default is an arm, wherever it lies.
    """

    client: Mapping[str, Domain] = field(default_factory=dict)
    server: Mapping[str, Domain] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()  # such as "lr * epochs <= 1"; fedtuner/constraints.py

    def __init__(
        self,
        client: Mapping[str, Any] | None = None,
        server: Mapping[str, Any] | None = None,
        constraints: Sequence[str] = (),
    ) -> None:
        checks.settle(
            self, client=_domains("client", {} if client is None else client),
            server=_domains("server", {} if server is None else server), constraints=check_constraints(constraints),
        )  # fmt: skip

    @staticmethod
    def of(setup: Mapping[str, Any]) -> Space:
        """Return the space that a study's setup describes."""
        return Space(setup["client"], setup["server"], setup.get("constraints", ()))

    def allows(self, client: Config, server: Config) -> bool:
        """Return whether a configuration meets the constraints."""
        return all(holds(text, client, server) for text in self.constraints)

    @property
    def searches(self) -> bool:
        """Whether it names anything but single values."""
        return not all(fixed(domain) for domain in (*self.client.values(), *self.server.values()))

    def draw(self, rng: Generator, for_server: Generator | None = None) -> tuple[dict[str, Value], dict[str, Value]]:
        """Return a client and a server configuration, uniform in the sampling scales among those that are allowed."""
        for _ in range(TRIES):
            drawn = draw(self.client, rng), draw(self.server, for_server or rng)
            if self.allows(*drawn):
                return drawn
        raise SpecError(
            f"of {TRIES} configurations drawn none meets {' and '.join(self.constraints)}: widen the ranges"
        )

    def near(self, centre: Config, eps: float, rng: Generator, server: Config | None = None) -> dict[str, Value]:
        """Return a client configuration from the eps-neighbourhood of ``centre``; itself, if no other is allowed.

        What the centre has beside the space's hyperparameters stays as it is.
        """
        for _ in range(TRIES):
            moved = near(self.client, centre, eps, rng)
            made = {n: v for n, v in {**centre, **moved}.items() if n in moved or n not in self.client}
            if self.allows(made, server or {}):
                return made
        return dict(centre)

    def describe(self) -> dict[str, Any]:
        """Return the ``[client]`` and ``[server]`` tables."""
        return {
            "client": {name: d.describe() for name, d in self.client.items()},
            "server": {name: d.describe() for name, d in self.server.items()},
            **({"constraints": list(self.constraints)} if self.constraints else {}),
        }


def draw(domains: Mapping[str, Domain], rng: Generator) -> dict[str, Value]:
    """Return a configuration, drawn in the order of the names: the order of writing does not matter."""
    drawn = {name: domains[name].draw(rng) for name in sorted(domains)}
    return settled(domains, {name: drawn[name] for name in domains})


def near(domains: Mapping[str, Domain], centre: Config, eps: float, rng: Generator) -> dict[str, Value]:
    """Return a configuration from the eps-neighbourhood of ``centre``."""
    new = absent(domains, centre)  # in the centre they say nothing
    moved = {n: domains[n].draw(rng) if n in new else domains[n].near(centre[n], eps, rng) for n in sorted(domains)}
    return settled(domains, {name: moved[name] for name in domains})


# The spaces of the paper's appendix "Hyperparameters of FedAvg/FedProx/Reptile".
PAPER_CLIENT: Mapping[str, Domain] = {
    "lr": Float(1e-4, 1.0, log=True),
    "momentum": Float(0.0, 1.0),
    "weight_decay": Float(1e-5, 1e-1, log=True),
    "epochs": Int(1, 5),
    "batch": PowerOfTwo(8, 128),
    "dropout": Float(0.0, 0.5),
}
PAPER_SERVER: Mapping[str, Domain] = {
    "lr": Float(0.1, 10.0, log=True),
    "momentum": Float(0.0, 0.9),
    "gamma": OneMinus(Float(1e-4, 1e-2, log=True)),
}
PAPER_MU = Float(1e-5, 1.0, log=True)  # FedProx; the range is that of the authors' code, the paper gives none

__all__ = [
    "PAPER_CLIENT", "PAPER_MU", "PAPER_SERVER", "TRIES", "Choice", "Config", "Divisible", "Domain", "Float", "Int",
    "OneMinus", "Ordered", "PowerOfTwo", "Space", "Value", "When", "absent", "domain", "draw", "fixed", "flat", "near",
    "settled", "unconditional",
]  # fmt: skip
