"""The table of docs/choosing.md is that of the committed results."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
ROUNDS = ROOT / "benchmarks" / "rounds"


def loaded(name):
    """Return a module of benchmarks/rounds; other tests must not find those that it imports."""
    sys.path.insert(0, str(ROUNDS))
    try:
        found = importlib.util.spec_from_file_location(f"rounds_{name}", ROUNDS / f"{name}.py")
        made = importlib.util.module_from_spec(found)
        found.loader.exec_module(made)
    finally:
        sys.path.remove(str(ROUNDS))
        for other in ("further", "goals", "noise", "others", "problems", "run", "schedules", "shared", "table", "ways"):
            sys.modules.pop(other, None)
    return made


@pytest.fixture(scope="module")
def script():
    return loaded("run")


@pytest.fixture(scope="module")
def lines(script):
    return script.read(ROUNDS / "results" / "rounds.jsonl")


@pytest.mark.parametrize(("name", "page"), [("rounds", "choosing"), ("cohorts", "choosing"), ("fedpop", "populations")])
def test_the_docs_have_the_tables_of_the_results(script, name, page):
    found = script.read(ROUNDS / "results" / f"{name}.jsonl")
    assert script.table(found) in (ROOT / "docs" / f"{page}.md").read_text()


@pytest.mark.slow
def test_the_page_of_results_has_the_tables_of_the_results(script):
    text, page = (ROOT / "docs" / "results.md").read_text(), loaded("page")
    assert page.written(text) == text
    assert all(f"<!-- rounds: {name} -->" in text for name in page.parts())
    for name in ("rounds", "table", "oracle", "noise", "others"):
        assert all(line["seed"] < 100 for line in script.read(ROUNDS / "results" / f"{name}.jsonl"))


def test_the_best_of_the_others_is_picked_on_the_seeds_that_all_have():
    goals = loaded("goals")
    literature = {goals.named(tuner, 0.1): {0: 0.4, 1: 0.5} for tuner in goals.TUNERS}
    ways = {
        **literature,
        "untuned": {0: 0.3, 1: 0.3, 2: 0.0},
        "auto": {0: 0.1, 1: 0.3, 2: 0.9},
        "auto, no duel": {0: 0.0},
    }
    assert "| digits | 100 | 2 | 20.0 | 45.0 | 0.44 | untuned | 30.0 | 0.67 |" in goals.goals({("digits", 100): ways})
    assert goals.best_shares({"SHA, T/10": {0: 0.4}, "SHA, 0.2 T": {0: 0.3}, "RS, T/10": {0: 0.1}}) == {
        "SHA, best share": {0: 0.3}
    }
    del ways["TPE, T/10"]  # a rival that has not run
    assert "digits" not in goals.goals({("digits", 100): ways})


@pytest.mark.slow
def test_further_problems_stand_beside_your_own_settings():
    others = loaded("page").others
    line = others.line("digits: own Adam, lr 0.001", 12, 0)
    assert line["rounds"] == {"auto": 12, "untuned": 12}
    assert line["auto"].keys() == line["untuned"].keys() == {"global", "personalized"}
    made = {"case": "wine", "budget": 100, "untuned": {"personalized": 0.2, "global": 0.2}}
    lines = [{**made, "seed": n, "auto": {"personalized": e, "global": 0.2}} for n, e in enumerate((0.1, 0.4))]
    first, last = others.table(lines).splitlines()[2:]
    assert first == "| wine | 100 | 2 | 20.0 (20.0) | 25.0 (40.0) | 1.25 | 20.0 (20.0) | 20.0 (20.0) | 1.00 |"
    assert last == "| *mean* | | | | 1 of 2 worse | *1.25* | | 0 of 2 worse | *1.00* |"


@pytest.mark.slow
def test_further_problems_can_be_trained():
    others = loaded("page").others
    of_writers = {"500 clients", "clients of all sizes", "linear"}  # their data may not be here
    for name in others.FURTHER.keys() - of_writers:
        federation = others.FURTHER[name]()
        federation.check()
        assert len(federation.clients) >= 8, name
        assert len({client.id for client in federation.clients}) == len(federation.clients), name


def test_an_oracle_says_which_part_of_its_distance_is_closed():
    closed, cell = loaded("goals").closed, ("digits", 100)
    ways = {"untuned": {0: 0.5, 1: 0.5}, "auto": {0: 0.3, 1: 0.3}}
    assert "| digits | 100 | 1 | 50.0 | 30.0 | 10.0 | 0.50 |" in closed({cell: ways}, {cell: {0: 0.1}})
    assert closed({cell: ways}, {cell: {0: 0.5}}).endswith("| 50.0 | 30.0 | 50.0 |  |")  # there is nothing to close


def test_no_reported_seed_was_used_to_choose_anything(lines):
    assert lines
    assert all(line["seed"] < 100 for line in lines)


def test_every_way_had_the_same_rounds(lines):
    for line in lines:
        assert line["rounds"] <= line["budget"]
        if line["way"] in ("untuned", "default+", "auto"):
            assert line["rounds"] == line["budget"]


def test_the_way_that_tunes_is_ahead_of_the_default(script, lines):
    """What the docs say: if it no longer holds, it must not be said.

    On ``easy`` there is nothing to find, on ``noisy`` fine-tuning fits wrong labels, and of CIFAR-10 split by label the
    docs say that it is behind on some seeds.
    """
    found = [line for line in lines if line["problem"] not in ("easy", "noisy")]
    rest = [line for line in found if line["problem"] != "cifar-dirichlet"]
    for metric, (worse, of) in script.behind(rest).items():
        assert worse <= of / 20, metric
    for metric in ("personalized", "global"):
        assert script.ratios(found, metric)["untuned"][0] < 0.75
    # On the digits, both networks and Shakespeare; the docs say that the personalized goal, 0.75, is missed.
    assert script.ratios(found, "personalized")["the best of them"][0] < 0.85
    assert script.ratios(found, "global")["the best of them"][0] < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("tuner", ["", " + FedEx"])
def test_studies_that_share_arms_have_the_results_that_they_have_alone(script, lines, tuner):
    """The committed lines of the digits were computed one by one."""
    keys = [
        ("digits", budget, way, target, 0)
        for budget in (100, 150) for way in (f"SHA{tuner}, T/10", f"SHA{tuner}, 0.64 T")
        for target in ("personalized", "global")
    ]  # fmt: skip
    known = {tuple(line[k] for k in script.KEYS): line for line in lines if "cpu" in line}
    made = {tuple(line[k] for k in script.KEYS): line for line in script.together(None, keys)}
    assert set(made) == set(keys)
    compared = [(made[key], known[key]) for key in keys if key in known]
    assert len(compared) == 2
    for mine, theirs in compared:
        assert mine == {name: value for name, value in theirs.items() if name != "cpu"}
