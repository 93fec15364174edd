"""Damaged stores: exit code 2, nothing on standard output, one line that names the file and says what to do."""

# ruff: noqa: E501 (a row is a line)

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from answers import answer, check

from fedtuner.report import journal_of

RUN = ("run", "study.toml", "--workers", "1", "--quiet")


def journal(change: Callable[[list[bytes]], Any]) -> Callable[[Path], None]:
    """Change the journal's lines; a change returns what is written."""

    def damage(store: Path) -> None:
        file = store / "journal.jsonl"
        changed = change(file.read_bytes().splitlines(keepends=True))
        file.write_bytes(changed if isinstance(changed, bytes) else b"".join(changed))

    return damage


def entry(number: int, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change one line's JSON, and its checksum with it."""

    def damage(lines: list[bytes]) -> list[bytes]:
        table = json.loads(lines[number][9:])
        made = change(table)
        lines[number] = signed(table if made is None else made)
        return lines

    return journal(damage)


def signed(value: Any) -> bytes:
    """A line of a journal with the right checksum."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return f"{zlib.crc32(text):08x} ".encode() + text + b"\n"


def without(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        for key in keys[:-1]:
            table = table[key]
        del table[keys[-1]]

    return change


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Put the last value under the keys before it."""

    def change(table: Any) -> None:
        for key in path[:-2]:
            table = table[key]
        table[path[-2]] = path[-1]

    return change


def states(change: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Change the file of the winner's state."""

    def damage(store: Path) -> None:
        won = journal_of(store).won
        change(store / "states" / f"{won.arm}-{won.round}.safetensors")

    return damage


def line(text: bytes) -> Callable[[Path], None]:
    """Replace the journal."""
    return journal(lambda lines: text)


def first(kind: bytes) -> Callable[[list[bytes]], int]:
    return lambda lines: next(n for n, one in enumerate(lines) if b'"event":"' + kind in one)


def at(kind: bytes, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change the first line of a kind."""

    def damage(store: Path) -> None:
        lines = (store / "journal.jsonl").read_bytes().splitlines()
        entry(first(kind)(lines), change)(store)

    return damage


def swapped(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2], lines[1], *lines[3:]]


def no_arms(lines: list[bytes]) -> list[bytes]:
    return [one for one in lines if b'"event":"arm"' not in one]


# id, the damage to a copy of "done", the command, what the line must match.
SHOW, EXPORT, AGAIN = ("show", "s"), ("export", "s", "--to", "out"), (*RUN, "--store", "s")
STORES = [
    ("journal-empty", line(b""), SHOW, r"no study in s: there is no journal|s.* is empty"),
    ("journal-text", line(b"hello\nworld\nagain\n"), SHOW, r"s/journal.jsonl, lines? 1.* damaged .*restore"),
    ("journal-binary", line(bytes(range(256)) * 9), SHOW, r"s/journal.jsonl, lines? 1.* damaged"),
    ("journal-zeros", line(bytes(5000) + b"\n" + bytes(10)), SHOW, r"s/journal.jsonl, lines? 1.* damaged|no study"),
    ("journal-list", line(signed([]) * 2 + b"x"), SHOW, r"s/journal.jsonl, lines? 1.* damaged"),
    ("journal-null", line(signed(None) * 2 + b"x"), SHOW, r"s/journal.jsonl, lines? 1.* damaged"),
    ("journal-number", line(signed(3) * 2 + b"x"), SHOW, r"s/journal.jsonl, lines? 1.* damaged"),
    ("journal-object", line(signed({}) * 2 + b"x"), SHOW, r"s/journal.jsonl, lines? 1.* damaged"),
    ("journal-unknown-event", line(signed({"event": "party"}) * 2 + b"x"), SHOW, r"s/journal.jsonl, lines? 1.* damaged.*party"),
    ("journal-event-a-list", line(signed({"event": []}) * 2 + b"x"), SHOW, r"s/journal.jsonl, lines? 1.* damaged"),
    ("journal-not-utf-8", line(signed(b'{"event": "\xff"}') * 2 + b"x"), SHOW, r"s/journal.jsonl, lines? 1.* damaged"),
    ("journal-deep", line(signed(b"[" * 100000) * 2 + b"x"), SHOW, r"s/journal.jsonl, lines? 1.* damaged"),
    ("journal-digits", line(signed(b"1" + b"0" * 6000) * 2 + b"x"), SHOW, r"s/journal.jsonl, lines? 1.* damaged"),
    ("journal-bit", journal(lambda lines: [lines[0], lines[1].replace(b"arm", b"arn", 1), *lines[2:]]), SHOW, r"line 2 is damaged \(its checksum"),
    ("journal-checksum", journal(lambda lines: [lines[0], b"zzzzzzzz" + lines[1][8:], *lines[2:]]), SHOW, r"line 2 is damaged"),
    ("journal-cut-inside", journal(lambda lines: [lines[0], lines[1][:50] + b"\n", *lines[2:]]), SHOW, r"line 2 is damaged"),
    ("journal-carriage-returns", journal(lambda lines: b"".join(lines).replace(b"\n", b"\r\n")), SHOW, r"lines 1, 2, .* damaged"),
    ("journal-byte-order-mark", journal(lambda lines: [b"\xef\xbb\xbf", *lines]), SHOW, r"line 1 is damaged"),
    ("journal-twice", journal(lambda lines: lines * 2), SHOW, r"line \d+ of the journal: a study begins once"),
    ("journal-without-a-beginning", journal(lambda lines: lines[1:]), SHOW, r"line 1 of the journal: a study begins once"),
    ("journal-without-arms", journal(no_arms), SHOW, r"which has not started"),
    ("journal-arm-twice", journal(lambda lines: [*lines[:2], *lines[1:]]), SHOW, r"arm 0 starts a second time"),
    ("journal-another-format", at(b"study", put("format", 99)), SHOW, r"journal.jsonl is of format 99, but this version reads 2"),
    ("journal-format-a-text", at(b"study", put("format", "x")), SHOW, r"journal.jsonl is of format 'x', but this version reads 2"),
    ("journal-no-setup", at(b"study", without("setup")), SHOW, r"line 1 is damaged"),
    ("journal-setup-a-list", at(b"study", put("setup", [])), SHOW, r"line 1 is damaged"),
    ("journal-setup-empty", at(b"study", put("setup", {})), SHOW, r"line 1 of the journal: setup.method is None"),
    ("journal-setup-no-schedule", at(b"study", without("setup", "schedule")), SHOW, r"line 1 of the journal: setup.schedule is "),
    ("journal-setup-no-tuner", at(b"study", without("setup", "tuner")), SHOW, r"line 1 of the journal: setup.tuner is None"),
    ("journal-setup-schedule-a-text", at(b"study", put("setup", "schedule", "x")), SHOW, r"line 1 of the journal: setup.schedule is "),
    ("journal-no-federation", at(b"study", without("federation")), SHOW, r"line 1 is damaged"),
    ("journal-federation-empty", at(b"study", put("federation", {})), SHOW, r"line 1 of the journal: federation.name is None"),
    ("journal-layout-a-number", at(b"study", put("layout", 3)), EXPORT, r"damaged .*layout"),
    ("journal-layout-wrong", at(b"study", put("layout", [{}])), EXPORT, r"line 1 of the journal: layout.name is None"),
    ("journal-layout-too-long", at(b"study", put("layout", [{"name": "w", "shape": [999], "axes": []}])), EXPORT, r"layout is not that of the winner's state"),
    ("journal-arm-empty", at(b"arm", put("arm", {})), SHOW, r"line 2 is damaged"),
    ("journal-arm-id-a-text", at(b"arm", put("arm", "id", "x")), SHOW, r"line 2 is damaged"),
    ("journal-arm-id-negative", at(b"arm", put("arm", "id", -3)), SHOW, r"damaged|not started"),
    ("journal-arm-client-a-list", at(b"arm", put("arm", "client", [])), SHOW, r"line 2 is damaged"),
    ("journal-arm-parent-itself", at(b"arm", put("arm", "parent", [0, 0])), SHOW, r"arm 0 goes on from arm 0 after round 0, which is not there"),
    ("journal-arm-parent-absent", at(b"arm", put("arm", "parent", [77, 5])), SHOW, r"arm 0 .*77|damaged"),
    ("journal-candidates-a-number", at(b"arm", put("candidates", 3)), SHOW, r"line 2 is damaged"),
    ("journal-candidates-none", at(b"arm", put("candidates", [])), SHOW, r"line 2 is damaged|candidates"),
    ("journal-record-empty", at(b"round", put("record", {})), SHOW, r"line \d is damaged"),
    ("journal-record-a-list", at(b"round", put("record", [])), SHOW, r"line \d is damaged"),
    ("journal-record-loss-a-text", at(b"round", put("record", "loss", "low")), SHOW, r"line \d is damaged"),
    ("journal-record-rows-numbers", at(b"round", put("record", "rows", [1])), SHOW, r"line \d is damaged"),
    ("journal-record-rows-short", at(b"round", put("record", "rows", [[1, 2]])), SHOW, r"line \d is damaged"),
    ("journal-record-round-a-text", at(b"round", put("record", "round", "1")), SHOW, r"line \d is damaged"),
    ("journal-record-round-skipped", at(b"round", put("record", "round", 7)), SHOW, r"round 7 of arm 0 comes after its round 0"),
    ("journal-record-arm-a-list", at(b"round", put("record", "arm", [0])), SHOW, r"line \d is damaged"),
    ("journal-winner-absent-arm", at(b"winner", put("arm", 99)), SHOW, r"arm 99"),
    ("journal-winner-a-text", at(b"winner", put("arm", "x")), SHOW, r"damaged|arm 'x'"),
    ("journal-winner-round", at(b"winner", put("round", 99)), SHOW, r"round 99"),
    ("journal-winner-no-score", at(b"winner", without("score")), SHOW, r"line \d+ is damaged"),
    ("journal-winner-extra", at(b"winner", put("more", 1)), SHOW, r"line \d+ is damaged"),
    ("journal-eliminated-absent-arm", at(b"eliminated", put("arm", 99)), SHOW, r"arm 99"),
    ("journal-evaluated-absent-arm", at(b"evaluated", put("arm", 99)), SHOW, r"arm 99"),
    ("journal-evaluated-a-list", at(b"evaluated", put("result", [])), SHOW, r"line \d+ is damaged"),
    ("journal-evaluated-text", at(b"evaluated", put("result", "loss_before", "x")), SHOW, r"line \d+ is damaged"),
    ("journal-a-folder", lambda s: ((s / "journal.jsonl").unlink(), (s / "journal.jsonl").mkdir()), SHOW, r"cannot read s/journal.jsonl: Is a dir"),
    ("journal-a-loop", lambda s: ((s / "journal.jsonl").unlink(), (s / "journal.jsonl").symlink_to("journal.jsonl")), SHOW, r"s"),
    ("journal-gone", lambda s: (s / "journal.jsonl").unlink(), SHOW, r"no study in s: there is no journal"),
    ("run-on-damage", journal(lambda lines: [lines[0], b"x" + lines[1], *lines[2:]]), AGAIN, r"s/journal.jsonl, line 2 is damaged"),
    ("diff-on-damage", journal(lambda lines: [lines[0], b"x" + lines[1], *lines[2:]]), ("diff", "s", "done"), r"line 2 is damaged"),
    ("compare-on-damage", journal(lambda lines: [lines[0], b"x" + lines[1], *lines[2:]]), ("compare", "s"), r"line 2 is damaged"),
    ("state-gone", states(lambda f: f.unlink()), EXPORT, r"s/states/.*safetensors.* missing or damaged .*restore"),
    ("state-empty", states(lambda f: f.write_bytes(b"")), EXPORT, r"s/states/.*safetensors.* missing or damaged"),
    ("state-text", states(lambda f: f.write_text("hello")), EXPORT, r"s/states/.*safetensors.* missing or damaged"),
    ("state-cut", states(lambda f: f.write_bytes(f.read_bytes()[:-4])), EXPORT, r"s/states/.*safetensors.* missing or damaged"),
    ("state-bit", states(lambda f: f.write_bytes(f.read_bytes()[:-1] + b"\x01")), EXPORT, r"s/states/.* missing or damaged .*checksum"),
    ("state-huge-header", states(lambda f: f.write_bytes(b"\xff" * 64)), EXPORT, r"s/states/.*safetensors.* missing or damaged"),
    ("state-a-folder", states(lambda f: (f.unlink(), f.mkdir())), EXPORT, r"s/states/.*safetensors.* missing or damaged"),
    ("states-a-file", lambda s: (shutil.rmtree(s / "states"), (s / "states").touch()), EXPORT, r"s/states/.*missing or damaged"),
    ("states-a-file-run", lambda s: (shutil.rmtree(s / "states"), (s / "states").touch()), AGAIN, r"cannot write to s: "),
    ("lock-a-folder", lambda s: ((s / "lock").unlink(missing_ok=True), (s / "lock").mkdir()), AGAIN, r"cannot write to s: Is a directory"),
    ("untuned-damaged", lambda s: ((s / "untuned").mkdir(), (s / "untuned/journal.jsonl").write_text("hello\nx\nx")), SHOW,
     r"s/untuned/journal.jsonl, lines? 1.* damaged"),
    ("old-beside", lambda s: (s / "spec.json").touch(), SHOW, r"s holds a study of the first format"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "arguments", "match"), [pytest.param(*row[1:], id=row[0]) for row in STORES])
def test_a_store_that_is_damaged(
    damage: Callable[[Path], Any], arguments: tuple[str, ...], match: str, here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    store = Path("s")
    shutil.copytree("done", store)
    damage(store)
    check(answer(arguments, capsys), match)
