"""States and clients' memories as safetensors: the same state gives the same bytes."""

from __future__ import annotations

import re
import shutil
import tempfile
import uuid
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner.core.model import Vectors
from fedtuner.core.records import Blob, State
from fedtuner.errors import StoreError, one_line
from fedtuner.run.store.files import Files, disk_errors
from fedtuner.run.store.lock import Held

_ENDED = ("", "diverged", "stalled")  # why an arm gets no more rounds, by its number in a file
_NAMED = 20  # files that an error names
_NAME = re.compile(r"-?\d+-(\d+)\.safetensors(?:\.\d+\.part)?")  # a client's file: client and round; maybe half written


def pack(state: State, belief: Vectors) -> bytes:
    """Return a state as a safetensors file; ``belief`` is its belief, packed by the tuner."""
    from safetensors.numpy import save

    # Everything is an array: the order of a file's metadata, and so its bytes, would change from run to run.
    arrays: dict[str, Any] = {"w": state.w, "at": np.array([state.round, _ENDED.index(state.ended), state.broken])}
    arrays |= {f"belief.{name}": a for name, a in belief.items()}
    arrays |= {f"slot.{name}": v for name, v in state.slots.items()}
    blobs = sorted((i, m.arm, m.round) for i, m in state.memory.items() if isinstance(m, Blob))
    arrays |= {"blobs": np.array(blobs)} if blobs else {}
    arrays |= {"unusable": np.array(sorted(state.unusable.items()))} if state.unusable else {}
    for i, m in state.memory.items():
        if not isinstance(m, Blob):
            arrays |= {f"memory.{i}.{name}": v for name, v in m.items()}
    return bytes(save({name: np.asarray(a, order="C") for name, a in arrays.items()}))


def unpack(data: bytes) -> tuple[State, Vectors]:
    """Return the state that was packed, without its belief, and the packed belief."""
    from safetensors.numpy import load

    groups: dict[str, dict[str, Any]] = {"slot": {}, "belief": {}}
    memory: dict[int, Any] = {}
    for key, array in load(data).items():
        group, _, name = key.partition(".")
        if group == "memory":
            client, _, name = name.partition(".")
            memory.setdefault(int(client), {})[name] = array.copy()
        else:
            groups.setdefault(group, {})[name] = array.copy()
    memory |= {int(i): Blob(int(arm), int(i), int(t)) for i, arm, t in groups.get("blobs", {}).get("", ())}
    round, ended, broken = map(int, groups["at"][""])
    unusable = {int(i): int(n) for i, n in groups.get("unusable", {}).get("", ())}
    state = State(round, groups["w"][""], None, groups["slot"], memory, _ENDED[ended], broken=broken, unusable=unusable)
    return state, groups["belief"]


def loaded(read: Callable[[], bytes], known: str, name: str) -> tuple[State, Vectors]:
    """Return a state and its packed belief from the bytes that ``read`` gives; ``known`` is their checksum, if any."""
    try:
        data = read()
        if known and checksum(data) != known:
            raise ValueError("its checksum is another")
        return unpack(data)
    except StoreError:
        raise
    except Exception as error:
        why = one_line(str(error), 150)
        raise StoreError(f"{name} is missing or damaged ({why}): restore it, or use another store") from error


def pack_vectors(vectors: Vectors) -> bytes:
    """Return a client's vectors as a safetensors file."""
    from safetensors.numpy import save

    return bytes(save(dict(vectors)))


def unpack_vectors(data: bytes) -> Vectors:
    """Return the vectors that were packed."""
    from safetensors.numpy import load

    return {name: array.copy() for name, array in load(data).items()}


def checksum(data: bytes) -> str:
    """Return what a state's bytes are known by."""
    return f"{zlib.crc32(data):08x}"


@dataclass(frozen=True)
class FileBlobs:
    """Clients' memories as files, one per client and round; written by workers, too."""

    folder: Path
    files: Files = field(default_factory=Files)
    held: Held | None = None  # the folder that they are in, where it is a study's

    @staticmethod
    def temporary(owner: object) -> FileBlobs:
        """Return blobs in a folder that is only made if it is needed, and deleted with its owner."""
        folder = Path(tempfile.gettempdir()) / f"fedtuner-{uuid.uuid4().hex}"
        weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
        return FileBlobs(folder)

    def put(self, blob: Blob, vectors: Vectors) -> None:
        self.put_bytes(blob, pack_vectors(vectors))

    def put_bytes(self, blob: Blob, data: bytes) -> None:
        """Keep a client's vectors that are packed."""
        path = self.path(blob)
        with disk_errors(self.folder):
            self._check()
            self.files.make_folder(path.parent)
            self.files.replace(path, data)

    def get(self, blob: Blob) -> Vectors:
        try:
            return unpack_vectors(self.path(blob).read_bytes())
        except Exception as error:
            raise self._damaged({blob: error}) from error

    def check(self, blobs: Iterable[Blob]) -> None:
        from safetensors import safe_open

        wrong: dict[Blob, Exception] = {}
        for blob in sorted(blobs, key=lambda blob: (blob.arm, blob.client, blob.round)):
            try:
                with safe_open(self.path(blob), "np"):  # reads the header, and compares it with the file's size
                    pass
            except Exception as error:
                wrong[blob] = error
        if wrong:
            raise self._damaged(wrong)

    def sweep(self, arm: int, used: Iterable[Blob], until: int | None = None) -> None:
        self._check()
        folder = self.folder / str(arm)
        if not folder.is_dir():
            return
        kept = {self.path(blob).name for blob in used if blob.arm == arm}
        for file in sorted(folder.iterdir()):
            name = _NAME.fullmatch(file.name)
            if name and file.name not in kept and (until is None or int(name[1]) <= until):
                self.files.remove(file)
        if until is None:
            self.files.remove_folder(folder)

    def _damaged(self, wrong: Mapping[Blob, Exception]) -> StoreError:
        names = [f"{blob.arm}/{self.path(blob).name}" for blob in wrong]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        files, why = ", ".join(names[:_NAMED]) + more, one_line(str(next(iter(wrong.values()))), 150)
        what = "what clients remember is missing or damaged"
        return StoreError(f"{self.folder}: {what}: {files} ({why}): restore these files, or use another store")

    def _check(self) -> None:
        if self.held is not None:
            self.held.check()

    def path(self, blob: Blob) -> Path:
        """Return a blob's file."""
        return self.folder / str(blob.arm) / f"{blob.client}-{blob.round}.safetensors"
