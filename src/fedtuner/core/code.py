"""What code of one's own is known by: a hash of its functions and of what they hold, the same in every process.

Of a function its bytecode counts (not its layout, comments or docstring), its defaults, what its closure holds, and
what it reads from its module: functions, numbers, arrays, texts, lists and tables; of a class its methods; of an object
that can be called its class and its attributes. Code of Python, of installed packages and of this one counts by its
name: versions are compared elsewhere.

What the code itself changes as it runs, such as a count of calls, does not count: the same program must be known by the
same hash whenever it is asked for. So lists, tables and texts of a module do not count where the functions that read
them change things in place (they may be a log and what is written to it), nor do texts that are places in the file
system. Nor do the tensors of modules that have parameters: they may be drawn at random.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

from fedtuner.core.fingerprint import as_array, raw

_RULES = 2  # of what is seen; hashes by other rules, or of other versions' bytecode, are not compared
TAG = f"{sys.implementation.cache_tag}-{sys.flags.optimize}-{_RULES}"
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
_NUMBERS = (bool, int, float, complex)
_BY_REPR = {"torch.dtype", "torch.device", "numpy.dtype", "builtins.range", "builtins.slice"}
_MAKING = {"__init__", "__post_init__", "__new__", "__setstate__"}
_CHANGING = frozenset(  # methods of lists, tables, sets and arrays
    (
        "append", "extend", "insert", "remove", "pop", "popleft", "appendleft", "clear", "sort", "reverse", "add",
        "discard", "update", "setdefault", "popitem", "__setitem__", "fill", "put", "resize",
    )
)  # fmt: skip
_CLOSURE, _GLOBAL, _ATTRIBUTE = "DEREF", "GLOBAL", "ATTR"  # where code may store to
_MISSING = object()


def known_by(value: Any) -> str:
    """Return what a function, a class or an object is known by."""
    try:
        walk = _Walk()
        walk.add(value, inside=True)
        return f"{TAG} {walk.digest.hexdigest()}"
    except Exception:  # an object of one's own may answer any question with an error
        return f"{TAG} {_name(type(value))}"


def changed(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Yield the names whose code has changed; what another version of Python, or of this, wrote cannot be compared."""
    for name in sorted({*old, *new}) if old and new else ():
        then, now = old.get(name, ""), new.get(name, "")
        if then != now and (not then or not now or then.split(" ")[0] == now.split(" ")[0]):
            yield name


