"""What `fedtuner watch` takes from a study: rounds alone, watched with no page open, and watched with one page open.

One study runs all the time, in one process; its rounds are alike (20 arms with the default configuration). Beside it
runs one `fedtuner watch`. In turns, of some seconds each and in an order that changes, the watch is stopped (SIGSTOP:
the study is alone), runs, or runs and is asked by a reader as a page asks: once for the page, then every three seconds
for what is new. So what else the machine does falls on all three alike. Printed are a round's processor time in the
study's process and its time by the clock (medians over turns), their ratios to the turn alone of the same cycle
(medians, with intervals of 90 % at least from the order of the ratios), and the watch's processor time each minute.

    python benchmarks/page/run.py --cycles 15 --seconds 10
"""

from __future__ import annotations

import argparse
import http.client
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlparse

WAYS = ("alone", "watched, no page open", "watched, one page open")
ROUNDS = 50_000  # of an arm: more than any machine does in the time that is measured
EVERY = 3.0  # seconds between two questions of a page
Round = tuple[float, float]  # seconds of processor time, and by the clock


def study(store: Path) -> None:
    """Run a long study; print a line for each flush: the arm, its round, processor time and time so far."""
    import fedtuner as ft
    from fedtuner.core.store import Done
    from fedtuner.problems import digits

    def told(event: object) -> None:
        if isinstance(event, Done) and event.state:
            print(event.record.arm, event.record.round, time.process_time(), time.monotonic(), flush=True)

    long = ft.random_search(20 * ROUNDS, ROUNDS)
    ft.tune(digits.problem(), ft.Space(), fedex=None, schedule=long, store=store, workers=1, watch=told)


class Study:
    """The study's process, and the costs of its rounds as they come."""

    def __init__(self, store: Path) -> None:
        command = [sys.executable, __file__, "--study", str(store)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.rounds: list[Round] = []  # of a flush each: the mean of its rounds
        self.done = 0
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        before = (-1.0, 0.0, 0.0, 0.0)
        for line in self.process.stdout:
            arm, round, processor, clock = map(float, line.split())
            n = round - before[1]
            if arm == before[0] and n:
                self.rounds.append(((processor - before[2]) / n, (clock - before[3]) / n))
                self.done += int(n)
            before = arm, round, processor, clock


class Reader:
    """A page that is open while ``open`` is set."""

    def __init__(self, address: str) -> None:
        self.place, self.open, self.asked = urlparse(address).netloc, threading.Event(), 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        tag, path = "", "/"
        while self.open.wait():
            try:
                tag, path = self._ask(path, tag), "/view.json"
            except (OSError, http.client.HTTPException):  # the watch has ended
                return
            self.asked += 1
            time.sleep(EVERY)

    def _ask(self, path: str, tag: str) -> str:
        """Return the tag of what the page then shows."""
        connection = http.client.HTTPConnection(self.place, timeout=600)
        connection.request("GET", path, headers={"If-None-Match": tag} if tag else {})
        reply = connection.getresponse()
        assert reply.status in (200, 304), reply.status
        reply.read()
        connection.close()
        return reply.headers.get("ETag", tag)


def worked(pid: int) -> float:
    """Return a process's seconds of processor time so far."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


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


def turn(way: str, seconds: float, run: Study, watch: subprocess.Popen[str], reader: Reader) -> tuple[Round, float]:
    """Return the medians over the rounds of one turn, and the watch's processor time for each minute of it."""
    watch.send_signal(signal.SIGSTOP if way == WAYS[0] else signal.SIGCONT)
    reader.open.set() if way == WAYS[2] else reader.open.clear()
    first, began, used = len(run.rounds) + 1, time.monotonic(), worked(watch.pid)  # the flush under way is left out
    while time.monotonic() - began < seconds or len(run.rounds) < first + 2:
        time.sleep(0.05)
        assert run.process.poll() is None
    took = (worked(watch.pid) - used) / (time.monotonic() - began) * 60
    processor, clock = zip(*run.rounds[first:], strict=True)
    return (statistics.median(processor), statistics.median(clock)), took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=15, help="how often each has its turn")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn")
    parser.add_argument("--study", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.study is not None:
        study(given.study)
        return
    found: dict[str, list[tuple[Round, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        run = Study(Path(folder) / "study")
        while len(run.rounds) < 2:
            time.sleep(0.1)
        watching = [sys.executable, "-m", "fedtuner", "watch", str(Path(folder) / "study")]
        # As from a terminal of its own, where Linux may pass over its low priority.
        watch = subprocess.Popen(watching, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            assert watch.stderr is not None
            reader = Reader(watch.stderr.readline().split()[0])
            started = worked(watch.pid)
            for n in range(given.cycles):
                for way in (WAYS[n % 3 :] + WAYS[: n % 3])[:: 1 if n % 2 else -1]:
                    found[way].append(turn(way, given.seconds, run, watch, reader))
                    (processor, clock), took = found[way][-1]
                    told = f"{n} {way}: {1000 * processor:.2f} ms, {1000 * clock:.2f} ms, watch {took:.2f} s a minute"
                    print(told, file=sys.stderr, flush=True)
        finally:
            for process in (watch, run.process):
                process.kill()
                process.wait()
    print(f"{run.done} rounds, {reader.asked} answers to the page; the watch's start took {started:.1f} s\n")
    print("| study | processor time a round | ratio to alone | by the clock | ratio to alone | watch, each minute |")
    print("|---|---|---|---|---|---|")
    for way, turns in found.items():
        cells = [way]
        for n in (0, 1):
            own, alone = ([costs[n] for costs, _ in some] for some in (turns, found[WAYS[0]]))
            middle, low, high = interval([a / b for a, b in zip(own, alone, strict=True)])
            ratio = "" if way == WAYS[0] else f"{middle:.3f} ({low:.3f} to {high:.3f})"
            cells += [f"{1000 * statistics.median(own):.1f} ms", ratio]
        print(f"| {' | '.join(cells)} | {statistics.fmean(took for _, took in turns):.2f} s |")


if __name__ == "__main__":
    main()
