"""What the page costs: the time that it takes to write one, its size, and what `fedtuner watch` takes from a study.

The same study is run by turns alone and beside `fedtuner watch`, with a reader that asks for news every two seconds, as
the page does. Printed are the study's processor time and its time by the clock, and the processor time of the watch.

    python benchmarks/page/run.py --times 5 --budget 1000
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

RUN = [sys.executable, "-m", "fedtuner"]


def study(store: Path, budget: int, ask: bool) -> tuple[float, float, float]:
    """Run a study; return its processor time, its time by the clock, and the processor time of the watch."""
    settings = ["--set", f"schedule.budget={budget}", "--set", f"schedule.longest={budget // 5}", "--quiet"]
    command = [*RUN, "run", "digits", "--store", str(store), "--workers", "1", *settings]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        watch, over, readers = None, threading.Event(), []
        if ask:
            while not (store / "journal.jsonl").exists():
                time.sleep(0.02)
            watch = subprocess.Popen([*RUN, "watch", str(store)], stderr=subprocess.PIPE, text=True)
            assert watch.stderr is not None
            address = watch.stderr.readline().split()[0]
            readers = [threading.Thread(target=read, args=(f"{address}view.json", over))]
            readers[0].start()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        took = time.monotonic() - began
    watched = 0.0
    if watch is not None:
        over.set()
        readers[0].join()
        watch.terminate()
        _, _, spent = os.wait4(watch.pid, 0)
        watch.returncode, watched = 0, spent.ru_utime + spent.ru_stime
    return used.ru_utime + used.ru_stime, took, watched


def read(address: str, over: threading.Event) -> None:
    """Ask for the view every two seconds."""
    while not over.wait(2):
        with urllib.request.urlopen(address, timeout=600) as reply:
            reply.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="how often each is run")
    parser.add_argument("--budget", type=int, default=1000, help="rounds of the study")
    given = parser.parse_args()
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for n in range(given.times):
            for ask in (False, True):
                found[ask].append(study(Path(folder) / f"{n}-{ask}", given.budget, ask))
        began = time.process_time()
        from fedtuner.page.html import report

        written = report([Path(folder) / "0-False"], Path(folder) / "page.html")
        made = time.process_time() - began
        print(
            f"the page of {given.budget} rounds: {written.stat().st_size / 1e6:.2f} MB, {made:.1f} s of processor time"
        )
    print("study          processor time     by the clock     watch's processor time (medians, seconds)")
    for ask, name in ((False, "alone"), (True, "watched")):
        middle = [statistics.median(column) for column in zip(*found[ask], strict=True)]
        print(f"{name:12s} {middle[0]:12.2f} {middle[1]:18.2f} {middle[2]:16.2f}")


if __name__ == "__main__":
    main()
