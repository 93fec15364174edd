"""A Flower grid in this process: nodes run ClientApps over Flower's own encoding, with faults on demand.

Its time is a clock that moves only when somebody sleeps on it, so that no test waits.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Fault = Callable[[Message], Message | None]  # the reply -> what arrives; None is nothing


class FakeClock:
    """Time that passes only while somebody sleeps, and then at once."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def over_the_wire(message: Message) -> Message:
    """The message as it arrives: encoded and decoded by Flower's own code."""
    id = message.metadata.message_id
    with no_object_id_recompute():
        contents = {key: thing.deflate() for key, thing in get_all_nested_objects(message).items()}
        there: Any = inflate_object_from_contents(message.object_id, contents)
    there.metadata.__dict__["_message_id"] = id
    return there


class MemoryGrid(Grid):
    """Nodes 1000, 1001, ...; each has a ClientApp and a context that lasts.

    A reply arrives ``latency`` seconds after its request, and ``reply.delay`` seconds later where a fault sets that.
    """

    def __init__(self, latency: float = 1.0) -> None:
        self.clock, self.latency = FakeClock(), latency
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.apps: dict[int, ClientApp] = {}
        self.contexts: dict[int, Context] = {}
        self.online: set[int] = set()
        self.faults: dict[int, Fault] = {}
        self.sent: list[Message] = []
        self.batches: list[int] = []  # messages in each push
        self.replies: dict[str, deque[tuple[float, Message]]] = {}
        self.on_push: Callable[[Message], None] = lambda message: None
        self.next_id = 0
        self._one = threading.RLock()  # Flower's older strategies send from many threads

    def add(self, app: ClientApp, partition: Any = None) -> int:
        node = 1000 + len(self.apps)
        config = {} if partition is None else {"partition-id": partition}
        self.apps[node], self.contexts[node] = app, Context(1, node, config, RecordDict(), {})
        self.online.add(node)
        return node

    def work_sent(self) -> list[Message]:
        return [m for m in self.sent if m.metadata.message_type == "train.fedtuner"]

    def count(self) -> Counter[tuple[int, int]]:
        """Messages of work by arm and round (from 0)."""
        about = [m.content.config_records["fedtuner"] for m in self.work_sent()]
        return Counter((a["arm"], a["round"]) for a in about)

    # What Flower asks of a grid.
    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        with self._one:
            return self._push(messages)

    def _push(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.next_id += 1
            message.metadata.__dict__["_message_id"] = str(self.next_id)
            self.sent.append(message)
            ids.append(str(self.next_id))
            self.on_push(message)
            self._deliver(over_the_wire(message))
        self.batches.append(len(ids))
        return ids

    def _deliver(self, message: Message) -> None:
        node, id = message.metadata.dst_node_id, message.metadata.message_id
        if node not in self.online:
            return
        try:
            reply = self.apps[node](message, self.contexts[node])
        except Exception as error:
            reply = Message(Error(2, f"Traceback ...\n{type(error).__name__}: {error}"), reply_to=message)
        arrives: Message | None = reply
        if message.metadata.message_type != "query.fedtuner" and node in self.faults:
            arrives = self.faults[node](reply)
        if arrives is not None:
            delay = self.latency + getattr(arrives, "delay", 0.0)
            arrives.metadata.__dict__["_message_id"] = "reply " + id
            arrived = over_the_wire(arrives) if arrives.has_content() else arrives
            self.replies.setdefault(id, deque()).append((self.clock.now() + delay, arrived))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = []
        for id in message_ids:
            waiting = self.replies.get(id)
            if waiting and waiting[0][0] <= self.clock.now():
                ready.append(waiting.popleft()[1])
        return ready

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        ids, end, got = set(self.push_messages(messages)), self.clock.now() + (timeout or 60), []
        while ids and self.clock.now() < end:
            arrived = list(self.pull_messages(ids))
            got += arrived
            ids -= {m.metadata.reply_to_message_id for m in arrived}
            if ids:
                self.clock.sleep(0.5)
        return got
