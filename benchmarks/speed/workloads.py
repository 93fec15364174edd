"""The networks that are measured, W1 to W5, and clients with random data for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import fedtuner as ft
from fedtuner.core.method import defaults
from fedtuner.problems import models
from fedtuner.pytorch import Task


@dataclass(frozen=True)
class Workload:
    build: Callable[[], torch.nn.Module]
    shape: tuple[int, ...]  # of an example
    classes: int
    clients: int
    examples: int  # per client


WORKLOADS = {
    "W1 FEMNIST CNN": Workload(models.femnist_cnn, (1, 28, 28), 62, 4, 128),
    "W2 CIFAR CNN": Workload(lambda: models.cifar_cnn()[1:], (3, 24, 24), 10, 4, 128),  # without its crops
    "W3 char LSTM": Workload(models.char_lstm, (80,), 80, 4, 128),
    "W4 MLP 64-64-10": Workload(partial(models.mlp, 64, 64, 10), (64,), 10, 64, 256),
    "W5 small CNN": Workload(models.small_cnn, (1, 28, 28), 10, 16, 256),
}


def examples(name: str, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random inputs and labels."""
    workload, generator = WORKLOADS[name], torch.Generator().manual_seed(seed)
    if workload.build is models.char_lstm:
        x = torch.randint(workload.classes, (n, *workload.shape), generator=generator)
    else:
        x = torch.randn(n, *workload.shape, generator=generator)
    return x, torch.randint(workload.classes, (n,), generator=generator)


def clients(name: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each client's training data."""
    return [examples(name, WORKLOADS[name].examples, seed) for seed in range(WORKLOADS[name].clients)]


def problem(name: str) -> ft.Simulation:
    """Return a workload as a problem; nobody validates."""
    splits = [ft.Client(i, split, None) for i, split in enumerate(clients(name))]
    return ft.Simulation(Task(WORKLOADS[name].build), splits, name)


def config(batch: int) -> dict[str, Any]:
    """Return what clients train with: momentum and weight decay are on."""
    return defaults(ft.methods.fedavg.client) | {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4, "batch": batch}
