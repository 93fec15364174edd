"""What the command line prints of data: the list of sets, the statistics of a problem's clients, progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from fedtuner.core.federation import SPLITS
from fedtuner.data import places, sources
from fedtuner.data.download import Tell, quiet
from fedtuner.data.lazy import labels
from fedtuner.errors import FAILURES, SpecError, brief, one_line
from fedtuner.federations import Client, Simulation
from fedtuner.rng import stream

_BARS = 40  # characters of the longest bar
_BINS = 10


def listing() -> list[dict[str, Any]]:
    """Return for each data set its content, and either its folder or what it takes to have it on this machine."""
    found = []
    for name, needed in places.SETS.items():
        source = sources.SOURCES.get(name)
        at = next((folder / name for folder in places.folders() if places.holds(folder / name, name)), None)
        needs = source.needs if source else f"{' or '.join(needed.files)} placed by hand"
        row = {"name": name, "about": needed.about, "needs": None if at else needs}
        found.append({**row, "at": str(at) if at else None})
    return found


def print_listing(listed: Sequence[Mapping[str, Any]]) -> None:
    """Print what ``listing`` returns."""
    for row in listed:
        get = f"fedtuner data get {row['name']}" if row["name"] in sources.SOURCES else "place it by hand"
        state = f"here: {row['at']}" if row["at"] else f"not here ({get})\n  needs {row['needs']}"
        print(f"{row['name']}: {row['about']}\n  {state}")
    print(f"\nData sets are kept in {places.home()} (FEDTUNER_DATA names another folder).")


def summary(problem: Simulation) -> dict[str, Any]:
    """Return statistics of a problem's examples and labels per client."""
    held = [[_labels_of(client, split) for split in SPLITS] for client in problem.clients]
    by_split = np.array([[len(y) for y in three] for three in held])
    sizes = by_split.sum(axis=1)
    whole = all(y.ndim == 1 and y.dtype.kind in "biu" for three in held for y in three if len(y))
    return {
        "name": problem.name,
        "clients": len(sizes),
        "left_out": len(problem.left_out),
        "examples": {"all": int(sizes.sum()), **dict(zip(SPLITS, by_split.sum(axis=0).tolist(), strict=True))},
        "per_client": {
            "min": int(sizes.min()),
            "median": float(np.median(sizes)),
            "max": int(sizes.max()),
            "histogram": histogram(sizes),
        },
        "labels": _labels([np.concatenate(three).astype(np.int64) for three in held]) if whole else None,
    }


def _labels_of(client: Client, split: str) -> NDArray[Any]:
    try:
        return labels(getattr(client, split))
    except FAILURES as error:  # a data set of one's own may raise anything
        what = f"client {brief(client.id)}, {split} data"
        raise SpecError(
            f"{what}: not a pair (x, y) of arrays, nor (x, y) examples: {one_line(str(error), 150)}"
        ) from error


def _labels(held: Sequence[NDArray[np.int64]]) -> dict[str, Any] | None:
    if any((y < 0).any() for y in held):
        return None
    classes = max(int(y.max(initial=0)) for y in held) + 1
    counts = np.array([np.bincount(y, minlength=classes) for y in held])
    counts = counts[:, counts.sum(axis=0) > 0]
    seen = (counts > 0).sum(axis=1)
    overall = counts.sum(axis=0) / counts.sum()
    rng = stream(0, "label skew")
    dealt = np.array([rng.multinomial(n, overall) for n in counts.sum(axis=1)])
    return {
        "classes": counts.shape[1],
        "rarest": float(overall.min()),
        "commonest": float(overall.max()),
        "classes_per_client": {"min": int(seen.min()), "median": float(np.median(seen)), "max": int(seen.max())},
        "clients_with_all": float((seen == counts.shape[1]).mean()),
        "skew": skew(counts),
        "skew_at_random": skew(dealt),
    }


