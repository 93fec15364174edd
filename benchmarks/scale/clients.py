"""What a federation's size costs: time and memory of a study with 10^3 to 10^6 clients, on one worker.

    python benchmarks/scale/clients.py                    # writes benchmarks/scale/results/clients.json
    python benchmarks/scale/clients.py --all 1000000      # also evaluates all clients, of up to so many

Clients are known by ids and sizes; their data is made when they are visited (``ft.LazyClients``). The model is a small
linear one in NumPy, so that what is measured is fedtuner's own work. Every size runs in a process of its own. Times are
seconds of the processor, as other programs may be running; memory is the largest resident size, without that of Python
and the imports.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fedtuner as ft
from fedtuner.core.round import Round
from fedtuner.rng import stream

SIZES = (1_000, 10_000, 100_000, 1_000_000)
SCHEDULE = ft.halving(budget=200, longest=50)
SAMPLE = 1_000
RESULTS = Path(__file__).parent / "results" / "clients.json"


def make(id: Any, split: str) -> tuple[Any, Any]:
    """Return a client's split: points on either side of a line of its own."""
    rng = stream(0, "scale", id, split)
    x = rng.normal(size=(_size(id, split), 8)).astype(np.float32)
    return x, (x[:, 0] + 0.3 * x[:, 1 + id % 7] > 0).astype(np.int64)


def _size(id: int, split: str) -> int:
    return 8 + id % 33 if split == "train" else 2 + id % 5


def fit(arrays: dict[str, Any], split: Any, config: Any, seed: int) -> dict[str, Any]:
    x, y = split
    w = arrays["w"].copy()
    for _ in range(2):
        w -= config["lr"] * x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y)
    return {"w": w}


def evaluate(arrays: dict[str, Any], split: Any, config: Any) -> tuple[float, float]:
    x, y = split
    score = x @ arrays["w"]
    return float(np.logaddexp(0, np.where(y == 1, -score, score)).mean()), float(((score > 0) != y).mean())


def problem(clients: int) -> ft.Simulation:
    ids = np.arange(clients)
    sizes = (8 + ids % 33, 2 + ids % 5, 2 + ids % 5)
    model = ft.Learner({"w": np.zeros(8, np.float32)}, fit, evaluate)
    return ft.Simulation(model, ft.LazyClients(clients, sizes, make), f"{clients} clients")


def measure(clients: int, everyone: bool) -> dict[str, Any]:
    """Return what a study with so many clients costs, step by step."""
    space, found, began = ft.Space({"lr": ft.Float(0.01, 10.0, log=True)}), {"clients": clients}, _memory()

    def timed(name: str, work: Callable[[], Any]) -> Any:
        before = time.process_time()
        result = work()
        found[name] = time.process_time() - before
        found[f"{name}_mb"] = _memory() - began
        return result

    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "study"

        def tune() -> ft.Study:
            return ft.tune(made, space, schedule=SCHEDULE, cohort=10, workers=1, store=store, progress=False)

        made = timed("problem", lambda: problem(clients))
        timed("check", lambda: (made.check(), made.describe()))
        study = timed("tune", tune)
        found["rounds"], found["journal_bytes"] = study.rounds_used, (store / "journal.jsonl").stat().st_size
        round, state = Round(study.setup, made), study.state(study.winner)
        arm = study.journal.arms[study.winner[0]]
        timed("plan_1000", lambda: [round.plan(arm, state, made.present()) for _ in range(1000)])
        timed("resume", tune)
        found["sampled"] = timed("sample", lambda: study.evaluate("test", sample=SAMPLE))
        if everyone:
            found["all"] = timed("everyone", lambda: study.evaluate("test", progress=False))
    return found


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="What a federation's size costs.")
    parser.add_argument("--all", type=int, default=10_000, help="evaluate all clients, of up to so many")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(measure(arguments.one, arguments.one <= arguments.all)))
        return
    rows = []
    for n in arguments.sizes:
        command = [sys.executable, __file__, "--one", str(n), "--all", str(arguments.all)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print(f"{n:>9,} clients: {line(rows[-1])}", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    about = {"python": platform.python_version(), "numpy": np.__version__, "cohort": 10, "sample": SAMPLE}
    arguments.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    print(f"written to {arguments.out}")


def line(row: dict[str, Any]) -> str:
    parts = {
        "check": f"{row['problem'] + row['check']:.2f} s",
        "a plan": f"{row['plan_1000'] * 1000:.0f} us",
        "a round": f"{row['tune'] / row['rounds'] * 1000:.1f} ms",
        "a journal line": f"{row['journal_bytes'] / row['rounds']:.0f} B",
        "resume": f"{row['resume']:.2f} s",
        f"{SAMPLE} drawn": f"{row['sample']:.1f} s",
        "memory": f"{row['sample_mb']:.0f} MB",
    }
    if "everyone" in row:
        parts["all"] = f"{row['everyone']:.0f} s, {row['everyone_mb']:.0f} MB"
    return "; ".join(f"{name} {value}" for name, value in parts.items())


if __name__ == "__main__":
    main()
