"""The scripts of benchmarks/paper: the page of results has the numbers of the files of results."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedtuner.experiments import results, suite
from fedtuner.federations import Client

ROOT = Path(__file__).parent.parent.parent
PAPER = ROOT / "benchmarks" / "paper"
FILES = sorted((PAPER / "results").glob("*.jsonl"))
UNFINISHED = ("table1-rounds",)  # days of work: its results are added as they come


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(PAPER / "tables.py"))


@pytest.fixture(scope="module")
def tables(script):
    return script["tables"]()


@pytest.mark.slow
def test_the_page_of_results_shows_what_is_kept(script, tables):
    page = (ROOT / "docs" / "results.md").read_text()
    assert set(tables) == {*(file.stem for file in FILES), "floors"}
    for name in tables:
        assert f"<!-- {name} -->" in page
    assert script["fill"](page, tables) == page


@pytest.mark.slow
def test_a_table_replaces_what_stands_between_its_marks(script, tables):
    assert tables["control"].startswith(
        "`fedtuner bench benchmarks/paper/control.toml`: 60 studies; 0 of 1620 arms diverged; AMD EPYC, 2 cores; "
    )
    page = "Before\n<!-- control -->\nold\n<!-- /control -->\n<!-- yours -->\nold\n<!-- /yours -->\n"
    assert script["fill"](page, tables) == page.replace("old", f"\n{tables['control']}\n", 1)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_results_are_those_of_their_suites_in_order(file):
    read, kept = suite.read(PAPER / f"{file.stem}.toml"), results.read(file)
    assert kept.suite == read.describe()
    left = results.unfinished(file, read)
    assert bool(left) == (file.stem in UNFINISHED)
    expected = [(e.labels, e.seed) for e in read.entries if e not in left]
    assert [(study["labels"], study["seed"]) for study in kept.studies] == expected


def test_floors_are_the_errors_of_guessing():
    """By hand: of all 7 labels to train on 1 is the commonest (4); of the second client's own it is 2."""
    floors = runpy.run_path(str(PAPER / "floors.py"))["floors"]

    def client(id, train, test):
        return Client(id, *((np.zeros((len(y), 1)), np.array(y)) for y in (train, [0], test)))

    clients = [client(0, [1, 1, 1, 0], [1, 1, 0, 2]), client(1, [2, 2, 1], [2, 2])]
    assert floors(SimpleNamespace(clients=clients)) == (4 / 6, 2 / 6, 6)
