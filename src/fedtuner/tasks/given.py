"""What users give a task, checked: a function that builds a module, a device, and their clients' splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedtuner.checks import is_number
from fedtuner.core.metric import Metric
from fedtuner.errors import FAILURES, FedtunerError, TaskError, brief, one_line


def function(name: str, value: Any, takes: str) -> None:
    """Refuse what cannot be called, and a class of torch's where one of its objects is meant."""
    if isinstance(value, type) and issubclass(value, nn.Module):
        kind = value.__name__
        raise TaskError(f"{name} = {kind} is a class: give an object of it, {kind}(), or a function({takes})")
    if not callable(value):
        raise TaskError(f"{name} is {type(value).__name__}, but must be a function({takes})")


def metric(metric: Any, error: Any, worst: float | None, classifies: bool) -> Metric:
    """Return a task's metric: as given; or the arg-max error, the loss, or an error function of the user's."""
    if metric is not None:
        if not isinstance(metric, Metric) or metric.value is None:
            raise TaskError(f"metric = {brief(metric)}, but must be a Metric with a value, such as metrics.f1()")
        if error is not None or worst is not None:
            raise TaskError("metric is given beside error or worst_error, but has both itself: leave them out")
        return metric
    if isinstance(error, str) and error not in ("argmax", "loss"):
        raise TaskError(f"error = {error!r}, but must be 'argmax', 'loss' or a function(output, y)")
    if error is not None and not isinstance(error, str):
        function("error", error, "output, y")
    if worst is not None and worst != math.inf and not is_number(worst):
        raise TaskError(f"worst_error = {brief(worst)}, but must be a number, or math.inf")
    if error == "loss" or (error is None and not classifies):
        return Metric("loss", math.inf if worst is None else worst, rate=False)
    rate = error is None or error == "argmax"
    worst = worst if worst is not None else 1.0 if rate else math.inf
    return Metric("error", worst, rate=rate or worst == 1.0)


def device(value: Any) -> torch.device:
    """Return a device that is here."""
    try:
        found = torch.device(value)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise TaskError(
            f"device = {brief(value)} is not to be had here ({_first_line(error)}): 'cpu' always is"
        ) from error
    return found


def built(build: Callable[[], Any]) -> nn.Module:
    """Return the module that a function builds, in single precision."""
    try:
        module = build()
    except FedtunerError:
        raise
    except FAILURES as error:
        raise TaskError(f"build() failed: {said(error)}: it must be a function without arguments") from error
    if not isinstance(module, nn.Module):
        raise TaskError(f"build() returned {type(module).__name__}, but must return a torch.nn.Module")
    for layer in module.modules():
        own = (*layer.parameters(recurse=False), *layer.buffers(recurse=False))
        name = type(layer).__name__
        if any(is_lazy(tensor) for tensor in own):
            raise TaskError(f"the model has a lazy layer, {name}, whose size is not known: give it, as in Linear(9, 3)")
        if any(tensor.is_complex() for tensor in own):
            raise TaskError(f"the model has a layer of complex numbers, {name}, but must be of real ones")
    return module.float()


def pair(split: Any) -> tuple[Any, Any]:
    """Return x and y of a split: a pair of arrays, or a sequence of (x, y) examples.

    x and y may be tables of arrays, x a tuple, too. A table alone is x, and its ``labels`` are y: Hugging Face's way.
    """
    if split is None:
        return np.zeros((0, 1), np.float32), np.zeros(0, np.int64)
    if isinstance(split, Mapping):
        if "labels" not in split:
            raise TaskError(f"a split is a table of {sorted(split)}, but has no 'labels': give a pair (x, y)")
        return split, split["labels"]
    if isinstance(split, (tuple, list)) and len(split) == 2 and all(hasattr(part, "shape") for part in split):
        return split[0], split[1]
    if isinstance(split, tuple) and len(split) == 2 and any(isinstance(part, Mapping) for part in split):
        return split
    if isinstance(split, tuple) and len(split) == 2 and isinstance(split[0], tuple) and hasattr(split[1], "shape"):
        return split
    if isinstance(split, tuple) and len(split) == 2 and all(isinstance(part, list) for part in split):
        return _array(split[0], "x"), _array(split[1], "y")
    if not (hasattr(split, "__len__") and hasattr(split, "__getitem__")) or isinstance(split, (str, bytes)):
        raise TaskError(f"a split must be a pair (x, y) or have a length and an index, but is {type(split).__name__}")
    if len(split) == 0:
        return pair(None)
    try:
        examples = [split[i] for i in range(len(split))]
        if isinstance(examples[0], Mapping):
            return pair(_stacked(examples))
        xs, ys = zip(*((x, y) for x, y in examples), strict=True)
        return _stacked(xs), _stacked(ys)
    except FedtunerError:
        raise
    except FAILURES as error:  # a data set of one's own may raise anything
        raise TaskError(
            f"a split must be a pair (x, y) of arrays, or (x, y) examples of one shape: {said(error)}"
        ) from error


def whole(parts: Sequence[Tensor]) -> str:
    """Return the type of inputs that are whole numbers, or true and false; empty where any are real."""
    return "" if any(part.is_floating_point() for part in parts) else _type(parts[0])


def _stacked(examples: Sequence[Any]) -> Any:
    if isinstance(examples[0], Mapping):
        return {key: _stacked([example[key] for example in examples]) for key in examples[0]}
    return torch.stack([torch.as_tensor(example) for example in examples])


def _array(part: list[Any], name: str) -> Any:
    try:
        return np.asarray(part)
    except ValueError as error:
        raise TaskError(f"{name} is not of one shape: {error}") from error


def tensor(part: Any, name: str) -> Tensor:
    """Return x or y as a tensor of real or whole numbers, with a row for each example."""
    try:
        t = torch.as_tensor(np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part)
    except (TypeError, ValueError) as error:
        raise TaskError(f"{name} is not an array of numbers: {error}") from error
    if t.is_complex():
        raise TaskError(f"{name} is of type {_type(t)}, but must be of real numbers")
    if np.ndim(part) == 0:
        raise TaskError(f"{name} is of shape (), but must have a row for each example")
    return t.float() if t.dtype in (torch.float64, torch.float16) else t


def shape(t: Any) -> str:
    """Return the shapes and types of tensors in words."""
    if isinstance(t, Mapping):
        return "{" + ", ".join(f"{key}: {shape(part)}" for key, part in t.items()) + "}"
    if isinstance(t, (tuple, list)):
        return "[" + ", ".join(map(shape, t)) + "]"
    return f"{tuple(t.shape)} ({_type(t)})" if isinstance(t, Tensor) else type(t).__name__


def fit(output: Any, y: Any) -> str:
    """Return what a model gives and what its clients have, in words."""
    return f"the model gives {shape(output)}, y is {shape(y)}"


def said(error: BaseException) -> str:
    """Return an error of the user's code in one line, not too long."""
    return one_line(f"{type(error).__name__}: {error}", 200)


def _type(t: Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def _first_line(error: BaseException) -> str:
    return one_line(str(error).partition("\n")[0], 200)
