"""How fast is local training: the loop as researchers write it, ours, and what the hardware allows. One command:

    python benchmarks/speed/run.py                  # all sections, about ten minutes on a quiet machine
    python benchmarks/speed/run.py --only throughput --workloads W4 W5

Every ratio is taken within one run, its sides interleaved; the machine should be quiet. Results go to
benchmarks/results/speed.json, and the tables of docs/speed.md are printed from it.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import fedtuner as ft
from fedtuner import batched, engines, models
from fedtuner.arm import Arm, Setting, begin, rounds
from fedtuner.executors import Leg, Place, Processes, Serial, cores
from fedtuner.methods.base import Update, defaults
from fedtuner.pytorch import Task
from fedtuner.samplers import local
from fedtuner.testing.toys import quadratics

RESULTS = Path(__file__).parent.parent / "results" / "speed.json"
NOWHERE = Path("nowhere")

# name: (network, shape of an example, classes, examples per client at each batch size's measurement)
WORKLOADS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], int, int]] = {
    "W1 FEMNIST CNN": (models.femnist_cnn, (1, 28, 28), 62, 128),
    "W2 CIFAR CNN": (lambda: models.cifar_cnn()[1:], (3, 24, 24), 10, 128),  # without its crops
    "W3 char LSTM": (models.char_lstm, (80,), 80, 128),
    "W4 MLP 64-64-10": (partial(models.mlp, 64, 64, 10), (64,), 10, 256),
    "W5 small CNN": (models.small_cnn, (1, 28, 28), 10, 256),
}
CLIENTS = {"W4 MLP 64-64-10": 64, "W5 small CNN": 16}  # others: 4


def data(shape: tuple[int, ...], classes: int, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if len(shape) == 1 and shape[0] == 80:
        return torch.randint(classes, (n, *shape), generator=generator), torch.randint(
            classes, (n,), generator=generator
        )
    return torch.randn(n, *shape, generator=generator), torch.randint(classes, (n,), generator=generator)


def problem(name: str) -> ft.Simulation:
    build, shape, classes, n = WORKLOADS[name]
    splits = [data(shape, classes, n, seed) for seed in range(CLIENTS.get(name, 4))]
    return ft.Simulation(Task(build), [ft.Client(i, split, None) for i, split in enumerate(splits)], name)


def naive_client(model: torch.nn.Module, split: Any, c: dict[str, Any]) -> torch.nn.Module:
    """One client's training as researchers write it."""
    model = copy.deepcopy(model)
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=c["lr"], momentum=c["momentum"], weight_decay=c["weight_decay"])
    loader = DataLoader(TensorDataset(*split), batch_size=c["batch"], shuffle=True)
    for _ in range(c["epochs"]):
        for x, y in loader:
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimiser.step()
    return model


def naive_round(server: torch.nn.Module, clients: list[Any], c: dict[str, Any]) -> None:
    states = [naive_client(server, split, c).state_dict() for split in clients]
    server.load_state_dict({k: torch.stack([s[k].float() for s in states]).mean(0) for k in states[0]})


def config(batch: int) -> dict[str, Any]:
    return defaults(ft.methods.fedavg.client) | {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4, "batch": batch}


def naive_rate(name: str, batch: int, seconds: float) -> float:
    """Samples a second of the naive loop, all cores as threads."""
    build, shape, classes, n = WORKLOADS[name]
    clients = [data(shape, classes, n, seed) for seed in range(CLIENTS.get(name, 4))]
    torch.set_num_threads(cores())
    server, done, began = build(), 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        naive_round(server, clients, config(batch))
        done += n * len(clients)
    return done / (time.perf_counter() - began)


def our_rate(name: str, batch: int, seconds: float, engine: str, workers: int) -> float:
    """Samples a second of our engine, one arm per worker; the first round is not counted."""
    made = problem(name)
    n = sum(len(made.data(i, "train")) for i in range(len(made.clients)))
    setting = Setting(ft.methods.fedavg, ft.FedEx(k=1), cohort=len(made.clients), engine=engine)
    arms = [Arm(i, defaults(ft.methods.fedavg.server), (config(batch),), 0.0) for i in range(workers)]
    place = Place(setting, made, NOWHERE)
    executor = Serial(place) if workers == 1 else Processes(place, workers)
    began, warm, done = time.perf_counter(), {}, 0
    last = began
    try:
        stopping = [False]
        for progress in executor.advance([Leg(arm, None, 10**6) for arm in arms], lambda: stopping[0]):
            now = time.perf_counter()
            for _ in progress.records:
                if len(warm) < workers:
                    warm.setdefault(progress.arm, now)
                    began = now
                else:
                    done, last = done + n, now
            if now - began > seconds and len(warm) == workers:
                stopping[0] = True
    finally:
        executor.close()
    return done / (last - began)


