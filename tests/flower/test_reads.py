"""A hyperparameter that no app reads is named, once; one that any app reads, or might have, is not."""

import copy
import json
import pickle
import re

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, RecordDict
from flwr.clientapp import ClientApp
from test_client import FIRST, Older, grid_of, plain_app, tune

import fedtuner as ft
from fedtuner.flower.reads import Config, RunConfig, Unread, told

VALUES = {"lr": 0.1, "epochs": 2, "name": "x"}


def reading(*ways):
    """An app that trains like any other, and reads what these functions of config and run_config read."""
    app, inner = ClientApp(), plain_app([])

    def called(message, context):
        config = message.content["config"]
        for way in ways:
            way(config, context.run_config)
        plain = {"lr": 0.1, "steps": 1, "split": "valid"}
        message.content = RecordDict({"arrays": message.content["arrays"], "config": ConfigRecord(plain)})
        return inner(message, context)

    app.train()(called)
    app.evaluate()(called)
    return ft.flower.tuned(app)


def unread(app, **changed):
    """The lines about names that were not read, in a study of two arms."""
    grid = grid_of(app)
    problem = ft.flower.Fleet(grid, FIRST, least=6, deadline=20.0, clock=grid.clock)
    lines = []
    problem.fault = lambda kind, text, **about: lines.append(text) if kind == "unread" else None
    tune(grid, **{"problem": problem, "schedule": ft.random_search(6, 3), **changed})
    return lines


ALL = {"batch-size", "flavour", "lr", "nesterov", "steps"}


@pytest.mark.parametrize(
    ("ways", "left"),
    [
        ([lambda config, run: config["lr"]], ALL - {"lr"}),
        ([lambda config, run: run["lr"], lambda config, run: config.get("steps")], ALL - {"lr", "steps"}),
        ([lambda config, run: "flavour" in run, lambda config, run: run.pop("lr")], ALL - {"flavour", "lr"}),
        ([lambda config, run: config.get("learning-rate", 0.1)], ALL),
    ],
)
def test_what_no_app_reads_is_named_once(ways, left):
    (line,) = unread(reading(*ways))
    assert re.match(r"arm [01], round 1: no client's app has read '", line)
    assert {name for name in ALL if repr(name) in line} == left


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        lambda config, run: dict(config), lambda config, run: {**run}, lambda config, run: list(config.items()),
        lambda config, run: run.copy(), lambda config, run: json.dumps(run), lambda config, run: [*config],
        lambda config, run: list(run.values()), lambda config, run: copy.deepcopy(config),
        lambda config, run: run | {}, lambda config, run: {} | run, lambda config, run: copy.copy(run),
    ],
)  # fmt: skip
def test_who_goes_over_all_values_has_read_them(way):
    assert unread(reading(way)) == []


def test_a_name_that_one_client_reads_is_read():
    calls = []

    def sometimes(config, run):
        calls.append(0)
        if len(calls) % 7 == 0:
            dict(config)

    assert unread(reading(sometimes)) == []


def test_an_app_with_a_client_fn_is_not_said_to_pass_over_what_it_may_read():
    """Flower copies what is sent to it."""
    app = plain_app([])
    assert unread(ft.flower.tuned(ClientApp(lambda context: Older(app, context)))) == []


def test_mappings_are_what_they_were():
    for made in (RunConfig(VALUES, set()), Config(VALUES, set())):
        assert made == VALUES
        assert len(made) == 3
        assert made.get("lr") == 0.1
        assert made.get("no", 7) == 7
        with pytest.raises(KeyError):
            made["no"]
        assert dict(copy.deepcopy(made)) == VALUES
        made["lr"] = 0.2
        assert made["lr"] == 0.2
        assert made.pop("lr") == 0.2
        assert "lr" not in made
    assert pickle.loads(pickle.dumps(RunConfig(VALUES, set()))) == VALUES
    assert json.loads(json.dumps(RunConfig(VALUES, set()))) == VALUES
    assert Config(VALUES, set()).count_bytes() == ConfigRecord(VALUES).count_bytes()


@pytest.mark.parametrize("names", [3, "lr", [1, 2], ["other"], [0.5], [b"lr"], [True]])
def test_whatever_a_reply_lists_only_drawn_names_count(names):
    server = Unread()
    content = RecordDict({"unread": ConfigRecord({"names": names})})
    assert server.passed_over(content, ["lr"]) == set()
    assert server.warning([{"lr"}]) == ""  # it was read


def test_a_reply_lists_what_was_not_read():
    server, content = Unread(), told(RecordDict(), VALUES, {"lr"})
    assert server.passed_over(content, VALUES) == {"epochs", "name"}
    assert "'epochs' and 'name'" in server.warning([{"epochs", "name"}, {"epochs", "name", "lr"}])
    assert server.warning([{"epochs", "name"}]) == ""  # once
    assert server.warning([]) == ""
    assert told(RecordDict(), VALUES, set(VALUES)) == RecordDict()
