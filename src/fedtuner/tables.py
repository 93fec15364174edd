"""Records as tables of TOML and JSON, and back: here, and only here, strings become objects.

A frozen dataclass becomes a table of its fields. Where a setting may be of several classes, ``kind`` names the class: a
known name, or ``package.module:Class`` for the user's own. Other objects return their table from ``describe()``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import traceback
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from fedtuner.errors import FAILURES, FedtunerError, SpecError, brief, named, one_line, suggest

Table = Mapping[str, Any]


def plain(value: Any) -> Any:
    """Return a value that strict JSON can hold: numbers that are not finite become the strings nan, inf and -inf."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    return table(value)


def table(value: Any) -> Any:
    """Return an object's table: that of ``describe()``, or a dataclass's kind and fields.

    Fields that are None are left out, as TOML has no null.
    """
    if hasattr(value, "describe"):
        return plain(value.describe())
    if not is_dataclass(value) or isinstance(value, type):
        raise SpecError(f"{brief(value)} cannot stand in a table: it is no dataclass and has no describe()")
    named = {f.name: getattr(value, f.name) for f in fields(value)}
    kind = kind_of(type(value))
    made = {name: plain(v) for name, v in named.items() if v is not None}
    return {"kind": kind, **made} if kind else made


def kind_of(cls: type) -> str:
    """Return the name of a class in tables: its ``kind`` or, for one from elsewhere, ``package.module:Class``.

    A subclass of one of ours inherits its ``kind``, so the module is looked at first.
    """
    if not cls.__module__.startswith("fedtuner."):
        return f"{cls.__module__}:{cls.__qualname__}"
    return str(getattr(cls, "kind", ""))


def read(kinds: Mapping[str, Any], given: Mapping[str, Any], name: str, default: str) -> Any:
    """Return the object of a table: ``kind`` names its class, the other entries are its fields.

    Settings that only other known kinds have are ignored, so that the kind alone can be changed.
    """
    settings = dict(given)
    kind = settings.pop("kind", default)
    others = frozenset(key for other in kinds.values() for key in parameters(other))
    if isinstance(kind, str) and ":" in kind:
        cls = find(kind, f"{name}.kind")
        if not isinstance(cls, type):
            own = sorted(set(settings) - others)
            if own:
                raise SpecError(f"{name}.kind = {brief(kind)} is an object, so it takes no settings: {brief(own)}")
            return cls
    elif isinstance(kind, str) and kind in kinds:
        cls = kinds[kind]
    else:
        raise SpecError(
            f"{name}.kind = {brief(kind)}, but must be one of {tuple(kinds)}{suggest(kind, list(kinds))} "
            "(your own is named 'package.module:Class')"
        )
    known = parameters(cls)
    for key in settings:
        if key not in known and key not in others:
            near = suggest(key, [*known, "kind"])
            raise SpecError(f"no setting {named(f'{name}.{key}', 80)} in {named(kind, 80)}{near}")
    return make(cls, {key: value for key, value in settings.items() if key in known}, name)


def make(cls: Any, settings: Mapping[str, Any], name: str) -> Any:
    """Return an object of a class from its settings, with the types that its fields are declared to have."""
    known = parameters(cls)
    for key in settings:
        if key not in known:
            raise SpecError(f"no setting {named(f'{name}.{key}', 80)}{suggest(key, known)}")
    for key in _needed(cls):
        if key not in settings:
            raise SpecError(f"{name}.{key} is missing, and has no default")
    try:
        made = cls(**settings)
    except FedtunerError:
        raise
    except FAILURES as error:
        _check_types(cls, settings, name)
        raise SpecError(f"[{name}]: {where(error)}") from error
    _check_types(cls, settings, name)  # after the class's own checks, which say more
    return made


def _check_types(cls: Any, settings: Mapping[str, Any], name: str) -> None:
    """Refuse values that are not of the simple types that a dataclass declares."""
    try:
        hints = get_type_hints(cls) if is_dataclass(cls) else {}
    except NameError:  # a type that is only imported for a type checker
        return
    for key, value in settings.items():
        if not _fits(value, hints.get(key, Any)):
            raise SpecError(f"{name}.{key} = {brief(value)}, but must be {_words(hints[key])}")


