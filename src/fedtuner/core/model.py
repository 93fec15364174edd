"""What is learned: a model as a vector ``w``, and what a server, a client and an engine need of it.

The first ``trainable`` entries of ``w`` have gradients. The rest are statistics that training changes on the side
(batch-norm's running means); the server averages them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtuner.checks import is_number
from fedtuner.core.engine import Engine, sequential
from fedtuner.errors import SpecError
from fedtuner.space import Config, Domain, Value

Vector = NDArray[np.float32]
Vectors = Mapping[str, Vector]
Rows = NDArray[np.int64]
LARGE = 1 << 16  # entries of a vector whose copies cost more than a look at whether they are needed
CHECKED = 16  # steps of local training between two checks that w is finite


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


NOTHING = Metrics(math.nan, math.nan, 0)


@dataclass(frozen=True)
class Metric:
    """What an error is: its name, and the error of a model that is not made of numbers."""

    name: str = "error"
    worst: float = 1.0  # 1 where errors are rates, else infinity


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
        if isinstance(value, str) or not is_number(value):
            return "must be a number"
        if self.whole and value != int(value):
            return "must be a whole number"
        if value < self.low:
            return f"must be >= {self.low:g}"
        return f"must be <= {self.high:g}" if value > self.high else None


class Model(Protocol):
    """All that a server needs of a model."""

    @property
    def size(self) -> int:
        """Length of w."""
        ...

    @property
    def trainable(self) -> int:
        """How many entries of w, from the first, have gradients."""
        ...

    @property
    def metric(self) -> Metric:
        """What its error is."""
        ...

    @property
    def hyperparameters(self) -> Mapping[str, Hyper]:
        """The client hyperparameters that the model itself reads, such as dropout."""
        ...

    @property
    def shaping(self) -> tuple[str, ...]:
        """Those hyperparameters that change the model's shape (an activation, a width); all shapes share one w."""
        ...

    @property
    def smallest_batch(self) -> int:
        """Batches smaller than this are skipped (batch-norm cannot train on one example)."""
        ...

    @property
    def own_training(self) -> bool:
        """Whether clients train it by code of their own, which reads the client hyperparameters: a ``Learner``."""
        ...

    @property
    def device(self) -> Any:
        """Where models are trained; prints as ``cpu``, ``cuda`` or the like."""
        ...

    @property
    def start(self) -> Vector | None:
        """The w that every arm begins from; None: each begins from an ``initial`` one."""
        ...

    def initial(self, seed: int) -> Vector:
        """Return a fresh w."""
        ...

    def layout(self) -> list[Part]:
        """Return the parts of w, in order."""
        ...

    def engine(self, name: str) -> Engine:
        """Return the engine that a name asks for: auto, sequential or batched."""
        ...


class Learner(Model, Protocol):
    """A model that is trained by code of its own; ``data`` is whatever ``prepare`` returns, and has a length."""

    def prepare(self, split: Any) -> Sized:
        """Return a client's split in the form that ``fit`` and ``evaluate`` take."""
        ...

    def fit(self, w: Vector, data: Any, config: Config, seed: int) -> Vector:
        """Return w after local training on a split, as a new array."""
        ...

    def evaluate(self, w: Vector, data: Any, config: Config) -> Metrics:
        """Return the loss and error of w on a split."""
        ...

    def on(self, device: str) -> Learner:
        """Return the same on another device."""
        ...


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

    def sgd(self, w: Vector, g: Vector, velocity: Vector | None, rates: Rates) -> None:
        """Step in place: g += decay w;  velocity = momentum velocity + g;  w -= lr velocity. ``g`` may be overwritten.

        Without momentum there is no velocity, and the step is along g.
        """
        ...

    def descend(self, w: Vector, batches: Iterable[Rows], rates: Rates) -> None:
        """Step in place along the gradient on each batch, as ``sgd`` does; stop early if w is no longer finite."""
        ...


@dataclass(frozen=True)
class Rates:
    """What a step of SGD is scaled by."""

    lr: float
    momentum: float = 0.0
    decay: float = 0.0


class NumPySteps:
    """A trainer's ``sgd`` and ``descend`` in NumPy, for trainers that have nothing faster."""

    def sgd(self, w: Vector, g: Vector, velocity: Vector | None, rates: Rates) -> None:
        """Step in place."""
        if rates.decay:
            g += w * np.float32(rates.decay)
        if velocity is not None:
            velocity *= np.float32(rates.momentum)
            velocity += g
            g = velocity
        w -= g * np.float32(rates.lr)

    def descend(self, w: Vector, batches: Iterable[Rows], rates: Rates) -> None:
        """Step in place along each batch."""
        velocity: Vector | None = None
        for n, rows in enumerate(batches, 1):
            g = self.gradient(w, rows)  # type: ignore[attr-defined]
            head = w[: g.size]
            if n % CHECKED == 0 and not np.isfinite(head).all():
                break  # it will not become finite again
            if velocity is None and rates.momentum:
                velocity = np.zeros_like(head)
            self.sgd(head, g, velocity, rates)


class Task(Model, Protocol):
    """A model and its loss, for methods that work with gradients. ``data`` is whatever ``prepare`` returns."""

    def prepare(self, split: Any) -> Sized:
        """Return a client's split in the form that ``training`` and ``evaluate`` take."""
        ...

    def training(self, data: Any, config: Config, seed: int) -> AbstractContextManager[Trainer]:
        """Return the gradients of a client's training loss; ``seed`` is for dropout and the like."""
        ...

    def evaluate(self, w: Vector, data: Any, config: Config) -> Metrics:
        """Return the loss and error of w on a split, without dropout, in the shape that the configuration gives it."""
        ...

    def on(self, device: str) -> Task:
        """Return the same on another device."""
        ...


class ModelDefaults:
    """What a model of one's own has unless it says otherwise: a base class for tasks and learners."""

    metric = Metric()
    hyperparameters: Mapping[str, Hyper] = {}
    shaping: tuple[str, ...] = ()
    own_training = False
    device: Any = "cpu"
    start: Vector | None = None
    smallest_batch = 1

    def engine(self, name: str) -> Engine:
        """Return the sequential engine, whatever is asked for."""
        return sequential

    def on(self, device: str) -> NoReturn:
        """Refuse another device."""
        raise SpecError(f"device = {device!r}, but {type(self).__name__} runs only where it is: on the CPU")


def beyond(values: Sequence[float]) -> float:
    """Return a value that is clearly worse than all of these: what one counts as that is not a number.

    It lies above the largest by the size of that one, by the spread of all or by 1, whichever is most: by no less, in
    whatever units, than any of them is above another.

    >>> beyond([2.0, 5.0]), beyond([-0.5, 0.25]), beyond([1000.0])
    (10.0, 1.25, 2000.0)
    """
    top = max(values)
    return top + max(1.0, abs(top), top - min(values))


def finite(*vectors: Vector) -> bool:
    """Return whether all entries are numbers."""
    return all(map(_finite, vectors))


def _finite(v: Vector) -> bool:
    if v.size >= LARGE:  # a finite sum has finite terms and needs no memory; one that is not may have been too large
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isfinite(v.sum()):
                return True
    return bool(np.isfinite(v).all())


def named(w: Vector, layout: Iterable[Part]) -> dict[str, Vector]:
    """Return the tensors that w is made of, by their names; views of w where it stores them as they are."""
    tensors, start = {}, 0
    for part in layout:
        stored = w[start : start + part.size].reshape(part.shape)
        tensors[part.name] = np.ascontiguousarray(stored.transpose(part.axes)) if part.axes else stored
        start += part.size
    return tensors
