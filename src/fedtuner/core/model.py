"""The model as a vector ``w``, and the protocols of what a server, a client and an engine need of it.

The first ``trainable`` entries of ``w`` have gradients. The rest are statistics, such as batch-norm's running means,
which the server averages.
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
from fedtuner.core.metric import NOTHING as NOTHING
from fedtuner.core.metric import Metric as Metric
from fedtuner.core.metric import Metrics as Metrics
from fedtuner.errors import SpecError
from fedtuner.space import Config, Domain, Value

Vector = NDArray[np.float32]
Vectors = Mapping[str, Vector]
Rows = NDArray[np.int64]
LARGE = 1 << 16  # entries; above this, copies are avoided
CHECKED = 16  # steps of local training between two checks that w is finite


@dataclass(frozen=True)
class Part:
    """A named piece of w: its shape in w, and the order of axes that gives the tensor of that name."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...] = ()  # none: w has the tensor's own order

    @property
    def size(self) -> int:
        return math.prod(self.shape)


ROLES = (
    "step",  # a step size
    "work",  # how often a client passes over its data
    "batch",  # examples per step
    "momentum",  # of past steps
    "regulariser",  # keeps w small or near to something: what it is worth shows late
)


@dataclass(frozen=True)
class Hyper:
    """A hyperparameter: its default domain, its default value, and its legal values."""

    domain: Domain | None  # None: not tuned unless a space names it
    default: Value
    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    options: tuple[Value, ...] = ()  # if any, the only legal values
    about: str = ""
    role: str = ""  # one of ROLES, if any: what ``auto`` must know of it

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

    @property
    def trainable(self) -> int:
        """Number of entries with gradients: the first of w."""

    @property
    def metric(self) -> Metric:
        """Its error measure."""

    @property
    def hyperparameters(self) -> Mapping[str, Hyper]:
        """The client hyperparameters that the model itself reads, such as dropout."""

    @property
    def shaping(self) -> tuple[str, ...]:
        """Those of its hyperparameters that are architectural (an activation, a width); all shapes share one w."""

    @property
    def smallest_batch(self) -> int:
        """Smaller batches are skipped (batch-norm cannot train on one example)."""

    @property
    def own_training(self) -> bool:
        """Whether the user's code trains it, with hyperparameters of its own: a ``Learner``."""

    @property
    def device(self) -> Any:
        """Where it is trained; prints as ``cpu``, ``cuda`` or the like."""

    @property
    def start(self) -> Vector | None:
        """The w that every arm begins from; None: ``initial`` gives it."""

    def initial(self, seed: int) -> Vector:
        """Return initial weights."""

    def layout(self) -> list[Part]:
        """Return the parts of w, in order."""

    def engine(self, name: str) -> Engine:
        """Return the engine that a name asks for: auto, sequential or batched."""


class Learner(Model, Protocol):
    """A model with its own training code; ``data`` is what ``prepare`` returns, and has a length."""

    def prepare(self, split: Any) -> Sized:
        """Return a client's split in the form that ``fit`` and ``evaluate`` take."""

    def fit(self, w: Vector, data: Any, config: Config, seed: int) -> Vector:
        """Return w after local training on a split."""

    def evaluate(self, w: Vector, data: Any, config: Config) -> Metrics:
        """Return the loss and error of w on a split."""

    def on(self, device: str) -> Learner:
        """Return a copy on another device."""


class Trainer(Protocol):
    """Gradients of the loss on one split of a client, under one configuration.

    ``key`` names the draw of dropout masks and the like: equal keys give equal masks; None draws new ones.
    """

    def gradient(self, w: Vector, rows: Rows, key: int | None = None) -> Vector:
        """Return the gradient of the mean loss on these rows with respect to ``w[:trainable]``.

        The caller may overwrite the array; the next call may, too. Statistics in ``w[trainable:]`` may be updated.
        """

    def curvature(self, w: Vector, direction: Vector, rows: Rows, key: int | None = None) -> Vector:
        """Return the Hessian of the mean loss on these rows times ``direction``, as a new array.

        Only methods that differentiate through local training (MAML) ask for it.
        """

    def on(self, data: Any) -> Trainer:
        """Return a trainer for another split of the client."""

    def sgd(self, w: Vector, g: Vector, velocity: Vector | None, rates: Rates) -> None:
        """Step in place: g += decay w;  velocity = momentum velocity + g;  w -= lr velocity. ``g`` may be overwritten.

        Without momentum there is no velocity, and the step is along g.
        """

    def descend(self, w: Vector, batches: Iterable[Rows], rates: Rates) -> None:
        """Step in place along the gradient on each batch, as ``sgd`` does; stop early if w is no longer finite."""


@dataclass(frozen=True)
class Rates:
    """The hyperparameters of a step of SGD."""

    lr: float
    momentum: float = 0.0
    decay: float = 0.0


class NumPySteps:
    """A trainer's ``sgd`` and ``descend`` in NumPy, for trainers that have nothing faster."""

    def sgd(self, w: Vector, g: Vector, velocity: Vector | None, rates: Rates) -> None:
        if rates.decay:
            g += w * np.float32(rates.decay)
        if velocity is not None:
            velocity *= np.float32(rates.momentum)
            velocity += g
            g = velocity
        w -= g * np.float32(rates.lr)

    def descend(self, w: Vector, batches: Iterable[Rows], rates: Rates) -> None:
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
    """A model and its loss, for methods that use gradients. ``data`` is what ``prepare`` returns."""

    def prepare(self, split: Any) -> Sized:
        """Return a client's split in the form that ``training`` and ``evaluate`` take."""

    def training(self, data: Any, config: Config, seed: int) -> AbstractContextManager[Trainer]:
        """Return the gradients of a client's training loss; ``seed`` is for dropout and the like."""

    def evaluate(self, w: Vector, data: Any, config: Config) -> Metrics:
        """Return the loss and error of w on a split, without dropout, in the shape that the configuration gives it."""

    def on(self, device: str) -> Task:
        """Return a copy on another device."""


class ModelDefaults:
    """Defaults for tasks and learners: a base class."""

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
    """Return a value that is clearly worse than all of these, to stand for one that is not a number.

    It is the largest plus the maximum of 1, the largest's absolute value and the difference of largest and smallest.

    >>> beyond([2.0, 5.0]), beyond([-0.5, 0.25]), beyond([1000.0])
    (10.0, 1.25, 2000.0)
    """
    top = max(values)
    return top + max(1.0, abs(top), top - min(values))


def finite(*vectors: Vector) -> bool:
    """Return whether all entries are finite."""
    return all(map(_finite, vectors))


def _finite(v: Vector) -> bool:
    if v.size >= LARGE:  # if the sum is finite, so are all entries; else look at them, as the sum may have overflowed
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isfinite(v.sum()):
                return True
    return bool(np.isfinite(v).all())


def named(w: Vector, layout: Iterable[Part]) -> dict[str, Vector]:
    """Return the tensors of w by name; views of w where their order of axes is that of w."""
    tensors, start = {}, 0
    for part in layout:
        stored = w[start : start + part.size].reshape(part.shape)
        tensors[part.name] = np.ascontiguousarray(stored.transpose(part.axes)) if part.axes else stored
        start += part.size
    return tensors
