"""The clients of a round as one: small models waste their time on the overhead of small operations.

Every client's work runs in a greenlet of its own, unchanged, whatever the method. Where it asks for a gradient or an
evaluation it pauses; when all have paused, what they asked for is computed together, as one ``[clients, parameters]``
leaf and batched matrix products, and each goes on with its own answer. What is computed together depends on the round's
jobs alone, so the result does not depend on the workers; it differs from the sequential engine's by rounding.

It covers networks that are an ``nn.Sequential`` of the layers in ``LAYERS``, with cross-entropy as the loss and the
arg-max error. For all others ``covers`` says no, and the sequential engine does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtuner.arm import work
from fedtuner.federation import Report, Simulation
from fedtuner.methods.base import Job, Method
from fedtuner.pytorch import Data, Task, _one_thread
from fedtuner.rng import number
from fedtuner.space import Config
from fedtuner.task import Metrics, Rows, Vector

_POINTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.LeakyReLU, nn.SiLU, nn.Softplus, nn.Identity)
LAYERS = (nn.Flatten, nn.Linear, nn.Dropout, *_POINTWISE)
SMALL = 100_000  # parameters: beyond, matrix products outweigh the overhead


def covers(task: object, worth_it: bool = False) -> bool:
    """Return whether the batched engine can do this task and, if asked, whether its model is small enough to gain."""
    return (
        isinstance(task, Task)
        and task._on_cpu
        and task.size == task.trainable
        and (task.size <= SMALL or not worth_it)
        and task._loss is F.cross_entropy
        and task._error is None
        and isinstance(task._module, nn.Sequential)
        and all(type(layer) in LAYERS for layer in task._module)
        and all(layer.start_dim == 1 and layer.end_dim == -1 for layer in task._module if isinstance(layer, nn.Flatten))
    )


@dataclass(frozen=True)
class _Ask:
    """What a client waits for: the gradient on these rows, or (None) an evaluation of all."""

    w: Vector
    data: Data
    size: int
    rows: Tensor | None
    dropout: tuple[float, ...] = ()  # one rate per dropout layer
    generator: torch.Generator | None = None

    @property
    def bucket(self) -> tuple[bool, int]:
        """Asks of one kind and of sizes up to the same power of two are computed together."""
        return self.rows is None, (self.size - 1).bit_length()


def work_all(method: Method, problem: Simulation, jobs: Sequence[Job]) -> list[Report]:
    """Do a round's jobs and return their reports in order."""
    from greenlet import greenlet

    task = problem.task
    assert isinstance(task, Task)
    hub = greenlet.getcurrent()
    seen: Any = _Seen(problem, _Together(task, hub.switch))
    reports: list[Any] = [None] * len(jobs)
    clients = [greenlet(lambda job=job: work(method, seen, job), parent=hub) for job in jobs]
    with _one_thread():
        asks = [(n, clients[n].switch()) for n in range(len(jobs))]
        while asks:
            answers: dict[int, Any] = {}
            waiting = []
            for n, said in asks:
                if isinstance(said, _Ask):
                    waiting.append((n, said))
                else:
                    reports[n] = said
            for bucket in sorted({ask.bucket for _, ask in waiting}):
                group = [(n, ask) for n, ask in waiting if ask.bucket == bucket]
                results = (_evaluate if bucket[0] else _gradients)(task, [ask for _, ask in group])
                answers |= {n: result for (n, _), result in zip(group, results, strict=True)}
            asks = [(n, clients[n].switch(answers[n])) for n, _ in waiting]
    return reports


class _Seen:
    """The problem as a client's work sees it: the same data, and a task that asks."""

    def __init__(self, problem: Simulation, task: _Together) -> None:
        self.clients, self.data, self.task = problem.clients, problem.data, task


class _Together:
    """A task that asks the hub for what the real one would compute at once."""

    def __init__(self, task: Task, ask: Callable[[_Ask], Any]) -> None:
        self._task, self._ask = task, ask
        self.trainable, self.smallest_batch, self.worst_error = task.trainable, task.smallest_batch, task.worst_error

    def evaluate(self, w: Vector, data: Data) -> Metrics:
        if not len(data):
            return Metrics(float("nan"), float("nan"), 0)
        metrics: Metrics = self._ask(_Ask(w, data, len(data), None))
        return metrics

    @contextmanager
    def training(self, data: Data, config: Config, seed: int) -> Iterator[_Trainer]:
        rates = tuple(float(config.get("dropout", own)) for _, own in self._task._dropouts)
        yield _Trainer(self._task, self._ask, data, config, rates, seed)


