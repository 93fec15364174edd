"""Files by chance: studies, suites, results, journals, states and data sets."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import RESULT, SUITE

import toys
from fedtuner import Client, data, report
from fedtuner.data import binary, cifar10, leaf, mnist_writers
from fedtuner.experiments import compare, figures, results, suite
from fedtuner.report import diff, show
from fedtuner.run import spec
from fedtuner.run.result import load
from fedtuner.run.store import Folder, states
from fedtuner.run.store.files import read_json
from fuzzing import answered, damaged, few, values, warped

TABLE = {
    "problem": "toys:problem", "method": "fedavg", "cohort": 3, "cohorts": "shared", "target": "global", "seed": 1,
    "weights": "shared", "cooling": 0.5, "engine": "auto", "device": "cpu", "sampler": {"kind": "ball", "eps": 0.1},
    "combine": {"kind": "trimmed", "share": 0.1},
    "schedule": {"kind": "halving", "budget": 30, "longest": 10, "eta": 2, "eliminations": 2, "discount": 0.5},
    "fedex": {"k": 3, "eps": 0.3, "step": "aggressive", "gamma": 0.5, "tries": 2},
    "client": {"lr": {"low": 0.1, "high": 1.0, "log": True}, "epochs": [1, 2], "momentum": 0.5},
    "server": {"lr": {"low": 0.1, "high": 1.0}, "optimiser": "adam"},
}  # fmt: skip
PROBLEM = toys.problem()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzed")


@pytest.fixture(scope="module")
def store(folder: Path) -> Path:
    toys.tune(method=toys.ft.methods.fedavg, space=None, store=folder / "s").evaluate("test")
    return folder / "s"


# Studies and suites


@few
@given(warped(TABLE))
def test_a_table_of_a_study(table: Any) -> None:
    if isinstance(table, dict):
        answered(lambda: spec.parse(table).study(None, 1, PROBLEM).describe())


@few
@given(damaged(toys.STUDY.encode()) | st.binary(max_size=50))
def test_a_file_of_a_study(folder: Path, content: bytes) -> None:
    file = folder / "study.toml"
    file.write_bytes(content)
    read = answered(spec.read, str(file))
    if read is not None:
        answered(spec.parse, read[1])


@few
@given(
    st.lists(
        st.text(max_size=12)
        | st.builds("{}={}".format, st.sampled_from(["seed", "client.lr", "schedule.budget"]), values),
        max_size=2,
    )
)
def test_settings_of_a_study(settings: list[str]) -> None:
    table = answered(spec.override, {"problem": "toys:problem"}, settings)
    if table is not None:
        answered(spec.parse, table)


@few
@given(
    warped(
        {
            "seeds": 2,
            "title": "x",
            "along": "a",
            "columns": "b",
            "base": TABLE,
            "axes": {"a": {"x": {"seed": 3}}, "b": {"key": "fedex.eps", "values": [0.1]}},
            "figures": [{"kind": "sweep", "x": "a"}],
        }
    )
)
def test_a_table_of_a_suite(table: Any) -> None:
    if isinstance(table, dict):
        answered(suite.parse, "mine", table)


@few
@given(damaged(SUITE.encode()))
def test_a_file_of_a_suite(folder: Path, content: bytes) -> None:
    file = folder / "suite.toml"
    file.write_bytes(content)
    answered(suite.read, file)


# Results

FULL = {
    **RESULT, "stalled": [], "by_arm": [[0, 9, 0, 0]], "family": "f", "study": {"seed": 0},
    "online": {"every": 3, "curve": [[3, 0, 3, 0.5, 0.5, 0.5]]}, "theta": [[1, 0.5, 0.5]],
    "tested": [[3, 0, 3, 0.5, 0.5, 0.5]],
}  # fmt: skip
FIRST = {
    "suite": {
        "name": "x",
        "title": "t",
        "axes": {"a": ["x"]},
        "along": "a",
        "columns": "",
        "paper": {"x": [1.0, 2.0, 3.0]},
    }
}
LINES = [FIRST, FULL, {**FULL, "seed": 1}]


def look(file: Path) -> None:
    compare.compare([file])
    kept = results.read(file).studies
    for kind in figures.KINDS:
        answered(figures.figure, kept, {"kind": kind, "x": "a"}, "a")


@few
@given(warped(LINES))
def test_lines_of_results(folder: Path, lines: Any) -> None:
    file = folder / "mine.jsonl"
    lines = lines if isinstance(lines, list) else [lines]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    answered(look, file)


@few
@given(damaged("".join(json.dumps(line) + "\n" for line in LINES).encode()) | st.binary(max_size=50))
def test_a_file_of_results(folder: Path, content: bytes) -> None:
    file = folder / "mine.jsonl"
    file.write_bytes(content)
    answered(look, file)


@few
@given(damaged(b'{"settings": {"tau": 3}}') | st.binary(max_size=20))
def test_a_file_of_json(folder: Path, content: bytes) -> None:
    file = folder / "theory.json"
    file.write_bytes(content)
    answered(read_json, file)


# Stores


def look_at(path: Path, other: Path) -> None:
    found = report.summary(path)
    show.headline(found["spec"], None)
    json.dumps(report.strict(found))
    diff.as_lines(diff.differences(report.journal_of(path), report.journal_of(other)), ("a", "b"))


@pytest.mark.slow
@few
@given(st.data())
def test_lines_of_a_journal(store: Path, drawn: st.DataObject) -> None:
    """The checksums are right: only the content is not."""
    lines = [json.loads(line[9:]) for line in (store / "journal.jsonl").read_bytes().splitlines()]
    kinds = [line["event"] for line in lines]
    at = kinds.index(drawn.draw(st.sampled_from(sorted(set(kinds)))))
    lines[at] = drawn.draw(warped(lines[at]))
    copy = store.parent / "copy"
    copy.mkdir(exist_ok=True)
    texts = [json.dumps(line).encode() for line in lines]
    (copy / "journal.jsonl").write_bytes(b"".join(b"%08x %s\n" % (zlib.crc32(text), text) for text in texts))
    answered(look_at, copy, store)


@few
@given(st.data())
def test_the_file_of_a_journal(store: Path, drawn: st.DataObject) -> None:
    copy = store.parent / "copy"
    copy.mkdir(exist_ok=True)
    whole = (store / "journal.jsonl").read_bytes()
    (copy / "journal.jsonl").write_bytes(drawn.draw(damaged(whole) | st.binary(max_size=50)))
    answered(look_at, copy, store)


@pytest.mark.slow
@few
@given(st.data())
def test_the_file_of_a_state(store: Path, drawn: st.DataObject) -> None:
    """Without the checksum that the journal knows."""
    copy = store.parent / "states"
    (copy / "states").mkdir(parents=True, exist_ok=True)
    name = sorted((store / "states").iterdir())[0].name
    arm, round = map(int, name.removesuffix(".safetensors").split("-"))
    shutil.copy(store / "journal.jsonl", copy)
    content = drawn.draw(damaged((store / "states" / name).read_bytes()) | st.binary(max_size=50))
    (copy / "states" / name).write_bytes(content)
    answered(Folder(copy).load, (arm, round))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "checksum", lambda data: "")
        answered(lambda: load(copy).export(copy / "out", force=True))


# Data sets

LEAF = {
    "users": ["a", "b"],
    "num_samples": [2, 3],
    "user_data": {"a": {"x": [[0.5], [1]], "y": [0, 1]}, "b": {"x": [[1], [2], [3]], "y": [1, 0, 1]}},
}


def read_leaf(folder: Path) -> None:
    for client in leaf.clients(folder / "leaf", folder / "leaf.cache"):
        data.labels(client.train)


@few
@given(damaged(json.dumps(LEAF).encode()) | warped(LEAF).map(lambda table: json.dumps(table).encode()))
def test_a_file_of_leafs(folder: Path, content: bytes) -> None:
    (folder / "leaf").mkdir(exist_ok=True)
    (folder / "leaf" / "one.json").write_bytes(content)
    (folder / "leaf.cache").unlink(missing_ok=True)
    answered(read_leaf, folder)


@few
@given(st.data())
def test_a_converted_file(folder: Path, drawn: st.DataObject) -> None:
    file = folder / "converted"
    if not file.exists():
        binary.convert(
            [("a", np.zeros((3, 2), np.float32), np.arange(3)), ("b", np.ones((2, 2), np.float32), np.arange(2))], file
        )
    (folder / "other").write_bytes(drawn.draw(damaged(file.read_bytes()) | st.binary(max_size=50)))
    answered(binary.File, folder / "other")


def npz(**arrays: Any) -> bytes:
    held = io.BytesIO()
    np.savez(held, **arrays)
    return held.getvalue()


def labels(clients: Iterable[Client]) -> list[Any]:
    return [data.labels(client.train) for client in clients]


X, Y = np.zeros((4, 2), np.float32), np.arange(4)
IMAGES = np.zeros((10, 32, 32, 3), np.uint8)
READERS = {
    "a.npz": (npz(x=X, y=Y), lambda folder: labels(data.from_npz(folder))),
    "cifar10_20k.npz": (
        npz(x_train=IMAGES, y_train=np.arange(10) % 10, x_test=IMAGES, y_test=np.arange(10) % 10),
        lambda folder: labels(cifar10.clients(folder=folder)),
    ),
    "data_batch_1": (
        pickle.dumps({b"data": IMAGES.reshape(10, -1), b"labels": list(range(10))}),
        lambda folder: labels(cifar10.clients(folder=folder)),
    ),
    "mnist_by_writer.npz": (
        npz(
            images=np.zeros((6, 28, 28), np.uint8),
            labels=np.arange(6),
            writers=np.arange(6) // 3,
            mnist_test=np.arange(6) > 2,
        ),
        lambda folder: labels(mnist_writers.clients(folder=folder)),
    ),
}


@pytest.mark.slow
@few
@pytest.mark.parametrize("name", READERS)
@given(st.data())
def test_files_of_arrays(folder: Path, name: str, drawn: st.DataObject) -> None:
    whole, read = READERS[name]
    (folder / name).mkdir(exist_ok=True)
    if name == "data_batch_1":
        for other in (*(f"data_batch_{i}" for i in range(2, 6)), "test_batch"):
            (folder / name / other).write_bytes(whole)
    (folder / name / name).write_bytes(drawn.draw(damaged(whole) | st.binary(max_size=50)))
    answered(read, folder / name)