class _Walk:
    """One hash under way."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=12)
        self._seen: dict[int, tuple[int, Any]] = {}  # by id, with the object, so that no other gets its id
        # By the id of a module's names: those that its functions store to, and those that they may change in place.
        self._changed: dict[int, tuple[set[str], set[str]]] = {}

    def add(self, value: Any, inside: bool = False) -> None:
        """Add a value; of objects that cannot be called the type alone, unless their ``inside`` is asked for."""
        array = as_array(value)
        if isinstance(value, Enum):
            self._say("member", _name(type(value)), value.name)
        elif isinstance(value, _PLAIN):
            self._say(type(value).__name__, repr(value))
        elif array is not None:
            self._say("array", array.dtype.str, str(array.shape))
            self.digest.update(raw(array))
        elif isinstance(value, (tuple, frozenset)):
            self._add_all(type(value).__name__, _ordered(value))
        elif id(value) in self._seen:
            self._say("again", str(self._seen[id(value)][0]))
        else:
            self._seen[id(value)] = (len(self._seen), value)
            self._add_once(value, inside)

    def _say(self, *words: str) -> None:
        self.digest.update(repr(words).encode("utf-8", "surrogatepass"))

    def _add_all(self, kind: str, values: Iterable[Any]) -> None:
        listed = list(values)
        self._say(kind, str(len(listed)))
        for value in listed:
            self.add(value)

    def _add_once(self, value: Any, inside: bool) -> None:
        if isinstance(value, (list, set)):
            self._add_all(type(value).__name__, _ordered(value))
        elif isinstance(value, dict):
            self._add_all("dict", (part for key in _ordered(value.keys()) for part in (key, value[key])))
        elif isinstance(value, functools.partial):
            self._add_all("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            self._say("method")
            self.add(value.__func__)
            self.add(value.__self__, inside=True)
        elif isinstance(value, (staticmethod, classmethod)):
            self._add_all(type(value).__name__, (value.__func__,))
        elif isinstance(value, property):
            self._add_all("property", (value.fget, value.fset))
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, types.ModuleType) or not hasattr(value, "__dict__"):
            self._say("named", repr(value) if _name(type(value)) in _BY_REPR else _name(value))
        elif hasattr(value, "__wrapped__"):
            self._add_all("wrapped", (value.__wrapped__,))
        else:
            self._add_object(value, inside)

    # Functions

    def _add_function(self, function: types.FunctionType) -> None:
        if _is_library(function.__module__, function.__code__.co_filename):
            self._say("named", _name(function))
            if hasattr(function, "__wrapped__"):  # a decorator's
                self.add(function.__wrapped__)
            return
        self._say("function")
        self._add_code(function.__code__)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        stored, in_place = _changes([function.__code__], _CLOSURE)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                held = _MISSING if name in stored else cell.cell_contents
            except ValueError:  # not yet filled
                held = _MISSING
            self._hold(name, held, in_place)
        self._add_globals(function, in_place)

    def _add_code(self, code: types.CodeType) -> None:
        arguments = code.co_argcount + code.co_kwonlyargcount
        self._say("code", repr(code.co_varnames[:arguments]), repr(getattr(code, "co_exceptiontable", b"")))
        for step, argument in _steps(code):
            if isinstance(argument, types.CodeType):
                self._add_code(argument)
            elif isinstance(argument, (tuple, frozenset)):
                self._say(step)
                self.add(argument)
            else:
                self._say(step, repr(argument))

    def _add_globals(self, function: types.FunctionType, in_place: bool) -> None:
        space, codes = function.__globals__, list(_codes(function.__code__))
        rebound, touched = self._changes_of(space)
        names = {name for code in codes for name in code.co_names if name in space}
        for name in sorted(names - rebound - _changes(codes, _GLOBAL)[0]):
            value = space[name]
            if not isinstance(value, types.ModuleType):
                self._hold_global(name, value, in_place or name in touched)
            elif not _is_library(value.__name__, _file(value.__name__)):
                inner_rebound, inner_touched = self._changes_of(vars(value))
                inner_names = {inner for code in codes for inner in code.co_names if inner in vars(value)}
                for inner in sorted(inner_names - inner_rebound):
                    self._hold_global(f"{name}.{inner}", vars(value)[inner], in_place or inner in inner_touched)

    def _changes_of(self, space: dict[str, Any]) -> tuple[set[str], set[str]]:
        """Return the names of a module that its functions store to, and those that they may change in place."""
        if id(space) not in self._changed:
            held = list(space.values())
            codes = [f.__code__ for f in held if isinstance(f, types.FunctionType) and f.__globals__ is space]
            for cls in (c for c in held if isinstance(c, type) and c.__module__ == space.get("__name__")):
                codes += [f.__code__ for f in vars(cls).values() if isinstance(f, types.FunctionType)]
            every = [inner for code in codes for inner in _codes(code)]
            touched = {name for code in every if _changes([code], _GLOBAL)[1] for name in code.co_names}
            self._changed[id(space)] = (_changes(codes, _GLOBAL)[0], touched)
        return self._changed[id(space)]

    def _hold_global(self, name: str, value: Any, in_place: bool) -> None:
        """Add what a function reads from a module, unless it belongs to the run: a log, or a path."""
        numbers = isinstance(value, tuple) and all(isinstance(part, _NUMBERS) for part in value)
        text = isinstance(value, (str, bytes, tuple)) and not numbers
        passed_over = isinstance(value, types.ModuleType) or (text and (in_place or _is_place(value)))
        self._hold(name, _MISSING if passed_over else value, in_place)

    def _hold(self, name: str, value: Any, in_place: bool) -> None:
        self._say("holds", name)
        if value is _MISSING or (in_place and (isinstance(value, (list, dict, set)) or as_array(value) is not None)):
            self._say("state")
        else:
            self.add(value)

    # Classes and objects

    def _add_class(self, cls: type) -> None:
        if _from_library(cls):
            self._say("named", _name(cls))
            return
        self._add_all("class", cls.__bases__)
        for name, value in sorted(vars(cls).items()):
            routine = isinstance(value, (types.FunctionType, staticmethod, classmethod, property))
            if routine or not (name.startswith("__") and name.endswith("__")):
                self._hold(name, value if routine or isinstance(value, (*_PLAIN, tuple, type)) else _MISSING, False)

    def _add_object(self, value: Any, inside: bool) -> None:
        self._say("object")
        self.add(type(value))
        held = vars(value)
        module = "_modules" in held and "_parameters" in held  # torch's
        if not (inside or module or callable(value) or is_dataclass(value)) or isinstance(value, PurePath):
            return
        library = _from_library(type(value))
        if library and not module:
            return
        stored, in_place = _changes(_methods(type(value)), _ATTRIBUTE)
        drawn = module and next(value.parameters(), None) is not None  # what it holds may be drawn at random
        for name in sorted(held):
            if not name.startswith("_") and not (module and name == "training"):
                plain = not library or isinstance(held[name], _PLAIN)
                self._hold(name, held[name] if plain and name not in stored else _MISSING, in_place or drawn)
        if module:
            self._add_all("modules", (part for child in held["_modules"].items() for part in child))
            if not drawn:  # such as a loss with weights of the classes
                self._add_all("buffers", (part for buffer in held["_buffers"].items() for part in buffer))


def _is_place(value: Any) -> bool:
    return isinstance(value, str) and PurePath(value).is_absolute()


def _methods(cls: type) -> Iterator[types.CodeType]:
    """Yield the code of a class's methods that run after an object was made."""
    for base in cls.__mro__:
        if not _from_library(base):
            for name, value in vars(base).items():
                function = getattr(value, "__func__", value)
                if isinstance(function, types.FunctionType) and name not in _MAKING:
                    yield function.__code__