def _limit(name: str, seconds: float, answer: Any) -> None:
    torch.set_num_threads(1)
    build, shape, classes, _ = WORKLOADS[name]
    best = 0.0
    for batch in (32, 128, 256):
        model = build().to(memory_format=torch.channels_last)
        x, y = data(shape, classes, batch, 0)
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        parameters = list(model.parameters())
        torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
            done += batch
        best = max(best, done / (time.perf_counter() - began))
    answer.put(best)


def limit(name: str, seconds: float) -> float:
    """The practical limit: the network's best rate at any batch on one thread, times the cores."""
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    process = context.Process(target=_limit, args=(name, seconds, answer))
    process.start()
    rate: float = answer.get()
    process.join()
    return rate * cores()


def isolated(function: Callable[..., float], *arguments: Any) -> float:
    """Run in a process of its own, so that thread pools and caches do not leak from one side to the other."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(function, arguments)


def throughput(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for name in WORKLOADS:
        if arguments.workloads and name.split()[0] not in arguments.workloads:
            continue
        ceiling, rows = limit(name, arguments.seconds), []
        for batch in arguments.batches:
            sides: dict[str, list[float]] = {}
            for _ in range(arguments.repeats):  # interleaved
                sides.setdefault("naive", []).append(isolated(naive_rate, name, batch, arguments.seconds))
                sides.setdefault("sequential", []).append(
                    isolated_ours(name, batch, arguments.seconds, "sequential", cores())
                )
                if batched.covers(problem(name).task):
                    sides.setdefault("batched", []).append(
                        isolated_ours(name, batch, arguments.seconds, "batched", cores())
                    )
            rows.append({"workload": name, "batch": batch} | {side: statistics.median(v) for side, v in sides.items()})
        ceiling = max(ceiling, limit(name, arguments.seconds))
        found += [row | {"limit": ceiling} for row in rows]
        for row in found[-len(rows) :]:
            print(throughput_row(row), flush=True)
    return found


def isolated_ours(name: str, batch: int, seconds: float, engine: str, workers: int) -> float:
    # Not a daemon: it has workers of its own.
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_ours, args=(name, batch, seconds, engine, workers, answer))
    process.start()
    rate: float = answer.get()
    process.join()
    return rate


def _ours(name: str, batch: int, seconds: float, engine: str, workers: int, answer: Any) -> None:
    answer.put(our_rate(name, batch, seconds, engine, workers))


def throughput_row(row: dict[str, Any]) -> str:
    ours = max(row["sequential"], row.get("batched", 0.0))
    cells = [
        row["workload"], str(row["batch"]), f"{row['naive']:,.0f}", f"{row['sequential']:,.0f}",
        f"{row['batched']:,.0f}" if "batched" in row else "", f"{row['sequential'] / row['naive']:.1f}",
        f"{row['batched'] / row['naive']:.1f}" if "batched" in row else "", f"{100 * ours / row['limit']:.0f} %",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def study(arguments: argparse.Namespace) -> dict[str, float]:
    """SHA + FedEx, small CNN, MNIST by writer: ours against the same algorithm on the naive loop."""
    from fedtuner.data import mnist_writers

    made = mnist_writers.problem_small()
    schedule = ft.halving(arguments.budget, arguments.longest)
    began = time.perf_counter()
    tuned = ft.tune(made, schedule=schedule, progress=True)
    ours = time.perf_counter() - began
    torch.set_num_threads(cores())
    began = time.perf_counter()
    used = naive_study(made, schedule, tuned.setting)
    naive = time.perf_counter() - began
    return {"ours": ours, "naive": naive, "ratio": naive / ours, "rounds": used}


def naive_study(made: ft.Simulation, schedule: Any, setting: Setting) -> int:
    task = made.task
    assert isinstance(task, Task)
    space = ft.methods.base.default_space(setting.method, task.hyperparameters)
    sample = local(space, setting.method, setting.fedex, setting.seed)
    states: dict[int, Any] = {}
    scores: dict[int, Any] = {}
    used = 0

    def work_all(jobs: Any) -> list[Any]:
        return [naive_work(made, job) for job in jobs]

    steps, told = schedule.steps(), None
    while True:
        try:
            step = next(steps) if told is None else steps.send(told)
        except StopIteration:
            return used
        for i in step.arms:
            arm = sample(i)
            state = states.get(i) or begin(setting, made, arm)
            for following, record in rounds(setting, made, arm, state, step.until, NOWHERE, work_all):
                states[i], scores[i] = following, (record.error, record.loss)
                used += 1
        told = {i: scores[i] for i in step.arms}


def naive_work(made: ft.Simulation, job: Any) -> Any:
    """A client's round as researchers write it: a module from the weights, a DataLoader, torch.optim."""
    from fedtuner.federation import Report

    task = made.task
    assert isinstance(task, Task)
    server = task.module(job.w)
    for layer in server.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = job.config["dropout"]
    train, valid = made.data(job.client, "train"), made.data(job.client, "valid")
    before = naive_evaluate(server, valid)
    model = naive_client(server, (train.x.contiguous(), train.y), job.config)  # type: ignore[attr-defined]
    after = naive_evaluate(model, valid)
    w = np.concatenate([v.detach().numpy().ravel() for v in model.state_dict().values()])
    w = task_order(task, model) if any(part.axes for part in task.layout()) else w
    return Report(job.client, job.candidate, Update(w), len(train), before, after, bool(np.isfinite(w).all()))


