"""A lock on a study's folder that the operating system lets go of when its process dies, however it dies."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO

from fedtuner.errors import StoreError

_locked: set[Path] = set()  # a process may lock a file twice without noticing: we notice


class Lock:
    """Taken when it is made, until ``release``."""

    def __init__(self, path: Path) -> None:
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
        """Let another process have the folder."""
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