class _Trainer:
    def __init__(
        self, task: Task, ask: Callable[[_Ask], Any], data: Data, config: Config, rates: tuple[float, ...], seed: int
    ) -> None:
        self._task, self._ask, self._data, self._config = task, ask, data, config
        self._rates, self._seed = rates, seed
        self._generator = torch.Generator().manual_seed(seed) if any(rates) else None

    def gradient(self, w: Vector, rows: Rows, key: int | None = None) -> Vector:
        if key is not None and self._generator is not None:
            self._generator.manual_seed(number(self._seed, "draw", key))
        picked = torch.from_numpy(rows)
        gradient: Vector = self._ask(_Ask(w, self._data, rows.size, picked, self._rates, self._generator))
        return gradient

    def curvature(self, w: Vector, direction: Vector, rows: Rows, key: int | None = None) -> Vector:
        with self._task.training(self._data, self._config, self._seed) as alone:  # rare: not worth doing together
            return alone.curvature(w, direction, rows, key)

    def on(self, data: Data) -> _Trainer:
        other = _Trainer(self._task, self._ask, data, self._config, self._rates, self._seed)
        other._generator = self._generator
        return other

    def sgd(self, w: Vector, g: Vector, velocity: Vector | None, lr: float, momentum: float, decay: float) -> None:
        from fedtuner.pytorch import _Trainer as Alone

        Alone.sgd(self, w, g, velocity, lr, momentum, decay)  # type: ignore[arg-type]


def _gradients(task: Task, asks: list[_Ask]) -> list[Vector]:
    """Return each client's gradient; shorter batches are padded with rows of weight 0."""
    sizes = [ask.size for ask in asks]
    x, y = _pad([(a.data.x.index_select(0, a.rows), a.data.y.index_select(0, a.rows)) for a in asks], max(sizes))  # type: ignore[arg-type]
    leaves = [leaf.requires_grad_() for leaf in _leaves(task, asks)]
    weights = torch.zeros(x.shape[:2])
    for n, size in enumerate(sizes):
        weights[n, :size] = 1.0 / size
    losses = F.cross_entropy(_forward(task, leaves, x, asks).flatten(0, 1), y.flatten(), reduction="none")
    found = torch.autograd.grad((losses * weights.flatten()).sum(), leaves)
    return list(torch.cat([g.flatten(1) for g in found], dim=1).numpy())


def _evaluate(task: Task, asks: list[_Ask]) -> list[Metrics]:
    """Return each client's mean loss and error."""
    sizes = [ask.size for ask in asks]
    with torch.no_grad():
        x, y = _pad([(ask.data.x, ask.data.y) for ask in asks], max(sizes))
        output = _forward(task, _leaves(task, asks), x, None)
        losses = F.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).double()
        wrong = (output.argmax(2) != y).double()
    return [
        Metrics(float(losses[n, :size].mean()), float(wrong[n, :size].mean()), size) for n, size in enumerate(sizes)
    ]


def _leaves(task: Task, asks: list[_Ask]) -> list[Tensor]:
    """Return the parameters as ``[clients, ...]`` tensors."""
    stacked = torch.from_numpy(np.stack([ask.w for ask in asks]))
    leaves, start = [], 0
    for part in task.layout():
        leaves.append(stacked[:, start : start + part.size].view(len(asks), *part.shape))
        start += part.size
    return leaves


def _pad(batches: list[tuple[Tensor, Tensor]], size: int) -> tuple[Tensor, Tensor]:
    x0, y0 = batches[0]
    x = x0.new_zeros(len(batches), size, *x0.shape[1:])
    y = y0.new_zeros(len(batches), size, *y0.shape[1:])
    for n, (xs, ys) in enumerate(batches):
        x[n, : len(xs)], y[n, : len(ys)] = xs, ys
    return x, y


def _forward(task: Task, leaves: list[Tensor], x: Tensor, asks: list[_Ask] | None) -> Tensor:
    """Return the network's outputs; with asks (in training) dropout draws from each client's own generator."""
    at = iter(leaves)
    drops = 0
    for layer in task._module:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Flatten):
            x = x.flatten(2)
        elif isinstance(layer, nn.Linear):
            weight = next(at).transpose(1, 2)
            x = torch.baddbmm(next(at).unsqueeze(1), x, weight) if layer.bias is not None else torch.bmm(x, weight)
        elif isinstance(layer, nn.Dropout):
            if asks is not None:
                x = _drop(x, [ask.dropout[drops] for ask in asks], asks)
            drops += 1
        else:
            x = layer(x)
    return x


def _drop(x: Tensor, rates: list[float], asks: list[_Ask]) -> Tensor:
    """Scale what is kept, by the draws that torch's own dropout would make for each client's batch."""
    if not any(rates):
        return x
    keep = torch.ones_like(x)
    for n, (rate, ask) in enumerate(zip(rates, asks, strict=True)):
        if rate and ask.rows is not None:
            drawn = torch.empty(ask.size, *x.shape[2:]).bernoulli_(1 - rate, generator=ask.generator)
            keep[n, : ask.size] = drawn / (1 - rate) if rate < 1 else drawn
    return x * keep
