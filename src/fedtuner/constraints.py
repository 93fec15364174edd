"""Constraints between hyperparameters, as text: ``lr * epochs <= 1``, ``server.lr < 1 or client.momentum == 0``.

A name is the client's hyperparameter if it has one of that name, else the server's; ``client.lr`` and ``server.lr`` say
which, and ``client["batch-size"]`` is for names that Python has no words for. There are numbers, strings, comparisons,
``+ - * / **``, ``and``, ``or``, ``not``, and the functions below; nothing else is computed.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from fedtuner.errors import SpecError, brief

SIDES = ("client", "server")
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs, "exp": math.exp, "log": math.log, "log10": math.log10, "max": max, "min": min, "sqrt": math.sqrt,
}  # fmt: skip
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: lambda a, b: float(a) ** b, ast.USub: operator.neg, ast.Not: operator.not_,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_LONGEST = 500  # characters
_RULE = "must compare hyperparameters, such as 'lr * epochs <= 1'"


def names(text: str) -> list[tuple[str, str]]:
    """Return the hyperparameters that a constraint names, with their sides; "" where it does not say which."""
    return [place for node in ast.walk(_parsed(text)) if (place := _place(node))]


def holds(text: str, client: Mapping[str, Any], server: Mapping[str, Any]) -> bool:
    """Return whether a configuration meets a constraint; one that names what it does not have says nothing of it.

    >>> holds("lr * epochs <= 1", {"lr": 0.5, "epochs": 3}, {"lr": 9.0})
    False
    """
    sides = {"client": client, "server": server, "": {**server, **client}}
    if any(name not in sides[side] for side, name in names(text)):
        return True
    try:
        return bool(_value(_parsed(text), sides))
    except (ArithmeticError, ValueError, TypeError):  # a division by 0, the logarithm of 0, a word beside a number
        return False


def check(constraints: Any) -> tuple[str, ...]:
    """Return constraints; refuse what is none."""
    if isinstance(constraints, str) or not isinstance(constraints, Sequence):
        raise SpecError(f"constraints = {brief(constraints)}, but must be a list such as ['lr * epochs <= 1']")
    for text in constraints:
        if not isinstance(text, str) or len(text) > _LONGEST:
            raise SpecError(f"constraint {brief(text)}, but {_RULE}")
        if not names(text):
            raise SpecError(f"constraint {brief(text)} names no hyperparameter, but {_RULE}")
    return tuple(constraints)


@lru_cache(maxsize=256)
def _parsed(text: str) -> ast.expr:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        wrong = next(_unknown(tree), None)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(f"constraint {brief(text)} cannot be read, but {_RULE}") from None
    if wrong is not None:
        raise SpecError(f"constraint {brief(text)} has {brief(ast.unparse(wrong))}, but {_RULE}")
    if not isinstance(tree, (ast.Compare, ast.BoolOp)) and not (
        isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
    ):
        raise SpecError(f"constraint {brief(text)} compares nothing, but {_RULE}")
    return tree


def _unknown(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what is not computed."""
    if _place(node) or (isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str))):
        return
    parts: list[ast.expr]
    if isinstance(node, ast.BoolOp):
        parts = node.values
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS and not _texts(node.left, node.right):
        parts = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        parts = [node.operand]
    elif isinstance(node, ast.Compare) and all(type(op) in _OPERATORS for op in node.ops):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and not node.keywords and ast.unparse(node.func) in _FUNCTIONS:
        parts = node.args
    else:
        yield node
        return
    for part in parts:
        yield from _unknown(part)


def _texts(*nodes: ast.expr) -> bool:
    """Return whether one is a text: there is nothing to compute with it, and a product of it may fill the memory."""
    return any(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in nodes)


def _place(node: ast.AST) -> tuple[str, str] | None:
    """Return the side and the name of a hyperparameter; None if it is none."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in SIDES:
        return node.value.id, node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in SIDES:
        key = node.slice
        return (node.value.id, key.value) if isinstance(key, ast.Constant) and isinstance(key.value, str) else None
    if isinstance(node, ast.Name) and node.id not in (*SIDES, *_FUNCTIONS):
        return "", node.id
    return None


def _value(node: ast.expr, sides: Mapping[str, Mapping[str, Any]]) -> Any:
    place = _place(node)
    if place is not None:
        return sides[place[0]][place[1]]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BoolOp):
        every = isinstance(node.op, ast.And)
        return (all if every else any)(_value(part, sides) for part in node.values)
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand, sides))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, sides), _value(node.right, sides)
        if isinstance(left, str) or isinstance(right, str):
            raise TypeError("a text beside a number")
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Compare):
        values = [_value(part, sides) for part in (node.left, *node.comparators)]
        return all(_OPERATORS[type(op)](a, b) for op, a, b in zip(node.ops, values[:-1], values[1:], strict=True))
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    return _FUNCTIONS[node.func.id](*(_value(part, sides) for part in node.args))
