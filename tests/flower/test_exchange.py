"""Requests over a grid: batches that it does not accept whole, replies that arrive late or twice, a grid that fails."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from memory_grid import MemoryGrid

from fedtuner.errors import FleetError
from fedtuner.flower.exchange import Request, Requests


def grid_of(nodes: int = 3) -> MemoryGrid:
    app = ClientApp()

    @app.query()
    def echo(message: Message, context: Context) -> Message:
        return Message(RecordDict({"node": ConfigRecord({"id": context.node_id})}), reply_to=message)

    grid = MemoryGrid(latency=0.0)
    for _ in range(nodes):
        grid.add(app)
    return grid


def some(grid: MemoryGrid, n: int) -> list[Request]:
    nodes = sorted(grid.apps)
    return [Request(i, nodes[i % len(nodes)], "query", RecordDict()) for i in range(n)]


def test_requests_are_sent_in_one_batch_and_replies_have_their_keys():
    grid = grid_of()
    requests = Requests(grid, 60.0, grid.clock)
    assert requests.nodes() == {1000, 1001, 1002}
    assert requests.send(some(grid, 7)) == []
    assert requests.send([]) == []
    assert grid.batches == [7]
    replies, late = requests.collect()
    assert sorted(key for key, _ in replies) == list(range(7))  # type: ignore[type-var]
    assert all(m.content["node"]["id"] == 1000 + key % 3 for key, m in replies)  # type: ignore[operator]
    assert late == []
    assert requests.collect() == ([], [])


def test_a_batch_that_is_too_large_goes_in_parts():
    grid = grid_of()
    push = grid.push_messages
    grid.push_messages = lambda messages: push(messages) if len(messages) <= 3 else []  # type: ignore[method-assign]
    requests = Requests(grid, 60.0, grid.clock)
    assert requests.send(some(grid, 8)) == []
    assert sum(grid.batches) == 8
    assert len(requests.collect()[0]) == 8


@pytest.mark.parametrize("silent", [False, True])
def test_requests_that_the_grid_does_not_accept_are_returned(silent):
    """One grid returns None in their places, the other leaves them out."""
    grid = grid_of()
    push = grid.push_messages

    def half(messages: Any) -> list[Any]:
        ids = [id if int(id) % 2 else None for id in push(messages)]
        return [id for id in ids if id] if silent else ids

    grid.push_messages = half  # type: ignore[method-assign]
    requests = Requests(grid, 60.0, grid.clock)
    sent = some(grid, 6)
    assert requests.send(sent) == [sent[1], sent[3], sent[5]]
    assert {key for key, _ in requests.collect()[0]} == {0, 2, 4}


def test_the_reply_to_an_abandoned_request_is_late_until_it_expires():
    grid = grid_of()
    requests = Requests(grid, 60.0, grid.clock)
    requests.send(some(grid, 2))
    requests.abandon([0])
    replies, late = requests.collect()
    assert [key for key, _ in replies] == [1]
    assert [key for key, _ in late] == [0]
    requests.send(some(grid, 1))
    requests.abandon([0])
    grid.clock.sleep(60)
    assert requests.collect() == ([], [])


def test_a_reply_counts_once():
    grid = grid_of()
    requests = Requests(grid, 60.0, grid.clock)
    requests.send(some(grid, 1))
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: [m for m in pull(ids) for _ in range(2)]  # type: ignore[method-assign]
    assert len(requests.collect()[0]) == 1


@pytest.mark.parametrize("what", ["get_node_ids", "push_messages", "pull_messages"])
def test_a_grid_that_fails_is_an_error_that_says_how_to_go_on(what):
    grid = grid_of()
    requests = Requests(grid, 60.0, grid.clock)
    requests.send(some(grid, 1))

    def fail(*arguments: Any) -> None:
        raise ConnectionError("refused")

    setattr(grid, what, fail)
    with pytest.raises(FleetError, match=r"the grid failed \(ConnectionError: refused\): .*run again to continue"):
        requests.nodes(), requests.send(some(grid, 1)), requests.collect()
