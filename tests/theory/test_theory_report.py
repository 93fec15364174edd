"""The command ``fedtuner theory``."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET

import pytest

from fedtuner import cli
from fedtuner.errors import SpecError
from fedtuner.theory import experiment, report
from fedtuner.theory.theorem import Setting

SMALL = ("theory", "--tau", "1000", "--seeds", "2")


@pytest.mark.slow
def test_the_command_prints_tables_and_what_they_show(capsys):
    assert cli.main([*SMALL, "--m", "5"]) == 0
    out, err = capsys.readouterr()
    assert "1,000 tasks of 5 losses, 2 seeds" in out
    assert all(label in out for label in experiment.TUNERS.values())
    assert "never above it" in out
    row = next(
        line for line in out.splitlines() if line.startswith("FedEx  ") and line.count("± ") == 4 and "-0." in line
    )
    assert "± 0.00" not in row  # three points are not on a line, though both seeds agree
    assert "--out DIR" in out
    assert "100 % of 1,000" in err


@pytest.mark.slow
def test_json_is_strict_and_the_same_each_time(capsys):
    assert cli.main([*SMALL, "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert not err
    shown = json.loads(out, parse_constant=pytest.fail)
    assert shown["settings"]["tau"] == 1000
    assert len(shown["runs"]) == 3 * 4
    assert cli.main([*SMALL, "--json", "--quiet"]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.slow
def test_a_second_run_reads_what_the_first_wrote(tmp_path, capsys, monkeypatch):
    """And without matplotlib it says how to get the picture."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main([*SMALL, "--out", str(tmp_path)]) == 0
    first, err = capsys.readouterr()
    assert "FedEx" in first
    assert "pip install 'fedtuner[plot]'" in err
    assert [file.name for file in tmp_path.iterdir()] == ["theory.json"]
    monkeypatch.setattr(experiment, "measure", lambda *a: pytest.fail("computed again"))
    assert cli.main([*SMALL, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == first
    monkeypatch.setattr(experiment, "measure", lambda *a: (_ for _ in ()).throw(SpecError("computed anew")))
    assert cli.main([*SMALL, "--k", "3", "--out", str(tmp_path)]) == 2  # another experiment is not in the file
    assert "computed anew" in capsys.readouterr().err


@pytest.mark.slow
def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    record = report.record(Setting(similarities=(0.1,)), 1000, 2)
    files = report.write(record, tmp_path)
    assert [file.name for file in files] == ["theory.json", "theory.png", "theory.svg"]
    png, svg = (file.read_bytes() for file in files[1:])
    assert png.startswith(b"\x89PNG")
    assert ET.fromstring(svg).tag.endswith("svg")
    assert report.picture(record) == {"png": png, "svg": svg}


@pytest.mark.slow
def test_the_command_names_the_files_that_it_wrote(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, "picture", lambda record: {"png": b"pixels"})
    assert cli.main([*SMALL, "--out", str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr().err == f"wrote {tmp_path / 'theory.json'}, {tmp_path / 'theory.png'}\n"


def test_stopped_it_leaves_nothing(tmp_path, capsys, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "play", stop)
    assert cli.main([*SMALL, "--out", str(tmp_path / "o")]) == 3
    assert "nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_folder_that_cannot_be_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main([*SMALL, "--out", str(tmp_path / "file"), "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("fedtuner: cannot write to")
