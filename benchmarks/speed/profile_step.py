"""Where a step of local training spends its time, on one thread: the engine's step, the bare gradient, and PyTorch's
own account of the step:

python benchmarks/speed/profile_step.py W1 --batch 32
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
from workloads import WORKLOADS, config, examples, problem

from fedtuner.core.model import Rates


def rate(step: Callable[[], None], batch: int, seconds: float) -> float:
    """Examples a second: the best of three."""
    step()
    found = []
    for _ in range(3):
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds / 3:
            step()
            done += batch
        found.append(done / (time.perf_counter() - began))
    return max(found)


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("workload", choices=[name.split()[0] for name in WORKLOADS])
    made.add_argument("--batch", type=int, default=32)
    made.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    arguments = made.parse_args()
    torch.set_num_threads(1)
    name = next(name for name in WORKLOADS if name.startswith(arguments.workload))
    given, batch = problem(name), arguments.batch
    task, data, c = given.task, given.data(0, "train"), config(batch)
    w, rows = task.initial(0), [np.arange(batch)] * 8
    module = WORKLOADS[name].build().to(memory_format=torch.channels_last)
    x, y = examples(name, batch)
    x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
    parameters = list(module.parameters())

    def bare() -> None:
        torch.autograd.grad(F.cross_entropy(module(x), y), parameters)

    with task.training(data, c, 0) as trainer:

        def steps() -> None:
            trainer.descend(w, rows, Rates(c["lr"], c["momentum"], c["weight_decay"]))

        print(f"{name}, batch {batch}, one thread, examples a second")
        print(f"bare gradient   {rate(bare, batch, arguments.seconds):,.0f}")
        print(f"engine's step   {rate(steps, 8 * batch, arguments.seconds):,.0f}")
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            steps()
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=10, max_name_column_width=40))


if __name__ == "__main__":
    main()
