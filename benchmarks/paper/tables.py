"""Write the tables of docs/results.md from the results that are here:

python benchmarks/paper/tables.py           # into the page
python benchmarks/paper/tables.py --print   # all of them, to read

A table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``, NAME being that of the suite.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtuner.experiments.compare import compare, faults
from fedtuner.experiments.results import Result, read
from fedtuner.experiments.tables import fill, markdown
from fedtuner.experiments.tabulate import differences, render

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "results.md"

ALSO = {  # further axes to compare along
    "table1-small": ("wrapper",),
    "online": ("wrapper",),
    "elimination": ("share", "tuning"),
    "tuners": ("tuning",),
}


def tables() -> dict[str, str]:
    """Return all tables by name, as Markdown for a page in docs/."""
    made = {}
    for file in sorted((HERE / "results").glob("*.jsonl")):
        found = read(file).studies
        if found:
            made[file.stem] = "\n\n".join(
                [
                    f"`fedtuner bench benchmarks/paper/{file.stem}.toml`: {made_with(found)}.",
                    render(compare([file]), "markdown").strip(),
                    *(part.strip() for axis in ALSO.get(file.stem, ()) for part in along(file, axis)),
                    *pictures(file),
                ]
            )
    file = HERE / "results" / "floors.json"
    return made | ({"floors": floors(json.loads(file.read_text()))} if file.exists() else {})


def along(file: Path, axis: str) -> list[str]:
    """Return the paired differences along another axis, and how many p-values would be small by chance."""
    made = compare([file], along=axis)
    return [*differences(made, "markdown"), *(note for note in made.notes if note.startswith("Of "))]


def made_with(found: Sequence[Result]) -> str:
    """Return the number of studies, and the machines and the versions that computed them."""
    machines = {f"{kept['machine']['cpu']}, {kept['machine']['cores']} cores" for kept in found}
    versions = {", ".join(f"{name} {version}" for name, version in kept["versions"].items()) for kept in found}
    counted = faults(found)
    ended = f"{counted.diverged} of {counted.arms} arms diverged" + (
        f", {counted.stalled} stalled" if counted.stalled else ""
    )
    return f"{len(found)} studies; {ended}; {'; '.join(sorted(machines | versions))}"


def pictures(file: Path) -> list[str]:
    """Return links to the figures of a suite that have been drawn."""
    named = [wanted.get("name", wanted["kind"]) for wanted in read(file).suite.get("figures", [])]
    files = {name: file.with_suffix("") / f"{name}.svg" for name in named}
    return [f"![{name}](../benchmarks/paper/{f.relative_to(HERE)})" for name, f in files.items() if f.exists()]


def floors(kept: Mapping[str, Any]) -> str:
    """Return the errors of guessing and of the untuned default, to read the others against."""
    head = ["", "test examples", "commonest label", "the client's own", "rounds", "untuned, global", "personalized"]
    rows = [
        [
            row["data"], str(row["test examples"]), _percent(row["guessing"]), _percent(row["guessing own"]),
            str(row["rounds"]), _percent(row["untuned"]["global"]), _percent(row["untuned"]["personalized"]),
        ]
        for row in kept["rows"]
    ]  # fmt: skip
    return f"`python benchmarks/paper/floors.py`\n\n{markdown(head, rows).strip()}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main() -> None:
    made = tables()
    if "--print" in sys.argv[1:]:
        for name, table in made.items():
            print(f"## {name}\n\n{table}\n")
    else:
        PAGE.write_text(fill(PAGE.read_text(), made))


if __name__ == "__main__":
    main()
