"""The clients of a round as one: small models waste their time on the overhead of small operations.

Every client's work runs in a greenlet of its own, unchanged, whatever the method. Where it asks for local training, a
gradient or an evaluation it pauses; when all have paused, what they asked for is computed together, as one
``[clients, parameters]`` leaf and batched matrix products, and each goes on with its own answer. Clients are put
together by their batch size, and those that are done drop out. What is computed together depends on the round's jobs
alone, so the result does not depend on the workers; it differs from the sequential engine's by rounding.

It covers networks that are an ``nn.Sequential`` of the layers in ``LAYERS``, with cross-entropy as the loss and the
arg-max error. For all others ``covers`` says no, and the sequential engine does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtuner.core.engine import Engine
from fedtuner.core.federation import HasData
from fedtuner.core.model import CHECKED, NOTHING, Metrics, Rates, Rows, Vector
from fedtuner.core.records import Plan, Report
from fedtuner.core.round import Round
from fedtuner.core.work import work
from fedtuner.rng import number
from fedtuner.space import Config
from fedtuner.tasks.pytorch import CHUNK, Data, Task
from fedtuner.tasks.pytorch import _Trainer as SequentialTrainer
from fedtuner.tasks.tensors import one_thread

_POINTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.LeakyReLU, nn.SiLU, nn.Softplus, nn.Identity)
LAYERS = (nn.Flatten, nn.Linear, nn.Dropout, *_POINTWISE)
_OWN = (("weight", "bias"), ("weight",))  # a linear layer's parameters, with a bias and without
SMALL = 100_000  # parameters: beyond, on a CPU, matrix products outweigh the overhead


def covers(task: Task, worth_it: bool = False) -> bool:
    """Return whether the batched engine can do this task and, if asked, whether it gains by it."""
    return (
        task.size == task.trainable
        and not task.choices
        and (task.size <= SMALL or not task._on_cpu or not worth_it)
        and task.judge.usual
        and _plain(task._module)
    )


def _plain(module: nn.Module) -> bool:
    """Return whether a network is no more than its layers, one after the other, with nothing shared or hooked in."""
    if type(module) is not nn.Sequential or any(m._forward_hooks or m._forward_pre_hooks for m in module.modules()):
        return False
    layers = list(module)
    if len({id(layer) for layer in layers}) < len(layers) or not all(type(layer) in LAYERS for layer in layers):
        return False
    if not all(layer.start_dim == 1 and layer.end_dim == -1 for layer in layers if isinstance(layer, nn.Flatten)):
        return False
    first = next((n for n, layer in enumerate(layers) if isinstance(layer, nn.Linear)), 0)
    if any(isinstance(layer, nn.Flatten) for layer in layers[first:]):  # linear layers over more than one axis
        return False
    own = [
        f"{n}.{name}"
        for n, layer in enumerate(layers)
        if isinstance(layer, nn.Linear)
        for name in _OWN[layer.bias is None]
    ]
    return [name for name, _ in module.named_parameters()] == own


@dataclass(frozen=True)
class _Evaluation:
    """A client waits for the metrics of w on all of its data."""

    w: Vector
    data: Data

    @property
    def size(self) -> int:
        return len(self.data)


@dataclass(frozen=True)
class _Gradient:
    """A client waits for the gradient at w on these rows."""

    w: Vector
    data: Data
    rows: Rows
    dropout: _Dropout

    @property
    def size(self) -> int:
        return self.rows.size


@dataclass(frozen=True)
class _Descent:
    """A client waits for w to be moved by SGD along its batches."""

    w: Vector
    data: Data
    batches: list[Rows]
    dropout: _Dropout
    rates: Rates

    @property
    def size(self) -> int:
        return self.batches[0].size


@dataclass(frozen=True)
class _Dropout:
    """A client's own: one rate per dropout layer, and where its draws come from."""

    rates: tuple[float, ...]
    generator: torch.Generator | None


