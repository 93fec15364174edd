"""What a user has to write to tune a Flower app, and what comes of it; networks run the apps in test_deployment.py."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from apps import APPS, EXAMPLES, errors
from network import blocks

MOST = 25  # lines that a user changes


def changes(app: str) -> list[tuple[list[str], list[str]]]:
    """Return the places where an app changes: lines that are struck out, and those in their place. No blank ones."""
    before, after = EXAMPLES / app / "before", EXAMPLES / app / "after"
    files = {path.relative_to(folder) for folder in (before, after) for path in folder.rglob("*") if path.is_file()}
    found = []
    for name in sorted(file for file in files if file.suffix in (".py", ".toml")):
        old, new = (lines(folder / name) for folder in (before, after))
        places = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        found += [(old[a:b], new[c:d]) for kind, a, b, c, d in places if kind != "equal"]
    return found


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.strip()]


@pytest.mark.parametrize("app", APPS)
def test_what_a_user_writes_is_short(app: str) -> None:
    places = changes(app)
    assert 5 < sum(max(len(old), len(new)) for old, new in places) <= MOST
    assert any("tuned(app" in line for _, new in places for line in new)


def test_documentation_shows_the_lines_that_a_user_writes() -> None:
    places = changes("flower-quickstart")
    written = {"-" + line for old, _ in places for line in old} | {"+" + line for _, new in places for line in new}
    shown = [line for block in blocks("diff") for line in block.splitlines()]
    assert len(shown) > 10
    assert not set(shown) - written


@pytest.mark.slow
@pytest.mark.parametrize("app", APPS)
def test_the_tuned_app_is_ahead_of_the_untuned_one_with_the_same_rounds(app: str) -> None:
    """Of Flower's own FedAvg, on test data of writers that no device has."""
    pytest.importorskip("torch")
    from fedtuner.tasks.tensors import one_thread

    with one_thread():  # the apps' steps are small: two threads take longer than one, mostly in waiting for each other
        untuned, tuned = errors(app, nodes=10, budget=100, seed=0)
    assert tuned < untuned
