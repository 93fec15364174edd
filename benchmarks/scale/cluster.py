"""Studies on a simulated cluster of 10 to 1,000 workers: makespan, the driver's load, bytes, and how busy workers are.

    python benchmarks/scale/cluster.py            # all scenarios; writes benchmarks/scale/results/cluster.json
    python benchmarks/scale/cluster.py --only "27 arms"

The driver of the Ray executor (``fedtuner.run.executors.on_ray``), its policy, the schedule, the session and the
journal are the real ones, with every decision and every record. Workers only let the time pass that training would
take, on a clock that counts (``virtual.py``); what calls, waits, bytes and saves cost the driver was measured
(``calibrate.py``).

*Efficiency* is the clients' training time over makespan times workers, after the workers have started. The schedule
bounds it, whatever the driver does (*bound*): arms wait for each other at a rung, an arm's rounds come one after the
other, and a round has only so many clients to share out.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import fedtuner as ft
from fedtuner.core.metric import NOTHING, Metrics
from fedtuner.core.model import Hyper, ModelDefaults, Part
from fedtuner.core.records import Key, State
from fedtuner.core.store import Event, Note
from fedtuner.rng import stream
from fedtuner.run import saving
from fedtuner.run.executors.on_ray import Ray, driver, pool
from fedtuner.run.store import InMemory
from fedtuner.run.store.lines import encode

from virtual import CLUSTER, Cluster, Costs, Ghost, running  # isort: skip

RESULTS = Path(__file__).parent / "results"
ENTRIES = 16  # of the arrays that stand for models
CLIENTS, COHORT, EXAMPLES = 10_000, 10, 200
PER_NODE = 8  # workers
MEMORY = 20e9  # of a node's object store


class Sleeper(ModelDefaults):
    """A model whose training only takes time: ``seconds`` for an example and epoch."""

    own_training = True
    size = trainable = ENTRIES
    hyperparameters = {"epochs": Hyper(ft.Int(1, 4), 1, low=1, whole=True, role="work")}  # noqa: RUF012

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def layout(self) -> list[Part]:
        return [Part("w", (ENTRIES,))]

    def initial(self, seed: int) -> Any:
        return np.zeros(ENTRIES, np.float32).view(Ghost)

    def prepare(self, split: Any) -> Any:
        return () if split is None else split

    def fit(self, w: Any, data: Any, config: Any, seed: int) -> Any:
        if CLUSTER:
            CLUSTER[-1].work(self.seconds * len(data) * config["epochs"])
        return w

    def evaluate(self, w: Any, data: Any, config: Any) -> Metrics:
        return Metrics(1.0, 0.5 + 0.1 * data[0], len(data)) if len(data) else NOTHING


class Charged(InMemory):
    """A store in memory that makes a journal's lines, and takes the time of a disk."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster, self.lines, self.saved, self.held = cluster, 0, 0, 0

    def save(self, key: Key, state: State, belief: Any) -> str:
        size, costs = sum(v.nbytes for v in (state.w, *state.slots.values())), self.cluster.costs
        self.cluster.charge(costs.save + costs.sync + size * (costs.save_byte + costs.disk_byte))
        self.saved += size
        return super().save(key, state, belief)

    def append(self, events: Sequence[Event], notes: Sequence[Note] = ()) -> None:
        self.lines += len(encode(events))
        super().append(events, notes)


