"""The presets: the paper's settings, small ones beside them, and what is said where the data is absent."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedtuner import cli, tables
from fedtuner.data import binary, places
from fedtuner.errors import SpecError
from fedtuner.run import spec
from fedtuner.tuners import FedEx

PAPER = {"shakespeare": (4000, 800), "femnist": (2000, 200), "cifar10": (4000, 800), "mnist-writers": (2000, 200)}
SETS = {"mnist-writers": "mnist_by_writer", "shakespeare": "shakespeare", "femnist": "femnist", "cifar10": "cifar10"}
NAMES = [name for name in spec.presets() if name != "digits"]


def family(name: str) -> str:
    return name.removesuffix("-small").removesuffix("-iid")


def small(name: str) -> bool:
    return name.endswith("-small")


def test_every_benchmark_has_a_small_variant():
    wanted = {"shakespeare", "shakespeare-iid", "femnist", "femnist-iid", "cifar10"}
    wanted |= {"mnist-writers", "mnist-writers-iid"}
    assert set(NAMES) == wanted | {f"{name}-small" for name in wanted}


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_the_papers(name):
    parsed = spec.parse(spec.read(name)[1])
    schedule, fedex = tables.table(parsed.schedule), parsed.tuner
    assert parsed.problem == name
    assert (schedule["kind"], schedule["eta"], schedule["eliminations"]) == ("halving", 3, 3)
    assert isinstance(fedex, FedEx)
    assert (fedex.k, fedex.eps, fedex.step) == (27, 0.1, "aggressive")
    assert (parsed.method, parsed.cohort, parsed.target) == ("fedavg", 10, "personalized")
    assert dict(parsed.client) == ({"epochs": 1} if family(name) == "shakespeare" else {})
    budget, longest = PAPER[family(name)]
    assert (schedule["budget"], schedule["longest"]) == (budget, longest) or small(name)
    assert schedule["budget"] < budget or not small(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_comment_says_what_it_needs_and_how_long_it_takes(name):
    about = re.match(r"(# .*\n)+", spec.presets()[name])
    assert about
    got = f"fedtuner data get {SETS[family(name)]}"
    assert (got if places.SETS[SETS[family(name)]].get else "mnist_by_writer.npz") in about.group()
    assert re.search(r"about .* (minutes|hours|days) on two cores", about.group())
    assert not small(name) or re.search(r"about (\w+) minutes", about.group())


@pytest.mark.parametrize("name", NAMES)
def test_without_its_data_a_preset_says_what_to_get(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDTUNER_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", name]) == 2
    said = capsys.readouterr().err
    folder = SETS[family(name)]
    assert f"the data set {folder!r}" in said
    assert str(tmp_path / "none" / folder) in said
    assert "Traceback" not in said
    if places.SETS[folder].get:
        assert f"fedtuner data get {folder}" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", [name for name in spec.PROBLEMS if not name.startswith("digits")])
def test_problems_lead_to_functions(name):
    module, _, function = spec.PROBLEMS[name].partition(":")
    assert callable(getattr(__import__(module, fromlist=[function]), function))


def run_briefly(name: str, store: Path) -> None:
    brief = ("schedule.kind=random_search", "schedule.budget=2", "schedule.longest=1", "fedex.k=2", "cohort=2")
    fixed = ("client.epochs=1", "client.batch=32")
    settings = [part for setting in (*brief, *fixed) for part in ("--set", setting)]
    assert cli.main(["run", name, "--store", str(store), "--workers", "1", "--quiet", "--json", *settings]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist-writers-small", "shakespeare-small", "cifar10-small"])
def test_small_presets_run_on_the_staged_data(name, tmp_path, capsys):
    try:
        places.find(SETS[family(name)])
    except SpecError:
        pytest.skip("the data is not here")
    run_briefly(name, tmp_path / "s")
    assert json.loads(capsys.readouterr().out)["result"]["rounds_used"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if family(name) == "femnist"])
def test_femnist_presets_run_on_a_few_made_up_writers(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDTUNER_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    writers = [
        (f"f{i:04d}_00", rng.integers(0, 256, (12, 28, 28), np.uint8), rng.integers(0, 62, 12).astype(np.int16))
        for i in range(6)
    ]
    binary.convert(writers, tmp_path / "femnist" / "femnist.safetensors", "made up", 62)
    run_briefly(name, tmp_path / "s")
    assert json.loads(capsys.readouterr().out)["spec"]["problem"]["clients"] == 6
