"""How long it takes to read a study: journals of many rounds, and of many arms of a large model, in CPU seconds.

    python benchmarks/journal.py

Made in a temporary folder from random numbers, in the form that studies have. What is timed is what ``fedtuner show``
(``summary``), ``fedtuner diff`` and writing a journal do.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import fedtuner as ft
from fedtuner import methods, samplers, tables
from fedtuner.core.method import default_space, defaults
from fedtuner.core.records import Arm, Record, Row, State
from fedtuner.core.setup import Setup
from fedtuner.core.store import Begun, Done, Eliminated, Evaluated, Evaluation, Event, Started, Won
from fedtuner.report import differences, journal_of, summary
from fedtuner.run.store import Folder
from fedtuner.run.store.lines import FORMAT, encode

CASES = {  # arms, rounds of all arms, clients per round, entries of w
    "4,000 rounds of ten clients": (27, 4_000, 10, 5_000),
    "100 arms of a model of 6.6 M parameters": (100, 400, 10, 6_600_000),
    "40,000 rounds of ten clients": (270, 40_000, 10, 5_000),
}
SAVED = 10  # rounds between two states that are named in the journal
BUDGET = {"4,000 rounds of ten clients": 0.5, "100 arms of a model of 6.6 M parameters": 1.0}  # CPU seconds


def events(arms: int, rounds: int, clients: int, size: int) -> Iterator[Event]:
    """Yield what happens in a finished study of random numbers: every arm gets the same number of rounds."""
    rng, each = np.random.default_rng(0), rounds // arms
    space = default_space(methods.fedavg, {})
    setup = Setup(
        method=methods.fedavg, space=space, schedule=ft.random_search(arms * each, each), tuner=ft.FedEx(),
        sampler=samplers.uniform,
    )  # fmt: skip
    problem = {"name": "random", "clients": 1000, "fingerprint": "0" * 24}
    layout = [{"name": "w", "shape": [size], "axes": []}]
    yield Begun(FORMAT, tables.plain(setup.describe()), problem, layout, {})
    for id in range(arms):
        client, server = ({**defaults(h), **c} for h, c in zip((methods.fedavg.client, methods.fedavg.server),
                          space.draw(rng), strict=True))  # fmt: skip
        others = ({**client, **space.near(client, 0.1, rng)} for _ in range(26))
        yield Started(Arm(id, client, server), (client, *others))
    for t in range(1, each + 1):
        for id in range(arms):
            a, b, c, d, entropy, confidence = rng.random(6).tolist()
            rows = tuple(
                Row(f"client-{rng.integers(1000)}", int(rng.integers(27)), 100, 20, *rng.random(4).tolist())
                for _ in range(clients)
            )
            record = Record(
                id, t, clients, 0, 0, 0, 100 * clients, 20 * clients, clients, a, b, c, d, b, d, entropy, 3, confidence,
                False, rows,
            )  # fmt: skip
            saved = t % SAVED == 0 or t == each
            yield Done(record, tuple(rng.dirichlet(np.ones(27)).tolist()) if saved else (), "0a1b2c3d" if saved else "")
    for id in range(1, arms):
        yield Eliminated(id, each, (0.5, 0.5))
    yield Won(0, each, (0.4, 0.4))
    yield Evaluated(0, each, "test", "mode", Evaluation(0.5, 0.5, 0.25, 0.25, 20_000, 1000))


def cpu(work: Callable[[], object], times: int = 5) -> float:
    """Return the least CPU time of a few calls."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def main() -> None:
    """Print a line for each case."""
    print(f"{'':42}{'journal':>10}{'states':>10}{'write':>9}{'show':>9}{'diff':>9}   CPU seconds")
    for name, (arms, rounds, clients, size) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "study"
            (path / "states").mkdir(parents=True)
            happened = list(events(arms, rounds, clients, size))
            (path / "journal.jsonl").write_bytes(encode(happened))
            state = State(rounds // arms, np.zeros(size, np.float32), None)
            Folder(path).save((0, rounds // arms), state, {})
            for id in range(1, arms):  # hard links: the states' bytes do not matter
                (path / "states" / f"{id}-{rounds // arms}.safetensors").hardlink_to(
                    path / "states" / f"0-{rounds // arms}.safetensors"
                )
            write, show = cpu(lambda kept=happened: encode(kept)), cpu(lambda at=path: summary(at))
            one, other = journal_of(path), journal_of(path)
            diff = cpu(lambda a=one, b=other: differences(a, b))
            journal = (path / "journal.jsonl").stat().st_size / 1e6
            states = sum(file.stat().st_size for file in (path / "states").iterdir()) / 1e6
            print(f"{name:42}{journal:7.1f} MB{states:7.0f} MB{write:9.3f}{show:9.3f}{diff:9.3f}")
            if show > BUDGET.get(name, np.inf):
                raise SystemExit(f"{name}: {show:.2f} s to show, but it should be at most {BUDGET[name]} s")


if __name__ == "__main__":
    main()
