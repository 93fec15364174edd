"""Domains: the values that one hyperparameter may take, drawn from all or near a centre (Section 3 of the paper).

A domain has a *sampling scale* (the logarithm where ``log``); uniform draws and the local perturbation both happen
in that scale. The neighbourhood is intersected with the range and then drawn from, so no mass piles up at the ends.
A centre outside the range, such as a default that is meant to be there, extends the range as far as itself; one that
the scale does not have (0 where it is logarithmic) is its own only neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from fedtuner import checks
from fedtuner.checks import is_number, python
from fedtuner.errors import SpecError, brief
from fedtuner.rng import Generator

Value = float | int | str | bool
Config = Mapping[str, Value]
_LARGEST = 2**53  # whole numbers up to this are exact as reals, too


@runtime_checkable
class Domain(Protocol):
    """The values that one hyperparameter may take."""

    def draw(self, rng: Generator) -> Value:
        """Return a uniform draw in the sampling scale."""

    def near(self, centre: Any, eps: float, rng: Generator) -> Value:
        """Return a draw from the eps-neighbourhood of ``centre``."""

    def __contains__(self, value: object) -> bool: ...

    def ends(self) -> tuple[Value, ...]:
        """Return the values to check against a method's rules: both ends of a range, or every choice."""

    def describe(self) -> Any:
        """Return what stands for this domain in a study.toml and in a store's spec."""


@runtime_checkable
class Divisible(Protocol):
    """A domain that can be divided into equal parts: all of ours."""

    def at(self, u: float) -> Value:
        """Return the value at the part u of the range, 0 <= u <= 1, in the sampling scale: a uniform u is a draw."""


@runtime_checkable
class Ordered(Divisible, Protocol):
    """A domain whose values have places on a line: all of ours but ``Choice``, whose values are only equal or not."""

    def unit(self, value: Any) -> float:
        """Return the place of a value, from 0 to 1 in the sampling scale; the middle of its share if it is whole.

        ``at(unit(value))`` is the value, but for rounding. What lies outside of the range is at its end.
        """


def _check_range(made: Float | Int | PowerOfTwo, positive: bool, whole: bool = False) -> None:
    """Refuse ends that are none; those that are become Python's numbers."""
    low, high = made.low, made.high
    name = f"{type(made).__name__}({brief(low)}, {brief(high)})"
    if not (is_number(low) and is_number(high)):
        raise SpecError(f"{name}: both ends must be finite numbers")
    if whole and (int(low) != low or int(high) != high):
        raise SpecError(f"{name}: both ends must be whole numbers")
    if whole and max(-low, high) > _LARGEST:
        raise SpecError(f"{name}: both ends must be at most 2^53 in size")
    if low > high:
        raise SpecError(f"{name}: low must not exceed high")
    if positive and low <= 0:
        raise SpecError(f"{name}: low must be > 0 on a logarithmic scale")
    if not math.isfinite(float(high) - float(low)):
        raise SpecError(f"{name}: the range is too wide for numbers of 64 bits")
    as_given = int if whole else python
    checks.settle(made, low=as_given(low), high=as_given(high))


def _check_log(made: Float | Int) -> None:
    log = python(made.log)
    if not isinstance(log, bool):
        name = f"{type(made).__name__}({brief(made.low)}, {brief(made.high)})"
        raise SpecError(f"{name}: log = {brief(log)}, but must be true or false")
    checks.settle(made, log=log)


