"""What is shown of a data set: numbers that agree with its README, and a picture of them."""

from __future__ import annotations

import io
import json
import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedtuner import cli
from fedtuner.cli.arguments import parser
from fedtuner.data import places, show
from fedtuner.federations import Client, Simulation
from fedtuner.problems import models
from fedtuner.pytorch import Task
from fedtuner.run import spec

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def here(name: str) -> pytest.MarkDecorator:
    there = any(places.holds(folder / name, name) for folder in places.folders())
    return pytest.mark.skipif(not there, reason=f"{name} is not here")


def problem(*labels: list[int], left_out: tuple[str, ...] = ()) -> Simulation:
    """Clients with these labels, the last two of each held out."""
    clients = []
    for i, y in enumerate(labels):
        parts = (y[:-2], y[-2:-1], y[-1:])
        clients.append(Client(i, *((np.zeros((len(p), 4), np.float32), np.array(p, np.int64)) for p in parts)))
    made = Simulation(Task(partial(models.logistic, 4, 10)), clients, "made up")
    made.left_out = list(left_out)
    return made


def test_sizes_and_splits_are_counted():
    shown = show.summary(problem([0, 1, 2], [0] * 10, [3] * 6, left_out=("tiny",)))
    assert (shown["clients"], shown["left_out"]) == (3, 1)
    assert shown["examples"] == {"all": 19, "train": 13, "valid": 3, "test": 3}
    assert {key: shown["per_client"][key] for key in ("min", "median", "max")} == {"min": 3, "median": 6.0, "max": 10}


def test_labels_are_counted():
    shown = show.summary(problem([0, 1, 7], [0] * 10, [1] * 6))["labels"]
    assert shown["classes"] == 3  # those that there are: 0, 1 and 7
    assert shown["classes_per_client"] == {"min": 1, "median": 1.0, "max": 3}
    assert shown["clients_with_all"] == pytest.approx(1 / 3)
    assert shown["commonest"] == pytest.approx(11 / 19)


@pytest.mark.parametrize(
    ("counts", "skew"),
    [([[5, 5], [1, 1]], 0.0), ([[10, 0], [0, 10]], 0.5), ([[9, 0, 0], [0, 9, 0], [0, 0, 9]], 2 / 3)],
)
def test_skew(counts, skew):
    assert show.skew(np.array(counts)) == pytest.approx(skew)


def test_labels_dealt_at_random_have_the_skew_of_chance():
    rng = np.random.default_rng(0)
    shown = show.summary(problem(*(rng.integers(0, 10, 100).tolist() for _ in range(50))))["labels"]
    assert shown["skew"] == pytest.approx(shown["skew_at_random"], rel=0.1)


def test_targets_that_are_no_labels_have_no_skew():
    clients = [Client(0, *((np.zeros((5, 4), np.float32), np.linspace(-1, 1, 5)) for _ in range(3)))]
    assert show.summary(Simulation(Task(partial(models.logistic, 4, 1)), clients))["labels"] is None


@pytest.mark.parametrize(
    "sizes", [[5], [5, 5], [1, 2], [3, 1000, 70_000], list(range(1, 300)), [0, 4, 9], [125] * 160, [0, 0]]
)
def test_every_client_is_in_one_bar(sizes):
    bars = show.histogram(np.array(sizes))
    assert len(bars) <= 10
    assert sum(bar["clients"] for bar in bars) == len(sizes)
    assert (bars[0]["from"], bars[-1]["to"]) == (min(sizes), max(sizes))
    for bar, after in pairwise(bars):
        assert bar["to"] + 1 == after["from"]
    for bar in bars:
        assert bar["clients"] == sum(bar["from"] <= size <= bar["to"] for size in sizes)


