"""Inputs, labels and outputs of models: a tensor, or a table or tuple of tensors with a row for each example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from fedtuner.errors import TaskError


def mapped(f: Callable[[Any], Any], value: Any) -> Any:
    """Return a tensor, or a table or tuple of tensors, with a function applied to each."""
    if isinstance(value, Mapping):
        return {key: mapped(f, part) for key, part in value.items()}
    return tuple(mapped(f, part) for part in value) if isinstance(value, (tuple, list)) else f(value)


def leaves(value: Any) -> list[Any]:
    """Return the tensors of a table or tuple; of a tensor, itself."""
    if isinstance(value, Mapping):
        return [leaf for part in value.values() for leaf in leaves(part)]
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, (tuple, list)) else [value]


def array(value: Any) -> Any:
    """Return tensors as NumPy arrays; what a model returns beside them (None, a cache) is left out."""
    if isinstance(value, Mapping):
        return {key: array(part) for key, part in value.items() if isinstance(part, (Tensor, Mapping))}
    if isinstance(value, (tuple, list)):
        return tuple(array(part) for part in value if isinstance(part, Tensor))
    return value.detach().cpu().numpy()


def own_loss(output: Any) -> Any:
    """Return the loss that a model computes itself from its labels, as Hugging Face's do; None if it does not."""
    return output.get("loss") if isinstance(output, Mapping) else None


def scores(output: Any) -> Tensor:
    """Return the scores of classes, in dimension 1: the output itself, or the ``logits`` of a table of outputs."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else None
    if not isinstance(found, Tensor):
        what = f"a table of {sorted(output)}" if isinstance(output, Mapping) else f"a {type(output).__name__}"
        raise TaskError(f"the model returns {what}, without 'logits': give Task(..., loss=, error=) that read it")
    return found.movedim(-1, 1) if found.ndim > 2 else found