def parameters(cls: Any) -> tuple[str, ...]:
    """Return the names of a class's settings."""
    return tuple(_signature(cls))


def _needed(cls: Any) -> list[str]:
    """Return the settings that have no default."""
    return [name for name, p in _signature(cls).items() if p.default is p.empty and p.kind not in _ANY]


_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _signature(cls: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(cls).parameters
    except ValueError:  # a class written in C
        return {}


_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", type(None): "left out"}


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of a simple type; types that are not simple are left to the class itself."""
    if get_origin(kind) in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(kind, type) or kind not in _NAMES or isinstance(value, kind)


def _words(kind: Any) -> str:
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return " or ".join(_NAMES.get(one, str(one)) for one in kinds)


def find(place: str, name: str) -> Any:
    """Return what ``package.module:attribute`` names; ``name`` is the setting with this value."""
    module_name, colon, attribute = place.partition(":")
    if not (colon and module_name and attribute) or module_name.startswith("."):
        raise SpecError(f"{name} = {brief(place)}, but must be 'package.module:name'")
    said = f"{name} = {brief(place)}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "torch":
            raise SpecError(f"{said} needs PyTorch: pip install 'fedtuner[torch]'") from error
        raise SpecError(f"{said}: no module {brief(error.name)} here or among the installed ones") from error
    except FAILURES as error:
        raise SpecError(f"{said} cannot be imported: {where(error)}") from error
    if not hasattr(module, attribute):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise SpecError(f"{said}: {module_name} has no {brief(attribute)}{suggest(attribute, public)}")
    return getattr(module, attribute)


def where(error: BaseException) -> str:
    """Return an error in the user's code with the line that it comes from."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if isinstance(error, SyntaxError) else f" ({Path(last.filename).name}, line {last.lineno})"
    return f"{type(error).__name__}: {one_line(str(error), 200)}{place}"


def differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Yield what differs between two tables, by name; 1 and 1.0 differ, as a range of them draws differently."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
    elif json.dumps(old) != json.dumps(new):
        yield f"{name}: {brief(old)} in the store, {brief(new)} now"


def is_real(value: Any) -> bool:
    """Return whether a value from JSON is a number as ``plain`` writes it."""
    return value in ("nan", "inf", "-inf") if isinstance(value, str) else _fits(value, float)


def misfit(value: Any, shape: Any, name: str = "") -> str:
    """Return where a value that was read from JSON is not of a shape, and what is there; empty if all of it fits.

    A shape is a type, a function that says whether a value fits, a list with the shape of all items, a tuple with the
    shape of each item, or a table of shapes: keys that end in "?" may be absent, and "*" stands for all keys.

    >>> misfit({"seed": 0, "test": {"error": "low"}}, {"seed": int, "test": {"*": is_real}, "more?": str})
    "test.error is 'low'"
    """
    if isinstance(shape, dict):
        parts = list(_entries(value, shape)) if isinstance(value, dict) else None
    elif isinstance(shape, list):
        parts = [(name, one, shape[0]) for one in value] if isinstance(value, list) else None
    elif isinstance(shape, tuple):
        fits = isinstance(value, list) and len(value) == len(shape)
        parts = [(name, one, inner) for one, inner in zip(value, shape, strict=True)] if fits else None
    else:
        fits = isinstance(value, shape) and type(value) is not bool if isinstance(shape, type) else shape(value)
        parts = [] if fits else None
    if parts is None:
        return f"{name or 'it'} is {brief(value)}"
    dot = f"{name}." if name and isinstance(shape, dict) else ""
    return next((wrong for key, one, inner in parts if (wrong := misfit(one, inner, dot + key))), "")


def _entries(value: Mapping[str, Any], shape: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, value and shape of a table's entries; an entry that is absent has the value None."""
    for key, inner in shape.items():
        if key == "*":
            yield from ((str(own), one, inner) for own, one in value.items())
        elif not key.endswith("?"):
            yield key, value.get(key), inner
        elif key[:-1] in value:
            yield key[:-1], value[key[:-1]], inner
