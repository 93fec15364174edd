"""The journals that reading is timed on are those of studies; and reading them is not slow."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from fedtuner.report import differences, journal_of, summary
from fedtuner.run.store.lines import encode

FILE = importlib.util.spec_from_file_location(
    "journal_benchmark", Path(__file__).parents[2] / "benchmarks" / "journal.py"
)
benchmark = importlib.util.module_from_spec(FILE)
FILE.loader.exec_module(benchmark)


@pytest.fixture
def written(tmp_path):
    def write(*case):
        (tmp_path / "journal.jsonl").write_bytes(encode(benchmark.events(*case)))
        return tmp_path

    return write


def test_it_is_a_finished_study(written):
    path = written(3, 60, 4, 10)
    found = summary(path)
    assert found["rounds_used"] == 60
    assert found["local_work"] == 240
    assert [arm["rounds"] for arm in found["arms"]] == [20, 20, 20]
    assert found["result"]["arm"] == 0
    assert len(found["result"]["candidates"]) == len(found["result"]["theta"]) == 27
    assert len(journal_of(path).own_records[2][-1].rows) == 4
    assert differences(journal_of(path), journal_of(path)) == []


@pytest.mark.slow
def test_four_thousand_rounds_of_ten_clients_are_read_in_half_a_second(written):
    path = written(*benchmark.CASES["4,000 rounds of ten clients"])
    assert benchmark.cpu(lambda: summary(path)) < 0.5
