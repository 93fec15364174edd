"""The roster: which nodes are online, and which client each of them is.

Every node that is new, or comes back, is asked who it is (the handshake). A node that does not reply, or whose app does
not fit the study, is refused and asked again later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Message

from fedtuner.core.code import changed
from fedtuner.flower import handshake
from fedtuner.flower.clock import Clock
from fedtuner.flower.exchange import Request, Requests
from fedtuner.flower.handshake import Requirements, client_number, natural
from fedtuner.flower.messages import HANDSHAKE
from fedtuner.flower.wire import MalformedError

_LOOK = 1.0  # seconds between two looks at which nodes are online
_FIRST_REPLY = 60.0  # seconds that a node has for its reply: it may have to install the app first
_ASK_AGAIN = 30.0  # seconds until a node that was refused is asked again


@dataclass(frozen=True)
class HandshakeKey:
    """What the reply to a handshake is known by."""

    node: int


class Roster:
    """The nodes that are online and the clients that they are."""

    def __init__(
        self, requests: Requests, required: Requirements, deadline: float, clock: Clock, fault: Callable[..., None]
    ) -> None:
        self._requests, self._required, self._clock, self._fault = requests, required, clock, fault
        self._patience = min(deadline, _FIRST_REPLY)
        self._looked = -math.inf
        self._settled_at: float | None = None  # when the replies to the first handshakes are waited for no more
        self._members: dict[int, int] = {}  # node -> client, in the order of their handshakes
        self._asked: dict[int, float] = {}  # node without a reply -> when it was asked
        self._refused: dict[int, tuple[float, str]] = {}  # node -> when to ask it again, and why it was refused
        self.online: set[int] = set()
        self.ids: dict[int, str | int] = {}  # client -> its id, of all that the study has met, in the order of meeting
        self.codes: dict[str | int, str] = {}  # id -> what the code of its app is known by
        self.nodes: Mapping[int, int] = {}  # client -> its node, of the clients online, in the natural order of ids

    def update(self) -> None:
        """See which nodes are online, and send handshakes to those that are not known."""
        now = self._clock.now()
        if now - self._looked < _LOOK and self.online:
            return
        self._looked, online = now, self._requests.nodes()
        for node in self.online - online:
            if node in self._members:
                id = self.ids[self._members[node]]
                self._fault("left", f"client {id!r} has left (node {node})", client=id)
        self.online = online
        for known in (self._members, self._refused):  # a node that comes back is asked again
            for node in [n for n in known if n not in online]:
                del known[node]
        self._sort()
        for node in [n for n, since in self._asked.items() if now - since > self._patience]:
            self._refuse(node, "no answer to a handshake")
        unknown = [
            n for n in sorted(online)
            if n not in self._members and n not in self._asked and now >= self._refused.get(n, (0.0, ""))[0]
        ]  # fmt: skip
        if unknown:
            self._settled_at = now + self._patience if self._settled_at is None else self._settled_at
            self._asked |= dict.fromkeys(unknown, now)
            requests = [Request(HandshakeKey(n), n, HANDSHAKE, handshake.request()) for n in unknown]
            for request in self._requests.send(requests):
                self._refuse(request.node, "the grid did not take a handshake")

    def take_reply(self, node: int, message: Message) -> None:
        """Enter the client whose node has replied to a handshake, however late."""
        self._asked.pop(node, None)
        if node in self._members:
            return
        try:
            id = handshake.client_id(message, self._required)
            self._enter(node, id)
            self._compare(id, handshake.code_of(message))
        except MalformedError as error:
            self._refuse(node, str(error))

    def recall(self, ids: Iterable[str | int], codes: Mapping[str | int, str]) -> None:
        """Enter the clients that a study had met before: they come first."""
        self.ids = {**{client_number(id): id for id in ids}, **self.ids}
        self.codes = {**codes, **self.codes}

    def settled(self) -> bool:
        """Return whether the nodes of the first look have replied, or had their time to."""
        if self._settled_at is None:
            return False
        return not self._asked or self._clock.now() > self._settled_at

    def stop_waiting(self) -> None:
        """Wait for no node that joins from now on."""
        self._settled_at = -math.inf

    def refusal(self) -> str:
        """Return why a node was refused, if one was."""
        return next((f"node {node} was refused: {why}" for node, (_, why) in self._refused.items()), "")

    def _enter(self, node: int, id: str | int) -> None:
        client = client_number(id)
        before = self.nodes.get(client)
        if before is not None:
            text = f"client {id!r} is now at node {node}, before at {before} (restarted, or two with one id?)"
            self._fault("moved", text, client=id)
        self._refused.pop(node, None)
        self._members[node] = client
        self.ids[client] = id
        self._sort()

    def _compare(self, id: str | int, code: str) -> None:
        """Note where an app's code is not what it was when the study met its client, or not that of the first one."""
        if not code:  # it is not known
            return
        before = self.codes.setdefault(id, code)
        first, usual = next(iter(self.codes.items()))
        if any(changed({"app": before}, {"app": code})):
            why = "is not what it was when the study met it: from here on its rounds are those of another app"
        elif any(changed({"app": usual}, {"app": code})):
            why = f"is not that of client {first!r}: is the same app installed on both?"
        else:
            return
        self._fault("code", f"the code of client {id!r} {why}", client=id)

    def _sort(self) -> None:
        nodes = {client: node for node, client in self._members.items() if node in self.online}
        self.nodes = {client: nodes[client] for client in sorted(nodes, key=lambda c: natural(self.ids[c]))}

    def _refuse(self, node: int, why: str) -> None:
        self._asked.pop(node, None)
        self._requests.abandon([HandshakeKey(node)])
        if node not in self._refused or self._refused[node][1] != why:
            self._fault("refused", f"node {node} cannot take part: {why}")
        self._refused[node] = (self._clock.now() + _ASK_AGAIN, why)
