"""What `fedtuner watch` takes from a study: the same study alone, watched by nobody, and watched with one page open.

The three are run by turns, in an order that changes, so that what else the machine does falls on all of them. A page
that is open is a reader that asks as the page does: once for the page, then every three seconds for what is new.
Printed are the processor time of the study's processes and its time by the clock, as ratios to the study alone of the
same turn (medians, with intervals of 90 % at least from the order of the ratios), and the processor time of the watch.

    python benchmarks/page/run.py --times 9 --budget 300
"""

from __future__ import annotations

import argparse
import http.client
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse

RUN = [sys.executable, "-m", "fedtuner"]
WAYS = ("alone", "watched, no page open", "watched, one page open")
EVERY = 3.0  # seconds between two questions of the page


class Cost(NamedTuple):
    """Seconds."""

    processor: float  # of the study's processes
    clock: float
    watch: float  # processor time of the watch


def study(store: Path, way: str, budget: int, workers: int) -> Cost:
    """Run a study in one of the ways."""
    settings = ["--set", f"schedule.budget={budget}", "--set", f"schedule.longest={budget // 5}", "--quiet"]
    began = time.monotonic()
    command = [*RUN, "run", "digits", "--store", str(store), "--workers", str(workers), *settings]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watch, over = None, threading.Event()
    if way != WAYS[0]:
        while not (store / "journal.jsonl").exists() or not (store / "journal.jsonl").stat().st_size:
            time.sleep(0.02)
        watch = subprocess.Popen([*RUN, "watch", str(store)], stderr=subprocess.PIPE, text=True)
        if way == WAYS[2]:
            assert watch.stderr is not None
            address = watch.stderr.readline().split()[0]
            threading.Thread(target=read, args=(address, over), daemon=True).start()
    used = waited(process)
    took = time.monotonic() - began
    assert process.returncode == 0
    watched = 0.0
    if watch is not None:
        over.set()
        watch.terminate()
        watched = waited(watch)
    return Cost(used, took, watched)


def waited(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> float:
    """Wait for a process; return the processor time that it and the processes that it started took."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


def read(address: str, over: threading.Event) -> None:
    """Ask for the page, and then for what is new, until the study is over."""
    tag, path = "", "/"
    while not over.is_set():
        try:
            tag, path = asked(address, path, tag), "/view.json"
        except (OSError, http.client.HTTPException):  # the watch has ended while it was asked
            if not over.is_set():
                raise
        over.wait(EVERY)


def asked(address: str, path: str, tag: str) -> str:
    """Ask once; return the tag of what the page then shows."""
    connection = http.client.HTTPConnection(urlparse(address).netloc, timeout=600)
    connection.request("GET", path, headers={"If-None-Match": tag} if tag else {})
    reply = connection.getresponse()
    assert reply.status in (200, 304), reply.status
    reply.read()
    connection.close()
    return reply.headers.get("ETag", tag)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and the order statistics between which that of the population lies, 90 % sure at least.

    With six values these are the smallest and the largest: 1 - 2 / 2^6 = 97 %.
    """
    ordered, n = sorted(values), len(values)
    outside, k = 2 / 2**n, 0
    while outside + 2 * math.comb(n, k + 1) / 2**n <= 0.1:
        k += 1
        outside += 2 * math.comb(n, k) / 2**n
    return statistics.median(ordered), ordered[k], ordered[n - 1 - k]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=9, help="how often each is run")
    parser.add_argument("--budget", type=int, default=300, help="rounds of the study")
    parser.add_argument("--workers", type=int, default=1, help="processes of the study")
    given = parser.parse_args()
    found: dict[str, list[Cost]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for n in range(given.times):
            for way in WAYS[n % 3 :] + WAYS[: n % 3]:
                cost = study(Path(folder) / f"{n}-{WAYS.index(way)}", way, given.budget, given.workers)
                found[way].append(cost)
                print(f"{n} {way}: {cost.processor:.2f} {cost.clock:.2f} {cost.watch:.2f}", file=sys.stderr, flush=True)
    print("| study | processor time | ratio to alone | by the clock | ratio to alone | processor time of the watch |")
    print("|---|---|---|---|---|---|")
    for way, costs in found.items():
        cells = [way]
        for seconds in ("processor", "clock"):
            own, alone = ([getattr(c, seconds) for c in some] for some in (costs, found[WAYS[0]]))
            middle, low, high = interval([a / b for a, b in zip(own, alone, strict=True)])
            ratio = "" if way == WAYS[0] else f"{middle:.3f} ({low:.3f} to {high:.3f})"
            cells += [f"{statistics.median(own):.1f} s", ratio]
        cells.append("" if way == WAYS[0] else f"{statistics.median(c.watch for c in costs):.1f} s")
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
