"""What a user has to write to tune a Flower app; that the examples run is tested in test_deployment.py."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from deployed import QUICKSTART
from network import blocks


def changed(before: Path, after: Path) -> list[str]:
    """Return the lines that are written or struck out to get from one folder to the other; blank ones do not count."""
    files = {path.relative_to(folder) for folder in (before, after) for path in folder.rglob("*") if path.is_file()}
    lines: list[str] = []
    for name in sorted(file for file in files if file.suffix in (".py", ".toml")):
        old, new = ((folder / name).read_text().splitlines() for folder in (before, after))
        lines += [line for line in difflib.ndiff(old, new) if line[0] in "+-" and line[1:].strip()]
    return lines


def test_what_a_user_writes_is_short() -> None:
    lines = changed(QUICKSTART / "before", QUICKSTART / "after")
    assert 5 < sum(line[0] == "+" for line in lines) <= 20
    assert len(lines) <= 28
    assert any("tuned(app)" in line for line in lines)


def test_documentation_shows_the_lines_that_a_user_writes() -> None:
    lines = {line[0] + line[2:] for line in changed(QUICKSTART / "before", QUICKSTART / "after")}
    shown = [line for block in blocks("diff") for line in block.splitlines()]
    assert len(shown) > 10
    assert not set(shown) - lines
