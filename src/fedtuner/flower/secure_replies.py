"""What the server accepts of a client's replies in the four stages of SecAgg+: Flower's workflow reads them unchecked.

That keys, shares and masked vectors are of the right kind can be seen here; whether they fit together cannot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import recorddict_to_fitres
from flwr.supercore.primitives.asymmetric import bytes_to_public_key

from fedtuner.flower.wire import MalformedError

Shapes = Sequence[tuple[int, ...]]  # of the vectors that are summed


def check(asked: Message, reply: Message, shapes: Shapes) -> None:
    """Raise ``MalformedError`` where a reply cannot be one to this request."""
    request: Any = asked.content.config_records[RECORD_KEY_CONFIGS]
    try:
        _check(request, reply, shapes)
    except MalformedError:
        raise
    except Exception as error:  # bytes that are neither keys nor arrays, records that are missing
        raise MalformedError(f"stage {request[Key.STAGE]}: {type(error).__name__}: {error}") from error


def _check(request: Any, reply: Message, shapes: Shapes) -> None:
    stage, given = request[Key.STAGE], reply.content.config_records[RECORD_KEY_CONFIGS]
    if stage == Stage.SETUP:
        for name in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2):
            bytes_to_public_key(given[name])  # type: ignore[arg-type]
    elif stage == Stage.SHARE_KEYS:
        _pairs(given[Key.DESTINATION_LIST], given[Key.CIPHERTEXT_LIST])
    elif stage == Stage.COLLECT_MASKED_VECTORS:
        _vectors(given[Key.MASKED_PARAMETERS], shapes)
        recorddict_to_fitres(reply.content, True)
    else:
        owners = given[Key.NODE_ID_LIST]
        _pairs(owners, given[Key.SHARE_LIST])
        known = {*request[Key.ACTIVE_NODE_ID_LIST], *request[Key.DEAD_NODE_ID_LIST]}
        if not set(owners) <= known or len(set(owners)) < len(owners):  # type: ignore[arg-type]
            raise MalformedError("shares of nodes that were not asked for")


def _pairs(nodes: Any, secrets: Any) -> None:
    """Check a list of nodes and one of bytes for each."""
    kinds = isinstance(nodes, list) and isinstance(secrets, list)
    if not kinds or not all(type(n) is int for n in nodes) or not all(type(s) is bytes for s in secrets):
        raise MalformedError("a list of nodes and one of bytes must be there")
    if len(nodes) != len(secrets):
        raise MalformedError(f"{len(nodes)} nodes, but {len(secrets)} secrets")


def _vectors(given: Any, shapes: Shapes) -> None:
    """Check masked vectors; the first, of one entry, is SecAgg+'s own."""
    if not isinstance(given, list) or len(given) != len(shapes) + 1:
        raise MalformedError(f"{len(given)} masked vectors, but must be {len(shapes) + 1}")
    for data, shape in zip(given, [(1,), *shapes], strict=True):
        if len(data) > 16 * math.prod(shape) + 1024:
            raise MalformedError(f"a masked vector of {len(data)} bytes, but of shape {shape}")
    read: list[object] = [bytes_to_ndarray(data) for data in given]
    for v, of in zip(read, [(1,), *shapes], strict=True):
        if not isinstance(v, np.ndarray) or not np.issubdtype(v.dtype, np.integer):
            raise MalformedError("a masked vector is no array of whole numbers")
        if v.shape != of:
            raise MalformedError(f"a masked vector of shape {v.shape}, but must be of {of}")
