"""A lock on a study's folder that the operating system lets go of when its process dies, however it dies."""

from __future__ import annotations

import errno
import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedtuner.errors import StoreError

# The system does not refuse a process that locks a file twice, so we do. A fork has locked nothing: hence the ids.
_locked: set[tuple[int, Path]] = set()


@dataclass(frozen=True)
class Held:
    """The folder that a study has locked, known by its lock file: workers, who do not hold the lock, know it, too."""

    path: Path
    device: int
    inode: int

    def check(self) -> None:
        """Raise unless the folder of this name is still the one that was locked."""
        try:
            found = (self.path / "lock").stat()
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None or (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise StoreError(
                f"{self.path} was deleted or replaced under the running study: nothing more is written there; run the "
                "same command again with another --store (store=)"
            )


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
        about = os.fstat(file.fileno())  # the file stays open, so no other gets its number
        self.held = Held(path, about.st_dev, about.st_ino)
        try:
            self.held.check()  # it may have been deleted before it was locked
        except BaseException:
            self.release()
            raise


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
