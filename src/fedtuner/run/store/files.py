"""Every touch of the disk: files are replaced whole, journals grow by whole flushes.

Tests put another ``Files`` in its place, to stop a study before each touch.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedtuner.errors import StoreError
from fedtuner.tables import plain


class Files:
    """The operations that a store needs."""

    def replace(self, path: Path, data: bytes) -> None:
        """Write a file so that a reader sees the old one or the new one, never a part."""
        aside = path.with_name(path.name + ".part")
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)

    def append(self, path: Path, data: bytes) -> None:
        """Add to a file; the data is on disk when this returns."""
        with path.open("ab", buffering=0) as file:
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())

    def cut(self, path: Path, size: int) -> None:
        """Shorten a file."""
        os.truncate(path, size)

    def remove(self, path: Path) -> None:
        """Delete a file, if it is there."""
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        """Make a folder, if it is not there."""
        path.mkdir(parents=True, exist_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part."""
    Files().replace(path, data)


def read_json(path: Path) -> Any:
    """Return a JSON file's content, or raise a clear error."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file."""
    with disk_errors(path.parent):
        replace_file(path, (json.dumps(plain(value), indent=2) + "\n").encode())


def check_room(path: Path, room: int) -> None:
    """Fail now rather than after hours: is there room for the states?"""
    free = shutil.disk_usage(path).free
    if free < room:
        raise StoreError(f"{path} has {free / 1e6:.0f} MB free, but the study needs about {room / 1e6:.0f} MB")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk into a ``StoreError`` that says what to do."""
    try:
        yield
    except OSError as error:
        reasons = {errno.ENOSPC: "no room left on the disk", errno.EROFS: "the folder is read-only"}
        reason = reasons.get(error.errno or 0, error.strerror or str(error))
        raise StoreError(
            f"cannot write to {path}: {reason}. What was kept before is whole: mend this and run the same command again"
        ) from error
