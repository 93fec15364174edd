"""How a study scales: what Ray costs on this machine, and a cluster of up to 1,000 workers that only pretends.

python benchmarks/scale/run.py overhead      start, rounds and bytes, on two workers, beside worker processes
python benchmarks/scale/run.py pretend       10 to 1,000 workers, 27 to 729 arms, models of 0.1 to 100 MB
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from pretend import Costs, Model, PretendWire, Store

import fedtuner as ft
from fedtuner import methods, samplers
from fedtuner.core.executor import Advance
from fedtuner.core.model import Vector
from fedtuner.core.records import State
from fedtuner.core.round import Round
from fedtuner.core.schedule import outline
from fedtuner.core.setup import Setup
from fedtuner.run.executors import Processes, channel
from fedtuner.run.executors.on_ray.driver import Driver
from fedtuner.run.session import Session, Where, play
from fedtuner.run.store import Folder, InMemory
from fedtuner.testing.rounds import a_round, an_arm
from fedtuner.testing.toys import Quadratics, quadratics
from fedtuner.tuners import none

MB = 10**6
COHORT = 10


def seconds_of(size: float) -> float:
    """Return what a round of ten clients with 100 examples and 3 epochs takes one core, by a model's bytes.

    docs/speed.md: 47,000 examples a second for a small network, 1,100 for one of 26 MB, on two cores.
    """
    return 0.1 + 0.2 * size / MB


# The pretended cluster


def simulate(workers: int, arms: int, size: int, costs: Costs, halved: bool = True) -> dict[str, float]:
    """Run a study of successive halving, or of as many arms that all train to the end, and return what it took."""
    eliminations = round(np.log(arms) / np.log(3))
    schedule: ft.schedules.Schedule = ft.random_search(50 * arms, 50)
    if halved:  # the paper's: 27 arms, 2000 rounds
        schedule = ft.halving(budget=74 * arms, longest=200, eta=3, eliminations=eliminations)
    problem = ft.Simulation(Model(size), quadratics().clients)
    space, fedavg = ft.Space({"lr": ft.Float(0.01, 1.0, log=True)}), methods.fedavg
    setup = Setup(
        method=fedavg, space=space, schedule=schedule, tuner=none, sampler=samplers.uniform, cohort=COHORT
    )  # fmt: skip
    wire = PretendWire(workers, seconds_of(size), COHORT, costs)
    with tempfile.TemporaryDirectory() as folder:

        def executor(round: Round, blobs: object, most: int | None) -> Driver:
            driver = Driver(round, blobs, ft.ray(), most, wire)  # type: ignore[arg-type]
            driver.close = lambda: None  # type: ignore[method-assign]
            driver._most_helpers = COHORT - 1
            return driver

        with Session(setup, problem, Where(Store(Path(folder) / "study", wire), executor=executor)) as session:
            wire.now()
            began, cpu = wire.clock, wire.cpu
            play(schedule, session)
            took, used = wire.now() - began, session.journal.rounds_used
            least = bound(session, workers, wire.seconds)
    busy = wire.cpu - cpu
    return {
        "rounds": used, "planned": outline(schedule).cost, "makespan": took, "least": least,
        "efficiency": least / took, "driver": busy / took, "bytes": wire.bytes,
    }  # fmt: skip


def bound(session: Session, workers: int, seconds: float) -> float:
    """Return what the rounds take at least: of the arms that run together, each has at most a worker per client."""
    reached = sorted(session.journal.round_of(arm) for arm in session.journal.arms)
    total, before = 0.0, 0
    while reached:
        together, until = len(reached), reached[0]
        total += (until - before) * together * seconds / min(workers, together * COHORT)
        before = until
        reached = [t for t in reached if t > until]
    return total


GRID = [
    (1, 1, False, 1), (5, 1, False, 1), (10, 1, False, 1), (10, 1, False, 26), (27, 27, False, 0.1),
    (27, 27, False, 26), (27, 27, False, 100),
    (10, 27, True, 26), (27, 27, True, 0.1), (27, 27, True, 26), (27, 27, True, 100), (100, 27, True, 26),
    (100, 243, True, 26), (300, 243, True, 1), (300, 243, True, 26), (300, 243, True, 100),
    (1000, 729, True, 0.1), (1000, 729, True, 1), (1000, 729, True, 26), (1000, 729, True, 100),
]  # fmt: skip
NAMES = "workers, arms, schedule, MB, s a round, rounds, takes (s), at least (s), efficiency, driver busy, GB"


def pretend() -> None:
    """Print what studies take on clusters that only pretend."""
    costs = calibrated()
    print(f"Of the driver's processor: {1e3 * costs.call:.2f} ms a call, {1e6 * costs.waiting:.2f} us for each that is")
    print(f"waited for, {1e9 * costs.copy:.2f} s to copy a GB, {1e9 * costs.save:.2f} s to save it; 10 Gbit/s.\n")
    print("|", NAMES.replace(", ", " | "), "|")
    print("|---" * len(NAMES.split(", ")) + "|")
    for workers, arms, halved, mb in GRID:
        found = simulate(workers, arms, int(mb * MB), costs, halved)
        kind = "halving" if halved else "all to the end"
        asked = f"| {workers} | {arms} | {kind} | {mb:g} | {seconds_of(mb * MB):.2f} | {found['rounds']}"
        took = f"{found['makespan']:.0f} | {found['least']:.0f} | {100 * found['efficiency']:.0f} %"
        print(f"{asked} | {took} | {100 * found['driver']:.0f} % | {found['bytes'] / 1e9:.1f} |", flush=True)


# What Ray costs here


def calibrated() -> Costs:
    """Measure on this machine what the driver's processor does for calls and bytes."""
    ray = _connected()

    class Echo:
        def answer(self, value: object) -> object:
            return value

    actor, n = ray.remote(Echo).remote(), 300
    ray.get(actor.answer.remote(0))
    began = time.process_time()
    for _ in range(n):
        ray.get(ray.wait([actor.answer.remote(0)])[0])
    call = (time.process_time() - began) / n
    never = ray.remote(lambda: None).options(resources={"nowhere": 1})
    waited = [never.remote() for _ in range(1000)]
    began = time.process_time()
    for _ in range(20):
        ray.wait(waited, timeout=0)
    waiting = (time.process_time() - began) / 20 / len(waited)
    for one in waited:
        ray.cancel(one)
    state = State(0, np.zeros(25 * MB // 4, np.float32), None)
    copy = least(lambda: channel.own(state)) / (25 * MB)
    with tempfile.TemporaryDirectory() as folder:
        store = Folder(folder)
        store.open()
        save = least(lambda: store.save((0, 0), state, {})) / (25 * MB)
        store.close()
    return Costs(call=call, waiting=waiting, copy=copy, save=save)


def least(work: object, times: int = 5) -> float:
    """Return the least of several processor times: others use this machine, too."""
    found = []
    for _ in range(times):
        began = time.process_time()
        work()  # type: ignore[operator]
        found.append(time.process_time() - began)
    return min(found)


def overhead(times: int = 3) -> None:
    """Print start, rounds and bytes on two workers, beside worker processes."""
    _connected()
    print("| | worker processes | Ray |")
    print("|---|---|---|")
    kinds = {
        "processes": lambda round, blobs: Processes(round, blobs, 2),
        "ray": lambda round, blobs: ft.ray()(round, blobs, 2),
    }
    found = {name: dict[str, float]() for name in kinds}
    for n in range(times):  # in turn
        for name, kind in kinds.items():
            for what, value in measured(kind):
                what = f"first {what}" if n == 0 and what.startswith("start") else what  # later ones have rested
                found[name][what] = min(value, found[name].get(what, np.inf))
    for what in found["ray"]:
        print(f"| {what} | {found['processes'][what]:.3g} | {found['ray'][what]:.3g} |")


def measured(kind: object) -> Iterator[tuple[str, float]]:
    store = InMemory()
    round = a_round(methods.fedavg, quadratics())
    began = time.monotonic()
    executor = kind(round, store.blobs)  # type: ignore[operator]
    arms = [an_arm(methods.fedavg, {"lr": 0.01}, id=id) for id in range(4)]
    _run(executor, [Advance(arm, round.begin(arm), 1) for arm in arms])
    yield "start of two workers, and a round of four arms, s", time.monotonic() - began
    for rounds in (1, 400):
        began = time.monotonic()
        _run(executor, [Advance(arm, round.begin(arm), rounds) for arm in arms])
        yield f"four arms to round {rounds}, ms a round", 1e3 * (time.monotonic() - began) / 4 / rounds
    executor.close()
    clients = [ft.Client(i, *([(np.ones((2, 1)), np.ones(2))] * 3)) for i in range(8)]
    round = a_round(methods.fedavg, ft.Simulation(Wide(25 * MB // 4), clients))
    executor = kind(round, store.blobs)  # type: ignore[operator]
    _run(executor, [Advance(arm, round.begin(arm), 1) for arm in arms])
    work = [Advance(arm, round.begin(arm), 1) for arm in arms]
    began = time.monotonic()
    _run(executor, work)
    yield "an arm of 25 MB there, a round and back, ms", 1e3 * (time.monotonic() - began) / 4
    executor.close()


class Wide(Quadratics):
    """A model of many entries, whose training costs nothing."""

    own_training = True

    def fit(self, w: Vector, data: object, config: object, seed: int) -> Vector:
        return w

    def evaluate(self, w: Vector, data: object, config: object) -> ft.Metrics:
        return ft.Metrics(0.5, 0.5, 1)


def _run(executor: object, work: list[Advance]) -> None:
    for _ in executor.advance(work, lambda: False):  # type: ignore[attr-defined]
        pass


def _connected() -> object:
    from fedtuner.run.executors.on_ray.cluster import connect, load

    ray = load()
    if not ray.is_initialized():
        connect("local")
    return ray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("overhead", "pretend"))
    {"overhead": overhead, "pretend": pretend}[parser.parse_args().part]()


if __name__ == "__main__":
    main()
