"""The page of results: its tables, of all the files of results, and its picture.

python benchmarks/rounds/page.py            # prints the tables
python benchmarks/rounds/page.py --write    # writes them into docs/results.md, and draws docs/rounds.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import noise
import others
from goals import Cell, Line, closed, goals, ratio
from table import METRICS, against, by_problem, cells

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"


def picture(lines: Sequence[Line], path: Path, ways: Sequence[str]) -> None:
    """Draw error / untuned's by problem and budget, a mark a way, for both targets."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "rounds"
    found = {metric: cells(lines, metric) for metric in METRICS}
    places = [c for c, of in found["global"].items() if "untuned" in of and "auto" in of][::-1]
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 1.5 + 0.28 * len(places)), sharey=True, layout="constrained")
    for axis, metric in zip(axes, METRICS, strict=True):
        for marker, way in zip("sD^vXPo", ways, strict=True):
            errors = [(found[metric][cell].get(way), found[metric][cell]["untuned"]) for cell in places]
            at = [(y, ratio(of, default)) for y, (of, default) in enumerate(errors) if of]
            size, order = (46, 4) if way == "auto" else (26, 3)
            axis.scatter([x for _, x in at], [y for y, _ in at], label=way, marker=marker, s=size, zorder=order)
        axis.axvline(1, color="0.4", linewidth=1)
        axis.set_xscale("log")
        axis.set_xticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1", "0.2", "0.5", "1", "2", "5"])
        axis.minorticks_off()
        axis.set_yticks(range(len(places)), [f"{name}, {budget}" for name, budget in places])
        axis.set_title(f"{metric} error / untuned's, all rounds")
        axis.grid(color="0.9")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


SHOWN = ("default+", "SHA + FedEx, T/10", "SHA, 0.64 T", "Hyperband, T/10", "BOHB, T/10", "FedPop, T/10", "auto")
FILES = ("rounds", "table")


def read(*names: str) -> list[Line]:
    """Return the lines of result files."""
    return [json.loads(text) for name in names for text in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def parts() -> dict[str, str]:
    """Return the tables of the committed results, by the name of their mark in the document."""
    lines, limits, made = read(*FILES), read("oracle"), dict[str, str]()
    for metric in METRICS:
        found = cells(lines, metric)
        oracle: dict[Cell, dict[int, float]] = {}
        for r in limits:
            oracle.setdefault((r["problem"], r["budget"]), {})[r["seed"]] = r[metric]
        made |= {
            f"against {metric}": against(lines, metric), f"goals {metric}": goals(found),
            f"oracle {metric}": closed(found, dict(sorted(oracle.items()))),
        }  # fmt: skip
    return made | {
        "by problem": by_problem(lines), "noise": noise.table(read("noise")), "others": others.table(read("others")),
    }  # fmt: skip


def written(text: str) -> str:
    """Return a document with the tables between its marks."""
    for name, made in parts().items():
        begin, end = f"<!-- rounds: {name} -->", "<!-- /rounds -->"
        before, found, rest = text.partition(begin)
        if found:
            text = f"{before}{begin}\n\n{made}\n\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/results.md, with the picture docs/rounds.svg")
    if not parser.parse_args().write:
        for name, made in parts().items():
            print(f"\n{name}\n\n{made}")
        return
    page = ROOT / "docs" / "results.md"
    page.write_text(written(page.read_text()))
    picture(read(*FILES), ROOT / "docs" / "rounds.svg", SHOWN)


if __name__ == "__main__":
    main()