def work_all(round: Round, plan: Plan) -> list[Report]:
    """Do a round's jobs and return their reports in order."""
    from greenlet import greenlet

    task, method = round.federation.model, round.setup.method
    assert isinstance(task, Task)
    hub = greenlet.getcurrent()
    deferring: Any = _DeferringFederation(cast(HasData, round.federation), _DeferringTask(task, hub.switch))
    reports: list[Any] = [None] * len(plan.jobs)
    clients = [greenlet(lambda job=job: work(method, deferring, plan, job), parent=hub) for job in plan.jobs]
    with one_thread():
        paused = [(n, client.switch()) for n, client in enumerate(clients)]
        while paused:
            asks: dict[int, Any] = {}
            groups: dict[tuple[str, int], list[int]] = {}
            for n, ask in paused:
                if isinstance(ask, Report):
                    reports[n] = ask
                else:  # those of one kind and of sizes up to the same power of two are computed together
                    asks[n] = ask
                    groups.setdefault((type(ask).__name__, (ask.size - 1).bit_length()), []).append(n)
            answers: dict[int, Any] = {}
            for (kind, _), group in sorted(groups.items()):
                answers |= dict(zip(group, _TOGETHER[kind](task, [asks[n] for n in group]), strict=True))
            paused = [(n, clients[n].switch(answers[n])) for n in asks]
    return reports


engine = Engine("batched", False, work_all)


class _DeferringFederation:
    """The federation as a client's work sees it: the same data, and a task that defers its computations."""

    def __init__(self, federation: HasData, model: _DeferringTask) -> None:
        self.data, self.id_of, self.model = federation.data, federation.id_of, model


class _DeferringTask:
    """A task that leaves to the hub what the real one would compute at once."""

    own_training, shaping = False, ()

    def __init__(self, task: Task, ask: Callable[[Any], Any]) -> None:
        self._task, self._ask = task, ask
        self.trainable, self.smallest_batch, self.metric = task.trainable, task.smallest_batch, task.metric

    def evaluate(self, w: Vector, data: Data, config: Config) -> Metrics:
        if not len(data):
            return NOTHING
        metrics: Metrics = self._ask(_Evaluation(w, data))
        return metrics

    @contextmanager
    def training(self, data: Data, config: Config, seed: int) -> Iterator[_DeferringTrainer]:
        rates = tuple(float(config.get("dropout", own)) for _, own in self._task._dropouts)
        generator = torch.Generator(self._task.device).manual_seed(seed) if any(rates) else None
        yield _DeferringTrainer(self._task, self._ask, data, _Client(config, seed, _Dropout(rates, generator)))


@dataclass(frozen=True)
class _Client:
    """What a client's training depends on beside its data."""

    config: Config
    seed: int
    dropout: _Dropout


class _DeferringTrainer:
    """A client's gradients, computed by the hub."""

    def __init__(self, task: Task, ask: Callable[[Any], Any], data: Data, client: _Client) -> None:
        self._task, self._ask, self._data, self._client = task, ask, data, client

    def gradient(self, w: Vector, rows: Rows, key: int | None = None) -> Vector:
        dropout = self._client.dropout
        if key is not None and dropout.generator is not None:
            dropout.generator.manual_seed(number(self._client.seed, "draw", key))
        gradient: Vector = self._ask(_Gradient(w, self._data, rows, dropout))
        return gradient

    def descend(self, w: Vector, batches: Iterable[Rows], rates: Rates) -> None:
        steps = list(batches)
        if steps:
            self._ask(_Descent(w, self._data, steps, self._client.dropout, rates))

    def curvature(self, w: Vector, direction: Vector, rows: Rows, key: int | None = None) -> Vector:
        # Rare, so not worth doing together.
        with self._task.training(self._data, self._client.config, self._client.seed) as trainer:
            return trainer.curvature(w, direction, rows, key)

    def on(self, data: Data) -> _DeferringTrainer:
        return _DeferringTrainer(self._task, self._ask, data, self._client)

    def sgd(self, w: Vector, g: Vector, velocity: Vector | None, rates: Rates) -> None:
        SequentialTrainer.sgd(self, w, g, velocity, rates)  # type: ignore[arg-type]


