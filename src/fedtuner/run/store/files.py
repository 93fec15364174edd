"""Every change of a study's folder: files are replaced whole, journals grow by whole flushes.

Tests put another ``Files`` in its place, to stop a study before each change.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedtuner.errors import StoreError, one_line


class Files:
    """The operations that change a folder."""

    def replace(self, path: Path, data: bytes) -> None:
        """Write a file so that a reader sees the old one or the new one, never a part.

        The file written aside has the process in its name: workers whose driver is gone may write the same file.
        """
        aside = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def append(self, path: Path, data: bytes, size: int | None = None) -> None:
        """Add to a file; the data is on disk when this returns.

        ``size`` is the file's length so far: what an append that failed has left behind it is cut off first.
        """
        fresh = not path.exists()
        with path.open("ab", buffering=0) as file:
            if size is not None and os.fstat(file.fileno()).st_size > size:
                file.truncate(size)
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        if fresh:
            self.sync(path.parent)

    def cut(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Delete a folder, if it is there and empty."""
        with suppress(OSError):
            path.rmdir()

    def sync(self, folder: Path) -> None:
        """See that the names of a folder's files are on disk: a renamed file may else be lost in a power cut."""
        if os.name == "posix":
            opened = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(opened)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such thing
                    raise
            finally:
                os.close(opened)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part."""
    Files().replace(path, data)


def exists(path: Path) -> bool:
    """Return whether there is something of this name; a name that nothing can have is that of nothing."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def read_json(path: Path) -> Any:
    """Return a JSON file's content, or raise a clear error."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"cannot read {path}: {one_line(str(error), 150)}") from error


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
