"""From benchmarks/results/speed.json to the tables in README.md and docs/speed.md:

python benchmarks/speed/tables.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtuner.experiments.tables import fill

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "speed.json"
README_BATCH = 32


def throughput(kept: dict[str, Any]) -> str:
    """All workloads and batch sizes."""
    head = (
        "workload", "batch", "naive", "naive on tensors", "sequential", "its ratios", "batched", "its ratios",
        "of the limit",
    )  # fmt: skip
    return "\n".join([_row(head), _row(["---"] * len(head)), *(throughput_row(row) for row in kept["throughput"])])


def throughput_row(row: dict[str, Any]) -> str:
    """One workload at one batch size."""
    slow = [row["naive"], row["naive on tensors"]]
    ours = [row[engine] for engine in ("sequential", "batched") if engine in row]
    cells = [row["workload"], str(row["batch"]), *(f"{rate:,.0f}" for rate in slow)]
    for rate in ours:
        cells += [f"{rate:,.0f}", ", ".join(f"{rate / other:.1f}" for other in slow)]
    blank = ["", ""] * (2 - len(ours))
    return _row([*cells, *blank, f"{100 * max(ours) / row['limit']:.0f} %"])


def summary(kept: dict[str, Any]) -> str:
    """What matters, for the README."""
    head = ("two cores, no GPU", "fedtuner", "the usual loop", "ratio", "with its data as tensors")
    lines = [_row(head), _row(["---"] * len(head))]
    for row in kept["throughput"]:
        if row["batch"] == README_BATCH:
            best = max(row["sequential"], row.get("batched", 0.0))
            name = f"{row['workload'].split(' ', 1)[1]}, batch {README_BATCH}"
            ratios = (f"{best / row[side]:.1f}" for side in ("naive", "naive on tensors"))
            lines.append(_row((name, f"{best:,.0f} examples/s", f"{row['naive']:,.0f} examples/s", *ratios)))
    study, overhead = kept["study"], kept["overhead"]
    cells = (f"a study of {study['rounds']} rounds, small CNN", f"{study['ours']:.0f} s", f"{study['naive']:.0f} s")
    lines.append(_row((*cells, f"{study['ratio']:.1f}", "")))
    if overhead["flower"]:
        flower = f"{overhead['flower']:.0f} ms (Flower's simulation)"
        ratio = f"{overhead['flower'] / overhead['ours']:.0f}"
        lines.append(_row(("a round of 10 trivial clients", f"{overhead['ours']:.1f} ms", flower, ratio, "")))
    return "\n".join(lines)


def growth(kept: dict[str, Any]) -> str:
    """A whole study, overhead, start and growth."""
    lines, overhead, study = [_row(("", "measured")), _row(["---"] * 2)], kept["overhead"], kept["study"]
    name = (
        f"halving around FedEx, small CNN, MNIST by writer: {study['rounds']} rounds, at most {study['longest']} an arm"
    )
    lines.append(
        _row((name, f"{study['ours']:.0f} s; naive {study['naive']:.0f} s: {study['ratio']:.1f} times as long"))
    )
    lines.append(_row(("a round of 10 trivial clients", f"{overhead['ours']:.1f} ms")))
    if overhead["flower"]:
        lines.append(_row(("the same in Flower's simulation engine", f"{overhead['flower']:.0f} ms")))
    lines.append(
        _row(("`import fedtuner`", f"{overhead['import']:.2f} s (`import torch`: {overhead['import torch']:.1f} s)"))
    )
    lines.append(_row(("`fedtuner --help`", f"{overhead['help']:.2f} s")))
    for axis in ("clients", "rounds", "arms", "parameters"):
        once, twice, four = (row for row in kept["growth"] if row["axis"] == axis)
        times = " and ".join(f"{row['seconds'] / once['seconds']:.1f}" for row in (twice, four))
        memory = ", ".join(f"{row['MB']:.0f}" for row in (once, twice, four))
        lines.append(_row((f"twice, four times the {axis}", f"{times} times the time; {memory} MB")))
    for row in kept["growth"]:
        if row["axis"] == "workers":
            cells = (f"two workers against one, {row['workload']}", f"{row['speed-up']:.2f} times as fast")
            lines.append(_row(cells))
    return "\n".join(lines)


TABLES = {"speed": summary, "throughput": throughput, "growth": growth}


def all_of(kept: dict[str, Any]) -> dict[str, str]:
    """The tables by their places in the pages."""
    return {name: table(kept) for name, table in TABLES.items()}


def write(kept: dict[str, Any]) -> None:
    """Bring the pages up to date."""
    for page in (ROOT / "README.md", ROOT / "docs" / "speed.md"):
        page.write_text(fill(page.read_text(), all_of(kept)))


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text()))
