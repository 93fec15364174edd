"""What a call, a wait and a byte cost the driver: measured on this machine with a real Ray, for the simulated cluster.

    python benchmarks/scale/calibrate.py        # writes benchmarks/scale/results/calibration.json

All are seconds of the driver's processor, its Ray threads with them; but for the latency, which is wall time. What a
disk and a network take is assumed (``virtual.Costs``).
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner.core.records import State
from fedtuner.run.store import Folder

RESULTS = Path(__file__).parent / "results" / "calibration.json"
_MB = 1_000_000


class Echo:
    """An actor that answers with what it was told, after a while."""

    def say(self, size: int, seconds: float = 0.0) -> Any:
        time.sleep(seconds)
        return np.zeros(size, np.uint8)

    def hear(self, given: Any) -> None:
        """Take something."""


def cpu(work: Callable[[], Any], times: int = 3) -> float:
    """Return the processor's seconds of the fastest try."""
    took = []
    for _ in range(times):
        before = time.process_time()
        work()
        took.append(time.process_time() - before)
    return min(took)


def calls() -> dict[str, float]:
    """Return what Ray costs its driver."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    try:
        actor, sleeper = (ray.remote(Echo).options(num_cpus=0).remote() for _ in range(2))
        ray.get([one.say.remote(8) for one in (actor, sleeper)])
        n = 1000

        def round_trips() -> None:
            for _ in range(n):
                ray.get(actor.say.remote(8))

        trip = cpu(round_trips) / n
        began = time.monotonic()
        round_trips()
        latency = (time.monotonic() - began) / n
        pending = [sleeper.say.remote(8, 600.0) for _ in range(n)]
        wait = cpu(lambda: [ray.wait(pending, num_returns=n, timeout=0) for _ in range(10)]) / 10 / n
        big = actor.say.remote(100 * _MB)
        ray.wait([big])
        get = cpu(lambda: np.array(ray.get(big)), 2) / (100 * _MB)
        vector = np.zeros(100 * _MB, np.uint8)
        put = cpu(lambda: ray.put(vector), 2) / (100 * _MB)
    finally:
        ray.shutdown()
    return {"call": trip, "latency": latency, "wait": wait, "get_byte": get, "put_byte": put}


def saving() -> dict[str, float]:
    """Return what it takes to save a state in a folder: any, and per byte of a large one."""
    with tempfile.TemporaryDirectory() as place:
        store = Folder(Path(place) / "store")
        store.open()
        states = {floats: State(1, np.ones(floats, np.float32), None) for floats in (100, 5 * _MB)}
        took = {floats: cpu(lambda s=state: store.save((1, 1), s, {}), 5) for floats, state in states.items()}  # type: ignore[misc]
        store.close()
    return {"save": took[100], "save_byte": max(0.0, took[5 * _MB] - took[100]) / (4 * 5 * _MB)}


def main() -> None:
    found = {**calls(), **saving()}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
