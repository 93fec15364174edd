"""A study's folder: its spec, a journal of rounds, and the state of every arm. One process writes it.

    spec.json        what the study is; another spec is refused
    journal.jsonl    one line per arm and round
    arms/N.safetensors   arm N after its last kept round: model, server slots, client memory, theta
    memory/N/        client memory of arm N where it is large, while the arm is in the race
    proposals.json   the hyperparameters of the arms, where they depend on the arms before
    result.json      the winner and its evaluation, once finished

Files are replaced whole (written aside, flushed to disk, renamed); the journal grows by whole flushes. A kill can only
lose the last rounds of an arm, and these have one answer: they are computed again, to the same bits.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedtuner import fedex
from fedtuner.arm import Arm, Record, State
from fedtuner.errors import StoreError
from fedtuner.memory import Spilled, memory_of

_locked: set[Path] = set()  # a process may lock a file twice without noticing: we notice
_FIELDS = [(f.name, f.type) for f in fields(Record)]


class Store:
    """An open study folder. Opening checks the spec, takes the lock and reads what is there."""

    def __init__(self, path: str | Path, spec: Mapping[str, Any], room: int = 0) -> None:
        self.path = Path(path)
        with _disk_errors(self.path):
            self._lock = _Lock(self.path)
            try:
                _adopt(self.path, spec)
                _probe(self.path, room)
                self.states, self.records = _load(self.path)
                self.proposals = read_proposals(self.path)
                self._journal = (self.path / "journal.jsonl").open("ab", buffering=0)
            except BaseException:
                self._lock.release()
                raise

    def keep(self, arm: int, state: State, records: Sequence[Record]) -> None:
        """Write an arm's rounds, then its state: a kill in between leaves rounds that are computed again."""
        with _disk_errors(self.path):
            if records:
                lines = _lines(records)
                while lines:
                    lines = lines[self._journal.write(lines) :]
                os.fsync(self._journal.fileno())
            replace_file(self.path / "arms" / f"{arm}.safetensors", pack(state))

    def propose(self, arms: Sequence[Arm]) -> None:
        """Write down the hyperparameters of arms, before their first round."""
        new = {arm.id: arm for arm in arms if arm.id not in self.proposals}
        if new:
            self.proposals |= new
            write_json(self.path / "proposals.json", [asdict(arm) for arm in self.proposals.values()])

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result, and put the journal in order: the folder does not tell how many worked on it."""
        with _disk_errors(self.path):
            _write_journal(self.path, self.records)
        write_json(self.path / "result.json", result)

    def close(self) -> None:
        """Let another process have the folder."""
        self._journal.close()
        self._lock.release()


def pack(state: State) -> bytes:
    """Return a state as a safetensors file."""
    from safetensors.numpy import save

    # Everything is an array: the order of a file's metadata, and so its bytes, would change from run to run.
    arrays = {"w": state.w, "at": np.array([state.round, state.diverged])}
    arrays |= {f"theta.{name}": a for name, a in fedex.pack(state.belief).items()}
    arrays |= {f"slot.{name}": v for name, v in state.slots.items()}
    files = sorted((i, m.round) for i, m in state.memory.items() if isinstance(m, Spilled))
    arrays |= {"files": np.array(files)} if files else {}
    for i, m in state.memory.items():
        if not isinstance(m, Spilled):
            arrays |= {f"memory.{i}.{name}": v for name, v in m.items()}
    kept = {name: np.asarray(a, order="C") for name, a in arrays.items()}
    return bytes(save(kept))


def unpack(data: bytes, folder: Path) -> State:
    """Return the state that ``pack`` packed; its clients' files are in ``folder``."""
    from safetensors.numpy import load

    groups: dict[str, dict[str, Any]] = {"slot": {}, "theta": {}}
    memory: dict[int, Any] = {}
    for key, array in load(data).items():
        group, _, name = key.partition(".")
        if group == "memory":
            client, _, name = name.partition(".")
            memory.setdefault(int(client), {})[name] = array.copy()
        else:
            groups.setdefault(group, {})[name] = array.copy()
    memory |= {int(i): Spilled(folder, int(i), int(t)) for i, t in groups.get("files", {}).get("", ())}
    round, diverged = groups["at"][""]
    belief = fedex.unpack(groups["theta"])
    return State(int(round), groups["w"][""], belief, groups["slot"], memory, bool(diverged))


def read_json(path: Path) -> Any:
    """Return a JSON file's content, or raise a clear error."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file."""
    with _disk_errors(path.parent):
        replace_file(path, (json.dumps(plain(value), indent=2) + "\n").encode())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part."""
    aside = path.with_name(path.name + ".part")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def plain(value: Any) -> Any:
    """Return a value that strict JSON can hold: numbers that are not finite become the strings nan, inf and -inf."""
    if isinstance(value, Mapping):
        return {str(key): plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read(path: str | Path) -> tuple[dict[str, Any], dict[int, State], dict[int, list[Record]], dict[str, Any] | None]:
    """Return the spec, states, records and result of a study's folder, without taking it."""
    folder = Path(path)
    if not (folder / "spec.json").exists():
        raise StoreError(f"no study in {folder}: there is no spec.json; 'fedtuner run' makes one")
    states, records = _load(folder, mend=False)
    result = read_json(folder / "result.json") if (folder / "result.json").exists() else None
    return read_json(folder / "spec.json"), states, records, result


