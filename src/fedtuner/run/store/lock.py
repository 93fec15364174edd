"""A lock on a study's folder that the operating system lets go of when its process dies, however it dies."""

from __future__ import annotations

import errno
import os
import weakref
from pathlib import Path
from typing import IO

from fedtuner.errors import StoreError

# The system does not refuse a process that locks a file twice, so we do. A fork has locked nothing: hence the ids.
_locked: set[tuple[int, Path]] = set()


class Lock:
    """Taken when it is made, until ``release`` or until nobody refers to it any more."""

    def __init__(self, path: Path) -> None:
        name, in_use = (os.getpid(), path.resolve()), f"{path} is in use by another running study"
        if name in _locked:  # before the file is opened: closing it again would let go of the lock that we have
            raise StoreError(f"{in_use}, in this process: close() it, or use another store")
        file = (path / "lock").open("a")
        if not _try_lock(file):
            file.close()
            raise StoreError(f"{in_use}: wait for it, stop it, or use another store")
        _locked.add(name)
        self.release = weakref.finalize(self, _let_go, name, file)


def _let_go(name: tuple[int, Path], file: IO[str]) -> None:
    _locked.discard(name)
    file.close()


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
