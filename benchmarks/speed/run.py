"""How fast is local training: the loop as researchers write it, ours, and what the hardware allows. One command:

    python benchmarks/speed/run.py                  # all sections, about 25 minutes on a quiet machine
    python benchmarks/speed/run.py --only throughput --workloads W4 W5

Every ratio is taken within one run, its sides interleaved; the machine should be quiet. Results go to
benchmarks/results/speed.json, and from there into the tables of README.md and docs/speed.md.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import naive
import tables
import torch
import torch.nn.functional as F
from workloads import WORKLOADS, config, examples, problem

import fedtuner as ft
from fedtuner.core.executor import Advance, Executor
from fedtuner.core.round import Round
from fedtuner.problems import models
from fedtuner.pytorch import Task
from fedtuner.run.executors import cores, open_executor
from fedtuner.run.store import InMemory
from fedtuner.run.versions import machine
from fedtuner.tasks import batched
from fedtuner.testing.rounds import a_round, an_arm
from fedtuner.testing.toys import quadratics

HERE = Path(__file__).parent
FLOWER = HERE.parent.parent / ".venv-flower" / "bin" / "python"  # made by: make flower-simulation


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a process of its own, so that thread pools, caches and memory do not leak from one side to the other."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, arguments))  # no daemon: it may have workers
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise SystemExit(f"{function.__name__}{arguments} failed") from None
    finally:
        process.join()


def _answer(answer: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    answer.send(function(*arguments))


# Throughput


def throughput(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Samples a second of the naive loop and of both engines, with all cores, and the limit."""
    found = []
    for name in WORKLOADS:
        if arguments.workloads and name.split()[0] not in arguments.workloads:
            continue
        limits, rows = [apart(limit, name, arguments.seconds)], []
        for batch in arguments.batches:
            sides: dict[str, list[float]] = {}
            for _ in range(arguments.repeats):  # interleaved
                for side in naive.DATA:
                    sides.setdefault(side, []).append(apart(naive.rate, name, batch, arguments.seconds, side))
                ours = ("sequential", "batched") if batched.covers(problem(name).task) else ("sequential",)
                for engine in ours:
                    rate = apart(our_rate, name, batch, arguments.seconds, engine, cores())
                    sides.setdefault(engine, []).append(rate)
            # The best of each side: whatever else the machine does only ever takes away.
            rows.append({"workload": name, "batch": batch} | {side: max(rates) for side, rates in sides.items()})
        limits.append(apart(limit, name, arguments.seconds))
        for row in rows:
            found.append(row | {"limit": max(limits)})
            print(tables.throughput_row(found[-1]), flush=True)
    return found


def our_rate(name: str, batch: int, seconds: float, engine: str, workers: int) -> float:
    """Samples a second of our engine, one arm per worker, each timed from its first round to its last."""
    made = problem(name)
    n = sum(made.size(i, "train") for i in range(len(made.clients)))
    round = a_round(ft.methods.fedavg, made, cohort=len(made.clients), engine=engine)
    executor, times = opened(round, workers), {i: list[float]() for i in range(workers)}
    began, stop = math.inf, threading.Event()
    try:
        for progress in executor.advance(started(round, batch, workers, 10**6), stop.is_set):
            now = time.perf_counter()
            if not stop.is_set():  # what comes later comes while others rest
                times[progress.arm] += [now] * len(progress.records)
            if all(times.values()):
                began = min(began, now)
            if now - began > seconds and all(len(seen) > 1 for seen in times.values()):
                stop.set()
    finally:
        executor.close()
    return sum(n * (len(seen) - 1) / (seen[-1] - seen[0]) for seen in times.values())


def opened(round: Round, workers: int) -> Executor:
    """An executor that keeps nothing."""
    return open_executor(round, InMemory().blobs, workers)


def started(round: Round, batch: int, arms: int, until: int) -> list[Advance]:
    """Arms that begin, and are to train until a round."""
    made = [an_arm(ft.methods.fedavg, config(batch), id=i) for i in range(arms)]
    return [Advance(arm, round.begin(arm), until) for arm in made]


def limit(name: str, seconds: float) -> float:
    """The practical limit: the best rate of the gradient alone at any of these batches on one thread, times cores."""
    torch.set_num_threads(1)
    best = 0.0
    for batch in (32, 64, 128, 256, 512):
        model = WORKLOADS[name].build().to(memory_format=torch.channels_last)
        x, y = examples(name, batch)
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        parameters = list(model.parameters())
        torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
            done += batch
        best = max(best, done / (time.perf_counter() - began))
    return best * cores()


# A whole study


def study(arguments: argparse.Namespace) -> dict[str, Any]:
    """SHA + FedEx, small CNN, MNIST by writer: ours against the same algorithm on the naive loop."""
    ours = [apart(our_study, arguments.budget, arguments.longest)]
    slow, used = apart(naive_study, arguments.budget, arguments.longest)
    ours.append(apart(our_study, arguments.budget, arguments.longest))
    mean = sum(ours) / 2
    return {"ours": mean, "naive": slow, "ratio": slow / mean, "rounds": used, "longest": arguments.longest}


def our_study(budget: int, longest: int) -> float:
    from fedtuner.problems import mnist_writers

    made, schedule = mnist_writers.problem_small(), ft.halving(budget, longest)
    began = time.perf_counter()
    ft.tune(made, schedule=schedule)
    return time.perf_counter() - began


def naive_study(budget: int, longest: int) -> tuple[float, int]:
    from fedtuner.problems import mnist_writers

    made, schedule = mnist_writers.problem_small(), ft.halving(budget, longest)
    torch.set_num_threads(cores())
    began = time.perf_counter()
    used = naive.study(made, schedule)
    return time.perf_counter() - began, used


