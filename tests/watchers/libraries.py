"""The adapters against their libraries, and what else needs a library that the other tests do not have.

``test_adapters.py`` runs this file in the environment that ``make watchers`` makes.
"""

from __future__ import annotations

import json
import os
import signal
import struct
from wsgiref.util import setup_testing_defaults

import pytest

import fedtuner as ft
import toys
from fedtuner.errors import Interrupted
from fedtuner.run import watch

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries'


def in_two_lives(tmp_path, monkeypatch, make):
    """A study that is stopped and goes on, each time with a new watcher; the watchers are told all of it."""
    monkeypatch.setattr(watch, "_MOMENT", 0.0)
    asked = []

    def stop(status):
        if status.used >= 12 and not asked:
            asked.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        toys.tune(store=tmp_path / "s", progress=stop, watch=[make()])
    return toys.tune(store=tmp_path / "s", watch=make())


def records(path):
    """The events of a TensorBoard file: a length, its checksum, the event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data, at = path.read_bytes(), 0
    while at < len(data):
        (size,) = struct.unpack("<Q", data[at : at + 8])
        yield Event.FromString(data[at + 12 : at + 12 + size])
        at += size + 16


def test_tensorboard(tmp_path, monkeypatch):
    study = in_two_lives(tmp_path, monkeypatch, lambda: ft.watchers.TensorBoard(tmp_path / "to"))
    found, texts = {}, set()
    for file in sorted((tmp_path / "to").glob("events.*")):
        for event in records(file):
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    found[value.tag, event.step] = value.simple_value
                else:
                    texts.add(value.tag.removesuffix("/text_summary"))
    for record in study.history:
        for name in ("error", "loss", "entropy"):
            assert found[f"{name}/arm-{record.arm}", record.round] == pytest.approx(getattr(record, name), rel=1e-6)
    assert texts == {"winner", *(f"arm-{n}" for n in range(4))}


def test_mlflow(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    study = in_two_lives(tmp_path, monkeypatch, lambda: ft.watchers.MLflow(uri, "toy"))
    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("toy").experiment_id])
    assert sorted(run.data.tags["fedtuner.arm"] for run in runs) == ["0", "1", "2", "3"]
    for run in runs:
        arm = int(run.data.tags["fedtuner.arm"])
        assert run.info.status == "FINISHED"
        assert run.data.tags["fedtuner.status"] == ("won" if arm == study.best.arm else "eliminated")
        assert float(run.data.params["client.lr"]) == study.journal.arms[arm].client["lr"]
        told = {point.step: point.value for point in client.get_metric_history(run.info.run_id, "error")}
        assert told == {r.round: r.error for r in study.history if r.arm == arm}


def logged(path):
    """The records of a .wandb file: after its header, pieces in blocks of 32 KiB, with checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (1 << 15) - at % (1 << 15) < 7:  # the block's rest has no room for a piece
            at += (1 << 15) - at % (1 << 15)
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last piece
            yield Record.FromString(whole)
            whole = b""


def complete(found):
    """The records, once the last of a run is among them."""
    return found if any(record.WhichOneof("record_type") == "exit" for record in found) else []


def items(given):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in given}


def test_wandb_offline(tmp_path):
    study = toys.tune(watch=ft.watchers.WandB(project="toy", mode="offline", dir=str(tmp_path)))
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    written = toys.until(lambda: complete([*logged(file)]))
    lines, summary = [], {}
    for record in written:  # another process writes it, also after the run has ended
        lines.append(items(record.history.item))
        summary |= items(record.summary.update)
    for record in study.history:
        told = {f"round/arm-{record.arm}": record.round, f"error/arm-{record.arm}": record.error}
        assert any(told.items() <= line.items() for line in lines), told
    assert summary["winner"] == study.best.arm


def test_optunas_dashboard_while_the_study_runs(tmp_path, monkeypatch):
    import optuna
    import optuna_dashboard

    url, seen = f"sqlite:///{tmp_path / 'studies.db'}", []

    def look(event):
        if type(event).__name__ == "Eliminated":
            seen.append([trial.state.name for trial in optuna.load_study(study_name="toy", storage=url).trials])

    dashboard = ft.watchers.Dashboard(url, "toy")
    study = toys.tune(watch=[dashboard, look])
    assert seen[0].count("PRUNED") == 1
    assert seen[0].count("RUNNING") == 3
    trials = {trial.user_attrs["arm"]: trial for trial in optuna.load_study(study_name="toy", storage=url).trials}
    assert trials[study.best.arm].state.name == "COMPLETE"
    assert trials[study.best.arm].value == study.best.score
    for arm, trial in trials.items():
        scores = {r.round: r.error for r in study.journal.records(arm)}
        assert trial.intermediate_values == scores
        assert trial.params["client.lr"] == study.journal.arms[arm].client["lr"]
    app, status = optuna_dashboard.wsgi(optuna.storages.RDBStorage(url)), []
    request = {"PATH_INFO": "/api/studies"}
    setup_testing_defaults(request)
    body = b"".join(app(request, lambda code, *_: status.append(code)))
    assert status == ["200 OK"]
    assert b'"toy"' in body
    again = in_two_lives(tmp_path, monkeypatch, lambda: ft.watchers.Dashboard(url, "two lives"))
    again.extend(60)  # the first winner's trial is complete and stays so
    states = [trial.state.name for trial in optuna.load_study(study_name="two lives", storage=url).trials]
    assert len(states) == 8
    assert "RUNNING" not in states


def test_frames_of_pandas():
    study = toys.tune()
    rounds, arms = study.frame(), study.frame("arms")
    assert len(rounds) == study.rounds_used
    assert rounds["error"].tolist() == [record.error for record in study.history]
    assert {"client.lr", "server.lr", "theta", "arm", "round"} <= set(rounds.columns)
    assert arms.set_index("arm").loc[study.best.arm, "status"] == "won"
    assert arms["client.lr"].notna().all()


def test_a_bar_in_a_notebook(tmp_path):
    """Executed by Jupyter: one output below the cell, which has changed to its end."""
    import nbclient
    import nbformat

    code = "import toys\nstudy = toys.tune(progress=None)\nstudy"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    done = nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    bar, shown = done.cells[0].outputs
    assert bar["data"]["text/html"].startswith('<progress value="30" max="30"></progress> tuning: 30/30 rounds')
    assert shown["data"]["text/plain"].startswith("<Study: toy, remembering, 4 arms, 30 of 30 rounds, won by arm")