def task_order(task: Task, model: torch.nn.Module) -> np.ndarray[Any, Any]:
    tensors = dict(model.state_dict())
    parts = []
    for part in task.layout():
        tensor = tensors[part.name].detach()
        parts.append((tensor.permute(0, 2, 3, 1) if part.axes else tensor).reshape(-1).numpy())
    return np.concatenate(parts)


def naive_evaluate(model: torch.nn.Module, split: Any) -> Any:
    from fedtuner.arm import readable
    from fedtuner.task import Metrics

    model.eval()
    loss, wrong = 0.0, 0
    with torch.no_grad():
        for x, y in DataLoader(TensorDataset(split.x.contiguous(), split.y), batch_size=64):
            output = model(x)
            loss += float(F.cross_entropy(output, y, reduction="sum"))
            wrong += int((output.argmax(1) != y).sum())
    return readable(Metrics(loss / len(split), wrong / len(split), len(split)), 1.0)


def overhead(arguments: argparse.Namespace) -> dict[str, float]:
    """Milliseconds a round of 10 clients whose training is next to nothing."""
    made = quadratics(clients=50, size=4, examples=1)
    setting = Setting(ft.methods.fedavg, ft.FedEx(k=1), cohort=10)
    arm = Arm(0, defaults(ft.methods.fedavg.server), (defaults(ft.methods.fedavg.client),), 0.0)
    return {"ms a round of 10 trivial clients": 1e3 * seconds_a_round(made, setting, arm, 300)}


def seconds_a_round(made: ft.Simulation, setting: Setting, arm: Arm, count: int) -> float:
    state = begin(setting, made, arm)
    work_all = partial(engines.work_all, setting, made)
    for following, _ in rounds(setting, made, arm, state, count // 10, NOWHERE, work_all):
        state = following
    first, began = state.round, time.perf_counter()
    for following, _ in rounds(setting, made, arm, state, count, NOWHERE, work_all):
        state = following
    return (time.perf_counter() - began) / (state.round - first)


def growth(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of a small study as one thing at a time grows."""
    found = []
    base = {"clients": 28, "rounds": 20, "arms": 4, "hidden": 64}
    for axis in base:
        for factor in (1, 2, 4):
            sizes = base | {axis: base[axis] * factor}
            row = {"axis": axis, "factor": factor, "seconds": isolated_growth(sizes, 1)}
            found.append(row)
            print(row, flush=True)
    one, two = (isolated_growth(base | {"rounds": 100, "arms": 8}, workers) for workers in (1, 2))
    found.append({"axis": "workers", "factor": 2, "speed-up": one / two})
    print(found[-1], flush=True)
    return found


def isolated_growth(sizes: dict[str, int], workers: int) -> float:
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_growth, args=(sizes, workers, answer))
    process.start()
    seconds: float = answer.get()
    process.join()
    return seconds


def _growth(sizes: dict[str, int], workers: int, answer: Any) -> None:
    from fedtuner.data.digits import clients

    every = clients(parts=2)
    chosen = [replace(every[i % 28], id=i) for i in range(sizes["clients"])]
    made = ft.Simulation(Task(partial(models.mlp, 64, sizes["hidden"], 10)), chosen)
    space = ft.Space({"lr": ft.Float(0.01, 0.1, log=True)})
    longest = sizes["rounds"]
    schedule = ft.random_search(longest * sizes["arms"], longest)
    cohort = sizes["clients"] // 2
    study = partial(ft.tune, made, space, fedex=None, schedule=schedule, cohort=cohort, engine="sequential")
    ft.tune(made, space, fedex=None, schedule=ft.random_search(2, 2), cohort=cohort, workers=1)  # warm
    began = time.perf_counter()
    study(workers=workers)
    answer.put(time.perf_counter() - began)


SECTIONS = {"throughput": throughput, "overhead": overhead, "growth": growth, "study": study}


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    made.add_argument("--workloads", nargs="+", help="W1 ... W5")
    made.add_argument("--batches", nargs="+", type=int, default=[8, 32, 128])
    made.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--budget", type=int, default=500, help="of the whole study")
    made.add_argument("--longest", type=int, default=50)
    arguments = made.parse_args()
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in arguments.only:
        kept[name] = SECTIONS[name](arguments)
        print(name, json.dumps(kept[name], indent=1) if name != "throughput" else "", flush=True)
        kept["machine"] = f"{platform.machine()}, {cores()} cores, torch {torch.__version__}"
        kept["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
