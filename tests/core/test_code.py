"""What code of one's own is known by: changes are seen, and the same program is always known by the same."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest

import toys
from fedtuner.core import code
from fedtuner.core.code import known_by

USUAL = '''
import math
from functools import partial

ALPHA = 0.5
SIZES = (1, 2)
WEIGHTS = __import__("numpy").array([1.0, 2.0])
LOG = []
STARTED = "2021-10-05 12:00"
KIND = "squared"
STEPS = [1, 2, "last"]
TABLE = {"squared": lambda x: x * x, "names": ["a", "b"]}
PLACE = "/home/one/data"
shared = []
calls = 0

def reading(output, y):
    return TABLE[KIND](output) + len(STEPS) + len(PLACE) + len(shared)

def writing():
    shared.append(1)

def helper(x):
    return x * ALPHA

def loss(output, y, scale=2.0, *, power=1):
    """The loss."""
    global calls
    calls += 1
    LOG.append((STARTED, calls))
    if y in {"a", "b", "c", "d"}:
        return 0.0
    return scale * helper(output - y) ** power + SIZES[0] + WEIGHTS.sum()

def closing(margin, kept):
    def inner(output, y):
        return max(output - y, margin) + sum(kept) + (lambda v: v + 1)(y)
    return inner

def counting():
    n = 0
    def inner(output, y):
        nonlocal n
        n += 1
        return output - y
    return inner

class Base:
    low = 0.0
    def clip(self, x):
        return max(x, self.low)

class Loss(Base):
    def __init__(self, power, weights):
        self.power, self.weights, self.calls, self.seen = power, weights, 0, []
    def __call__(self, output, y):
        self.calls += 1
        self.seen.append(y)
        return self.clip(output - y) ** self.power
    def method(self, output, y):
        return output - y

closed = closing(0.5, [1, 2])
counted = counting()
partly = partial(loss, scale=3.0)
called = Loss(2, (1.0, 2.0))
bound = called.method
short = lambda output, y: math.fabs(output - y)
'''
NAMES = ("reading", "loss", "helper", "closed", "counted", "partly", "called", "bound", "short", "Loss")


def module(text):
    made = types.ModuleType("mine")
    exec(compile(text, "mine.py", "exec"), vars(made))
    return made


def hashes(text):
    made = module(text)
    return {name: known_by(getattr(made, name)) for name in NAMES}


@pytest.fixture(scope="module")
def usual():
    return hashes(USUAL)


CHANGES = {
    "a constant of the module": ("ALPHA = 0.5", "ALPHA = 0.7", {"loss", "helper", "partly"}),
    "a tuple of the module": ("SIZES = (1, 2)", "SIZES = (3, 2)", {"loss", "partly"}),
    "an array of the module": ("[1.0, 2.0])\nLOG", "[1.0, 2.5])\nLOG", set()),  # the code changes things in place
    "a text of the module": ('KIND = "squared"', 'KIND = "names"', {"reading"}),
    "a list of the module": ('[1, 2, "last"]', '[1, 2, "first"]', {"reading"}),
    "a table of the module": ('["a", "b"]}', '["a", "c"]}', {"reading"}),
    "a function in a table": ("lambda x: x * x", "lambda x: x * x * x", {"reading"}),
    "a helper": ("return x * ALPHA", "return x / ALPHA", {"loss", "helper", "partly"}),
    "a default": ("scale=2.0", "scale=2.5", {"loss", "partly"}),
    "a default by name": ("power=1", "power=2", {"loss", "partly"}),
    "a set": ('"c", "d"}', '"c", "e"}', {"loss", "partly"}),
    "an operator": ("scale * helper", "scale + helper", {"loss", "partly"}),
    "what a closure holds": ("closing(0.5", "closing(0.25", {"closed"}),
    "a list that a closure holds": ("[1, 2])\ncounted", "[1, 3])\ncounted", {"closed"}),
    "a function within": ("v + 1", "v + 2", {"closed"}),
    "an argument of a partial": ("scale=3.0", "scale=4.0", {"partly"}),
    "an attribute": ("Loss(2,", "Loss(3,", {"called", "bound"}),
    "an attribute that is a tuple": ("(1.0, 2.0))\nbound", "(1.0, 2.5))\nbound", {"called", "bound"}),
    "a method": ("self.clip(output - y) **", "self.clip(y - output) **", {"called", "bound", "Loss"}),
    "a base class": ("return max(x, self.low)", "return min(x, self.low)", {"called", "bound", "Loss"}),
    "an attribute of a class": ("low = 0.0", "low = 0.1", {"called", "bound", "Loss"}),
    "a lambda": ("math.fabs(", "math.floor(", {"short"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen_where_they_matter(usual, change):
    old, new, where = CHANGES[change]
    assert USUAL.count(old) == 1
    now = hashes(USUAL.replace(old, new))
    assert {name for name in NAMES if now[name] != usual[name]} == set(where)


SAME = {
    "comments, docstrings and lines": (
        '    """The loss."""\n',
        '    # another comment\n\n    """Another docstring."""\n\n',
    ),
    "layout": ("max(output - y, margin)", "max(\n            output - y,\n            margin,\n        )"),
    "a log": ("LOG = []", "LOG = [1, 2, 3]"),
    "a list that another function changes": ("shared = []", "shared = [1, 2]"),
    "a place": ("/home/one/data", "/mnt/two"),
    "a time": ("2021-10-05 12:00", "2021-10-06 08:00"),
    "a count of the module": ("calls = 0\n\n", "calls = 7\n\n"),
    "a count of a closure": ("    n = 0\n    def", "    n = 5\n    def"),
    "code that is not used": ("short = ", "def unused():\n    return 1\n\nshort = "),
}


@pytest.mark.parametrize("change", SAME)
def test_what_does_not_matter_is_not_seen(usual, change):
    old, new = SAME[change]
    assert USUAL.count(old) == 1
    assert hashes(USUAL.replace(old, new)) == usual


def test_running_the_code_changes_nothing():
    made = module(USUAL)
    before = {name: known_by(getattr(made, name)) for name in NAMES}
    made.writing()
    for name in ("reading", "loss", "closed", "counted", "partly", "called", "bound", "short"):
        getattr(made, name)(3.0, 1.0)
    assert {name: known_by(getattr(made, name)) for name in NAMES} == before
    assert (made.calls, made.called.calls) == (2, 1)


@pytest.mark.slow
def test_it_is_the_same_in_every_process(tmp_path, usual):
    """As a script, as a module and from the command line; with other addresses and other orders of sets."""
    program = f"from fedtuner.core.code import known_by\nprint(*[known_by(globals()[n]) for n in {NAMES}], sep=';')\n"
    (tmp_path / "script.py").write_text(USUAL + program)
    ways = [["script.py"], ["-m", "script"], ["-c", USUAL + program]]
    found = set()
    for seed, way in enumerate(ways):
        done = subprocess.run(
            [sys.executable, *way], cwd=tmp_path, env=toys.environment(PYTHONHASHSEED=str(seed)), text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        found.add(done.stdout.strip())
    assert found == {";".join(usual.values())}


def test_libraries_are_known_by_their_names():
    one, other = known_by(np.linalg.norm), known_by(np.linalg.inv)
    assert one != other
    assert known_by(len) != known_by(max)
    assert known_by(textwrap.dedent) == known_by(textwrap.dedent)


def test_cycles_end():
    text = "def one(n):\n    return other(n)\ndef other(n):\n    return one(n - 1) if n else {}\n"
    first, second = (known_by(module(text.format(n)).one) for n in (0, 1))
    assert first != second
    held = []
    held.append(held)
    assert known_by(functools.partial(len, held)) == known_by(functools.partial(len, held))


class Awkward:
    """An object of which nothing can be asked."""

    def __call__(self, output, y):
        return 0.0

    def __getattribute__(self, name):
        raise RuntimeError("leave me alone")


def test_objects_that_answer_with_errors_are_known_by_their_type():
    assert known_by(Awkward()) == known_by(Awkward())
    assert "Awkward" in known_by(Awkward())


def test_code_of_other_versions_of_python_is_not_compared():
    old = {"loss": "cpython-310-0 aa", "error": f"{code.TAG} bb", "build": f"{code.TAG} cc"}
    new = {"loss": f"{code.TAG} dd", "error": f"{code.TAG} bb", "build": f"{code.TAG} ee", "configure": "x y"}
    assert list(code.changed(old, new)) == ["build", "configure"]
    assert list(code.changed({}, new)) == []  # nothing was known of it
