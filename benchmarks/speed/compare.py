"""Is one source tree slower than another? CPU seconds a round of both, in turns, on a machine that may be busy:

    python benchmarks/speed/compare.py --since 6e8a5d8                  # that commit and this tree
    python benchmarks/speed/compare.py --since 6e8a5d8 --cases W4 study --processes 10
    python benchmarks/speed/compare.py ../before/src src                # any two trees

Each tree has a process of its own, and they take turns: A B B A A B ... After some turns both are started anew, as
where memory comes to lie makes a difference of its own. A turn is a study by the public ``tune`` and counts CPU seconds
of the process and its workers, not the time that passes. Printed are medians, and the median of the ratios of
neighbouring turns with its 90 % interval: above 1, the second tree is slower. The same seeds give the same work; where
both trees give the same bits, the hashes of the final models are equal.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

Result = tuple[float, int, bytes]  # CPU seconds, rounds, the winner's model
CASES: dict[str, Callable[[], Result]] = {}


def case(function: Callable[[], Result]) -> Callable[[], Result]:
    """Note a case by its name."""
    CASES[function.__name__.replace("_", " ")] = function
    return function


@case
def W1() -> Result:  # noqa: N802
    return _training("femnist_cnn", (1, 28, 28), clients=4, examples=64, rounds=2)


@case
def W2() -> Result:  # noqa: N802
    return _training("cifar_cnn", (3, 24, 24), clients=4, examples=64, rounds=2)


@case
def W3() -> Result:  # noqa: N802
    return _training("char_lstm", (80,), clients=4, examples=32, rounds=2)


@case
def W4_sequential() -> Result:  # noqa: N802
    return _training("mlp", (64,), clients=64, examples=256, rounds=3, engine="sequential")


@case
def W4_batched() -> Result:  # noqa: N802
    return _training("mlp", (64,), clients=64, examples=256, rounds=12, engine="batched")


@case
def W5() -> Result:  # noqa: N802
    return _training("small_cnn", (1, 28, 28), clients=8, examples=128, rounds=3)


@case
def large_vectors() -> Result:
    """Ten clients of one small step each: what is done with vectors of 6.6 M floats is nearly all."""
    return _training("idle", (64,), clients=10, examples=1, rounds=4)


@case
def large_vectors_two_workers() -> Result:
    """The same, one arm's rounds shared by two workers: plans and reports of 6.6 M floats travel."""
    return _training("idle", (64,), clients=10, examples=1, rounds=4, workers=2)


@case
def trivial_round() -> Result:
    """Ten clients whose training is next to nothing."""
    return _trivial(rounds=200)


@case
def trivial_round_with_fedex() -> Result:
    import fedtuner as ft

    return _trivial(rounds=200, fedex=ft.FedEx(k=27))


@case
def trivial_round_with_a_store() -> Result:
    with tempfile.TemporaryDirectory() as folder:
        return _trivial(rounds=200, store=folder)


@case
def trivial_round_with_memory() -> Result:
    import fedtuner as ft

    return _trivial(rounds=200, method=ft.methods.scaffold)


@case
def study() -> Result:
    """Halving around FedEx on the digits, in a folder, two workers."""
    import fedtuner as ft

    with tempfile.TemporaryDirectory() as folder:
        return _tuned(
            _digits(), schedule=ft.halving(budget=120, longest=24, eta=3, eliminations=2), fedex=ft.FedEx(k=9),
            store=folder, workers=2,
        )  # fmt: skip


def _tuned(problem: Any, space: Any = None, **settings: Any) -> Result:
    import fedtuner as ft

    began = _cpu()
    made = ft.tune(problem, space, progress=False, **settings)
    return _cpu() - began, made.rounds_used, made.best.model.tobytes()


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _training(
    net: str, shape: tuple[int, ...], clients: int, examples: int, rounds: int, workers: int = 1, engine: str = "auto"
) -> Result:
    import fedtuner as ft

    space = _space(batch=32, dropout=0.0)
    return _tuned(
        _problem(net, shape, clients, examples), space, fedex=None, cohort=clients, workers=workers, engine=engine,
        schedule=ft.random_search(rounds, rounds),
    )  # fmt: skip


def _space(**more: Any) -> Any:
    """Return a space that leaves nothing to the trees: older ones left what is not named at its default."""
    import fedtuner as ft

    client = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4, "epochs": 1, **more}
    return ft.Space(client=client, server={"lr": 1.0, "momentum": 0.0, "gamma": 1.0})


def _trivial(rounds: int, **settings: Any) -> Result:
    import fedtuner as ft
    from fedtuner.testing.toys import quadratics

    usual = {"fedex": None, "cohort": 10, "workers": 1, "schedule": ft.random_search(rounds, rounds)}
    problem = _once("trivial", lambda: quadratics(clients=50, size=4, examples=1))
    rates = _space(batch=32, lr=ft.Float(0.01, 0.02)) if "fedex" in settings else _space(batch=32)
    if "method" in settings:  # its server has fewer hyperparameters
        rates = ft.Space(client=rates.client, server={"lr": 1.0})
    return _tuned(problem, rates, **(usual | settings))


