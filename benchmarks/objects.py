"""What a study in an object store asks of it: requests and bytes per round, and the time that they take.

    make s3 && python benchmarks/objects.py

The same study is run in a folder, in moto's S3 server on this machine, and in that server behind a network that adds 50
milliseconds to each request. Requests are counted in the server's log. Bits must be the same in all three.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import fedtuner as ft
from fedtuner.problems import digits
from fedtuner.report import journal_of
from fedtuner.report.diff import differences
from fedtuner.run.store import Objects, at

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import s3

DELAY = 0.05
CASES = {"budget of 500 rounds": {"budget": 500}, "27 arms, 600 rounds": {"schedule": ft.halving(600, 60, 3, 3)}}


def timed(store: str | Path, settings: dict[str, object]) -> float:
    began = time.perf_counter()
    ft.tune(digits.problem(), store=store, progress=False, **settings)  # type: ignore[arg-type]
    return time.perf_counter() - began


def kinds(requests: list[str], name: str) -> Counter[str]:
    """Requests of a study by what they are for."""
    found: Counter[str] = Counter()
    for request in requests:
        verb, _, address = request.partition(" ")
        if name not in address and "?delete" not in address:
            continue
        what = re.search(r"(journal|states|memory|lock|log)\b", address.partition("?")[0])
        found[f"{verb} {what[1] if what else 'list' if verb == 'GET' else 'delete'}"] += 1
    return found


def main() -> None:
    if not s3.PYTHON.exists():
        sys.exit("moto's server is not here: make s3 sets it up")
    with tempfile.TemporaryDirectory() as folder:
        server = s3.Server(Path(folder) / "log")
        server.make_bucket("bucket")
        far = s3.Network(server.port, DELAY)
        try:
            timed(Path(folder) / "first", {"budget": 20})  # imports, data
            for number, (name, settings) in enumerate(CASES.items()):
                here = Path(folder) / str(number)
                print(f"{name}: {timed(here, settings):.1f} s in a folder")
                for where, port in (("on this machine", server.port), ("50 ms away", far.port)):
                    os.environ |= server.environment(port)
                    url, before = f"s3://bucket/{number}-{port}", len(server.requests())
                    took = timed(url, settings)
                    asked, rounds = kinds(server.requests()[before:], f"{number}-{port}"), ft.load(url).rounds_used
                    assert not differences(journal_of(at(url).path), journal_of(here))
                    store = at(url)
                    assert isinstance(store, Objects)
                    sizes = [one.size for one in store.bucket.find() if one.name.startswith("journal")]
                    print(
                        f"  S3 {where}: {took:.1f} s; {sum(asked.values())} requests, "
                        f"{sum(asked.values()) / rounds:.2f} per round; journal of {sum(sizes) / 1e6:.2f} MB in "
                        f"{len(sizes)} objects; {', '.join(f'{n} {kind}' for kind, n in asked.most_common())}"
                    )
        finally:
            far.close()
            server.close()


if __name__ == "__main__":
    main()
