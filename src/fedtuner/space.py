"""Hyperparameter spaces: domains that can be drawn from, and drawn from near a centre (Section 3 of the paper).

A domain has a *sampling scale* (the logarithm where ``log``); uniform draws and the local perturbation both happen
in that scale. The neighbourhood is intersected with the range and then drawn from, so no mass piles up at the ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from fedtuner.errors import SpecError, suggest
from fedtuner.rng import Generator

Value = float | int | str | bool
Config = Mapping[str, Value]


@runtime_checkable
class Domain(Protocol):
    """The values that one hyperparameter may take."""

    def draw(self, rng: Generator) -> Value:
        """Return a uniform draw in the sampling scale."""
        ...

    def near(self, centre: Any, eps: float, rng: Generator) -> Value:
        """Return a draw from the eps-neighbourhood of ``centre``."""
        ...

    def __contains__(self, value: object) -> bool: ...

    def ends(self) -> tuple[Value, ...]:
        """Return the values to check against a method's rules: both ends of a range, or every choice."""
        ...

    def describe(self) -> Any:
        """Return what stands for this domain in a study.toml and in a store's spec."""
        ...


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_range(kind: str, low: float, high: float, positive: bool) -> None:
    if not (_is_number(low) and _is_number(high)):
        raise SpecError(f"{kind}({low!r}, {high!r}): both ends must be finite numbers")
    if low > high:
        raise SpecError(f"{kind}({low}, {high}): low must not exceed high")
    if positive and low <= 0:
        raise SpecError(f"{kind}({low}, {high}): low must be > 0 on a logarithmic scale")


@dataclass(frozen=True)
class Float:
    """A real number, uniform on [low, high], or log-uniform."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_range("Float", self.low, self.high, self.log)

    def draw(self, rng: Generator) -> float:
        """Return a uniform draw in the sampling scale."""
        return self.near(self.low, 1.0, rng)

    def near(self, centre: Any, eps: float, rng: Generator) -> float:
        """Return a uniform draw from [c - (b-a) eps, c + (b-a) eps], within the range."""
        to, back = (math.log, math.exp) if self.log else (float, float)
        c, a, b = to(centre), to(self.low), to(self.high)
        reach = (b - a) * eps
        u = rng.random()  # drawn even where eps = 0: the stream's place does not depend on eps
        if eps == 0:
            return float(centre)
        low, high = max(a, c - reach), min(b, c + reach)
        return float(min(max(back(low + (high - low) * u), self.low), self.high))  # exp(log(x)) may round past the end

    def __contains__(self, value: object) -> bool:
        return _is_number(value) and self.low <= value <= self.high  # type: ignore[operator]

    def ends(self) -> tuple[Value, ...]:
        """Return both ends."""
        return self.low, self.high

    def describe(self) -> dict[str, Any]:
        """Return the table that stands for this domain in TOML."""
        return {"low": float(self.low), "high": float(self.high)} | ({"log": True} if self.log else {})


def _near_integer(centre: int, low: int, high: int, eps: float, rng: Generator) -> int:
    """Return a uniform draw from {c - floor((b-a) eps), ..., c + ceil((b-a) eps)}, within {a, ..., b}."""
    reach = round((high - low) * min(eps, 1.0), 9)  # 100 * 0.07 is 7, not 7.000000000000001
    return int(rng.integers(max(low, centre - math.floor(reach)), min(high, centre + math.ceil(reach)), endpoint=True))


@dataclass(frozen=True)
class Int:
    """A whole number, uniform on {low, ..., high}, or log-uniform and rounded."""

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        _check_range("Int", self.low, self.high, self.log)
        if int(self.low) != self.low or int(self.high) != self.high:
            raise SpecError(f"Int({self.low}, {self.high}): both ends must be whole numbers")

    def draw(self, rng: Generator) -> int:
        """Return a uniform draw in the sampling scale."""
        return self.near(self.low, 1.0, rng)

    def near(self, centre: Any, eps: float, rng: Generator) -> int:
        """Return a uniform draw from the paper's discrete neighbourhood, within the range."""
        if not self.log:
            return _near_integer(int(centre), self.low, self.high, eps, rng)
        # Each whole number owns the half-open unit around it, so that both ends get their full share.
        unit = Float(self.low - 0.5, self.high + 0.5, log=True)
        return int(min(max(round(unit.near(centre, eps, rng)), self.low), self.high))

    def __contains__(self, value: object) -> bool:
        return _is_number(value) and value == int(value) and self.low <= value <= self.high  # type: ignore

    def ends(self) -> tuple[Value, ...]:
        """Return both ends."""
        return self.low, self.high

    def describe(self) -> dict[str, Any]:
        """Return the table that stands for this domain in TOML."""
        return {"low": int(self.low), "high": int(self.high)} | ({"log": True} if self.log else {})


