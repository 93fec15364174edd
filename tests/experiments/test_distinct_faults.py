"""Arms and broken updates that several studies of a suite share are counted once."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

import toys
from fedtuner.experiments import bench, compare, results, suite, tabulate
from fedtuner.testing.toys import quadratics

PAPER = Path(__file__).parents[2] / "benchmarks" / "paper"

SUITE = """
[base]
problem = "test_distinct_faults:problem"
cohort = 3
fedex = false
schedule = { budget = 60, longest = 15, eta = 2, eliminations = 2 }
client = { lr = [1e30, 0.1], epochs = 2 }
[axes.wrapper]
RS = { schedule.kind = "random_search" }
SHA = { schedule.kind = "halving", schedule.budget = 45 }
[axes.target]
global = { target = "global" }
personalized = { target = "personalized" }
"""


def problem():
    return quadratics()


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The results of the suite, by name, and what really happened: the records of its one family."""
    file = tmp_path / "study.toml"
    file.write_text(SUITE)
    out, described, records = tmp_path / "results.jsonl", results.describe, {}

    def keep(outcome):
        for arm, own in outcome.records.items():
            records[arm] = max(records.get(arm, []), own, key=len)
        return described(outcome)

    monkeypatch.setattr(results, "describe", keep)
    bench.run(suite.read(file), out, workers=1)
    return out, records


def test_the_footer_counts_each_arm_and_round_once(made):
    out, records = made
    broken = sum(record.broken for own in records.values() for record in own)
    stalled = sum(len(own) == 10 and all(r.broken == r.clients for r in own) for own in records.values())
    assert broken > 0
    assert stalled > 0
    kept = compare.compare([out], columns="")
    assert sum(study.broken for study in kept.studies) > broken  # each for itself they read the same rounds
    assert sum(study.arms for study in kept.studies) == 16
    found = compare.faults(run for study in kept.studies for run in study.runs)
    assert found == compare.Faults(4, 0, stalled, broken, 0)
    text = tabulate.render(kept)
    assert f"0 of 4 arms diverged, {stalled} stalled; {broken} updates were broken, 0 reports dropped." in text
    table = runpy.run_path(str(PAPER / "tables.py"))["made_with"](results.read(out).studies)
    assert table.startswith("4 studies; 0 of 4 arms diverged")


def test_each_study_tells_its_own(made):
    out, records = made
    for line in results.read(out).studies:
        rounds = {arm: n for arm, n, _, _ in line["by_arm"]}
        own = [record for arm, n in rounds.items() for record in records[arm] if record.round <= n]
        assert line["rounds"] == len(own)
        assert line["broken"] == sum(r.broken for r in own)
        assert line["arms"] == 4
        assert line["stalled"] == [arm for arm in line["stalled"] if rounds[arm] == 10]


def test_seeds_and_other_families_are_counted_apart(made):
    out, _ = made
    lines = [json.loads(line) for line in out.read_text().splitlines()][1:]
    one = compare.faults(lines)
    other = compare.faults([*lines, *({**line, "family": "another"} for line in lines)])
    assert (other.arms, other.broken, other.stalled) == (2 * one.arms, 2 * one.broken, 2 * one.stalled)


def test_lines_that_do_not_tell_are_counted_each_for_itself(made):
    out, _ = made
    lines = [json.loads(line) for line in out.read_text().splitlines()][1:]
    old = [{key: value for key, value in line.items() if key not in ("by_arm", "family", "stalled")} for line in lines]
    found = compare.faults(old)
    assert (found.arms, found.broken, found.stalled) == (16, sum(line["broken"] for line in lines), 0)


def test_studies_in_folders_are_each_their_own(tmp_path):
    for target in ("global", "personalized"):
        toys.tune(target=target, store=tmp_path / target).evaluate("test")
    kept = compare.compare([tmp_path / "global", tmp_path / "personalized"])
    assert compare.faults(run for study in kept.studies for run in study.runs).arms == 8
