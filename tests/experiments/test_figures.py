"""Pictures of results: what they show, and that they are drawn."""

from __future__ import annotations

import csv
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fedtuner import cli
from fedtuner.errors import SpecError
from fedtuner.experiments import figures, results


def result(seed, target="global", tuning="plain", curve=(), theta=(), tested=(), test=0.3):
    return {
        "labels": {"target": target, "tuning": tuning},
        "seed": seed,
        "problem": {"name": "toy"},
        "target": target,
        "test": {"global": test, "personalized": test - 0.1},
        "rounds": 30,
        "trainings": 300,
        "budget": 30,
        "arms": 2,
        "diverged": [],
        "broken": 0,
        "dropped": 0,
        "online": {"every": 5, "curve": list(curve)},
        "theta": list(theta),
        "tested": list(tested),
    }


CURVES = [  # rounds used, arm, its rounds, score, global, personalized
    result(0, curve=[[5, 0, 5, 0.5, 0.5, 0.4], [10, 1, 5, 0.4, 0.4, 0.3], [25, 1, 10, 0.2, 0.2, 0.1]]),
    result(1, curve=[[5, 0, 5, 0.5, 0.7, 0.6], [20, 1, 5, 0.4, 0.6, 0.3]], test=0.5),
]


def test_online_is_the_mean_of_step_functions():
    made = figures.figure(CURVES, {"kind": "online"}, "tuning")
    assert [(p.x, p.n, pytest.approx(p.mean)) for p in made.points] == [
        (5, 2, 0.6),
        (10, 2, 0.55),
        (20, 2, 0.5),
        (25, 2, 0.4),
        (30, 2, 0.4),  # to the end of the budget
    ]
    # two values at a distance of 0.2: half = 6.314 * 0.1414 / sqrt(2)
    assert made.points[0].half == pytest.approx(0.6314, abs=1e-4)


def test_the_targets_error_is_shown():
    made = figures.figure([{**CURVES[0], "target": "personalized"}], {"kind": "online"}, "tuning")
    assert made.points[-1].mean == 0.1


def test_only_some_studies():
    other = result(0, "personalized", curve=[[5, 0, 5, 0.5, 0.9, 0.9]])
    made = figures.figure(
        [*CURVES, other], {"kind": "online", "only": {"target": "global"}, "panel": "target"}, "tuning"
    )
    assert made.panels == ["global"]


def test_sweeps_are_over_numbers_or_names():
    found = [
        {**result(seed, test=0.1 * seed + eps), "labels": {"eps": str(eps), "tuning": "a"}}
        for eps in (0.0, 0.5)
        for seed in (0, 1)
    ]
    made = figures.figure(found, {"kind": "sweep", "x": "eps"})
    assert [(p.x, p.n, pytest.approx(p.mean)) for p in made.points] == [(0.0, 2, 0.05), (0.5, 2, 0.55)]
    assert figures.figure(found, {"kind": "sweep", "x": "tuning"}).points[0].x == "a"


def test_theta_has_two_pictures_and_the_rounds_that_all_seeds_have():
    found = [
        result(0, theta=[[1, 3.0, 0.1], [5, 1.0, 0.5], [10, 0.0, 1.0]]),
        result(1, theta=[[1, 3.0, 0.2], [5, 2.0, 0.7]]),
    ]
    made = figures.figure(found, {"kind": "theta"}, "tuning")
    assert made.panels == ["entropy of theta (nats)", "probability of the mode"]
    assert [(p.x, pytest.approx(p.mean)) for p in made.points] == [(1, 3.0), (5, 1.5), (1, 0.15), (5, 0.6)]


def point(mean, half, panel="", n=5, line="", x=0.0):
    return figures.Point(panel, line, x, n, mean, half)


def test_bands_stay_where_the_values_can_be():
    low, high = figures.band([point(0.05, 0.1), point(0.95, 0.1), point(0.5, 0.1)])
    assert low == pytest.approx([0, 0.85, 0.4])
    assert high == pytest.approx([0.15, 1, 0.6])
    assert figures.band([point(0.5, 0.8, "a, entropy of theta (nats)")]) == ([0], [1.3])
    assert figures.band([point(2.0, 0.5), point(0.9, 0.3)])[1] == pytest.approx([2.5, 1.2])  # no shares of 1
    assert all(math.isnan(end[0]) for end in figures.band([point(0.5, math.nan, n=1)]))  # not a band of width 0


def painted(made):
    """The axes of a figure with one panel."""
    axes = pytest.importorskip("matplotlib.figure", reason="figures need the extra fedtuner[plot]").Figure().subplots()
    figures._paint_lines(axes, made, made.points)
    return axes


@pytest.mark.slow
def test_one_seed_says_so_and_has_no_bars():
    made = figures.Figure("f", "sweep", "eps", "", (point(0.5, math.nan, n=1), point(0.6, 0.1, n=3, line="b")))
    axes = painted(made)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["n = 1", "b"]
    bars = [[path.vertices for path in c.get_paths()] for c in axes.collections]
    assert [any(math.isfinite(v) for path in paths for v in path[:, 1]) for paths in bars] == [False, True]