@dataclass(frozen=True)
class PowerOfTwo:
    """A power of two, its exponent uniform: ``PowerOfTwo(8, 128)`` is the paper's batch size."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range("PowerOfTwo", self.low, self.high, positive=True)
        for end in (self.low, self.high):
            if int(end) != end or int(end) & (int(end) - 1):
                raise SpecError(f"PowerOfTwo({self.low}, {self.high}): {end} is not a power of two")

    def draw(self, rng: Generator) -> int:
        """Return two to a uniform exponent."""
        return self.near(self.low, 1.0, rng)

    def near(self, centre: Any, eps: float, rng: Generator) -> int:
        """Return two to an exponent from the paper's discrete neighbourhood of the centre's."""
        low, high, c = (int(n).bit_length() - 1 for n in (self.low, self.high, centre))
        return int(2 ** _near_integer(c, low, high, eps, rng))

    def __contains__(self, value: object) -> bool:
        return (
            _is_number(value)
            and value == int(value)  # type: ignore
            and self.low <= value <= self.high  # type: ignore
            and int(value) & (int(value) - 1) == 0  # type: ignore
        )

    def ends(self) -> tuple[Value, ...]:
        """Return both ends."""
        return self.low, self.high

    def describe(self) -> dict[str, Any]:
        """Return the table that stands for this domain in TOML."""
        return {"low": int(self.low), "high": int(self.high), "power_of_two": True}


@dataclass(frozen=True)
class Choice:
    """One of the given values; the perturbation redraws it with probability eps."""

    values: tuple[Value, ...]

    def __init__(self, values: Sequence[Value]) -> None:
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise SpecError(f"Choice({values!r}): give a list of at least one value")
        for value in values:
            if not isinstance(value, (int, float, str, bool)):
                raise SpecError(f"Choice({values!r}): {value!r} is not a number, string or boolean")
        object.__setattr__(self, "values", tuple(values))

    def draw(self, rng: Generator) -> Value:
        """Return a uniform draw."""
        return self.values[int(rng.integers(len(self.values)))]

    def near(self, centre: Any, eps: float, rng: Generator) -> Value:
        """Return the centre, or with probability eps a fresh draw."""
        redraw, fresh = rng.random() < eps, self.draw(rng)
        return fresh if redraw else centre

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def ends(self) -> tuple[Value, ...]:
        """Return every choice."""
        return self.values

    def describe(self) -> Any:
        """Return a list of values, or the value itself where there is one."""
        return list(self.values) if len(self.values) > 1 else self.values[0]


@dataclass(frozen=True)
class OneMinus:
    """One minus another domain: ``OneMinus(Float(1e-4, 1e-2, log=True))`` is the paper's server decay gamma."""

    inner: Float

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Float):
            raise SpecError(f"OneMinus({self.inner!r}): give a Float(low, high)")

    def draw(self, rng: Generator) -> float:
        """Return one minus a draw."""
        return 1.0 - self.inner.draw(rng)

    def near(self, centre: Any, eps: float, rng: Generator) -> float:
        """Return one minus a draw near one minus the centre."""
        inside = min(max(1.0 - float(centre), self.inner.low), self.inner.high)
        moved = self.inner.near(inside, eps, rng)
        return float(centre) if eps == 0 else 1.0 - moved

    def __contains__(self, value: object) -> bool:
        slack = 1e-12  # 1 - (1 - x) is not x to the bit
        return _is_number(value) and self.inner.low - slack <= 1.0 - value <= self.inner.high + slack  # type: ignore

    def ends(self) -> tuple[Value, ...]:
        """Return both ends."""
        return 1.0 - self.inner.high, 1.0 - self.inner.low

    def describe(self) -> dict[str, Any]:
        """Return the table that stands for this domain in TOML."""
        return {"one_minus": self.inner.describe()}


