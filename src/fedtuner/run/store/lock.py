"""A lock on a study's folder that the operating system lets go of when its process dies, however it dies."""

from __future__ import annotations

import errno
import getpass
import os
import socket
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedtuner.errors import StoreError, one_line

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
        except OSError as error:
            if error.errno != errno.ESTALE:  # what NFS says of a file that another machine has deleted
                raise
            found = None
        if found is None or (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise StoreError(
                f"{self.path} was deleted or replaced under the running study: nothing more is written there; run the "
                "same command again with another --store (store=)"
            )


class Lock:
    """Taken when it is made, until ``release`` or until nobody refers to it any more. Its file says who has it.

    It is a record lock: on NFS the server keeps it, for all machines, unless the folder is mounted with ``nolock`` or
    ``local_lock``.
    """

    def __init__(self, path: Path) -> None:
        name, in_use = (os.getpid(), path.resolve()), f"{path} is in use by another running study"
        if name in _locked:  # before the file is opened: closing it again would let go of the lock that we have
            raise StoreError(f"{in_use}, in this process: close() it, or use another store")
        file = (path / "lock").open("a")
        try:
            free = _try_lock(file)
        except OSError as error:
            file.close()
            why = error.strerror or str(error)
            raise StoreError(
                f"{path} cannot be locked ({why}): a study needs a file system with record locks. Mount it with them, "
                "or use another store"
            ) from error
        if not free:
            file.close()
            raise StoreError(f"{in_use}{_who(path / 'lock')}: wait for it, stop it, or use another store")
        file.truncate(0)
        file.write(f"{user()}@{socket.gethostname()}, process {os.getpid()}\n")
        file.flush()
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
    if name[0] == os.getpid():  # a fork has locked nothing
        with suppress(OSError):  # the folder may be gone
            file.truncate(0)
    file.close()


def _who(file: Path) -> str:
    """Return who has a lock, for a message; nothing, if that cannot be read."""
    try:
        text = one_line(file.read_text(), 120)
    except (OSError, ValueError):
        return ""
    return f" ({text})" if text else ""


def user() -> str:
    """Return who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name
        return "unknown"


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
