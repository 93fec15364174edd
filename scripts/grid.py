"""A Flower grid in this process: every node has a ClientApp, and messages pass through Flower's own encoding.

A copy of what the tests have, without their faults, so that it depends on nothing but Flower.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class MemoryGrid(Grid):
    """Nodes 1000, 1001, ...: each answers a message at once, in the order in which they are sent."""

    def __init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._nodes: dict[int, tuple[ClientApp, Context]] = {}
        self._replies: dict[str, Message] = {}
        self._sent = 0

    def add(self, app: ClientApp, partition: int) -> None:
        """Add a node that runs an app."""
        node = 1000 + len(self._nodes)
        self._nodes[node] = app, Context(1, node, {"partition-id": partition}, RecordDict(), {})

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """The run."""
        return Run.create_empty(1)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Refuse what Flower itself gives up."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the nodes answer, and keep the answers. An app that fails fails the study: nothing is to go wrong."""
        ids = []
        for message in messages:
            self._sent += 1
            ids.append(str(self._sent))
            _set_id(message, ids[-1])
            app, context = self._nodes[message.metadata.dst_node_id]
            reply = app(_over_the_wire(message), context)
            _set_id(reply, f"reply {ids[-1]}")
            self._replies[ids[-1]] = _over_the_wire(reply)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers that are there, each once."""
        return [self._replies.pop(id) for id in list(message_ids) if id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return the answers to messages."""
        return self.pull_messages(self.push_messages(messages))


def _set_id(message: Message, id: str) -> None:
    message.metadata.__dict__["_message_id"] = id


def _over_the_wire(message: Message) -> Message:
    """Return the message as it arrives: encoded and decoded by Flower's own code."""
    with no_object_id_recompute():
        contents = {key: thing.deflate() for key, thing in get_all_nested_objects(message).items()}
        there: Any = inflate_object_from_contents(message.object_id, contents)
    _set_id(there, message.metadata.message_id)
    return there
