"""A folder with everything that a wrong command may name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from samples import FIGURES, RESULT, SUITE

import toys

BROKEN = """
import sys
import fedtuner as ft
import toys

def raises():
    raise ValueError("two\\nlines")

def exits():
    sys.exit("enough")

def none():
    return None

def odd():
    return ft.Simulation(toys.Softmax(), [ft.Client("a", 3, None)])
"""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the commands name; nobody writes to it."""
    folder = tmp_path_factory.mktemp("made")
    toys.write_study(folder)
    study = toys.tune(method=toys.ft.methods.fedavg, space=None, store=folder / "done")
    study.evaluate("test")
    for name in ("folder", "folder.toml", "folder.svg", "old", "journalled", "exported", "theories"):
        (folder / name).mkdir()
    (folder / "journalled" / "journal.jsonl").mkdir()
    (folder / "file").touch()
    (folder / "old" / "spec.json").write_text("{}")
    (folder / "exported" / "model.safetensors").write_text("another model")
    (folder / "theories" / "theory.json").write_text("[")
    (folder / "model.bin").write_bytes(bytes(range(256)))
    (folder / "nothing.jsonl").write_text("[]\n")
    (folder / "broken.jsonl").write_text("hello\n")
    (folder / "half.jsonl").write_text('{"labels": 3, "seed": [], "test": "x"}\n')
    (folder / "empty.jsonl").write_text("")
    (folder / "listed.jsonl").write_text('{"suite": []}\n')
    (folder / "text.jsonl").write_text(json.dumps({**RESULT, "test": {"global": "low", "personalized": 1}}) + "\n")
    (folder / "one.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (FIGURES, RESULT)))
    (folder / "other.jsonl").write_text(json.dumps(RESULT) + "\n")
    (folder / "digits.jsonl").write_text("1" + "0" * 6000 + "\n")
    (folder / "deep.jsonl").write_text("[" * 100000 + "\n")
    (folder / "bytes.jsonl").write_bytes(b"\xff\n")
    (folder / "broken.py").write_text(BROKEN)
    (folder / "crooked.py").write_text("def (\n")
    (folder / "suite.toml").write_text(SUITE)
    (folder / "loop.toml").symlink_to("loop.toml")
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder to work in, without data sets and without a network."""
    work = tmp_path / "work"
    shutil.copytree(made, work, symlinks=True)
    monkeypatch.chdir(work)
    monkeypatch.syspath_prepend(str(work))
    monkeypatch.setenv("FEDTUNER_DATA", "/dev/null/data")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return work
