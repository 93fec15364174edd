"""Studies that are stopped at any change of their folder, and whether two studies are the same to the bit."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedtuner as ft
import toys
from fedtuner.core.schedule import Scoring, Start, Step, best
from fedtuner.report.diff import as_lines, differences
from fedtuner.run.reading import read
from fedtuner.run.store import Folder
from fedtuner.run.store.files import Files


class Crash(BaseException):
    """What a kill is within this process: nothing catches it, and nothing more is written."""


def crash() -> None:
    raise Crash


class Crashing(Files):
    """Files that fail at the n-th change whose description matches a pattern, and at all later changes.

    Writing a file is several changes: "before 2-5.safetensors" and "within 2-5.safetensors", when half of it is there.
    """

    def __init__(self, n: int, pattern: str = ".*", fail: Callable[[], None] = crash) -> None:
        self.left, self.pattern, self.fail = n, pattern, fail
        self.doing = ""  # what it was at when it failed

    def change(self, doing: str) -> None:
        self.left -= re.match(self.pattern, doing) is not None
        if self.left <= 0:
            self.doing = self.doing or doing
            self.fail()

    def replace(self, path: Path, data: bytes) -> None:
        self.change(f"before {path.name}")
        aside = path.with_name(f"{path.name}.1.part")
        aside.write_bytes(data[: len(data) // 2])
        self.change(f"within {path.name}")
        aside.unlink()
        super().replace(path, data)

    def append(self, path: Path, data: bytes, size: int | None = None) -> None:
        line = data.index(b"\n") + 1  # the end of the first
        if size is None:
            size = path.stat().st_size if path.exists() else 0
        self.change(f"before {path.name}")
        for at in sorted({line // 2, line, len(data) - 1} - {len(data)}):
            super().append(path, data[:at], size)
            self.change(f"within {path.name}")
        super().append(path, data, size)

    def cut(self, path: Path, size: int) -> None:
        self.change(f"cut {path.name}")
        super().cut(path, size)

    def remove(self, path: Path) -> None:
        self.change(f"remove {path.name}")
        super().remove(path)

    def make_folder(self, path: Path) -> None:
        self.change(f"make {path.name}")
        super().make_folder(path)

    def remove_folder(self, path: Path) -> None:
        self.change(f"remove {path.name}")
        super().remove_folder(path)


class Snapshots(Crashing):
    """Files that keep what a kill would leave behind at each change: copies of the folder, each content once."""

    def __init__(self, folder: Path, copies: Path) -> None:
        super().__init__(1)
        self.folder, self.copies = folder, copies
        self.changes = 0
        self.known: set[int] = set()

    def change(self, doing: str) -> None:
        self.changes += 1
        content = hash(tuple(toys.files(self.folder).items()))
        if content not in self.known and self.folder.exists():
            self.known.add(content)
            shutil.copytree(self.folder, self.copies / f"{self.changes} {doing}")


def assert_same(one: Path, other: Path) -> None:
    """Two studies have the same arms, rounds, winner, evaluations and latest states."""
    journals = [read(Folder(path), str(path)) for path in (one, other)]
    assert not as_lines(differences(*journals), (str(one), str(other)))
    assert len({journal.rounds_used for journal in journals}) == 1
    assert kept(one) == kept(other)
    for path, journal in zip((one, other), journals, strict=True):
        trained = [arm for arm in journal.own_records if journal.own_records[arm] or arm not in journal.failed]
        latest = {f"states/{arm}-{journal.saved_round(arm)}.safetensors" for arm in trained}
        assert latest <= kept(path).keys()
    theta = [{a: journal.offers((a, journal.saved_round(a) or 0)) for a in journal.arms} for journal in journals]
    assert theta[0] == theta[1]


def kept(path: Path) -> dict[str, bytes]:
    """The states and the client memory in a study's folder."""
    return {name: data for name, data in toys.files(path).items() if name.startswith(("states/", "memory/"))}


def slower(space: ft.Space, arm: Any, rng: Any) -> tuple[Any, Any]:
    """A child's configuration."""
    return {**arm.client, "lr": arm.client["lr"] * float(rng.uniform(0.5, 0.9))}, arm.server


@dataclass(frozen=True)
class Evolving:
    """Three arms; twice the worst makes room for a child of the first step's best, whose state is kept meanwhile."""

    rung: int = 2  # rounds between comparisons
    scoring = Scoring()
    needs = frozenset[str]()

    @property
    def budget(self) -> int:
        return 10 * self.rung

    @property
    def longest(self) -> int:
        return 3 * self.rung

    def steps(self) -> Any:
        t = self.rung
        evidence = yield Step({0: t, 1: t, 2: t}, {arm: Start() for arm in range(3)})
        first, second, out = best(evidence.scores, 3)
        child = Start(parent=(first, t), change=slower)
        evidence = yield Step({first: 2 * t, second: 2 * t, 3: 2 * t}, {3: child}, (out,), ((first, t),))
        *going, out = best(evidence.scores, 3)
        evidence = yield Step(dict.fromkeys([*going, 4], 3 * t), {4: child}, (out,))
        return best(evidence.scores, 1)[0], 3 * t
