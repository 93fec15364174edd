"""From a suite's TOML to its studies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedtuner.core.schedule import outline
from fedtuner.errors import SpecError
from fedtuner.experiments import suite
from fedtuner.experiments.suite import merge, parse
from fedtuner.run import spec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAPER = Path(__file__).parent.parent.parent / "benchmarks" / "paper"
SUITES = sorted(PAPER.glob("*.toml"))

TEXT = """
seeds = 2
columns = "wrapper"
[base]
problem = "toys:problem"
cohort = 3
schedule = { budget = 30, longest = 10, eta = 2, eliminations = 2 }
[axes.wrapper]
RS = { schedule.kind = "random_search" }
SHA = { schedule.kind = "halving" }
[axes.target]
global = { target = "global" }
personalized = { target = "personalized", seeds = [7] }
[axes.eps]
key = "fedex.eps"
values = [0.1, 1.0]
[paper]
"RS / global / 0.1" = [22.81, 4.56, 2.64]
"""


def made(text: str = TEXT) -> suite.Suite:
    return parse("mine", tomllib.loads(text))


def test_a_suite_is_the_product_of_its_axes():
    entries = made().entries
    assert len(entries) == 2 * (2 + 1) * 2  # wrappers; seeds of the two targets; eps
    first = entries[0]
    assert first.name == "RS / global / 0.1"
    assert first.labels == {"wrapper": "RS", "target": "global", "eps": "0.1"}
    assert first.spec.schedule.kind == "random_search"
    assert first.spec.schedule.budget == 30  # the base's, beside the axis' kind
    assert first.spec.tuner.eps == 0.1
    assert {e.seed for e in entries if e.labels["target"] == "personalized"} == {7}
    assert len({(e.name, e.seed) for e in entries}) == len(entries)


def test_families_have_all_but_schedule_and_target_in_common():
    by_family = {}
    for entry in made().entries:
        by_family.setdefault(entry.family, []).append(entry)
    assert len(by_family) == 3 * 2  # seeds and eps
    for kept in by_family.values():
        assert len({(e.seed, e.labels["eps"]) for e in kept}) == 1


def test_arms_by_a_sampler_that_learns_are_shared_with_nobody():
    pytest.importorskip("optuna")
    table = tomllib.loads(TEXT)
    table["base"]["sampler"] = "tpe"
    table["base"]["schedule"]["together"] = 1
    entries = [e for e in parse("mine", table).entries if e.labels["wrapper"] == "RS"]
    assert len({e.family for e in entries}) == len(entries)


@pytest.mark.parametrize("kind", ["own_schedules:Population", "own_schedules:Race"])
def test_arms_that_depend_on_scores_are_shared_with_nobody(kind):
    """Children of the best arm, or rounds at which arms are compared that differ with the scores."""
    entries = made(TEXT.replace('"random_search"', f'"{kind}"')).entries
    by_wrapper = {name: [e.family for e in entries if e.labels["wrapper"] == name] for name in ("RS", "SHA")}
    assert len(set(by_wrapper["RS"])) == len(by_wrapper["RS"]) == 6  # two targets with three seeds in all, eps
    assert not set(by_wrapper["RS"]) & set(by_wrapper["SHA"])


def test_arms_that_cool_down_are_shared_where_they_end_together():
    text = TEXT.replace("cohort = 3", "cohort = 3\ncooling = 0.5")
    same, other = (
        {(e.labels["wrapper"], e.seed): e.family for e in made(text.replace("RS = {", more)).entries
         if e.labels["eps"] == "0.1"}
        for more in ("RS = {", "RS = { schedule.longest = 15,")
    )  # fmt: skip
    assert same["RS", 0] == same["SHA", 0]
    assert other["RS", 0] != other["SHA", 0] == same["SHA", 0]


def test_a_preset_is_where_the_settings_begin():
    text = (
        '[base]\npreset = "digits"\nschedule = { budget = 500, longest = 50 }\n[axes.k]\nkey = "fedex.k"\nvalues = [2]'
    )
    entry = made(text).entries[0]
    assert entry.spec.problem == "digits"
    assert (entry.spec.schedule.budget, entry.spec.schedule.eta, entry.spec.tuner.k) == (500, 3, 2)


def test_settings_above_win_one_by_one():
    assert merge({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}}) == {"a": {"x": 1, "y": 3}, "b": 1}
    assert merge({"fedex": {"k": 3}}, {"fedex": False}) == {"fedex": False}
    assert merge({"client": {"lr": {"low": 1, "high": 2}}}, {"client": {"lr": 0.5}}) == {"client": {"lr": 0.5}}


@pytest.mark.parametrize(
    ("pattern", "matched"), [("sha", 6), ("RS", 6), ("*RS /*seed0", 2), ("global / 1.0 seed1", 2), ("pers", 0)]
)
def test_only_some(pattern, matched):
    assert sum(entry.matches(pattern) for entry in made().entries) == matched


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[axes.eps]", "[axis.eps]", "no setting 'axis' in a suite; did you mean 'axes'"),
        ("cohort = 3", "cohrt = 3", "no setting 'cohrt'; did you mean 'cohort'"),
        (
            'columns = "wrapper"',
            'columns = "wraper"',
            "columns = 'wraper', but must be an axis; did you mean 'wrapper'",
        ),
        ("seeds = 2", "seeds = 0", "seeds = "),
        ("seeds = 2", "online = -1", "online must be a whole number"),
        ('key = "fedex.eps"', "key = 3.4", "values a list"),
        ("values = [0.1, 1.0]", "values = []", "values a list"),
        ('"RS / global / 0.1"', '"RS / globl / 0.1"', "is no study of the suite; did you mean 'RS / global / 0.1'"),
        ("[22.81, 4.56, 2.64]", "[22.81]", "must be [mean, standard deviation, half the interval]"),
        ("values = [0.1, 1.0]", "values = [0.1, 0.10]", "the suite has RS / global / 0.1, seed 0, twice"),
        ("seeds = 2", "seeds = [3, 3]", "the suite has RS / global / 0.1, seed 3, twice"),
        ('RS = { schedule.kind = "random_search" }', "RS = { fedex = false }", "one axis has fedex = false, another"),
        ('RS = { schedule.kind = "random_search" }', "RS = 3", "must be named tables of settings"),
        ("values = [0.1, 1.0]", 'values = [0.1, "x"]', "RS / global / x: fedex.eps = 'x'"),
    ],
)
def test_mistakes_are_named(old, new, says):
    assert old in TEXT
    with pytest.raises(SpecError) as caught:
        made(TEXT.replace(old, new))
    assert says in str(caught.value)


def test_no_axes_and_no_file():
    with pytest.raises(SpecError, match="no \\[axes\\]"):
        made('[base]\nproblem = "digits"')
    with pytest.raises(SpecError, match=r"no suite 'absent\.toml'"):
        suite.read("absent.toml")


@pytest.mark.slow
@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_the_papers_suites_are_good(path):
    read = suite.read(path)
    assert all(entry.spec.problem in spec.PROBLEMS for entry in read.entries)
    assert read.title


def test_the_papers_suites_are_there():
    assert {"table1", "table1-small", "online", "discount", "ball", "eps", "steps", "k", "elimination",
            "tuners", "control", "tries"} <= {path.stem for path in SUITES}  # fmt: skip


@pytest.mark.parametrize("name", ["table1", "table1-small"])
def test_the_table_has_the_papers_budgets_and_numbers(name):
    read = suite.read(PAPER / f"{name}.toml")
    paper = {e.name: e for e in read.entries}
    cifar = "CIFAR-10" if name == "table1" else "CIFAR-10, 100 devices"
    assert read.paper[f"{cifar} / SHA / global / + FedEx"] == (20.82, 1.37, 0.79)
    assert read.paper["Shakespeare / RS / personalized / plain"] == (61.71, 9.08, 8.66)
    assert len(read.paper) == 8 * (5 if name == "table1" else 3)
    if name == "table1":
        for data, budget, longest in (("Shakespeare", 4000, 800), ("FEMNIST", 2000, 200), ("CIFAR-10", 4000, 800)):
            schedule = paper[f"{data} / SHA / personalized / + FedEx"].spec.schedule
            assert (schedule.budget, schedule.longest, outline(schedule).arms) == (budget, longest, 27)
            assert outline(paper[f"{data} / RS / global / plain"].spec.schedule).arms == budget // longest
    seeds = {data: {e.seed for e in read.entries if e.labels["data"] == data} for data in read.axes["data"]}
    assert len(seeds["MNIST by writer"]) >= 10
    assert min(map(len, seeds.values())) >= 5
    # A seed draws the same arms on every problem: columns with seeds in common would not be independent.
    assert sum(map(len, seeds.values())) == len(set.union(*seeds.values()))


def test_tuners_have_the_same_rounds_and_enough_arms_to_learn_from():
    pytest.importorskip("optuna")
    for entry in suite.read(PAPER / "tuners.toml").entries:
        schedule = entry.spec.schedule
        assert 480 <= outline(schedule).cost <= schedule.budget == 500, entry.name
        assert not entry.spec.sampler.learns or outline(schedule).arms >= 25, entry.name


def test_the_control_differs_from_fedex_in_theta_alone():
    by_name = {entry.labels["tuning"]: entry.table for entry in suite.read(PAPER / "control.toml").entries}
    control, tuned = by_name["candidates, theta uniform"], by_name["+ FedEx"]
    assert control == {**tuned, "fedex": {**tuned["fedex"], "step": "none"}}