# Overhead


def overhead(arguments: argparse.Namespace) -> dict[str, float | None]:
    """Milliseconds a round of 10 clients whose training is next to nothing; and what it takes to start."""
    ours = apart(trivial_round)
    started = [sys.executable, "-c"]
    return {
        "ours": ours,
        "flower": flower_round(arguments.flower),
        "import": seconds([*started, "import fedtuner"]) - seconds([*started, "pass"]),
        "import torch": seconds([*started, "import torch"]) - seconds([*started, "pass"]),
        "help": seconds([sys.executable, "-m", "fedtuner.cli", "--help"]),
    }


def trivial_round() -> float:
    made = quadratics(clients=50, size=4, examples=1)
    round, arm = a_round(ft.methods.fedavg, made, cohort=10), an_arm(ft.methods.fedavg)
    began = time.perf_counter()
    for progress in opened(round, 1).advance([Advance(arm, round.begin(arm), 330)], lambda: False):
        if progress.records[-1].round == 30:
            began = time.perf_counter()
    return 1e3 * (time.perf_counter() - began) / 300


def flower_round(python: Path) -> float | None:
    """Milliseconds a round in Flower's simulation engine, where it is installed."""
    if not python.exists():
        return None
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_DISABLE_DOCKER_CPU_WARNING": "1"}
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, **quiet, "FLWR_HOME": home}
        command = [str(python), str(HERE / "flower_round.py")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    found: float = json.loads(done.stdout.splitlines()[-1])["ms"]
    return found


def seconds(command: list[str]) -> float:
    """The median time that a command takes."""
    took = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


# Growth


def growth(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds and peak memory of a small study as one thing at a time grows; and one worker against two."""
    found = []
    base = {"clients": 28, "rounds": 20, "arms": 4, "parameters": 1024}
    for axis in base:
        for factor in (1, 2, 4):
            took, memory = apart(grown, base | {axis: base[axis] * factor})
            found.append({"axis": axis, "factor": factor, "seconds": took, "MB": memory})
            print(found[-1], flush=True)
    for name, rounds_each in (("W5 small CNN", 6), ("W4 MLP 64-64-10", 60)):
        took = {workers: [] for workers in (1, 2)}
        for _ in range(arguments.repeats):  # interleaved
            for workers, seen in took.items():
                seen.append(apart(many_arms, name, rounds_each, workers))
        one, two = (min(seen) for seen in took.values())
        found.append({"axis": "workers", "factor": 2, "workload": name, "speed-up": one / two})
        print(found[-1], flush=True)
    return found


def grown(sizes: dict[str, int]) -> tuple[float, float]:
    from fedtuner.data.digits import clients

    every = clients(parts=2)
    chosen = [replace(every[i % 28], id=i) for i in range(sizes["clients"])]
    made = ft.Simulation(Task(partial(models.mlp, 64, sizes["parameters"], 10)), chosen)  # 75 for each hidden unit
    space, cohort = ft.Space({"lr": ft.Float(0.01, 0.1, log=True)}), sizes["clients"] // 2

    def search(arms: int, longest: int) -> None:
        schedule = ft.random_search(arms * longest, longest)
        ft.tune(made, space, fedex=None, schedule=schedule, cohort=cohort, workers=1, engine="sequential")

    search(1, 2)  # warm
    began = time.perf_counter()
    search(sizes["arms"], sizes["rounds"])
    return time.perf_counter() - began, peak()


def peak() -> float:
    """The most memory that this process has used, in MB. What getrusage says counts the parent's, too."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].removesuffix("kB")) / 1024


def many_arms(name: str, longest: int, workers: int) -> float:
    """Seconds of eight arms of equal work."""
    made = problem(name)
    round = a_round(ft.methods.fedavg, made, cohort=len(made.clients), engine=made.task.engine("auto").name)
    for i in range(len(made.clients)):
        made.data(i, "train")
    executor, work = opened(round, workers), started(round, 32, 8, longest)
    try:
        began = time.perf_counter()
        for _ in executor.advance(work, lambda: False):
            pass
        return time.perf_counter() - began
    finally:
        executor.close()


SECTIONS = {"throughput": throughput, "study": study, "overhead": overhead, "growth": growth}


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    made.add_argument("--workloads", nargs="+", help="W1 ... W5")
    made.add_argument("--batches", nargs="+", type=int, default=[8, 32, 128])
    made.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--budget", type=int, default=500, help="of the whole study")
    made.add_argument("--longest", type=int, default=50)
    made.add_argument("--flower", type=Path, default=FLOWER, help="a Python that has flwr[simulation]")
    arguments = made.parse_args()
    kept = json.loads(tables.RESULTS.read_text()) if tables.RESULTS.exists() else {}
    for name in arguments.only:
        found = SECTIONS[name](arguments)
        kept[name] = joined(kept.get(name, []), found) if name == "throughput" else found
        print(name, json.dumps(kept[name], indent=1) if name != "throughput" else "", flush=True)
        kept[f"{name} with"] = {"seconds": arguments.seconds, "repeats": arguments.repeats}
        kept["machine"] = {
            "processor": machine()["cpu"], "cores": cores(),
            "python": platform.python_version(), "torch": torch.__version__,
        }  # fmt: skip
        tables.RESULTS.parent.mkdir(exist_ok=True)
        tables.RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    tables.write(kept)


def joined(before: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is known of all workloads, where only some were measured again."""
    rows = {(row["workload"], row["batch"]): row for row in [*before, *found]}
    return [rows[key] for key in sorted(rows)]


if __name__ == "__main__":
    main()
