"""What an app keeps in ``context.state`` is kept apart for each arm: through real messages."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from memory_grid import MemoryGrid
from test_client import CLIENTS, SPACE, grid_of, probabilities, tune
from test_fleet import same

import fedtuner as ft
from fedtuner.core.schedule import Scoring, Start, Step
from fedtuner.flower import app_state

ALONE = ft.random_search(budget=12, longest=3)


def stateful_app(seen: list[Any]) -> ClientApp:
    """A Flower app that keeps its momentum, and how often it has trained, in its state; it evaluates with both."""
    app = ClientApp()

    def momentum(context: Context) -> list[Any]:
        kept = context.state.array_records.get("momentum")
        return [np.zeros((3, 3)), np.zeros(3)] if kept is None else kept.to_numpy_ndarrays()

    def reply(message: Message, **records: Any) -> Message:
        return Message(RecordDict(records), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays, config = message.content["arrays"].to_numpy_ndarrays(), message.content["config"]
        x, y = CLIENTS[int(context.node_config["partition-id"])].train
        v = momentum(context)
        for _ in range(config["steps"]):
            gap = (probabilities(arrays, x) - np.eye(3)[y]) / len(y)
            v = [0.9 * v[0] + x.T @ gap, 0.9 * v[1] + gap.sum(0)]
            arrays = [a - config["lr"] * b for a, b in zip(arrays, v, strict=True)]
        context.state["momentum"] = ArrayRecord(v)
        visits = int(context.state.config_records.get("visits", {"n": 0})["n"]) + 1
        context.state["visits"] = ConfigRecord({"n": visits})
        seen.append((context.node_config["partition-id"], config["server-round"], visits))
        return reply(message, arrays=ArrayRecord(arrays), metrics=MetricRecord({"num-examples": len(y)}))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"].to_numpy_ndarrays()
        x, y = CLIENTS[int(context.node_config["partition-id"])].valid
        p = probabilities([a - 0.1 * v for a, v in zip(arrays, momentum(context), strict=True)], x)
        loss, right = float(-np.log(p[np.arange(len(y)), y]).mean()), float((p.argmax(1) == y).mean())
        metrics = MetricRecord({"eval_loss": loss, "eval_acc": right, "num-examples": len(y)})
        return reply(message, metrics=metrics)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        context.state["asked"] = ConfigRecord({"yes": True})
        return reply(message, state=ConfigRecord({"names": sorted(context.state)}))

    return app


def devices(seen: list[Any]) -> MemoryGrid:
    return grid_of(ft.flower.tuned(stateful_app(seen)))


def a_device_for_each_arm(grid: MemoryGrid) -> MemoryGrid:
    """Every arm has a context of its own on every node: what states that are kept apart must be equal to."""
    app, contexts = grid.apps[1000], dict[Any, Context]()

    def call(message: Message, context: Context) -> Message:
        about = message.content.config_records["fedtuner"]
        return app(message, contexts.setdefault((context.node_id, about.get("arm")), copy.deepcopy(context)))

    grid.apps = dict.fromkeys(grid.apps, call)  # type: ignore[assignment]
    return grid


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{}, {"fedex": ft.FedEx(k=3, tries=2)}], ids=["fedex", "tries"])
def test_arms_are_trained_as_if_each_had_the_devices_for_itself(changed):
    together: list[Any] = []
    study = tune(devices(together), schedule=ALONE, **changed)
    apart = tune(a_device_for_each_arm(devices([])), schedule=ALONE, **changed)
    same(study, apart)
    assert max(visits for _, _, visits in together) > 1  # something was kept
    assert all(visits <= round for _, round, visits in together)  # and by no other arm


def kept(grid: MemoryGrid) -> Iterator[set[str]]:
    """The arms, as texts, for which each device keeps something."""
    for context in grid.contexts.values():
        yield {name.split(".")[2] for name in context.state if name.startswith("fedtuner.arm.")}


@pytest.mark.slow
def test_an_evaluation_changes_no_state_and_deletes_those_of_arms_that_are_out():
    grid = devices([])
    study = tune(grid, schedule=ft.halving(budget=14, longest=5, eta=2, eliminations=2))
    states = {node: state_of(context, study.best.arm) for node, context in grid.contexts.items()}
    assert any(states.values())
    for _ in range(2):
        study.evaluate("valid")
        assert {node: state_of(context, study.best.arm) for node, context in grid.contexts.items()} == states
    assert all(arms <= {str(study.best.arm)} for arms in kept(grid))


def state_of(context: Context, arm: int) -> dict[str, str]:
    return {name: repr(record) for name, record in context.state.items() if name.startswith(f"fedtuner.arm.{arm}.")}


@pytest.mark.slow
def test_what_all_arms_keep_is_bounded(monkeypatch, caplog):
    most = 700  # bytes: two arms
    monkeypatch.setattr(app_state, "MOST", most)
    grid = devices([])
    tune(grid, schedule=ALONE, cohort=6)
    for context, arms in zip(grid.contexts.values(), kept(grid), strict=True):
        assert len(arms) < 4
        assert sum(r.count_bytes() for name, r in context.state.items() if name.startswith("fedtuner.arm.")) <= most
    assert "begins with a new context.state here: those of all arms pass 700 bytes" in caplog.text


@dataclass(frozen=True)
class Lineages:
    """Two arms; then a third goes on from the better one's state."""

    budget: int = 6
    longest: int = 4
    scoring: Scoring = field(default_factory=Scoring)
    needs: ClassVar[frozenset[str]] = frozenset()

    def steps(self) -> Any:
        found = yield Step({0: 2, 1: 2}, {0: Start(), 1: Start()}, keep=((0, 2), (1, 2)))
        best = min(found.scores, key=found.scores.__getitem__)
        yield Step({2: 4}, {2: Start(parent=(best, 2))}, out=(0, 1))
        return (2, 4)


