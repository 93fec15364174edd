"""The shapes of a journal's lines, by event."""

from __future__ import annotations

from typing import Any

from fedtuner.core.federation import SPLITS
from fedtuner.core.store import Begun, Done, Eliminated, Evaluated, Extended, Failed, Joined, Late, Started, Won
from fedtuner.schedules.longer import WAYS
from fedtuner.tables import is_real


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number from 0."""
    return type(value) is int and value >= 0


def is_id(value: Any) -> bool:
    """Return whether a value is a client's id."""
    return isinstance(value, (str, int)) and type(value) is not bool


def _are_groups(value: Any) -> bool:
    lists = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(ids, list) and all(map(is_id, ids)) for ids in lists)


_ARM = {
    "id": is_count, "client": dict, "server": dict,
    "parent": lambda parent: parent is None
    or (isinstance(parent, list) and len(parent) == 2 and all(map(is_count, parent))),
}  # fmt: skip
_AT = {"arm": is_count, "round": is_count}
_SCORED = {**_AT, "score": (is_real, is_real)}

# The numbers of a round are checked where they are converted: there are many rounds.
SHAPES = {
    Begun.event: {
        "setup": dict, "federation": dict, "layout": list, "versions": dict, "start?": str, "command?": str,
        "groups?": _are_groups,
    },
    Joined.event: {"ids": [is_id], "codes?": [str]},
    Started.event: {"arm": _ARM, "candidates": [dict], "state": str},
    Done.event: {"record": dict, "belief": list, "state": str, "ended": str, "candidates?": [dict]},
    Failed.event: {**_AT, "error": str},
    Late.event: {**_AT, "client": is_id},
    Eliminated.event: _SCORED,
    Evaluated.event: {
        **_AT, "split": lambda split: split in SPLITS, "config": lambda config: config in ("mode", "sample"),
        "result": dict,
    },
    Won.event: _SCORED,
    Extended.event: {"budget": is_count, "by": lambda by: by in WAYS},
}  # fmt: skip