def _changes(codes: Iterable[types.CodeType], where: str) -> tuple[set[str], bool]:
    """Return the names that code stores to, in one kind of place, and whether it may change things in place."""
    stored, in_place = set[str](), False
    stores = (f"STORE_{where}", f"DELETE_{where}")
    for code in (inner for outer in codes for inner in _codes(outer)):
        torchs = {name for name in code.co_names if name.endswith("_") and not name.endswith("__")}  # add_, copy_
        in_place = in_place or bool(torchs) or not _CHANGING.isdisjoint(code.co_names)
        used = {dis.opname[step] for step in code.co_code[::2]}
        in_place = in_place or not used.isdisjoint(("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"))
        if not used.isdisjoint(stores):
            stored |= {str(argument) for step, argument in _steps(code) if step in stores}
    return stored, in_place


@functools.lru_cache(maxsize=4096)
def _steps(code: types.CodeType) -> tuple[tuple[str, Any], ...]:
    return tuple((step.opname, step.argval) for step in dis.get_instructions(code))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def _ordered(values: Iterable[Any]) -> list[Any]:
    """Return values in an order of their own: sets have another one in every process."""
    if isinstance(values, (list, tuple)):
        return list(values)
    return sorted(values, key=lambda value: (type(value).__name__, repr(value) if isinstance(value, _PLAIN) else ""))


def _name(value: Any) -> str:
    """Return what something is called; an object, what its type is called."""
    named = value if hasattr(value, "__qualname__") or isinstance(value, types.ModuleType) else type(value)
    return f"{getattr(named, '__module__', None)}.{getattr(named, '__qualname__', None) or named.__name__}"


def _from_library(cls: type) -> bool:
    return _is_library(cls.__module__, _file(cls.__module__))


def _file(module: str) -> str:
    return getattr(sys.modules.get(module), "__file__", None) or ""


@functools.lru_cache(maxsize=1024)
def _is_library(module: str | None, file: str) -> bool:
    """Return whether code is Python's, an installed package's or this package's: these have versions."""
    root = (module or "").partition(".")[0]
    parts = PurePath(file).parts
    return (
        root in ("fedtuner", "builtins") or root in sys.stdlib_module_names
        or "site-packages" in parts or "dist-packages" in parts
    )  # fmt: skip
