"""Letters to nodes and their answers, over a Flower grid: sent in a batch, collected as they come, given up in time."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedtuner.errors import FedtunerError, FleetError

T = TypeVar("T")


@dataclass(frozen=True)
class Letter:
    """A message to a node; ``key`` is what its answer is known by."""

    key: Hashable
    node: int
    kind: str
    content: RecordDict
    group: str = ""


class Post:
    """The grid, as far as a fleet uses it. One answer per letter; what comes after a letter was given up is late."""

    def __init__(self, grid: Grid, lifetime: float) -> None:
        self._grid, self._lifetime = grid, lifetime
        self._open: dict[str, tuple[Hashable, int]] = {}  # message id -> key and node
        self._given_up: dict[str, tuple[Hashable, int, float]] = {}  # message id -> the same, and when it is forgotten

    def nodes(self) -> set[int]:
        """Return the nodes that are online."""
        return set(self._ask(self._grid.get_node_ids))

    def send(self, letters: Sequence[Letter]) -> list[Letter]:
        """Send letters in one batch; return those that the grid did not take."""
        if not letters:
            return []
        messages = [
            Message(letter.content, letter.node, letter.kind, ttl=self._lifetime, group_id=letter.group)
            for letter in letters
        ]
        ids: list[Any] = list(self._ask(self._grid.push_messages, messages))
        if not ids and len(letters) > 1:  # Flower's answer to a batch that is too large for it
            half = len(letters) // 2
            return self.send(letters[:half]) + self.send(letters[half:])
        if len(ids) != len(letters):  # some were left out: then the messages know which
            taken = set(ids)
            ids = [m.metadata.message_id if m.metadata.message_id in taken else None for m in messages]
        self._open |= {id: (letter.key, letter.node) for id, letter in zip(ids, letters, strict=True) if id}
        return [letter for id, letter in zip(ids, letters, strict=True) if not id]

    def collect(self) -> tuple[list[tuple[Hashable, Message]], list[tuple[Hashable, Message]]]:
        """Return the answers that have come, and those that came too late."""
        self._forget()
        if not self._open and not self._given_up:
            return [], []
        answers, late = [], []
        for message in self._ask(self._grid.pull_messages, [*self._open, *self._given_up]):
            id = message.metadata.reply_to_message_id
            if id in self._open:
                answers.append((self._open.pop(id)[0], message))
            elif id in self._given_up:
                key = self._given_up.pop(id)[0]
                if message.has_content():  # else it is Flower that says that there will be no answer
                    late.append((key, message))
        return answers, late

    def give_up(self, keys: Iterable[Hashable]) -> None:
        """Wait no longer for the answers to these letters."""
        gone, until = set(keys), time.monotonic() + self._lifetime
        for id in [id for id, (key, _) in self._open.items() if key in gone]:
            self._given_up[id] = (*self._open.pop(id), until)

    def owed(self) -> list[tuple[Hashable, int]]:
        """Return the letters that were given up and may still be answered, each with its node."""
        self._forget()
        return [(key, node) for key, node, _ in self._given_up.values()]

    def _forget(self) -> None:
        now = time.monotonic()
        self._given_up = {id: entry for id, entry in self._given_up.items() if entry[2] > now}

    def _ask(self, what: Any, *arguments: Any) -> Any:
        try:
            return what(*arguments)
        except FedtunerError:
            raise
        except Exception as error:
            raise FleetError(
                f"the grid failed ({type(error).__name__}: {error}): what was finished is kept; run again to continue"
            ) from error
