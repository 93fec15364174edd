"""What an app keeps in ``context.state``, apart for each arm of a study.

All arms train on the same device, and Flower has one ``context.state`` for all of them: momentum or a personal head
that one arm left there would be another's. Here each arm has a state of its own. It begins with a copy of the state of
the arm that it goes on from, or of what the app keeps outside of studies. What is kept for all arms together is at most
``MOST`` bytes: beyond that, the arm that was used longest ago begins anew. So does every arm where Flower gives the app
an empty state, as it does in each run: also in the run that continues a study.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

log = logging.getLogger("flwr")
MOST = 2**30  # bytes
_OURS = "fedtuner.arm."
_ORDER = "fedtuner.arms"  # the record that has the arms, the one used last at the end

Record = ArrayRecord | ConfigRecord | MetricRecord


@contextmanager
def arm_context(
    context: Context, arm: int, parent: int | None = None, out: Collection[int] = (), keep: bool = True
) -> Iterator[Context]:
    """Yield the context of an arm; what it holds in the end is kept, unless it is an evaluation's.

    ``parent`` is the arm that it goes on from. States of arms that are ``out`` are deleted.
    """
    arms = _arms(context.state)
    begin = next((a for a in (arm, parent) if a in arms), None)
    own = {name: record for name, record in context.state.items() if not name.startswith((_OURS, _ORDER))}
    records = own if begin is None else _records(context.state, begin)
    if begin != arm or not keep:
        records = copy.deepcopy(records)
    mine = copy.copy(context)
    mine.state = RecordDict(records)
    yield mine
    if keep:
        _put(context.state, arm, mine.state)
        arms = [*(a for a in arms if a != arm), arm]
    _trim(context.state, arms, out)


def copied(context: Context) -> Context:
    """Return a context with a copy of the state: what is done with it leaves the other as it is."""
    made = copy.copy(context)
    made.state = copy.deepcopy(context.state)
    return made


def _arms(state: RecordDict) -> list[int]:
    record = state.config_records.get(_ORDER)
    return [] if record is None else list(record["arms"])  # type: ignore[arg-type]


def _records(state: RecordDict, arm: int) -> dict[str, Record]:
    prefix = f"{_OURS}{arm}."
    return {name.removeprefix(prefix): record for name, record in state.items() if name.startswith(prefix)}


def _put(state: RecordDict, arm: int, records: RecordDict) -> None:
    _delete(state, arm)
    for name, record in records.items():
        state[f"{_OURS}{arm}.{name}"] = record


def _delete(state: RecordDict, arm: int) -> None:
    for name in _records(state, arm):
        del state[f"{_OURS}{arm}.{name}"]


def _trim(state: RecordDict, arms: Iterable[int], out: Collection[int]) -> None:
    """Delete the states of arms that are out, and those that were used longest ago where all are too large."""
    kept = list(arms)
    for arm in [a for a in kept if a in out]:
        kept.remove(arm)
        _delete(state, arm)
    sizes = {arm: sum(record.count_bytes() for record in _records(state, arm).values()) for arm in kept}
    while len(kept) > 1 and sum(sizes[arm] for arm in kept) > MOST:
        oldest = kept.pop(0)
        _delete(state, oldest)
        log.warning(
            "fedtuner: arm %d begins with a new context.state here: those of all arms pass %d bytes", oldest, MOST
        )
    if any(sizes[arm] for arm in kept):
        state[_ORDER] = ConfigRecord({"arms": kept})
    elif _ORDER in state:
        del state[_ORDER]
