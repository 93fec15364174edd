"""The handshake: a node reports the id of its client, and the server checks whether the node's app fits the study.

A client is known by the id that its own side reports. A device that restarts is a new node, but the same client.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from fedtuner.core.code import known_by
from fedtuner.errors import brief
from fedtuner.flower.messages import ABOUT, VERSION, reason_of
from fedtuner.flower.wire import MalformedError
from fedtuner.rng import number

_LONGEST = 200  # characters of an id: it stands in every record and log line of its client


@dataclass(frozen=True)
class Requirements:
    """What a server requires of its clients' apps."""

    size: int  # entries of the model
    own_training: bool  # whether the ClientApp must be made by ``tuned``, not by ``client_app``
    secure: bool


def request() -> RecordDict:
    """Return the content of the server's request."""
    return RecordDict({ABOUT: ConfigRecord({"version": VERSION})})


def reply(message: Message, id: str | int, size: int | None, secure: bool = False, *, code: str = "") -> Message:
    """Return a client's reply; an app that keeps its own training code has no size."""
    about: dict[str, Any] = {"version": VERSION, "id": id.item() if isinstance(id, np.generic) else id}
    about |= {"own_training": size is None, "secure": secure, "code": code} | ({} if size is None else {"size": size})
    return Message(RecordDict({ABOUT: ConfigRecord(about)}), reply_to=message)


def client_id(message: Message, required: Requirements) -> str | int:
    """Return the id in a node's reply, or raise ``MalformedError`` with the reason why the node cannot take part."""
    if message.has_error():
        reason = reason_of(message.error.reason)
        hint = ": is its ClientApp made by fedtuner.flower (client_app, tuned)?"
        raise MalformedError(f"{reason}{hint if 'No query function' in reason else ''}")
    about: Any = message.content.config_records.get(ABOUT, ConfigRecord())
    id, size, version = about.get("id"), about.get("size"), about.get("version")
    if version != VERSION:
        raise MalformedError(
            f"its messages are of version {brief(version)}, the server's of {VERSION}: install one fedtuner on both "
            "sides"
        )
    if type(id) not in (int, str) or id == "":
        raise MalformedError(f"its id is {brief(id)}, but must be a text or a whole number")
    if len(str(id)) > _LONGEST:
        raise MalformedError(f"its id has {len(str(id))} characters, but may have at most {_LONGEST}")
    if about.get("own_training") != required.own_training:
        ours, theirs = ("tuned", "client_app") if required.own_training else ("client_app", "tuned")
        raise MalformedError(f"its ClientApp is made by {theirs}, but this server needs one made by {ours}")
    if bool(about.get("secure")) != required.secure:
        ours, theirs = ("secure=True", "without it") if required.secure else ("no secure=", "with secure=True")
        raise MalformedError(f"its client_app was made {theirs}, but this server's Fleet needs client_app with {ours}")
    if size not in (None, required.size):
        raise MalformedError(f"its model has {brief(size)} entries, the server's {required.size}")
    return id  # type: ignore[no-any-return]


def app_code(*parts: Any) -> str:
    """Return what the code of an app is known by: of its functions, also where Flower has wrapped them."""
    found: list[Any] = []
    for part in parts:
        inside = [part]
        while inside:
            one = inside.pop()
            flowers = str(getattr(one, "__module__", "")).startswith("flwr.")
            cells = (getattr(one, "__closure__", None) or ()) if flowers else ()
            inside += [held for cell in cells if callable(held := cell.cell_contents)]
            found += [] if cells else [one]
    return known_by(found)


def code_of(message: Message) -> str:
    """Return what the code of a node's app is known by; nothing if it does not say so in a short text."""
    code = message.content.config_records.get(ABOUT, ConfigRecord()).get("code")
    return code if isinstance(code, str) and len(code) <= _LONGEST else ""


def client_number(id: str | int) -> int:
    """Return the number of the client with this id: the same in every run, whichever other clients there are."""
    return number(0, "client", id)


def natural(id: str | int) -> tuple[Any, ...]:
    """Return the sort key of an id: whole numbers by size, then texts with the numbers in them by size.

    >>> sorted(["phone10", "phone2", 7, "a"], key=natural)
    [7, 'a', 'phone2', 'phone10']
    """
    if isinstance(id, int):
        return (0, id)
    parts = [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in re.split(r"(\d+)", id)]
    return (1, tuple(parts), id)