def _evaluate(task: Task, asks: list[_Evaluation]) -> list[Metrics]:
    """Return each client's mean loss and error."""
    sums = torch.zeros(2, len(asks), dtype=torch.float64)
    with torch.no_grad():
        leaves = _leaves(task, _stack(task, asks))
        for start in range(0, max(ask.size for ask in asks), CHUNK):
            x = _pad([ask.data.x[start : start + CHUNK] for ask in asks])
            y = _pad([ask.data.y[start : start + CHUNK] for ask in asks])
            output = _forward(task, leaves, x)
            losses = F.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).double()
            wrong = (output.argmax(2) != y).double()
            real = start + torch.arange(y.shape[1]) < torch.tensor([[ask.size] for ask in asks])
            sums += torch.where(real.to(task.device), torch.stack([losses, wrong]), 0.0).sum(2).cpu()
    return [Metrics(float(sums[0, n] / a.size), float(sums[1, n] / a.size), a.size) for n, a in enumerate(asks)]


def _gradients(task: Task, asks: list[_Gradient]) -> list[Vector]:
    """Return each client's gradient."""
    sizes = [ask.size for ask in asks]
    rows = [torch.from_numpy(_filled(ask.rows, max(sizes))).to(task.device) for ask in asks]
    x = torch.stack([ask.data.x.index_select(0, r) for ask, r in zip(asks, rows, strict=True)])
    y = torch.stack([ask.data.y.index_select(0, r) for ask, r in zip(asks, rows, strict=True)])
    weights = np.zeros((len(asks), max(sizes)), np.float32)
    for n, size in enumerate(sizes):
        weights[n, :size] = 1 / size
    leaves = _leaves(task, _stack(task, asks))
    output = _forward(task, leaves, x, [a.dropout for a in asks], sizes)
    found = _backward(leaves, output, y, torch.from_numpy(weights).to(task.device))
    return list(found.cpu().numpy())


def _descend(task: Task, asks: list[_Descent]) -> list[None]:
    """Move each client's w. Those with most batches stand first, so that those at work are always the first few."""
    longest = sorted(asks, key=lambda ask: -len(ask.batches))
    steps, width = len(longest[0].batches), max(rows.size for ask in asks for rows in ask.batches)
    x, y = torch.cat([ask.data.x for ask in longest]), torch.cat([ask.data.y for ask in longest])
    index = np.zeros((steps, len(asks), width), np.int64)  # into x and y; shorter batches are filled up with weight 0
    weights = np.zeros((steps, len(asks), width), np.float32)
    start = 0
    for n, ask in enumerate(longest):
        for s, rows in enumerate(ask.batches):
            index[s, n] = start + _filled(rows, width)
            weights[s, n, : rows.size] = 1 / rows.size
        start += len(ask.data)
    at, weight = torch.from_numpy(index).to(task.device), torch.from_numpy(weights).to(task.device)
    w = _stack(task, longest)
    velocity = torch.zeros_like(w)
    rates = [(ask.rates.lr, ask.rates.momentum, ask.rates.decay) for ask in longest]
    lr, momentum, decay = torch.tensor(rates, device=task.device).T.unsqueeze(2)
    leaves, working = _leaves(task, w), len(asks)
    for s in range(steps):
        if s and s % CHECKED == 0 and not torch.isfinite(w[:working]).all(1).any():
            break  # none of them will come back
        while len(longest[working - 1].batches) <= s:
            working -= 1
            leaves = _leaves(task, w[:working])
        picked = at[s, :working].flatten()
        xs = x.index_select(0, picked).view(working, width, *x.shape[1:])
        ys = y.index_select(0, picked).view(working, width, *y.shape[1:])
        sizes = [ask.batches[s].size for ask in longest[:working]]
        output = _forward(task, leaves, xs, [a.dropout for a in longest[:working]], sizes)
        found = _backward(leaves, output, ys, weight[s, :working])
        found.addcmul_(decay[:working], w[:working])
        w[:working].addcmul_(velocity[:working].mul_(momentum[:working]).add_(found), lr[:working], value=-1)
    for ask, moved in zip(longest, w.cpu().numpy(), strict=True):
        ask.w[:] = moved
    return [None] * len(asks)