@dataclass(frozen=True)
class Float:
    """A real number, uniform on [low, high], or log-uniform."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_log(self)
        _check_range(self, self.log)

    def draw(self, rng: Generator) -> float:
        return self.near(self.low, 1.0, rng)

    def near(self, centre: Any, eps: float, rng: Generator) -> float:
        """Return a uniform draw from [c - (b-a) eps, c + (b-a) eps], within the range."""
        to, back = (math.log, math.exp) if self.log else (float, float)
        u = rng.random()  # drawn even where eps = 0: the stream's place does not depend on eps
        if eps == 0 or (self.log and centre <= 0):
            return float(centre)
        c, a, b = to(centre), to(self.low), to(self.high)
        reach = (b - a) * eps
        low, high = max(min(a, c), c - reach), min(max(b, c), c + reach)
        made = back(low + (high - low) * u)  # which may round past the end
        return float(min(max(made, min(self.low, centre)), max(self.high, centre)))

    def at(self, u: float) -> float:
        if not self.log:
            return self._inside(self.low + (self.high - self.low) * u)
        low, high = math.log(self.low), math.log(self.high)
        return self._inside(math.exp(low + (high - low) * u))

    def unit(self, value: Any) -> float:
        inside = self._inside(value)
        low, high, at = (math.log(x) if self.log else float(x) for x in (self.low, self.high, inside))
        return (at - low) / (high - low) if high > low else 0.5

    def _inside(self, value: float) -> float:
        return float(min(max(value, self.low), self.high))  # exp(log(x)) may round

    def __contains__(self, value: object) -> bool:
        return is_number(value) and self.low <= value <= self.high  # type: ignore[operator]

    def ends(self) -> tuple[Value, ...]:
        return self.low, self.high

    def describe(self) -> dict[str, Any]:
        return {"low": float(self.low), "high": float(self.high)} | ({"log": True} if self.log else {})


def _near_integer(centre: int, low: int, high: int, eps: float, rng: Generator) -> int:
    """Return a uniform draw from {c - floor((b-a) eps), ..., c + ceil((b-a) eps)}, within {a, ..., b}."""
    reach = round((high - low) * min(eps, 1.0), 9)  # 100 * 0.07 is 7, not 7.000000000000001
    low, high = min(low, centre), max(high, centre)
    return int(rng.integers(max(low, centre - math.floor(reach)), min(high, centre + math.ceil(reach)), endpoint=True))


def _share(low: int, high: int, u: float) -> int:
    """Return the whole number from low to high that the part u of [0, 1] belongs to; all have equal shares."""
    return min(low + int(u * (high - low + 1)), high)


def _middle(low: int, high: int, value: int) -> float:
    """Return the middle of a whole number's share of [0, 1]."""
    return (min(max(value, low), high) - low + 0.5) / (high - low + 1)


@dataclass(frozen=True)
class Int:
    """A whole number, uniform on {low, ..., high}, or log-uniform and rounded."""

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        _check_log(self)
        _check_range(self, self.log, whole=True)

    def draw(self, rng: Generator) -> int:
        return self.near(self.low, 1.0, rng)

    def near(self, centre: Any, eps: float, rng: Generator) -> int:
        """Return a uniform draw from the paper's discrete neighbourhood, within the range."""
        if not self.log:
            return _near_integer(int(centre), self.low, self.high, eps, rng)
        moved = round(self._units().near(centre, eps, rng))
        return int(min(max(moved, min(self.low, centre)), max(self.high, centre)))

    def at(self, u: float) -> int:
        return self._rounded(self._units().at(u)) if self.log else _share(self.low, self.high, u)

    def unit(self, value: Any) -> float:
        return self._units().unit(value) if self.log else _middle(self.low, self.high, round(value))

    def _units(self) -> Float:
        """Return the real range in which each whole number owns the unit around it: both ends get their full share."""
        return Float(self.low - 0.5, self.high + 0.5, log=True)

    def _rounded(self, value: float) -> int:
        return int(min(max(round(value), self.low), self.high))

    def __contains__(self, value: object) -> bool:
        return is_number(value) and value == int(value) and self.low <= value <= self.high  # type: ignore

    def ends(self) -> tuple[Value, ...]:
        return self.low, self.high

    def describe(self) -> dict[str, Any]:
        return {"low": int(self.low), "high": int(self.high)} | ({"log": True} if self.log else {})


