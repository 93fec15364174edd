"""The speed tables of the pages are those of the kept results."""

import importlib.util
import json
from pathlib import Path

import pytest

from fedtuner.experiments.tables import fill

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "speed.json"


@pytest.fixture(scope="module")
def tables():
    file = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "speed" / "tables.py")
    module = importlib.util.module_from_spec(file)
    file.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("page", "names"), [("README.md", ["speed"]), ("docs/speed.md", ["throughput", "growth"])])
def test_pages_show_what_was_measured(tables, page, names):
    text = (ROOT / page).read_text()
    for name in names:
        assert f"<!-- {name} -->\n\n|" in text
    assert fill(text, tables.all_of(json.loads(RESULTS.read_text()))) == text


def test_a_new_measurement_changes_the_page(tables):
    kept = json.loads(RESULTS.read_text())
    text = (ROOT / "docs" / "speed.md").read_text()
    kept["throughput"][0]["naive"] *= 2
    assert fill(text, tables.all_of(kept)) != text