def test_names_are_not_joined_and_numbers_are():
    for places, joined in ((("RS", "SHA"), False), ((0.1, 1.0), True)):
        made = figures.Figure("f", "sweep", "x", "", tuple(point(0.5, 0.1, x=x) for x in places))
        assert (painted(made).lines[0].get_linestyle() == "-") == joined


def test_a_logarithmic_axis_has_room_for_zero():
    for places, scale in (((0.0, 0.01, 1.0), "symlog"), ((0.01, 1.0), "log")):
        made = figures.Figure("f", "sweep", "x", "", tuple(point(0.5, 0.1, x=x) for x in places), "x")
        axes = painted(made)
        assert axes.get_xscale() == scale
    made = figures.Figure("f", "sweep", "x", "", tuple(point(0.5, 0.1, x=x) for x in (0.0, 0.01, 1.0)), "x")
    assert painted(made).xaxis.get_transform().linthresh == 0.01


def test_ranges_are_of_every_arm():
    found = [result(seed, tested=[[10, a, 5, 0.1, 0.1 * a, 0.0] for a in range(3)]) for seed in (0, 1)]
    made = figures.figure(found, {"kind": "ranges", "x": "tuning"})
    assert [(p.seed, pytest.approx(p.mean)) for p in made.points] == [(s, 0.1 * a) for s in (0, 1) for a in range(3)]
    rows = list(csv.reader(figures.table(made).splitlines()))
    assert rows[0] == ["panel", "line", "tuning", "seed", "error"]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"kind": "onlin"}, "did you mean 'online'"),
        ({"kind": "sweep"}, "needs x: the axis along it"),
        ({"kind": "sweep", "x": "tunin"}, "figures.x = 'tunin', but must be an axis; did you mean 'tuning'"),
        ({"kind": "online", "colour": "red"}, "no setting figures.colour"),
        ({"kind": "online", "log": True}, "figures.log = True, but must be 'x' or 'y'"),
        ({"kind": "theta"}, "nothing for a figure of kind 'theta'"),
    ],
)
def test_mistakes_are_named(wanted, says):
    with pytest.raises(SpecError) as caught:
        figures.figure(CURVES, wanted, "tuning")
    assert says in str(caught.value)


@pytest.mark.slow
def test_the_command_writes_pictures_and_data(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="figures need the extra fedtuner[plot]")
    found = [
        result(seed, target, tuning, curve=[[5, 0, 5, 0.5, 0.5, 0.4], [10, 1, 5, 0.4, 0.4 - 0.01 * seed, 0.3]],
               theta=[[1, 3.0, 0.1], [5, 1.0, 0.5]], tested=[[10, a, 5, 0.1, 0.1 * a, 0.2] for a in range(3)])
        for seed in range(3) for target in ("global", "personalized") for tuning in ("plain", "+ FedEx")
    ]  # fmt: skip
    wanted = [{"kind": "online", "panel": "target", "log": "y"}, {"kind": "theta"}, {"kind": "ranges", "x": "tuning"}]
    wanted += [{"kind": "sweep", "x": "tuning", "line": "target", "name": "final"}]
    file = tmp_path / "mine.jsonl"
    suite = {"title": "T", "axes": {}, "along": "tuning", "figures": wanted}
    results.write(file, results.Results(suite, tuple(found)))
    assert cli.main(["figures", str(file)]) == 0
    files = [Path(line) for line in capsys.readouterr().out.splitlines()]
    names = ("online", "theta", "ranges", "final")
    assert set(files) == {tmp_path / "mine" / f"{name}.{suffix}" for name in names for suffix in ("png", "svg", "csv")}
    for drawn in files:
        if drawn.suffix == ".svg":
            assert ET.fromstring(drawn.read_bytes()).tag.endswith("svg")
        if drawn.suffix == ".png":
            assert drawn.read_bytes().startswith(b"\x89PNG")
    results.write(file, results.Results({**suite, "figures": wanted[-1:]}, tuple(found)))  # one is enough to see it
    assert cli.main(["figures", str(file), "--to", str(tmp_path / "again")]) == 0
    again = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert len(again) == 3
    for drawn in again:
        assert drawn.read_bytes() == (tmp_path / "mine" / drawn.name).read_bytes()


def test_nothing_to_draw(tmp_path, capsys):
    file = tmp_path / "mine.jsonl"
    assert cli.main(["figures", str(file)]) == 2
    assert "no results in" in capsys.readouterr().err
    results.write(file, results.Results({"axes": {}}, tuple(CURVES)))
    assert cli.main(["figures", str(file)]) == 2
    assert "names no [[figures]]" in capsys.readouterr().err
    assert cli.main(["figures", str(tmp_path)]) == 2
    assert "is no file of results" in capsys.readouterr().err