_MADE: dict[Any, Any] = {}


def _once(key: Any, make: Callable[[], Any]) -> Any:
    if key not in _MADE:
        _MADE[key] = make()
    return _MADE[key]


def _digits() -> Any:
    return _once("digits", _module("problems.digits", "data.digits").problem)


def _module(name: str, before: str) -> Any:
    """Return a module that had another name in older trees."""
    try:
        return importlib.import_module(f"fedtuner.{name}")
    except ModuleNotFoundError:
        return importlib.import_module(f"fedtuner.{before}")


def _problem(net: str, shape: tuple[int, ...], clients: int, examples: int) -> Any:
    """Return clients with random data; only the first validates, and that on one example."""
    import torch

    import fedtuner as ft

    models = _module("problems.models", "models")

    def build() -> Any:
        if net == "cifar_cnn":
            return models.cifar_cnn()[1:]  # without its crops
        if net != "idle":
            return models.mlp(64, 64, 10) if net == "mlp" else getattr(models, net)()
        made = models.mlp(64, 64, 10)
        made.register_parameter("idle", torch.nn.Parameter(torch.zeros(6_600_000)))  # it has no gradient
        return made

    def inputs(rng: np.random.Generator) -> Any:
        if net == "char_lstm":
            return rng.integers(80, size=(examples, *shape))
        return rng.standard_normal((examples, *shape), np.float32)

    def make() -> Any:
        rng = np.random.default_rng(0)
        data = [(inputs(rng), rng.integers(10, size=examples)) for _ in range(clients)]
        valid = (data[0][0][:1], data[0][1][:1])
        made = [ft.Client(i, split, valid if i == 0 else None) for i, split in enumerate(data)]
        return ft.Simulation(ft.pytorch.Task(build), made)

    return _once((net, clients, examples), make)


def serve() -> None:
    """Do the cases that are asked for, one a line."""
    for line in sys.stdin:
        seconds, rounds, model = CASES[line.strip()]()
        measured = {"seconds": seconds / rounds, "model": hashlib.blake2b(model, digest_size=6).hexdigest()}
        print(json.dumps(measured), flush=True)


class Tree:
    """A source tree, and the process that measures it."""

    def __init__(self, source: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(source).resolve()), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"], env=environment, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip

    def turn(self, name: str) -> dict[str, Any]:
        """Return what a case costs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{name!r} failed")
        measured: dict[str, Any] = json.loads(line)
        return measured

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(name: str, sources: list[str], turns: int, processes: int) -> None:
    """Print what a case costs in both trees."""
    costs: list[list[float]] = [[], []]
    hashes = set()
    for _ in range(processes):
        trees = [Tree(source) for source in sources]
        hashes |= {tree.turn(name)["model"] for tree in trees}  # also warms up
        for n in range(turns):
            for side in (0, 1) if n % 2 == 0 else (1, 0):
                costs[side].append(trees[side].turn(name)["seconds"])
        for tree in trees:
            tree.close()
    ratios = [b / a for a, b in zip(*costs, strict=True)]
    drawn = sorted(statistics.median(random.Random(i).choices(ratios, k=len(ratios))) for i in range(1000))
    first, second = (1e3 * statistics.median(cost) for cost in costs)
    same = "same bits" if len(hashes) == 1 else "other bits"
    print(
        f"{name:28} {first:10.3f} {second:10.3f} {statistics.median(ratios):8.3f} "
        f"[{drawn[50]:.3f}, {drawn[949]:.3f}] {min(costs[1]) / min(costs[0]):8.3f}  {same}",
        flush=True,
    )


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("trees", nargs="*", help="two folders with the package fedtuner in them")
    made.add_argument("--since", metavar="COMMIT", help="compare this commit with the tree that this script is in")
    made.add_argument("--cases", nargs="+", default=[""], help=f"those that begin so: {', '.join(CASES)}")
    made.add_argument("--turns", type=int, default=6, help="of each process")
    made.add_argument("--processes", type=int, default=4, help="of each tree and case")
    made.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = made.parse_args()
    if arguments.serve:
        return serve()
    if len(arguments.trees) != (0 if arguments.since else 2):
        made.error("give two source trees, or --since COMMIT")
    with at(arguments.since) if arguments.since else nullcontext(arguments.trees) as trees:
        print(f"{'CPU ms a round':28} {'first':>10} {'second':>10} {'ratio':>8} {'90 % interval':>16} {'of least':>8}")
        for name in CASES:
            if name.startswith(tuple(arguments.cases)):
                compare(name, trees, arguments.turns, arguments.processes)
    return None


@contextmanager
def at(commit: str) -> Iterator[list[str]]:
    """Give the source of a commit, in a worktree in a temporary folder, and the source of this tree."""
    root = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder, "before")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", before, commit], cwd=root, check=True)
        try:
            yield [str(before / "src"), str(root / "src")]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", before], cwd=root, check=True)


if __name__ == "__main__":
    main()