def test_the_command_draws(capsys):
    assert cli.main(["data", "show", "digits"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "digits: 56 clients, 1,797 examples"
    assert said[2] == "  per client 30 / 32 / 33 (min / median / max)"
    assert said[-2].split() == ["32", "█" * 40, "28"]


def test_the_picture_is_plain_where_the_terminal_is(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    show.print_summary(show.summary(problem([0, 1, 2], [0] * 10)))
    out.seek(0)
    assert "#" * 40 in out.read()


def test_the_command_tells_a_program(capsys):
    assert cli.main(["data", "show", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"]["all"] == 1797


def test_what_is_left_out_is_told(capsys):
    show.print_summary(show.summary(problem([0, 1, 2], left_out=("a", "b"))))
    assert "  left out   2 clients that are too small" in capsys.readouterr().out


def test_an_unknown_name_is_told(capsys):
    assert cli.main(["data", "show", "femnst"]) == 2
    assert "did you mean 'femnist'" in capsys.readouterr().err


# Numbers of the README beside the staged data.


@pytest.mark.slow
@here("mnist_by_writer")
@pytest.mark.parametrize("name", ["mnist_by_writer", "mnist-writers"])
def test_mnist_by_writer_agrees(name, capsys):
    assert cli.main(["data", "show", name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    per = found["per_client"]
    assert (found["clients"], found["examples"]["all"]) == (836, 70_000)
    assert (per["min"], per["median"], per["max"]) == (8, 104.5, 131)


@pytest.mark.slow
@here("shakespeare")
def test_shakespeare_agrees():
    """The README's 1,142 roles and 4,222,334 windows less the one role with two windows: two cannot be split."""
    found = show.summary(spec.load_problem("shakespeare"))
    if not (places.find("shakespeare") / "roles.jsonl.xz").exists():
        pytest.skip("another edition")
    assert (found["clients"], found["left_out"]) == (1_141, 1_373 - 1_141)
    assert found["examples"]["all"] == 4_222_334 - 2
    assert (found["per_client"]["median"], found["per_client"]["max"]) == (1_164, 61_268)
    assert found["labels"]["classes"] == 74


@pytest.mark.slow
@here("cifar10")
def test_cifar10_agrees():
    if not (places.find("cifar10") / "cifar10_20k.npz").exists():
        pytest.skip("the whole set")
    found = show.summary(spec.load_problem("cifar10"))
    assert found["examples"] == {"all": 20_000, "train": 12_800, "valid": 3_200, "test": 4_000}
    assert found["labels"]["rarest"] == found["labels"]["commonest"] == pytest.approx(0.1)


# The page.


def test_the_commands_of_the_page_parse():
    page = PAGE.read_text()
    commands = re.findall(r"^fedtuner [^#\n]*", page, re.MULTILINE)
    assert len(commands) >= 6
    for command in commands:
        parser().parse_args(command.split()[1:])


def test_the_models_of_the_page_have_these_parameters():
    page = PAGE.read_text()
    for build in (models.femnist_cnn, models.cifar_cnn, models.char_lstm, models.small_cnn, models.small_lstm):
        assert f"{sum(p.numel() for p in build().parameters()):,}" in page


# The list of sets.


def test_sets_are_listed_with_what_they_need(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDTUNER_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist" / "femnist.safetensors").touch()
    assert cli.main(["data", "list", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(listed) == set(places.SETS)
    assert listed["femnist"]["at"] == str(tmp_path / "femnist")
    assert listed["cifar10"]["at"] is None
    assert cli.main(["data", "list"]) == 0
    said = capsys.readouterr().out
    assert "cifar10: CIFAR-10\n  not here (fedtuner data get cifar10)\n  needs a download of 170 MB\n" in said
    assert "mnist_by_writer: MNIST joined to QMNIST's writer ids\n  not here (place it by hand)" in said
    assert f"here: {tmp_path / 'femnist'}" in said
    assert f"kept in {tmp_path} (FEDTUNER_DATA" in said


# Progress.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal():
    out = Terminal()
    with show.telling(False, out) as tell:
        tell("downloading a.zip", 0, 2_000_000)
        tell("downloading a.zip", 1_000, 2_000_000)  # too soon
        tell("downloading a.zip", 2_000_000, 2_000_000)
        tell("checking a.zip", 2_000_000, 2_000_000)
    assert out.getvalue() == (
        "downloading a.zip: 0 % of 2.0 MB\033[K\rdownloading a.zip: 100 % of 2.0 MB\033[K\r\n"
        "checking a.zip: 100 % of 2.0 MB\033[K\r\n"
    )


def test_progress_is_lines_elsewhere_and_nothing_when_quiet():
    out = io.StringIO()
    with show.telling(False, out) as tell:
        tell("shrinking images", 1_000, None)
        tell("shrinking images", 2_000, None)
    assert out.getvalue() == "shrinking images: 1,000\n"
    with show.telling(True, out) as tell:
        tell("shrinking images", 3_000, None)
    assert "3,000" not in out.getvalue()


def test_what_is_here_needs_nothing(capsys):
    show.print_listing(
        [{"name": "cifar10", "about": "CIFAR-10", "needs": "a download of 170 MB", "at": "/data/cifar10"}]
    )
    said = capsys.readouterr().out
    assert "cifar10: CIFAR-10\n  here: /data/cifar10\n" in said
    assert "needs" not in said
