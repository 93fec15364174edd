"""What ``fedtuner run`` says where it has evaluated a sample of the clients."""

from __future__ import annotations

import json

import pytest

import toys
from fedtuner import cli
from fedtuner.report import journal_of
from fedtuner.run import sampling

RUN = ("run", "study.toml", "--workers", "1", "--store", "s", "--quiet")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    toys.write_study(tmp_path, toys.STUDY.replace("toys:problem", "toys:many"))


def test_the_sample_that_is_asked_for_is_drawn_and_named(capsys):
    assert cli.main([*RUN, "--evaluate-sample", "40"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    [found] = journal_of(toys.Path("s")).sampled.values()
    assert (found.sample, found.population) == (40, 60)
    assert f"Evaluated on {found.clients} of 60 clients, drawn in proportion to their examples." in out
    assert "interval of 95 % for the mean over all clients by examples" in out
    assert "over all clients (95 %)" not in out
    assert cli.main(["show", "s", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["evaluations"]["tuned"]["test mode error"]
    assert shown["global_low"] < shown["global"] < shown["global_high"]
    assert (shown["sample"], shown["clients"], shown["population"]) == (40, found.clients, 60)


@pytest.mark.slow
def test_of_many_clients_a_sample_is_drawn_unless_all_are_asked_for(capsys, monkeypatch):
    monkeypatch.setattr(sampling, "MANY", 50)
    monkeypatch.setattr(sampling, "ENOUGH", 40)
    assert cli.main([*RUN, "--baseline"]) == 0
    studies = [journal_of(toys.Path("s")), journal_of(toys.Path("s/untuned"))]
    assert {found.sample for study in studies for found in study.sampled.values()} == {40}
    assert not any(study.evaluated for study in studies)
    assert cli.main([*RUN, "--evaluate-sample", "0"]) == 0
    assert journal_of(toys.Path("s")).evaluated


def test_a_sample_that_is_too_small_is_refused(capsys):
    assert cli.main([*RUN, "--evaluate-sample", "5"]) == 2
    assert "sample = 5, but must be a whole number >= 30" in capsys.readouterr().err
    assert not toys.Path("s").exists()  # before any work
