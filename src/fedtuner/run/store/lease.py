"""A lock on a study in an object store: an object that says who has it, renewed while its process lives.

The object is created, renewed, taken over and let go of by conditional writes: of two processes that try, one succeeds.
A process that died leaves its lock behind. Another takes it over when it has not been renewed for as long as a lease
lasts, by the store's own clock, so that the machines' clocks may differ; on the same machine at once, since there the
process is seen to be gone.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from fedtuner.errors import StoreError, one_line
from fedtuner.run.store.bucket import Bucket, Version
from fedtuner.run.store.lock import user

LEASE = 60.0  # seconds
_RENEWALS = 3  # per lease
_NAME = "lock"
_held: set[str] = set()  # the leases of this process


@dataclass(frozen=True)
class Owner:
    """Who has a lock: what stands in the object."""

    id: str
    user: str
    host: str
    process: int
    machine: str  # empty where processes of the same machine are not told apart
    lease: float
    renewals: int = 0
    free: bool = False  # the lock was let go of

    @staticmethod
    def this(lease: float) -> Owner:
        """Return this process."""
        return Owner(uuid.uuid4().hex, user(), socket.gethostname(), os.getpid(), _machine(), lease)

    def __str__(self) -> str:
        return one_line(f"{self.user}@{self.host}, process {self.process}", 120)

    @property
    def gone(self) -> bool:
        """Whether the process is known to have ended: it was one of this machine."""
        if not self.machine or self.machine != _machine():
            return False
        if self.process == os.getpid():
            return self.id not in _held
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False


class Lease:
    """Taken when it is made, until ``release``; renewed by a thread until then."""

    def __init__(
        self, bucket: Bucket, lasts: float = LEASE, clock: Callable[[], float] = time.monotonic, beats: bool = True
    ) -> None:
        self._bucket, self._clock, self._lost = bucket, clock, ""
        self._turn = threading.Lock()
        self.owner = Owner.this(lasts)
        self._renewed = clock()  # before the request: a lease lasts from then on at least
        _held.add(self.owner.id)  # before it is in the store, where other threads of this process look at it
        try:
            self._version = self._take()
        except BaseException:
            _held.discard(self.owner.id)
            raise
        self._end = threading.Event()
        if beats:
            arguments = (weakref.ref(self), self._end, lasts / _RENEWALS)
            threading.Thread(target=_beat, args=arguments, name="fedtuner lease", daemon=True).start()

    def check(self) -> None:
        """Raise unless the lock is still this process's; asks the store only if the lease may have ended."""
        if self._lost:
            raise StoreError(self._lost)
        if self._clock() - self._renewed >= self.owner.lease * (_RENEWALS - 1) / _RENEWALS:
            self.renew()

    def renew(self) -> None:
        """Begin another lease; raise if another process has the lock."""
        with self._turn:
            if self._lost or self.owner.free:
                return
            began, again = self._clock(), replace(self.owner, renewals=self.owner.renewals + 1)
            version = self._bucket.swap(_NAME, _data(again), self._version)
            if version is None:
                by = _read(self._bucket.get(_NAME))
                self._lost = (
                    f"{self._bucket.url} was taken over by {by or 'another study'}, as this study's lock had expired "
                    "or was deleted: nothing more is written there. What was kept before is whole"
                )
                raise StoreError(self._lost)
            self.owner, self._version, self._renewed = again, version, began

    def release(self) -> None:
        """Let go of the lock. If the store cannot be reached, it expires by itself."""
        self._end.set()
        with self._turn:
            if self._lost or self.owner.free:
                return
            self.owner = replace(self.owner, free=True)
            _held.discard(self.owner.id)
            with suppress(StoreError):
                self._bucket.swap(_NAME, _data(self.owner), self._version)

    def _take(self) -> Version:
        for _ in range(3):  # the lock may change between two requests
            version = self._bucket.create(_NAME, _data(self.owner))
            if version is not None:
                return version
            found = self._bucket.get(_NAME)
            if found is None:
                continue
            holder = _read(found)
            if holder is not None and not holder.free and not holder.gone:
                self._refuse(holder)
            version = self._bucket.swap(_NAME, _data(self.owner), found[1])
            if version is not None:
                return version
        raise StoreError(f"{self._bucket.url} was opened by another study just now: wait for it, or use another store")

    def _refuse(self, holder: Owner) -> None:
        """Raise an error, if the holder's lease has not ended."""
        url = self._bucket.url
        if holder.machine and holder.machine == _machine() and holder.process == os.getpid():
            raise StoreError(f"{url} is in use by another running study, in this process: close() it, or use another")
        age = self._bucket.age(_NAME)
        if age < holder.lease:
            raise StoreError(
                f"{url} is in use by another running study: {holder}, which renewed its lock {max(age, 0):.0f} s ago. "
                f"Wait for it, stop it, or use another store; if it has died, this command works in "
                f"{holder.lease - age:.0f} s, or at once after {url}/{_NAME} was deleted"
            )


def _beat(lease: weakref.ref[Lease], end: threading.Event, every: float) -> None:
    while not end.wait(every):
        mine = lease()
        if mine is None:
            return
        with suppress(StoreError):  # the next write will meet it, too, and say so
            mine.renew()
        del mine


def _data(owner: Owner) -> bytes:
    return (json.dumps(asdict(owner)) + "\n").encode()


def _read(found: tuple[bytes, Version] | None) -> Owner | None:
    """Return whom a lock belongs to; None if there is none, or if it is no lock of ours."""
    try:
        return Owner(**json.loads(found[0])) if found is not None else None
    except (ValueError, TypeError):
        return None


@cache
def _machine() -> str:
    """Return what tells the processes of this machine, since it was started, from those of others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        numbers = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 (no file, but a name)
    except OSError:
        return ""
    return hashlib.sha256(f"{socket.gethostname()} {boot} {numbers}".encode()).hexdigest()[:16]
