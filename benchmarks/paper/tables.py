"""Print the tables of all results that are here as Markdown: what docs/results.md is written from.

python benchmarks/paper/tables.py > tables.md
"""

from __future__ import annotations

from pathlib import Path

from fedtuner.experiments.compare import compare
from fedtuner.experiments.results import about, read
from fedtuner.experiments.tabulate import render

HERE = Path(__file__).parent


def main() -> None:
    for folder in sorted(path.parent for path in (HERE / "results").glob("*/suite.json")):
        found = read(folder)
        if not found:
            continue
        print(f"## {folder.name}\n\n`fedtuner bench benchmarks/paper/{folder.name}.toml`: {made_with(found)}.\n")
        print(render(compare([folder]), "markdown"))
        figures = [wanted.get("name", wanted["kind"]) for wanted in about(folder).get("figures", [])]
        for name in figures:
            picture = folder / "figures" / f"{name}.svg"
            if picture.exists():
                print(f"![{name}](../{picture.relative_to(HERE.parent.parent)})\n")


def made_with(found: list[dict]) -> str:
    """Return how many studies on which machines with which versions."""
    machines = {f"{kept['machine']['cpu']}, {kept['machine']['cores']} cores" for kept in found}
    versions = {", ".join(f"{name} {version}" for name, version in kept["versions"].items()) for kept in found}
    diverged, arms = sum(len(kept["diverged"]) for kept in found), sum(kept["arms"] for kept in found)
    return f"{len(found)} studies; {diverged} of {arms} arms diverged; {'; '.join(sorted(machines | versions))}"


if __name__ == "__main__":
    main()
