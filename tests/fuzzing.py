"""Inputs by chance: whatever comes, a reader answers soon, with a value or with an error of fedtuner's in one line.

``make test`` tries a few inputs; ``make fuzz`` sets FUZZ, and tries as many as it says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from answers import check, soon
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fedtuner.errors import FedtunerError

few = settings(
    max_examples=int(os.environ.get("FUZZ", "40")),
    deadline=None,  # ``soon`` has one
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)

_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([2**31, 2**63, -(2**63), 10**12, 10**400, 0.5, -0.5, 1e308, float("nan"), float("inf")]),
    st.text(max_size=5),
    st.sampled_from(["nan", "inf", "fedavg", "global", "x.y:z", "toys:problem", "\x00", "\n", "\ud800", "9" * 5000]),
)
values = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def answered(read: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a reader makes of its input, or None where it refuses it; fail where it does neither."""
    with soon():
        try:
            return read(*arguments)
        except FedtunerError as error:
            said = str(error)
    check(said, "")
    return None


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes that are much like those of a file that is right."""
    data = whole
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        many = draw(st.sampled_from([0, 1, 1, 2, 8, 100, len(data)]))
        new = draw(
            st.binary(max_size=4)
            | st.just(data[at // 2 : at // 2 + many])
            | st.sampled_from([b"[" * 3000, b"9" * 5000])
        )
        data = data[:at] + new + data[at + many :]
    return data


@st.composite
def warped(draw: st.DrawFn, whole: Any) -> Any:
    """A value of JSON or TOML that is much like one that is right: some parts are others, or gone."""
    value = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 2))):
        value = _warp(draw, value)
    return value


def _warp(draw: st.DrawFn, value: Any) -> Any:
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys or draw(st.integers(0, 5)) == 0:
        return draw(values)
    key = draw(st.sampled_from(keys))
    if draw(st.integers(0, 7)) == 0:
        del value[key]
    else:
        value[key] = _warp(draw, value[key])
    return value
