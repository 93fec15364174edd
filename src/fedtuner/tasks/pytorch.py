"""A task from any PyTorch module: its parameters are views of the flat vector w, its gradients of another.

Binding a module to a NumPy vector copies nothing on the CPU: training writes straight into the vector. Everything runs
on one thread, so that the bits do not depend on the machine's load or on where the work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtuner.core.code import known_by
from fedtuner.core.engine import Engine, sequential
from fedtuner.core.model import CHECKED, NOTHING, Hyper, Metric, Metrics, Part, Rates, Rows, Vector
from fedtuner.errors import FAILURES, TaskError
from fedtuner.rng import number
from fedtuner.space import PAPER_CLIENT, Config
from fedtuner.tasks import given, nested, tensors
from fedtuner.tasks.judge import Judge, arrays
from fedtuner.tasks.shapes import Configure, Shapes

CHUNK = 1024  # examples per forward pass of an evaluation
_DROPOUTS = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)
_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


@dataclass(frozen=True)
class Data:
    """A split as tensors, or tables or tuples of tensors, on the task's device."""

    x: Any
    y: Any

    def __len__(self) -> int:
        return len(self.x if isinstance(self.x, Tensor) else nested.leaves(self.x)[0])


class Task:
    """A model, given by a function that builds it, its loss and its error.

    ``loss(output, y)`` is the mean over the batch. ``error(output, y)`` is a mean or one value per example; "argmax" is
    the rate at which the arg-max over dimension 1 is not y, "loss" the loss. By default it is the first for
    cross-entropy and the second for other losses. ``worst_error`` is what a model of NaN gets: 1 for a rate, else
    infinity. In place of an error, ``metric`` is a ``Metric`` of the outputs: such as ``fedtuner.metrics.f1()``.

    Inputs that are a table (or tuple) of tensors are the module's named (or positional) arguments. What it returns is
    passed on to loss, error and metric; of a table of outputs, such as those of Hugging Face's models, the usual loss
    is its ``loss`` if it has one, and arg-max, cross-entropy and metrics read its ``logits``, classes last.

    ``choices`` are client hyperparameters that shape the model, each with its values (the first is the default), and
    ``configure(module, {name: value})`` gives a module its shape: which of its parameters it uses, and how. The module
    has those of all shapes, so all share one w. A model is trained and evaluated in the shape of its client's
    configuration: before local training, too, so that the global objective is the mean over the shapes drawn.
    """

    own_training = False
    start = None
    smallest_batch: int

    def __init__(
        self, build: Callable[[], nn.Module], loss: Callable[[Any, Any], Tensor] = F.cross_entropy,
        error: Callable[[Any, Any], Tensor] | str | None = None,
        *, metric: Metric | None = None, device: str = "cpu", worst_error: float | None = None,
        choices: Mapping[str, Any] | None = None, configure: Configure | None = None,
    ) -> None:  # fmt: skip
        if isinstance(build, nn.Module) or not callable(build):
            raise TaskError(f"build is {type(build).__name__}, but must be a function that returns a new module")
        self.judge = Judge(loss, error, metric, worst_error)
        self._made_of: dict[str, Any] = {
            "build": build, "loss": loss, "error": error, "metric": metric, "device": device,
            "worst_error": worst_error, "choices": choices, "configure": configure,
        }  # fmt: skip
        self.metric = self.judge.metric
        self._shapes = Shapes(choices, configure)
        self.choices = self._shapes.choices
        self.shaping = tuple(self.choices)
        self._build = build
        self.device = given.device(device)
        module = self._fresh(0)
        tensors.check_apart(module, self._fresh(0))  # now: soon its tensors are views of w
        self._module = module.to(self.device)
        parts = tensors.parts(self._module)
        self._layout = [part for part, _ in parts]
        self._tensors = [tensor for _, tensor in parts]
        self._trained = [tensor for tensor in self._tensors if tensor.requires_grad]
        self._trained_parts = self._layout[: len(self._trained)]
        self._images = any(part.axes for part in self._layout)
        self.size = sum(t.numel() for t in self._tensors)
        self.trainable = sum(p.numel() for p in self._module.parameters() if p.requires_grad)
        if not self.trainable:
            raise TaskError("the model has no parameters to train")
        self._counters = [(b, b.clone()) for b in self._module.buffers() if not b.is_floating_point()]
        self._dropouts = [(m, _dropout(m)) for m in self._module.modules() if _has_dropout(m)]
        self.smallest_batch = 2 if any(isinstance(m, _BATCH_NORMS) for m in self._module.modules()) else 1
        self._bound: Vector | None = None
        self._velocity: Tensor | None = None  # of plain SGD, once it is used
        self._flat = torch.empty(self.size, device=self.device)
        self._flat_grad = torch.zeros(self.trainable, device=self.device)
        self._grad = self._flat_grad.numpy() if self._on_cpu else np.zeros(self.trainable, np.float32)
        self._view(self._flat)
        parts_of_code = {"build": build, "model": module, "configure": configure, **self.judge.code}
        self.code = {name: known_by(part) for name, part in parts_of_code.items() if part is not None}
        self._shapes.set(self._module, {})

    def __repr__(self) -> str:
        return f"<Task: {type(self._module).__name__}, {self.trainable:,} parameters, {self.metric.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Task, **self._made_of), ()  # views of one buffer do not survive being copied one by one

    def on(self, device: str) -> Task:
        """Return the same task with its model and data on another device, such as ``cuda``."""
        return Task(**{**self._made_of, "device": device})

    @property
    def hyperparameters(self) -> Mapping[str, Hyper]:
        """``dropout``, set on every layer of it if the model has one; and the choices that shape the model."""
        if not self._dropouts:
            return self.choices
        own = self._dropouts[0][1]
        rate = Hyper(
            PAPER_CLIENT["dropout"], own, low=0.0, high=1.0, about="rate on every dropout layer", role="regulariser"
        )
        return {"dropout": rate, **self.choices}

    def engine(self, name: str) -> Engine:
        """Return the batched engine where it is asked for or (auto) worth it and covers the network; else the other."""
        if name == "sequential":
            return sequential
        from fedtuner.tasks import batched

        return batched.engine if batched.covers(self, worth_it=name == "auto") else sequential

    def layout(self) -> list[Part]:
        """Return the parts of w: trained, then frozen parameters, then buffers; convolutions' kernels channels last."""
        return list(self._layout)

    def initial(self, seed: int) -> Vector:
        """Return the parameters and buffers of a freshly built module."""
        parts, fresh = zip(*tensors.parts(self._fresh(seed)), strict=True)
        if list(parts) != self._layout:
            raise TaskError("build() gave a model of another shape than before: it must always build the same one")
        return tensors.joined(parts, (t.detach() for t in fresh)).numpy()

    def module(self, w: Vector, config: Config | None = None) -> nn.Module:
        """Return a new module that holds a copy of w, in evaluation mode, in the shape that a configuration gives."""
        module = self._fresh(0)
        with torch.no_grad():
            flat = torch.from_numpy(np.array(w, np.float32))
            for (_, tensor), view in zip(tensors.parts(module), tensors.split(flat, self._layout), strict=True):
                tensor.copy_(view)
        self._shapes.set_once(module, config or {})
        return module.eval()

    def prepare(self, split: Any) -> Data:
        """Return a split as tensors: doubles become floats, whole-number labels become int64."""
        x, y = (
            nested.mapped(partial(given.tensor, name=name), part)
            for part, name in zip(given.pair(split), ("x", "y"), strict=True)
        )
        sizes = {len(t) for t in (*nested.leaves(x), *nested.leaves(y))}
        if len(sizes) > 1:
            of = [" or ".join(map(str, sorted({len(t) for t in nested.leaves(part)}))) for part in (x, y)]
            raise TaskError(f"x has {of[0]} examples, y has {of[1]}")
        y = nested.mapped(lambda t: t if t.is_floating_point() else t.long(), y)
        for name, part in (("x", x), ("y", y)):
            if any(t.is_floating_point() and not torch.isfinite(t).all() for t in nested.leaves(part)):
                raise TaskError(f"{name} has values that are NaN or infinite")
        if self._images and isinstance(x, Tensor) and x.ndim == 4:
            with tensors.one_thread():  # with two, small copies take 30 times as long when another process has a core
                x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # stored channels last, like the kernels
        return Data(*(nested.mapped(lambda t: tensors.aligned(t).to(self.device), part) for part in (x, y)))

    @contextmanager
    def training(self, data: Data, config: Config, seed: int) -> Iterator[_Trainer]:
        """Set the model up for one client's training; torch's own generator is left as it was."""
        for module, own in self._dropouts:
            _set_dropout(module, float(config.get("dropout", own)))
        self._shapes.set(self._module, config)
        for counter, start in self._counters:
            counter.copy_(start)
        self._mode(training=True)
        with tensors.one_thread(), tensors.own_generator(self.device):
            self._seed(seed)
            yield _Trainer(self, data, seed)
        if any(a is not b for a, (_, b) in zip(self._tensors, tensors.named(self._module), strict=True)):
            raise TaskError(
                "training has replaced a parameter or buffer of the model: change them in place, by copy_()"
            )

    def evaluate(self, w: Vector, data: Data, config: Config | None = None) -> Metrics:
        """Return the mean loss and error on a split, without dropout, in the shape that a configuration gives."""
        if not len(data):
            return NOTHING
        self._shapes.set(self._module, config or {})
        self._bind(w)
        self._mode(training=False)
        loss, error, parts = 0.0, 0.0, []
        versions = [t._version for t in nested.leaves(data.x)]
        with tensors.one_thread(), torch.no_grad():
            for start in range(0, len(data), CHUNK):
                x, y = (_rows(part, slice(start, start + CHUNK)) for part in (data.x, data.y))
                output = self._forward(x)
                size = min(CHUNK, len(data) - start)
                mean = self.judge.loss(output, y).item()
                loss += mean * size
                if self.metric.value is not None:
                    parts.append(arrays(output, y))
                else:
                    error += (mean if self.metric.name == "loss" else self.judge.error(output, y)) * size
        if [t._version for t in nested.leaves(data.x)] != versions:
            raise TaskError("the model has changed its inputs: its first layer must not work in place")
        if parts:
            return self.judge.measured(loss / len(data), parts, len(data), given.fit(output, y))
        return Metrics(loss / len(data), error / len(data), len(data))

    def _fresh(self, seed: int) -> nn.Module:
        with tensors.one_thread(), tensors.own_generator(self.device):
            self._seed(seed)
            return given.built(self._build)

    @property
    def _on_cpu(self) -> bool:
        return self.device.type == "cpu"

    def _seed(self, seed: int) -> None:
        if self._on_cpu:  # torch.manual_seed also queues a call, with a stack trace, for every device there might be
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _mode(self, training: bool) -> None:
        if self._module.training is not training:
            self._module.train(training)

    def _view(self, flat: Tensor) -> None:
        for tensor, view in zip(self._tensors, tensors.split(flat, self._layout), strict=True):
            tensor.data = view

    def _bind(self, w: Vector) -> None:
        """Make the module's tensors views of w; on another device, copies of it."""
        if not self._on_cpu:
            self._flat.copy_(torch.from_numpy(w))
        elif self._bound is not w:
            self._view(torch.from_numpy(w))
            self._bound = w  # keeps w alive, so that "is" cannot be fooled by a reused address

    def _batch_loss(self, w: Vector, data: Data, rows: Rows) -> Tensor:
        self._bind(w)
        return self._bound_loss(data, rows)

    def _bound_loss(self, data: Data, rows: Rows) -> Tensor:
        picked = torch.from_numpy(rows).to(self.device)
        x = nested.mapped(lambda t: tensors.take(t, picked), data.x)
        return self.judge.loss(self._forward(x), nested.mapped(lambda t: t.index_select(0, picked), data.y))

    def _descend(self, w: Vector, data: Data, batches: Iterable[Rows], rates: Rates) -> None:
        """Plain SGD, the weights on the device from the first step to the last, each gradient used where it lies."""
        self._bind(w)
        flat = torch.from_numpy(w) if self._on_cpu else self._flat
        head, parts = flat[: self.trainable], self._trained_parts
        weights = tensors.stored(head, parts)
        velocities = tensors.stored(self._at_rest(head), parts) if rates.momentum else ()
        for n, rows in enumerate(batches, 1):
            if n % CHECKED == 0 and not torch.isfinite(head).all():
                break  # it will not come back
            gradient = torch.autograd.grad(self._bound_loss(data, rows), self._trained, allow_unused=True)
            moves = [
                torch.zeros_like(weight) if g is None else tensors.in_order(part, g)
                for weight, part, g in zip(weights, parts, gradient, strict=True)
            ]
            tensors.sgd(weights, moves, velocities, rates)
        if not self._on_cpu:
            w[:] = flat.cpu().numpy()

    def _at_rest(self, head: Tensor) -> Tensor:
        """Return a velocity of zeros: the same memory for every client, as fresh memory costs more than clearing it."""
        if self._velocity is None:
            self._velocity = torch.empty_like(head)
        return self._velocity.zero_()

    def _curvature(self, w: Vector, direction: Vector, data: Data, rows: Rows) -> Vector:
        trained = self._trained
        loss = self._batch_loss(w, data, rows)
        gradient = torch.autograd.grad(loss, trained, create_graph=True, materialize_grads=True)
        along = tensors.split(torch.from_numpy(direction).to(self.device), self._trained_parts)
        slope = torch.stack([(g * d).sum() for g, d in zip(gradient, along, strict=True)]).sum()
        if not slope.requires_grad:  # a loss that is linear in w has no curvature
            return np.zeros(self.trainable, np.float32)
        product = torch.autograd.grad(slope, trained, materialize_grads=True)
        return tensors.joined(self._trained_parts, product).cpu().numpy()

    def _gradient(self, w: Vector, data: Data, rows: Rows) -> Vector:
        loss = self._batch_loss(w, data, rows)
        gradient = torch.autograd.grad(loss, self._trained, materialize_grads=True)
        tensors.joined(self._trained_parts, gradient, out=self._flat_grad)
        if not self._on_cpu:
            self._grad[:] = self._flat_grad.cpu().numpy()
            w[self.trainable :] = self._flat[self.trainable :].cpu().numpy()
        return self._grad

    def _forward(self, x: Any) -> Any:
        try:
            return self._output(x)
        except FAILURES as error:  # a module of one's own may raise anything
            said, remedy = given.said(error), self._remedy(x)
            raise TaskError(f"the model cannot take inputs of shape {given.shape(x)}: {said}{remedy}") from error

    def _output(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self._module(x)
        return self._module(**x) if isinstance(x, Mapping) else self._module(*x)

    def _remedy(self, x: Any) -> str:
        """Return what to do about inputs that the model takes once they are real numbers; empty if it does not."""
        kind = given.whole(nested.leaves(x))
        if not kind:
            return ""
        try:
            self._output(nested.mapped(Tensor.float, x))
        except FAILURES:
            return ""
        return f"; x is of whole numbers ({kind}), which it takes as real ones: give x.astype('float32')"


class _Trainer:
    """One client's gradients."""

    def __init__(self, task: Task, data: Data, seed: int) -> None:
        self._task, self._data, self._seed = task, data, seed

    def gradient(self, w: Vector, rows: Rows, key: int | None = None) -> Vector:
        self._reseed(key)
        return self._task._gradient(w, self._data, rows)

    def curvature(self, w: Vector, direction: Vector, rows: Rows, key: int | None = None) -> Vector:
        self._reseed(key)
        return self._task._curvature(w, direction, self._data, rows)

    def on(self, data: Data) -> _Trainer:
        return _Trainer(self._task, data, self._seed)

    def sgd(self, w: Vector, g: Vector, velocity: Vector | None, rates: Rates) -> None:
        velocities = [] if velocity is None else [torch.from_numpy(velocity)]
        tensors.sgd([torch.from_numpy(w)], [torch.from_numpy(g)], velocities, rates)

    def descend(self, w: Vector, batches: Iterable[Rows], rates: Rates) -> None:
        self._task._descend(w, self._data, batches, rates)

    def _reseed(self, key: int | None) -> None:
        if key is not None:
            self._task._seed(number(self._seed, "draw", key))


def _rows(part: Any, rows: slice) -> Any:
    return part[rows] if isinstance(part, Tensor) else nested.mapped(lambda t: t[rows], part)


def _has_dropout(module: nn.Module) -> bool:
    # An RNN of one layer has nothing between its layers to drop.
    return isinstance(module, _DROPOUTS) and not (isinstance(module, nn.RNNBase) and module.num_layers == 1)


def _dropout(module: nn.Module) -> float:
    return float(module.p if isinstance(module, _DROPOUTS[0]) else module.dropout)  # type: ignore[arg-type]


def _set_dropout(module: nn.Module, rate: float) -> None:
    setattr(module, "p" if isinstance(module, _DROPOUTS[0]) else "dropout", rate)