def skew(counts: NDArray[np.int64]) -> float:
    """Return the label skew: 0 if all clients have the same shares of the labels, towards 1 if each has other labels.

    It is the total variation distance between a client's shares and those of all clients, averaged over examples.

    >>> skew(np.array([[5, 5], [5, 5]])), skew(np.array([[10, 0], [0, 10]]))
    (0.0, 0.5)
    """
    sizes = counts.sum(axis=1, keepdims=True)
    expected = sizes * counts.sum(axis=0) / counts.sum()
    return float(np.abs(counts - expected).sum() / 2 / counts.sum())


def histogram(sizes: NDArray[np.int64]) -> list[dict[str, int]]:
    """Return the number of clients per range of sizes; the ranges grow geometrically if sizes differ much."""
    low, high = int(sizes.min()), int(sizes.max())
    wide = high > 20 * max(low, 1)
    steps = np.geomspace(max(low, 1), high + 1, _BINS + 1) if wide else np.linspace(low, high + 1, _BINS + 1)
    edges = np.unique(np.ceil(steps - 1e-9).astype(np.int64))
    edges[0], edges[-1] = low, high + 1
    counts, _ = np.histogram(sizes, bins=edges)
    return [
        {"from": int(start), "to": int(end) - 1, "clients": int(count)}
        for start, end, count in zip(edges, edges[1:], counts, strict=False)
    ]


def print_summary(found: Mapping[str, Any]) -> None:
    """Print what ``summary`` returns, and its histogram as bars."""
    examples, per, spread = found["examples"], found["per_client"], found["labels"]
    print(f"{found['name']}: {found['clients']:,} clients, {examples['all']:,} examples")
    if found["left_out"]:
        print(f"  left out   {found['left_out']:,} clients that are too small")
    print("  splits     " + ", ".join(f"{split} {examples[split]:,}" for split in SPLITS))
    print(f"  per client {per['min']:,} / {per['median']:,g} / {per['max']:,} (min / median / max)")
    if spread:
        rare, common, a_client = _percent(spread["rarest"]), _percent(spread["commonest"]), spread["classes_per_client"]
        print(f"  labels     {spread['classes']} classes, {rare} to {common} of the examples each")
        print(
            f"             {a_client['min']} / {a_client['median']:g} / {a_client['max']} of them per client; "
            f"{_percent(spread['clients_with_all'])} of the clients have all"
        )
        print(
            f"  label skew {spread['skew']:.3f} on a scale from 0, all clients alike, towards 1, each its own "
            f"({spread['skew_at_random']:.3f} if labels were dealt at random)"
        )
    print("\nexamples      clients")
    rows = [
        (f"{row['from']:,}" + (f"..{row['to']:,}" if row["to"] > row["from"] else ""), row["clients"])
        for row in per["histogram"]
    ]
    longest, most = max(len(text) for text, _ in rows), max(count for _, count in rows)
    block = "█" if "utf" in (getattr(sys.stdout, "encoding", None) or "").lower() else "#"
    for text, count in rows:
        bar = block * max(round(_BARS * count / most), 1 if count else 0)
        print(f"{text:>{max(longest, 12)}}  {bar} {count:,}".rstrip())


@contextmanager
def telling(silent: bool, out: TextIO | None = None) -> Iterator[Tell]:
    """Yield a function that prints progress: on a terminal one line that is overwritten, elsewhere a line every 5 s."""
    out = out or sys.stderr
    if silent or out is None:  # closed from the start
        yield quiet
        return
    terminal, last, said = out.isatty(), "", float("-inf")

    def tell(what: str, done: int, total: int | None) -> None:
        nonlocal last, said
        now = time.monotonic()
        if what == last and now - said < (0.1 if terminal else 5.0) and done != total:
            return
        if terminal and last and what != last:
            print(file=out)
        of = f"{100 * done / total:.0f} % of {_amount(what, total)}" if total else _amount(what, done)
        print(f"{what}: {of}", end="\033[K\r" if terminal else "\n", file=out, flush=True)
        last, said = what, now

    try:
        yield tell
    finally:
        if terminal and last:
            print(file=out)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 or not share else "under 0.1 %"


def _amount(what: str, number: int) -> str:
    return f"{number / 1e6:,.1f} MB" if what.startswith(("downloading", "checking")) else f"{number:,}"