def domain(value: Any, name: str = "hyperparameter") -> Domain:
    """Return the domain that a literal stands for: a list is a Choice, a single value is fixed, a table is a range."""
    if isinstance(value, Domain):
        return value
    if isinstance(value, (bool, int, float, str)):
        return Choice([value])
    if isinstance(value, list):
        return Choice(value)
    if isinstance(value, Mapping):
        try:
            return _from_table(dict(value), name)
        except SpecError as error:
            raise SpecError(str(error) if str(error).startswith(name) else f"{name}: {error}") from None
    raise SpecError(
        f"{name} = {value!r} is no domain: give Float(low, high), Int(low, high), a list of values or one value"
    )


def _from_table(table: dict[str, Any], name: str) -> Domain:
    if "one_minus" in table:
        if len(table) > 1:
            raise SpecError(f"{name}: one_minus stands alone, but is beside {sorted(set(table) - {'one_minus'})}")
        inner = domain(table["one_minus"], name)
        if not isinstance(inner, Float):
            raise SpecError(f"{name}: one_minus takes a range of real numbers, got {table['one_minus']!r}")
        return OneMinus(inner)
    known = {"low", "high", "log", "power_of_two"}
    for key in table:
        if key not in known:
            raise SpecError(f"{name}: no key {key!r} in a range{suggest(key, known | {'one_minus'})}")
    if "low" not in table or "high" not in table:
        raise SpecError(f"{name} = {table!r}: a range needs low and high")
    for key in ("log", "power_of_two"):
        if not isinstance(table.get(key, False), bool):
            raise SpecError(f"{name}: {key} = {table[key]!r}, but must be true or false")
    low, high, log = table["low"], table["high"], table.get("log", False)
    if table.get("power_of_two", False):
        return PowerOfTwo(low, high)
    whole = isinstance(low, int) and isinstance(high, int)
    return Int(low, high, log) if whole else Float(low, high, log)


def _domains(side: str, given: Mapping[str, Any]) -> Mapping[str, Domain]:
    return {name: domain(value, f"{side}.{name}") for name, value in given.items()}


@dataclass(frozen=True)
class Space:
    """The hyperparameters to tune: ``client`` are those of local training (c), ``server`` of aggregation (b)."""

    client: Mapping[str, Domain] = field(default_factory=dict)
    server: Mapping[str, Domain] = field(default_factory=dict)

    def __init__(self, client: Mapping[str, Any] | None = None, server: Mapping[str, Any] | None = None) -> None:
        object.__setattr__(self, "client", _domains("client", client or {}))
        object.__setattr__(self, "server", _domains("server", server or {}))

    def draw(self, rng: Generator) -> tuple[dict[str, Value], dict[str, Value]]:
        """Return a client and a server configuration, uniform in the sampling scales."""
        return draw(self.client, rng), draw(self.server, rng)

    def near(self, centre: Config, eps: float, rng: Generator) -> dict[str, Value]:
        """Return a client configuration from the eps-neighbourhood of ``centre``."""
        return near(self.client, centre, eps, rng)

    def describe(self) -> dict[str, Any]:
        """Return the ``[client]`` and ``[server]`` tables."""
        return {
            "client": {name: d.describe() for name, d in self.client.items()},
            "server": {name: d.describe() for name, d in self.server.items()},
        }


def draw(domains: Mapping[str, Domain], rng: Generator) -> dict[str, Value]:
    """Return a configuration, drawn in the order of the names: the order of writing does not matter."""
    drawn = {name: domains[name].draw(rng) for name in sorted(domains)}
    return {name: drawn[name] for name in domains}


def near(domains: Mapping[str, Domain], centre: Config, eps: float, rng: Generator) -> dict[str, Value]:
    """Return a configuration from the eps-neighbourhood of ``centre``."""
    moved = {name: domains[name].near(centre[name], eps, rng) for name in sorted(domains)}
    return {name: moved[name] for name in domains}


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