@dataclass(frozen=True)
class PowerOfTwo:
    """A power of two, its exponent uniform: ``PowerOfTwo(8, 128)`` is the paper's batch size."""

    low: int
    high: int

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            if is_number(end) and (end < 1 or int(end) != end or int(end) & (int(end) - 1)):
                raise SpecError(
                    f"PowerOfTwo({brief(self.low)}, {brief(self.high)}): {brief(end)} is not a power of two"
                )
        _check_range(self, positive=True, whole=True)

    @property
    def values(self) -> tuple[int, ...]:
        """All powers of two in the range."""
        return tuple(2**exponent for exponent in range(self.low.bit_length() - 1, self.high.bit_length()))

    def draw(self, rng: Generator) -> int:
        return self.near(self.low, 1.0, rng)

    def near(self, centre: Any, eps: float, rng: Generator) -> int:
        """Return two to an exponent from the paper's discrete neighbourhood of the centre's."""
        low, high, c = (max(int(n), 1).bit_length() - 1 for n in (self.low, self.high, centre))
        moved = int(2 ** _near_integer(c, low, high, eps, rng))
        return int(centre) if eps == 0 else moved  # the centre may be no power

    def at(self, u: float) -> int:
        return int(2 ** _share(int(self.low).bit_length() - 1, int(self.high).bit_length() - 1, u))

    def unit(self, value: Any) -> float:
        return _middle(*(max(int(n), 1).bit_length() - 1 for n in (self.low, self.high, value)))

    def __contains__(self, value: object) -> bool:
        return (
            is_number(value)
            and value == int(value)  # type: ignore
            and self.low <= value <= self.high  # type: ignore
            and int(value) & (int(value) - 1) == 0  # type: ignore
        )

    def ends(self) -> tuple[Value, ...]:
        return self.low, self.high

    def describe(self) -> dict[str, Any]:
        return {"low": int(self.low), "high": int(self.high), "power_of_two": True}


@dataclass(frozen=True)
class Choice:
    """One of the given values; the perturbation redraws it with probability eps."""

    values: tuple[Value, ...]

    def __init__(self, values: Sequence[Value]) -> None:
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
            raise SpecError(f"Choice({brief(values)}): give a list of at least one value")
        made = tuple(map(python, values))
        for n, value in enumerate(made):
            if not isinstance(value, (str, bool)) and not is_number(value):
                raise SpecError(f"Choice({brief(values)}): {brief(value)} is not a number, string or boolean")
            if value in made[:n]:
                raise SpecError(f"Choice({brief(values)}): {brief(value)} is there twice")
        checks.settle(self, values=made)

    def draw(self, rng: Generator) -> Value:
        return self.values[int(rng.integers(len(self.values)))]

    def near(self, centre: Any, eps: float, rng: Generator) -> Value:
        """Return the centre, or with probability eps a fresh draw."""
        redraw, fresh = rng.random() < eps, self.draw(rng)
        return fresh if redraw else centre

    def at(self, u: float) -> Value:
        return self.values[_share(0, len(self.values) - 1, u)]

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def ends(self) -> tuple[Value, ...]:
        return self.values

    def describe(self) -> Any:
        return list(self.values) if len(self.values) > 1 else self.values[0]


@dataclass(frozen=True)
class OneMinus:
    """One minus another domain: ``OneMinus(Float(1e-4, 1e-2, log=True))`` is the paper's server decay gamma."""

    inner: Float

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Float):
            raise SpecError(f"OneMinus({brief(self.inner)}): give a Float(low, high)")

    def draw(self, rng: Generator) -> float:
        return 1.0 - self.inner.draw(rng)

    def near(self, centre: Any, eps: float, rng: Generator) -> float:
        inner = 1.0 - float(centre)
        if centre in self:  # 1 - (1 - x) may be beyond the end by a rounding
            inner = min(max(inner, self.inner.low), self.inner.high)
        moved = self.inner.near(inner, eps, rng)
        return float(centre) if eps == 0 else 1.0 - moved

    def at(self, u: float) -> float:
        return 1.0 - self.inner.at(1.0 - u)

    def unit(self, value: Any) -> float:
        return 1.0 - self.inner.unit(1.0 - float(value))

    def __contains__(self, value: object) -> bool:
        slack = 1e-12  # 1 - (1 - x) is not x to the bit
        return is_number(value) and self.inner.low - slack <= 1.0 - value <= self.inner.high + slack  # type: ignore

    def ends(self) -> tuple[Value, ...]:
        return 1.0 - self.inner.high, 1.0 - self.inner.low

    def describe(self) -> dict[str, Any]:
        return {"one_minus": self.inner.describe()}