_TOGETHER: dict[str, Callable[[Task, Any], list[Any]]] = {
    "_Evaluation": _evaluate,
    "_Gradient": _gradients,
    "_Descent": _descend,
}


def _stack(task: Task, asks: Sequence[_Evaluation | _Gradient | _Descent]) -> Tensor:
    return torch.from_numpy(np.stack([ask.w for ask in asks])).to(task.device)


def _leaves(task: Task, stacked: Tensor) -> list[Tensor]:
    """Return the parameters as views ``[clients, ...]`` of the stacked vectors."""
    leaves, start = [], 0
    for part in task.layout():
        leaves.append(stacked[:, start : start + part.size].view(len(stacked), *part.shape).requires_grad_())
        start += part.size
    return leaves


def _pad(batches: list[Tensor]) -> Tensor:
    """Return several clients' rows as one tensor, the shorter ones filled up with zeros."""
    padded = batches[0].new_zeros(len(batches), max(len(rows) for rows in batches), *batches[0].shape[1:])
    for n, rows in enumerate(batches):
        padded[n, : len(rows)] = rows
    return padded


def _filled(rows: Rows, width: int) -> Rows:
    """Return a batch filled up to ``width`` rows of weight 0: copies of its first one.

    Any other row might have an infinite gradient, and 0 times that is NaN; where this one has, all is lost anyway.
    """
    return np.concatenate([rows, np.repeat(rows[:1], width - rows.size)])


def _backward(leaves: list[Tensor], output: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return the gradients ``[clients, parameters]`` of each client's weighted loss."""
    losses = F.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none")
    found = torch.autograd.grad(losses, leaves, weights.flatten())
    return torch.cat([g.flatten(1) for g in found], dim=1)


def _forward(
    task: Task, leaves: list[Tensor], x: Tensor, dropouts: Sequence[_Dropout] = (), sizes: Sequence[int] = ()
) -> Tensor:
    """Return the network's outputs; with dropouts (in training) each client's draws come from its own generator."""
    at, drops = iter(leaves), 0
    for layer in task._module:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Flatten):
            x = x.flatten(2)
        elif isinstance(layer, nn.Linear):
            weight = next(at).transpose(1, 2)
            x = torch.baddbmm(next(at).unsqueeze(1), x, weight) if layer.bias is not None else torch.bmm(x, weight)
        elif isinstance(layer, nn.Dropout):
            x = _drop(x, [(d.rates[drops], d.generator) for d in dropouts], sizes)
            drops += 1
        else:
            x = layer(x)
    return x


def _drop(x: Tensor, draws: list[tuple[float, torch.Generator | None]], sizes: Sequence[int]) -> Tensor:
    """Scale what is kept, by the draws that torch's own dropout would make for each client's batch."""
    if not any(rate for rate, _ in draws):
        return x
    keep = torch.ones_like(x)
    for n, ((rate, generator), size) in enumerate(zip(draws, sizes, strict=True)):
        if rate == 1:
            keep[n] = 0.0  # torch, too, makes no draw for it
        elif rate:
            keep[n, :size].bernoulli_(1 - rate, generator=generator).div_(1 - rate)
            keep[n, size:] = keep[n, 0]  # copies of the first row
    return x * keep
