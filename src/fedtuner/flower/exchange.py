"""Requests to nodes and their replies over a Flower grid: sent in batches, collected as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedtuner.errors import FedtunerError, FleetError, one_line
from fedtuner.flower.clock import Clock

# What decoding raises; a connection that fails raises others.
UNDECODABLE = (ValueError, TypeError, LookupError, AttributeError, AssertionError, DecodeError)


@dataclass(frozen=True)
class Request:
    """A message to a node; ``key`` is what its reply is known by."""

    key: Hashable
    node: int
    kind: str
    content: RecordDict
    group: str = ""


Replies = list[tuple[Hashable, Message]]  # each with the key of its request


class Requests:
    """The requests in flight. Each has one reply at most; the reply to a request that was abandoned is late."""

    def __init__(
        self, grid: Grid, lifetime: float, clock: Clock, fault: Callable[[str, str], None] = lambda kind, text: None
    ) -> None:
        self._grid, self._lifetime, self._clock, self._fault = grid, lifetime, clock, fault
        self._in_flight: dict[str, tuple[Hashable, int]] = {}  # message id -> key and node
        self._abandoned: dict[str, tuple[Hashable, int, float]] = {}  # message id -> key, node, and when it expires

    def nodes(self) -> set[int]:
        return set(self._call(self._grid.get_node_ids))

    def send(self, requests: Sequence[Request]) -> list[Request]:
        """Send requests in one batch; return those that the grid did not accept."""
        if not requests:
            return []
        messages = [Message(r.content, r.node, r.kind, ttl=self._lifetime, group_id=r.group) for r in requests]
        ids: list[Any] = list(self._call(self._grid.push_messages, messages))
        if not ids and len(requests) > 1:  # Flower's response to a batch that is too large for it
            half = len(requests) // 2
            return self.send(requests[:half]) + self.send(requests[half:])
        if len(ids) != len(requests):  # the grid returns only the ids of the messages that it accepted
            accepted = set(ids)
            ids = [m.metadata.message_id if m.metadata.message_id in accepted else None for m in messages]
        self._in_flight |= {id: (r.key, r.node) for id, r in zip(ids, requests, strict=True) if id}
        return [r for id, r in zip(ids, requests, strict=True) if not id]

    def collect(self) -> tuple[Replies, Replies]:
        """Return the replies that have arrived, and those whose requests had been abandoned."""
        self._expire()
        if not self._in_flight and not self._abandoned:
            return [], []
        replies, late = [], []
        for message in self._pull([*self._in_flight, *self._abandoned]):
            id = message.metadata.reply_to_message_id
            if id in self._in_flight:
                replies.append((self._in_flight.pop(id)[0], message))
            elif id in self._abandoned:
                key = self._abandoned.pop(id)[0]
                if message.has_content():  # Flower sends an error for a node that will not reply: that is not a reply
                    late.append((key, message))
        return replies, late

    def _pull(self, ids: Sequence[str]) -> list[Message]:
        """Return what has arrived. Flower decodes it here: a reply that cannot be decoded never arrives.

        Replies that the same call fetched before it may be lost, too: their clients are dropped at the deadline.
        """
        try:
            return list(self._call(self._grid.pull_messages, ids))
        except FleetError as failed:
            if not isinstance(failed.__cause__, UNDECODABLE):
                raise
            self._fault("undecodable", f"{type(failed.__cause__).__name__}: {one_line(str(failed.__cause__), 300)}")
            return []

    def abandon(self, keys: Iterable[Hashable]) -> None:
        """Stop waiting for the replies to these requests."""
        abandoned, expires = set(keys), self._clock.now() + self._lifetime
        for id in [id for id, (key, _) in self._in_flight.items() if key in abandoned]:
            self._abandoned[id] = (*self._in_flight.pop(id), expires)

    def abandoned(self) -> list[tuple[Hashable, int]]:
        """Return the key and the node of each abandoned request to which a reply may still arrive."""
        self._expire()
        return [(key, node) for key, node, _ in self._abandoned.values()]

    def _expire(self) -> None:
        now = self._clock.now()
        self._abandoned = {id: entry for id, entry in self._abandoned.items() if entry[2] > now}

    def _call(self, method: Any, *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except FedtunerError:
            raise
        except Exception as error:
            raise FleetError(
                f"the grid failed ({type(error).__name__}: {error}): what was finished is kept; run again to continue"
            ) from error
