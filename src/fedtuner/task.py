"""What is learned: a model as a vector ``w``, its gradient on a batch, and its loss and error on a split.

The first ``trainable`` entries of ``w`` have gradients; the rest are statistics that training changes on the side
(batch-norm's running means) and that the server averages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtuner.space import Config, Domain, Value

Vector = NDArray[np.float32]
Rows = NDArray[np.int64]
CHECKED = 16  # steps of local training after which w is looked at: is it still finite?


@dataclass(frozen=True)
class Metrics:
    """Mean loss and error over ``count`` examples; NaN where there are none."""

    loss: float
    error: float
    count: int

    @property
    def finite(self) -> bool:
        """Whether there is a loss and it is a number."""
        return math.isfinite(self.loss)


@dataclass(frozen=True)
class Part:
    """A named piece of w: its shape as it is stored, and the order of axes that makes it the tensor of that name."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...] = ()  # none: stored as it is

    @property
    def size(self) -> int:
        """How many entries of w it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Hyper:
    """A hyperparameter: what it is tuned over by default, its untuned value, and the values that are legal at all."""

    domain: Domain | None  # None: kept at its default unless a space names it
    default: Value
    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    options: tuple[Value, ...] = ()  # if any, the only legal values
    about: str = ""

    def wrong(self, value: Value) -> str | None:
        """Return the rule that ``value`` breaks, or None."""
        if self.options:
            return None if value in self.options else f"must be one of {list(self.options)}"
        if isinstance(value, (str, bool)) or not math.isfinite(value):
            return "must be a number"
        if self.whole and value != int(value):
            return "must be a whole number"
        if value < self.low:
            return f"must be >= {self.low:g}"
        return f"must be <= {self.high:g}" if value > self.high else None


class Trainer(Protocol):
    """Gradients of the loss on one split of a client, under one configuration.

    ``key`` names the draw of dropout masks and the like: the same key gives the same ones; None takes the next.
    """

    def gradient(self, w: Vector, rows: Rows, key: int | None = None) -> Vector:
        """Return the gradient of the mean loss on these rows with respect to ``w[:trainable]``.

        The array is the caller's to overwrite, until the next call. Statistics in ``w[trainable:]`` may be updated.
        """
        ...

    def curvature(self, w: Vector, direction: Vector, rows: Rows, key: int | None = None) -> Vector:
        """Return the Hessian of the mean loss on these rows times ``direction``, as a new array.

        Only methods that differentiate through local training (MAML) ask for it.
        """
        ...

    def on(self, data: Any) -> Trainer:
        """Return the same for another split of the client."""
        ...

    def sgd(self, w: Vector, g: Vector, velocity: Vector | None, lr: float, momentum: float, decay: float) -> None:
        """Step in place: g += decay w;  velocity = momentum velocity + g;  w -= lr velocity. ``g`` may be overwritten.

        Without momentum there is no velocity, and the step is along g.
        """
        ...


@runtime_checkable
class Descends(Protocol):
    """A trainer that can do plain local SGD in one go, faster than step by step."""

    def descend(self, w: Vector, batches: Iterable[Rows], lr: float, momentum: float, decay: float) -> None:
        """Step in place along the gradient on each batch, as ``sgd`` does; stop early if w is no longer finite."""
        ...


class NumPySteps:
    """A trainer's ``sgd`` in NumPy, for trainers that have nothing faster."""

    def sgd(self, w: Vector, g: Vector, velocity: Vector | None, lr: float, momentum: float, decay: float) -> None:
        """Step in place."""
        if decay:
            g += w * np.float32(decay)
        if velocity is not None:
            velocity *= np.float32(momentum)
            velocity += g
            g = velocity
        w -= g * np.float32(lr)


class Task(Protocol):
    """A model and its loss. ``Data`` is whatever ``prepare`` returns; it has a length."""

    @property
    def size(self) -> int:
        """Length of w."""
        ...

    @property
    def trainable(self) -> int:
        """How many entries of w, from the first, have gradients."""
        ...

    @property
    def smallest_batch(self) -> int:
        """Batches smaller than this are skipped (batch-norm cannot train on one example)."""
        ...

    @property
    def worst_error(self) -> float:
        """The error of a model that is not made of numbers: 1 where errors are rates, else infinity."""
        ...

    @property
    def hyperparameters(self) -> Mapping[str, Hyper]:
        """The client hyperparameters that the model itself reads, such as dropout."""
        ...

    def initial(self, seed: int) -> Vector:
        """Return a fresh w."""
        ...

    def prepare(self, split: Any) -> Sized:
        """Return a client's split in the form that ``training`` and ``evaluate`` take."""
        ...

    def training(self, data: Any, config: Config, seed: int) -> AbstractContextManager[Trainer]:
        """Return the gradients of a client's training loss; ``seed`` is for dropout and the like."""
        ...

    def evaluate(self, w: Vector, data: Any) -> Metrics:
        """Return the loss and error of w on a split, without dropout."""
        ...

    def layout(self) -> list[Part]:
        """Return the parts of w, in order."""
        ...


class Shaped(Protocol):
    """A task whose model some client hyperparameters shape (an activation, a width): all shapes share one w.

    It is evaluated in the shape that it was trained in, so ``evaluate`` takes the configuration, too.
    """

    @property
    def choices(self) -> Mapping[str, Hyper]:
        """The hyperparameters that shape the model; they are among ``hyperparameters``."""
        ...

    def evaluate(self, w: Vector, data: Any, config: Config | None = None) -> Metrics:
        """Return the loss and error of w in the shape that the configuration gives it; None is the default one."""
        ...


def shape(task: Task, config: Config) -> tuple[Value | None, ...]:
    """Return the values of a configuration that shape the model; none for most tasks."""
    return tuple(config.get(name) for name in getattr(task, "choices", ()))


def evaluate(task: Task, w: Vector, data: Any, config: Config) -> Metrics:
    """Return the loss and error of w under a configuration."""
    if getattr(task, "choices", None):  # asked for by name: isinstance of a protocol takes long
        return cast(Shaped, task).evaluate(w, data, config)
    return task.evaluate(w, data)