def test_an_arm_that_goes_on_from_another_goes_on_from_its_state():
    seen: list[Any] = []
    tune(devices(seen), schedule=Lineages(), cohort=6)
    assert {visits for _, round, visits in seen if round == 4} == {4}


@pytest.mark.slow
def test_an_arm_begins_with_what_the_app_keeps_outside_of_studies_which_stays_as_it_is():
    grid = devices([])

    def ask() -> list[str]:
        message = Message(RecordDict(), 1000, "query")
        reply = grid.apps[1000](message, grid.contexts[1000])
        return list(reply.content.config_records["state"]["names"])  # type: ignore[arg-type]

    assert ask() == ["asked"]
    tune(grid, schedule=ALONE, cohort=6)
    assert [name for name in ask() if not name.startswith("fedtuner.")] == ["asked"]
    assert all(f"fedtuner.arm.{arm}.asked" in grid.contexts[1000].state for arm in range(4))


def test_an_app_that_keeps_nothing_leaves_nothing():
    from test_client import plain_app

    grid = grid_of(ft.flower.tuned(plain_app([])))
    tune(grid, schedule=ALONE, space=SPACE)
    assert all(not context.state for context in grid.contexts.values())


def test_a_state_may_be_replaced_or_emptied():
    app, seen = ClientApp(), list[Any]()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        seen.append(sorted(context.state))
        context.state = RecordDict() if "one" in context.state else RecordDict({"one": ConfigRecord({"a": 1})})
        metrics = MetricRecord({"num-examples": 3})
        arrays = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"eval_loss": 1.0, "eval_acc": 0.5, "num-examples": 3})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    grid = grid_of(ft.flower.tuned(app))
    tune(grid, {"w": np.zeros(2, np.float32)}, schedule=ft.random_search(budget=3, longest=3), cohort=6)
    assert seen == [[]] * 6 + [["one"]] * 6 + [[]] * 6
