"""Figures for papers: each view is drawn, into each kind of file, with the same bytes each time."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from shown import STUDIES

import fedtuner as ft
import toys
from fedtuner.cli import pages
from fedtuner.errors import SpecError
from fedtuner.page import plots


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Two studies over two seeds; the first one with the untuned default beside it."""
    folder = tmp_path_factory.mktemp("plots")
    for name, changed in (("a", {"schedule": ft.halving(80, 10, 3, 2)}), ("b", {"fedex": None})):
        for seed in (0, 1):
            study = toys.tune(store=folder / f"{name}{seed}", seed=seed, **changed)
            study.evaluate("test")
            if name == "a":
                ft.untuned(study, progress=False).evaluate("test")
    toys.tune(store=folder / "children", **STUDIES["children"])
    toys.tune(store=folder / "trouble", **STUDIES["a client in trouble"])
    return folder


def test_the_command_knows_the_figures():
    assert tuple(plots.KINDS) == pages.KINDS


@pytest.mark.slow
@pytest.mark.parametrize("kind", plots.KINDS)
def test_each_view_is_drawn(stores, tmp_path, fedtuner, kind):
    names = {"lineage": ["children"], "comparison": ["a0", "a1", "b0", "b1"], "health": ["trouble"]}.get(kind, ["a0"])
    paths = [stores / name for name in names]
    for suffix in ("svg", "png", "pdf"):
        file = tmp_path / f"fig.{suffix}"
        code, out, err = fedtuner("plot", kind, *paths, "-o", file)
        assert (code, err) == (0, "")
        assert str(file) in out
        assert file.stat().st_size > 2000
    drawn = (tmp_path / "fig.svg").read_bytes()
    assert ET.fromstring(drawn).tag.endswith("svg")
    assert plots.write(kind, paths, tmp_path / "again.svg").read_bytes() == drawn


@pytest.mark.slow
def test_a_figure_has_what_the_view_has(stores):
    study = ft.load(stores / "a0")
    (ax,) = study.plot("race").axes
    arms = [line for line in ax.lines if len(line.get_xdata()) > 1]
    assert len(arms) == len(study.journal.arms) + 1  # and the untuned default
    longest = max(arms, key=lambda line: line.get_xdata()[-1])
    assert longest.get_xdata()[-1] == max(r.round for r in study.history)
    assert study.plot("race")._repr_png_().startswith(b"\x89PNG")
    several = plots._shown("incumbent", [stores / "a0", stores / "b0"])
    assert [view["name"] for view in several] == [str(stores / "a0"), str(stores / "b0")]


@pytest.mark.filterwarnings("ignore:.*outside of the space")
@pytest.mark.slow
def test_values_outside_the_ranges_are_drawn_on_their_axes():
    lines = toys.tune(**STUDIES["values outside the ranges"]).plot("configurations").axes[0].lines
    heights = [y for line in lines if len(line.get_ydata()) == 4 for y in line.get_ydata()]
    assert heights
    assert all(0 <= y <= 1 for y in heights)


@pytest.mark.slow
def test_values_below_0_are_drawn_with_their_bands_and_intervals(tmp_path):
    task = toys.Softmax()
    task.metric = ft.Metric("reward", maximise=True)  # the negative of the error
    study = toys.tune(problem=ft.Simulation(task, toys.clients(), "toy"), store=tmp_path / "s")
    study.evaluate("test")
    (ax,) = study.plot("race").axes
    (band,) = (part.get_paths()[0].vertices[:, 1] for part in ax.collections)
    winner = next(line for line in ax.lines if line.get_label().endswith("winner")).get_ydata()
    assert min(winner) < 0
    assert band.min() < min(winner)
    (ax,) = study.plot("comparison").axes
    assert ax.get_xlabel().startswith("test -reward")
    assert ax.get_xlim()[0] <= min(ax.collections[0].get_segments()[0][:, 0])


@pytest.mark.slow
def test_a_study_of_one_round_and_long_names_can_be_seen(tmp_path):
    problem = ft.Simulation(toys.Softmax(), toys.clients(), "a problem whose name is rather long")
    study = toys.tune(store=tmp_path / "s", problem=problem, **STUDIES["one arm, one round"])
    study.evaluate("test")
    for kind in ("race", "incumbent"):
        (ax,) = study.plot(kind).axes
        assert [line.get_marker() for line in ax.lines if len(line.get_xdata()) == 1] == ["o"]
        assert all(tick == round(tick) for tick in ax.get_xticks())
    figure = study.plot("comparison")
    figure.draw_without_rendering()
    assert figure.axes[0].get_position().width > 0.5


@pytest.mark.slow
def test_a_study_that_is_kept_nowhere_is_drawn_too():
    study = toys.tune()
    assert study.plot("theta", arm=1).axes[-1].get_ylabel() == "probability"
    with pytest.raises(SpecError, match="studies in folders"):
        study.plot("comparison")


@pytest.mark.slow
def test_what_cannot_be_drawn_is_refused(stores, tmp_path):
    for kind, names, arm, said in (
        ("race", ["a0", "b0"], None, "shows one study"),
        ("rase", ["a0"], None, "kind = 'rase'"),
        ("race", ["a0"], 77, "arm = 77"),
    ):
        with pytest.raises(SpecError, match=said):
            plots.write(kind, [stores / name for name in names], tmp_path / "fig.svg", arm)
    with pytest.raises(SpecError, match=r"must end in \.svg"):
        plots.write("race", [stores / "a0"], stores / "a0" / "journal.jsonl")
    for kind, name, said in (("theta", "b0", "no theta"), ("importance", "b0", "too few")):
        with pytest.raises(SpecError, match=said):
            plots.write(kind, [stores / name], tmp_path / "fig.svg")
