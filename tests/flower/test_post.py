"""Letters over a grid: batches that it does not take whole, answers that come late or twice, a grid that fails."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from memory_grid import MemoryGrid

from fedtuner.errors import FleetError
from fedtuner.flower.post import Letter, Post


def grid_of(nodes: int = 3) -> MemoryGrid:
    app = ClientApp()

    @app.query()
    def echo(message: Message, context: Context) -> Message:
        return Message(RecordDict({"node": ConfigRecord({"id": context.node_id})}), reply_to=message)

    grid = MemoryGrid()
    for _ in range(nodes):
        grid.add(app)
    return grid


def letters(grid: MemoryGrid, n: int) -> list[Letter]:
    nodes = sorted(grid.apps)
    return [Letter(i, nodes[i % len(nodes)], "query", RecordDict()) for i in range(n)]


def test_letters_go_in_one_batch_and_answers_come_by_their_keys():
    grid = grid_of()
    post = Post(grid, 60.0)
    assert post.nodes() == {1000, 1001, 1002}
    assert post.send(letters(grid, 7)) == []
    assert post.send([]) == []
    assert grid.batches == [7]
    answers, late = post.collect()
    assert sorted(key for key, _ in answers) == list(range(7))  # type: ignore[type-var]
    assert all(m.content["node"]["id"] == 1000 + key % 3 for key, m in answers)  # type: ignore[operator]
    assert late == []
    assert post.collect() == ([], [])


def test_a_batch_that_is_too_large_goes_in_parts():
    grid = grid_of()
    push = grid.push_messages
    grid.push_messages = lambda messages: push(messages) if len(messages) <= 3 else []  # type: ignore[method-assign]
    post = Post(grid, 60.0)
    assert post.send(letters(grid, 8)) == []
    assert sum(grid.batches) == 8
    assert len(post.collect()[0]) == 8


@pytest.mark.parametrize("silent", [False, True])
def test_letters_that_the_grid_does_not_take_are_returned(silent):
    """One grid says None in their place, the other leaves them out."""
    grid = grid_of()
    push = grid.push_messages

    def some(messages: Any) -> list[Any]:
        ids = [id if int(id) % 2 else None for id in push(messages)]
        return [id for id in ids if id] if silent else ids

    grid.push_messages = some  # type: ignore[method-assign]
    post = Post(grid, 60.0)
    sent = letters(grid, 6)
    assert post.send(sent) == [sent[1], sent[3], sent[5]]
    assert {key for key, _ in post.collect()[0]} == {0, 2, 4}


def test_what_was_given_up_is_late_and_after_its_lifetime_forgotten():
    grid = grid_of()
    post = Post(grid, 0.2)
    post.send(letters(grid, 2))
    post.give_up([0])
    answers, late = post.collect()
    assert [key for key, _ in answers] == [1]
    assert [key for key, _ in late] == [0]
    post.send(letters(grid, 1))
    post.give_up([0])
    time.sleep(0.25)
    assert post.collect() == ([], [])


def test_an_answer_counts_once():
    grid = grid_of()
    post = Post(grid, 60.0)
    post.send(letters(grid, 1))
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: [m for m in pull(ids) for _ in range(2)]  # type: ignore[method-assign]
    assert len(post.collect()[0]) == 1


@pytest.mark.parametrize("what", ["get_node_ids", "push_messages", "pull_messages"])
def test_a_grid_that_fails_is_an_error_that_says_how_to_go_on(what):
    grid = grid_of()
    post = Post(grid, 60.0)
    post.send(letters(grid, 1))

    def fail(*arguments: Any) -> None:
        raise ConnectionError("refused")

    setattr(grid, what, fail)
    with pytest.raises(FleetError, match=r"the grid failed \(ConnectionError: refused\): .*run again to continue"):
        post.nodes(), post.send(letters(grid, 1)), post.collect()
