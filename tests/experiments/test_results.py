"""The file of a suite's results: its order and its errors."""

from __future__ import annotations

import json

import pytest

from fedtuner.errors import SpecError, StoreError
from fedtuner.experiments import results, suite
from fedtuner.experiments.results import Results

AXES = {
    "target": {"personalized": {"target": "personalized"}, "global": {}},
    "eps": {"key": "fedex.eps", "values": [1.0, 0.1]},
}
SUITE = suite.parse("mine", {"seeds": 2, "base": {"problem": "toys:problem"}, "axes": AXES})


def study(entry):
    counts = {"rounds": 9, "trainings": 27, "arms": 1, "diverged": [], "broken": 0, "dropped": 0}
    return {
        "labels": dict(entry.labels), "seed": entry.seed, "study": dict(entry.table), "problem": {"name": "toy"},
        "target": entry.spec.target, "test": {"global": 0.1, "personalized": 0.1}, **counts,
    }  # fmt: skip


@pytest.fixture
def file(tmp_path):
    return tmp_path / "results" / "mine.jsonl"


def test_lines_are_in_the_order_of_the_axes_and_then_of_seeds(file):
    """Whatever the order in which studies end, the file is the same to the byte."""
    results.write(file, Results(SUITE.describe(), tuple(study(entry) for entry in SUITE.entries)))
    whole = file.read_bytes()
    suite_line, *lines = map(json.loads, whole.splitlines())
    assert suite_line == {"suite": SUITE.describe()}
    names = ("personalized / 1.0", "personalized / 0.1", "global / 1.0", "global / 0.1")
    assert [(" / ".join(line["labels"].values()), line["seed"]) for line in lines] == [
        (name, seed) for name in names for seed in (0, 1)
    ]
    file.unlink()
    for entry in reversed(SUITE.entries):
        results.update(file, SUITE, study(entry))
    assert file.read_bytes() == whole


def test_a_file_that_would_stay_the_same_is_not_written(file, monkeypatch):
    results.update(file, SUITE, study(SUITE.entries[0]))
    monkeypatch.setattr(results, "replace_file", pytest.fail)
    results.update(file, SUITE)


def test_studies_that_the_suite_no_longer_names_stay(file):
    """They stand after the others, and an axis that the suite has got since then is no reason to lose them."""
    gone = {**study(SUITE.entries[0]), "labels": {"target": "both"}, "seed": 3}
    results.update(file, SUITE, gone)
    results.update(file, SUITE, study(SUITE.entries[0]))
    assert results.read(file).studies == (study(SUITE.entries[0]), gone)
    assert results.unfinished(file, SUITE) == list(SUITE.entries[1:])


def test_no_file_has_no_results(file):
    assert results.read(file) == Results({})
    assert results.unfinished(file, SUITE) == list(SUITE.entries)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"study": {"cohort": 3}}, "cohort: 3 in the store"),
        ({"online": {"every": 5, "curve": [[1, 0, 1, 0.1, 0.1, 0.1]]}}, "online"),
    ],
)
def test_results_of_other_settings_are_refused(file, changed, says):
    results.update(file, SUITE, study(SUITE.entries[0]) | changed)
    with pytest.raises(SpecError, match=f"'personalized / 1.0', seed 0, with other settings .*{says}.*delete its line"):
        results.unfinished(file, SUITE)


@pytest.mark.parametrize("line", ["{", '{"labels": {}}', "3", '{"suite": {}}', "[]", "[" * 9999, "1" * 9999])
def test_a_line_that_is_no_result_is_named(file, line):
    results.update(file, SUITE, study(SUITE.entries[0]))
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(StoreError, match=r"mine\.jsonl, line 3"):
        results.read(file)


def test_a_file_that_is_no_text_is_one_line_of_error(tmp_path):
    (tmp_path / "mine.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match=r"cannot read .*mine\.jsonl: 'utf-8' codec"):
        results.read(tmp_path / "mine.jsonl")


@pytest.mark.parametrize("path", ["results/mine", "results/mine.jsonl"])
def test_the_old_form_is_one_line_of_error(tmp_path, path):
    (tmp_path / "results" / "mine" / "studies").mkdir(parents=True)
    (tmp_path / "results" / "mine" / "suite.json").write_text("{}")
    with pytest.raises(SpecError, match=r"results/mine has results in the old form, .* as .*results/mine\.jsonl"):
        results.read(tmp_path / path)


def test_a_folder_is_no_file_of_results(tmp_path):
    with pytest.raises(
        SpecError, match=r"is no file of results: 'fedtuner bench' keeps them in one that ends in \.jsonl"
    ):
        results.read(tmp_path)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "results").write_text("")
    with pytest.raises(StoreError, match=r"cannot write .*mine\.jsonl"):
        results.update(tmp_path / "results" / "mine.jsonl", SUITE)