def read_proposals(path: Path) -> dict[int, Arm]:
    """Return the arms whose hyperparameters are written down in a study's folder."""
    file = path / "proposals.json"
    entries = read_json(file) if file.exists() else []
    return {e["id"]: Arm(e["id"], e["server"], tuple(e["candidates"]), float(e["gamma"])) for e in entries}


def differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Yield what differs between two specs, by its name."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
    elif old != new:
        yield f"{name}: {old!r} in the store, {new!r} now"


def _spaces(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield where spaces are equal and draw differently all the same: 1 == 1.0, but one range is of whole numbers."""
    for side in ("client", "server"):
        before, now = (json.dumps(spec.get(side), sort_keys=True) for spec in (old, new))
        if before != now:
            yield f"{side}: {before} in the store, {now} now"


def _adopt(path: Path, spec: Mapping[str, Any]) -> None:
    file = path / "spec.json"
    new = json.loads(json.dumps(plain(spec)))
    if not file.exists():
        (path / "arms").mkdir(exist_ok=True)
        replace_file(file, (json.dumps(new, indent=2) + "\n").encode())
        return
    old = read_json(file)
    changed = list(differences(old, new)) or list(_spaces(old, new))
    if changed:
        raise StoreError(
            f"{path} holds another study ({'; '.join(changed[:5])}{' ...' if len(changed) > 5 else ''}). "
            "Use another --store (store=), or run with the stored settings to continue"
        )


def _probe(path: Path, room: int) -> None:
    """Fail now rather than after hours: can we write, and is there room for the states?"""
    replace_file(path / "arms" / "probe", b"\0" * 4096)
    (path / "arms" / "probe").unlink()
    free = shutil.disk_usage(path).free
    if free < room:
        raise StoreError(f"{path} has {free / 1e6:.0f} MB free, but the study needs about {room / 1e6:.0f} MB")


def _load(path: Path, mend: bool = True) -> tuple[dict[int, State], dict[int, list[Record]]]:
    """Read states and rounds; what does not fit together (a kill in between) is forgotten and computed again."""
    rounds: dict[int, dict[int, Record]] = {}
    journal = path / "journal.jsonl"
    lines = journal.read_text(errors="replace").splitlines() if journal.exists() else []
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):  # half a line at the end of a killed flush
            record = _record(json.loads(line))
            rounds.setdefault(record.arm, {})[record.round] = record
    states, records = {}, {}
    for file in sorted((path / "arms").glob("*.safetensors")):
        if not file.stem.isdecimal():
            continue
        arm = int(file.stem)
        try:
            state = unpack(file.read_bytes(), memory_of(path, arm))
        except Exception as error:
            raise StoreError(f"{file} is damaged ({error}): delete it, and its arm is computed again") from error
        known = rounds.get(arm, {})
        whole_memory = all(m.path.exists() for m in state.memory.values() if isinstance(m, Spilled))
        if whole_memory and all(t in known for t in range(1, state.round + 1)):
            states[arm] = state
            records[arm] = [known[t] for t in range(1, state.round + 1)]
    whole = sum(map(len, records.values()))
    if mend and len(lines) != whole:
        _write_journal(path, records)
    return states, records


def _write_journal(path: Path, records: Mapping[int, Sequence[Record]]) -> None:
    replace_file(path / "journal.jsonl", b"".join(_lines(records[arm]) for arm in sorted(records)))


def _lines(records: Iterable[Record]) -> bytes:
    return "".join(json.dumps(plain(asdict(record))) + "\n" for record in records).encode()


def _record(entry: dict[str, Any]) -> Record:
    values: dict[str, Any] = {name: float(entry[name]) if kind == "float" else entry[name] for name, kind in _FIELDS}
    return Record(**values)


class _Lock:
    """A lock that the operating system lets go of when its process dies, however it dies."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path.resolve()
        in_use = StoreError(f"{path} is in use by another running study: wait for it, stop it, or use another store")
        if self.path in _locked:  # before the file is opened: closing it again would let go of the lock that we have
            raise in_use
        self._file: IO[str] = (path / "lock").open("a")
        if not _try_lock(self._file):
            self._file.close()
            raise in_use
        _locked.add(self.path)

    def release(self) -> None:
        _locked.discard(self.path)
        self._file.close()


def _try_lock(file: IO[str]) -> bool:
    try:
        import fcntl  # record locks: not inherited by worker processes that outlive us
    except ImportError:  # pragma: no cover (Windows)
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reasons = {errno.ENOSPC: "no room left on the disk", errno.EROFS: "the folder is read-only"}
        reason = reasons.get(error.errno or 0, error.strerror or str(error))
        raise StoreError(
            f"cannot write to {path}: {reason}. What was kept before is whole: mend this and run the same command again"
        ) from error
