"""The loop as researchers write it: a deep copy per client, a DataLoader, torch.optim, all cores as threads.

Its data set turns one example after the other into tensors. Written with more care, the data are tensors beforehand:
``TensorDataset`` is the stricter comparison.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
from workloads import WORKLOADS, clients, config

import fedtuner as ft
from fedtuner.core.model import named
from fedtuner.core.records import Job, Plan, Report
from fedtuner.core.schedule import Schedule
from fedtuner.pytorch import Task
from fedtuner.run.executors import cores


class Examples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Arrays, of which each example becomes a pair of tensors when it is asked for."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x.numpy(), y.numpy()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(self.x[i]), torch.tensor(self.y[i])


DATA: dict[str, Callable[..., Dataset[Any]]] = {"naive": Examples, "naive on tensors": TensorDataset}


def train(
    model: torch.nn.Module, split: Any, c: dict[str, Any], data: Callable[..., Any] = Examples
) -> torch.nn.Module:
    """One client's training as researchers write it."""
    model = copy.deepcopy(model)
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=c["lr"], momentum=c["momentum"], weight_decay=c["weight_decay"])
    loader = DataLoader(data(*split), batch_size=c["batch"], shuffle=True)
    for _ in range(c["epochs"]):
        for x, y in loader:
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimiser.step()
    return model


def one_round(server: torch.nn.Module, clients: list[Any], c: dict[str, Any], data: Callable[..., Any]) -> None:
    states = [train(server, split, c, data).state_dict() for split in clients]
    server.load_state_dict({k: torch.stack([s[k].float() for s in states]).mean(0) for k in states[0]})


def rate(name: str, batch: int, seconds: float, side: str = "naive") -> float:
    """Samples a second of the naive loop, all cores as threads."""
    splits, data = clients(name), DATA[side]
    torch.set_num_threads(cores())
    server, done = WORKLOADS[name].build(), 0
    one_round(server, splits, config(batch), data)  # warm
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        one_round(server, splits, config(batch), data)
        done += sum(len(x) for x, _ in splits)
    return done / (time.perf_counter() - began)


def study(made: ft.Simulation, schedule: Schedule) -> int:
    """Run a study arm after arm, by ask and tell, and return how many rounds it took."""
    asked = ft.prepare(made, schedule=schedule, fedex=ft.FedEx())
    while plan := asked.ask():
        asked.tell(plan, [work(made, plan, job) for job in plan.jobs])
    return asked.rounds_used


def work(made: ft.Simulation, plan: Plan, job: Job) -> Report:
    """A client's round as researchers write it: a module from the weights, a DataLoader, torch.optim."""
    task = made.task
    assert isinstance(task, Task)
    server = server_of(task, plan.w)
    for layer in server.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = float(job.config["dropout"])
    split: Any = made.data(job.client, "train")
    valid = made.data(job.client, "valid")
    before = evaluate(server, valid)
    model = train(server, (split.x.contiguous(), split.y), dict(job.config))
    after = evaluate(model, valid)
    return plan.report(job, task_order(task, model), len(split), (before, after))


SERVERS: dict[int, torch.nn.Module] = {}


def server_of(task: Task, w: np.ndarray[Any, Any]) -> torch.nn.Module:
    """The server's module, built once, with these weights."""
    if id(task) not in SERVERS:
        SERVERS[id(task)] = task.module(w)
    server = SERVERS[id(task)]
    state = {name: torch.from_numpy(array) for name, array in named(w, task.layout()).items()}
    server.load_state_dict(state, strict=False)
    return server


def task_order(task: Task, model: torch.nn.Module) -> np.ndarray[Any, Any]:
    tensors = dict(model.state_dict())
    parts = []
    for part in task.layout():
        tensor = tensors[part.name].detach()
        parts.append((tensor.permute(0, 2, 3, 1) if part.axes else tensor).reshape(-1).numpy())
    return np.concatenate(parts)


def evaluate(model: torch.nn.Module, split: Any) -> Any:
    model.eval()
    loss, wrong = 0.0, 0
    with torch.no_grad():
        for x, y in DataLoader(Examples(split.x.contiguous(), split.y), batch_size=64):
            output = model(x)
            loss += float(F.cross_entropy(output, y, reduction="sum"))
            wrong += int((output.argmax(1) != y).sum())
    return ft.Metrics(loss / len(split), wrong / len(split), len(split))
