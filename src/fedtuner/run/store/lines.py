"""Events as lines of a journal: a checksum, a space, and the event as JSON."""

from __future__ import annotations

import json
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from fedtuner.core import store
from fedtuner.core.records import Arm, Record, Row
from fedtuner.errors import StoreError, brief, one_line
from fedtuner.run.store.shapes import SHAPES, is_count
from fedtuner.tables import misfit, plain

FORMAT = 2  # of the store
_NAMED = 10  # damaged lines in an error
_COUNTS = tuple(f.name for f in fields(Record) if f.type == "int")
_FLOATS = tuple(f.name for f in fields(Record) if f.type == "float")


_FIRST = re.compile(rb"([0-9a-f]{0,8}|[0-9a-f]{8} \{?.?)\0*")  # what a journal that was cut short can begin with


class _CutError(ValueError):
    """A line is not the one that was written: it may be half of it."""


class _FormatError(Exception):
    """A journal is of another format."""


def encode(events: Iterable[store.Event]) -> bytes:
    """Return events as lines."""
    texts = [_json({"event": event.event, **_fields(event)}).encode() for event in events]
    return b"".join(b"%08x %s\n" % (zlib.crc32(text), text) for text in texts)


def encode_notes(notes: Iterable[store.Note]) -> bytes:
    """Return notes as lines of a log, with the time and this machine's name."""
    about = {"time": round(time.time(), 3), "host": socket.gethostname()}
    return "".join(json.dumps({**about, **asdict(note)}) + "\n" for note in notes).encode()


_SAMPLED = ("sample", "population", "loss_spread_before", "loss_spread_after")  # of an evaluation


def _fields(event: store.Event) -> dict[str, Any]:
    if isinstance(event, store.Evaluated) and not event.result.sample:
        result = {name: value for name, value in asdict(event.result).items() if name not in _SAMPLED}
        return {**asdict(event), "result": result}
    if not isinstance(event, store.Done):
        return {name: value for name, value in asdict(event).items() if name != "groups" or value}
    record = {name: value for name, value in vars(event.record).items() if name != "unusable" or value}
    fields = {"record": record, "belief": event.belief, "state": event.state, "ended": event.ended}
    return {**fields, "candidates": event.candidates} if event.candidates else fields


def _json(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):  # a number that is not finite, or NumPy's
        return json.dumps(plain(value), separators=(",", ":"))


def decode(data: bytes, name: str) -> tuple[list[store.Event], int]:
    """Return the events of a journal and the length of the part that holds them.

    A flush ends with the line that names its state, so what a crash may leave is an unfinished flush at the end: half a
    line, or rounds whose state no line names. That part is not read. A damaged line before it is an error. A line that
    begins with ``#`` is a mark of the store, and no event.
    """
    *lines, tail = data.split(b"\n")  # the tail is what has no end of line: empty, unless a flush was cut short
    events: list[store.Event] = []
    damaged: dict[int, Exception] = {}  # by the number of the line
    whole, size, read = 0, 0, 0  # events and bytes of finished flushes; bytes read
    for number, line in enumerate(lines, start=1):
        if line[:1] == b"#":
            read += len(line) + 1
            size = read if whole == len(events) else size
            continue
        try:
            event = _event(line)
        except _FormatError as error:
            rule = f"but this version reads {FORMAT}: use another store"
            raise StoreError(f"{name} is of format {error}, {rule}") from None
        except _CutError as error:
            if number == len(lines) and not tail:
                break
            damaged[number] = error
            continue
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            damaged[number] = error
            continue
        events.append(event)
        read += len(line) + 1
        if not isinstance(event, store.Done) or event.state:
            whole, size = len(events), read
    if damaged:
        first = next(iter(damaged.values()))
        why = one_line(str(first), 150)
        raise StoreError(
            f"{name}, {_lines(list(damaged))} damaged ({why}): restore the file from a copy, or use another store"
        ) from first
    if not size and not _FIRST.fullmatch(data[:10]):
        raise StoreError(f"{name} is no journal of a study: move it away, or use another store")
    return events[:whole], size


def _lines(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]} is"
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"lines {', '.join(map(str, numbers[:_NAMED]))}{more} are"


def _event(line: bytes) -> store.Event:
    if line[:9] != f"{zlib.crc32(line[9:]):08x} ".encode():
        raise _CutError("its checksum is another")
    entry = json.loads(line[9:])
    kind = entry.pop("event", None) if isinstance(entry, dict) else None
    if not isinstance(kind, str) or kind not in _READERS:
        raise ValueError(f"it is {brief(entry if kind is None else kind)}, and no event of a study")
    if kind == store.Begun.event and entry.get("format") != FORMAT:
        raise _FormatError(brief(entry.get("format")))
    wrong = misfit(entry, SHAPES[kind])
    if wrong:
        raise ValueError(wrong)
    read: Callable[[dict[str, Any]], store.Event] = _READERS[kind]
    return read(entry)


def _begun(entry: dict[str, Any]) -> store.Begun:
    known = (f.name for f in fields(store.Begun))
    return store.Begun(**{name: entry[name] for name in known if name in entry})  # a later format may have more


def _done(entry: dict[str, Any]) -> store.Done:
    values = entry["record"]
    for key in _COUNTS:
        if not is_count(values[key]):
            raise ValueError(f"{key} is {brief(values[key])}")
    for key in _FLOATS:
        values[key] = float(values[key])
    rows = tuple(Row(*row[:4], *map(float, row[4:])) for row in values.pop("rows"))
    unusable = tuple(values.pop("unusable", ()))
    record, candidates = Record(**values, rows=rows, unusable=unusable), tuple(entry.get("candidates", ()))
    return store.Done(record, tuple(map(float, entry["belief"])), entry["state"], entry["ended"], candidates)


def _arm(entry: dict[str, Any]) -> Arm:
    parent = entry.pop("parent")
    return Arm(**entry, parent=None if parent is None else (parent[0], parent[1]))


def _score(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "score": (float(entry["score"][0]), float(entry["score"][1]))}


def _evaluated(entry: dict[str, Any]) -> store.Evaluated:
    found = entry.pop("result")
    breakdown = {name: (float(before), float(after)) for name, (before, after) in found.pop("breakdown", {}).items()}
    result: dict[str, Any] = {k: v if isinstance(v, int) else float(v) for k, v in found.items()}
    return store.Evaluated(**entry, result=store.Evaluation(**result, breakdown=breakdown))


_READERS: Mapping[str, Any] = {
    store.Begun.event: _begun,
    store.Joined.event: lambda e: store.Joined(tuple(e["ids"]), tuple(e.get("codes", ()))),
    store.Started.event: lambda e: store.Started(_arm(e["arm"]), tuple(e["candidates"]), e["state"]),
    store.Done.event: _done,
    store.Late.event: lambda e: store.Late(**e),
    store.Failed.event: lambda e: store.Failed(**e),
    store.Eliminated.event: lambda e: store.Eliminated(**_score(e)),
    store.Evaluated.event: _evaluated,
    store.Won.event: lambda e: store.Won(**_score(e)),
    store.Extended.event: lambda e: store.Extended(**e),
}