@dataclass(frozen=True)
class Scenario:
    """A study on a cluster."""

    workers: int
    arms: int
    megabytes: float  # of the model
    rounds: int = 12  # of an arm, up to its first rung
    halving: bool = False  # eliminations by 3 down to one arm, with as many rounds after each; else none
    unequal: bool = False  # arms of 1 to 4 epochs
    seconds: float = 0.2  # of a client's training, for an epoch
    every: float = 10.0  # between the states of an arm that the driver saves

    @property
    def name(self) -> str:
        how = "halving" if self.halving else "no elimination"
        how += ", 1 to 4 epochs" if self.unequal else ""
        return f"{self.workers} workers, {self.arms} arms, {self.megabytes:g} MB, {how}, {self.seconds:g} s a client"

    @property
    def rungs(self) -> list[tuple[int, int]]:
        """Arms and rounds of each rung."""
        if not self.halving:
            return [(self.arms, self.rounds)]
        return [(self.arms // 3**n, self.rounds) for n in range(round(math.log(self.arms, 3)) + 1)]

    def schedule(self) -> Any:
        if not self.halving:
            return ft.random_search(self.arms * self.rounds, self.rounds)
        budget, last = sum(arms * rounds for arms, rounds in self.rungs), len(self.rungs) * self.rounds
        return ft.halving(budget=budget, longest=last, eta=3, eliminations=len(self.rungs) - 1)

    def bound(self) -> float:
        """Return the efficiency that the schedule allows where all arms have the same work."""
        alone = math.ceil(COHORT / min(COHORT, self.workers))  # clients one after the other in an arm's round
        least = sum(rounds * max(arms * COHORT / self.workers, alone) for arms, rounds in self.rungs)
        return sum(arms * rounds for arms, rounds in self.rungs) * COHORT / (least * self.workers)


def _make(id: Any, split: str) -> Any:
    count = EXAMPLES if split == "train" else 2
    return np.full(count, stream(0, "client", id).random())


def study_of(scenario: Scenario, **where: Any) -> ft.Study:
    """Run a scenario's study."""
    clients = ft.LazyClients(CLIENTS, (EXAMPLES, 2, 2), _make)
    problem = ft.Simulation(Sleeper(scenario.seconds / EXAMPLES), clients, "sleeping")
    space = ft.Space({"epochs": ft.Int(1, 4)} if scenario.unequal else {"epochs": [1]}, {"lr": ft.Float(0.5, 1.0)})
    return ft.tune(
        problem, space, fedex=None, schedule=scenario.schedule(), cohort=COHORT, progress=False, **where
    )  # fmt: skip


LAST: list[ft.Study] = []  # the study that was simulated last


def simulate(scenario: Scenario, costs: Costs) -> dict[str, Any]:
    """Run a study on a simulated cluster and return what it took."""
    Ghost.scale = scenario.megabytes * 1e6 / (4 * ENTRIES)
    cluster = Cluster(scenario.workers, PER_NODE, MEMORY, costs)
    began, store = time.process_time(), Charged(cluster)
    with (
        running(cluster, driver.__package__, saving.__name__),
        patch.object(pool.pool, "rest", lambda kind, actors: None),
    ):
        study = study_of(scenario, store=store, workers=scenario.workers, executor=Ray(every=scenario.every))
        makespan = cluster.monotonic()
    LAST[:] = [study]
    busy = sum(actor.busy for actor in cluster.actors)
    rounds = study.rounds_used
    assert rounds == sum(arms * n for arms, n in scenario.rungs), rounds
    return {
        **asdict(scenario),
        "name": scenario.name,
        "rounds_used": rounds,
        "hired": len(cluster.actors),
        "makespan": makespan,
        "efficiency": busy / (scenario.workers * (makespan - costs.start)),
        "bound": None if scenario.unequal else scenario.bound(),
        "driver_processor": cluster.processor,
        "driver_ray_and_saving": cluster.charged,
        "driver_load": (cluster.processor + cluster.charged) / makespan,
        "driver_calls": cluster.calls,
        "driver_network_bytes": cluster.nodes["node 0"].moved,
        "all_network_bytes": sum(node.moved for node in cluster.nodes.values()) // 2,
        "saved_bytes": store.saved,
        "journal_bytes": store.lines,
        "driver_memory_bytes": int(scenario.arms * scenario.megabytes * 1e6),  # the latest state of each arm
        "took": time.process_time() - began,
    }


def scenarios() -> list[Scenario]:
    sizes = (0.1, 1, 10, 100)
    many = [Scenario(27, 27, size, 40) for size in sizes]
    many += [Scenario(27, 27, 100, 40, every=60.0), Scenario(27, 27, 1, 40, unequal=True)]
    many += [Scenario(workers, 27, 1, 20, halving=True) for workers in (10, 27, 100)]
    many += [Scenario(workers, 1, 1, 300) for workers in (1, 5, 10, 27)]  # the clients of a round are spread
    many += [Scenario(10, 1, size, 300) for size in (10, 100)]
    many += [Scenario(workers, 243, 1, 6) for workers in (10, 100, 300)]
    many += [Scenario(workers, 729, 1, 6) for workers in (100, 1000)]
    many += [Scenario(1000, 729, 1, 6, seconds=seconds) for seconds in (2.0, 0.02)]
    many += [Scenario(1000, 729, size, 6) for size in (0.1, 10, 100)]
    many += [Scenario(1000, 729, 100, 6, seconds=4.0, every=600.0)]
    return [*many, Scenario(1000, 729, 1, 3, halving=True, seconds=0.5)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Studies on a simulated cluster.")
    parser.add_argument("--only", default="", help="scenarios whose name has this in it; others stay as they were")
    parser.add_argument("--out", type=Path, default=RESULTS / "cluster.json")
    parser.add_argument("--table", action="store_true", help="only print what was found, as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print("\n".join(table(json.loads(arguments.out.read_text())["rows"])))
        return
    known = json.loads((RESULTS / "calibration.json").read_text())
    costs = Costs(**known)
    kept = json.loads(arguments.out.read_text())["rows"] if arguments.only and arguments.out.exists() else []
    rows = {(row["name"], row["every"]): row for row in kept}
    for scenario in scenarios():
        if arguments.only in scenario.name:
            row = rows[scenario.name, scenario.every] = simulate(scenario, costs)
            print(line(row), flush=True)
            arguments.out.write_text(json.dumps({"costs": asdict(costs), "rows": [*rows.values()]}, indent=1) + "\n")


def line(row: dict[str, Any]) -> str:
    bound = "" if row["bound"] is None else f" (bound {row['bound']:.0%})"
    return (
        f"{row['name']}, saved every {row['every']:g} s: {row['makespan']:.0f} s, efficiency {row['efficiency']:.0%}"
        f"{bound}, driver {row['driver_load']:.0%} busy, {row['driver_network_bytes'] / 1e9:.1f} GB through it "
        f"[{row['took']:.0f} s]"
    )


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return lines of Markdown."""
    made = ["| workers | arms | model | | makespan | efficiency (bound) | driver | through it |", "|---" * 8 + "|"]
    for row in rows:
        how = ["halving"] if row["halving"] else []
        how += ["1 to 4 epochs"] if row["unequal"] else []
        how += [f"{row['seconds']:g} s a client"] if row["seconds"] != 0.2 else []
        how += [f"saved every {row['every']:g} s"] if row["every"] != 10 else []
        bound = "" if row["bound"] is None else f" ({row['bound']:.0%})".replace("%", " %")
        cells = (
            f"{row['workers']:,}", str(row["arms"]), f"{row['megabytes']:g} MB", ", ".join(how),
            f"{row['makespan']:.0f} s", f"{row['efficiency']:.0%}".replace("%", " %") + bound,
            f"{row['driver_load']:.0%}".replace("%", " %"), f"{row['driver_network_bytes'] / 1e9:.1f} GB",
        )  # fmt: skip
        made.append(f"| {' | '.join(cells)} |")
    return made


if __name__ == "__main__":
    main()
