"""Messages between the driver and its workers: small ones through a pipe, large arrays through shared memory.

A model of 26 MB takes 87 ms as a pickle through a pipe; here it is one copy in and one out. The shared memory is an
anonymous file that both sides opened before the fork, so nothing is left behind when a process dies.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_SMALL = 1 << 14
_INLINE = 1 << 20  # arrays of fewer bytes in all go through the pipe


class Region:
    """Shared memory for the arrays of one message at a time, in one direction; it grows as needed."""

    def __init__(self, context: Any) -> None:
        self._file = os.memfd_create("fedtuner")
        self._map: mmap.mmap | None = None
        self._empty = context.Semaphore(1)  # taken from when a message is written until it has been read

    def write(self, parts: list[memoryview], alive: Callable[[], bool]) -> None:
        """Wait until the last message has been read, and write this one."""
        while not self._empty.acquire(timeout=1.0):
            if not alive():
                raise OSError("the other side is gone")
        place = self._open(sum(part.nbytes for part in parts))
        start = 0
        for part in parts:
            place[start : start + part.nbytes] = part
            start += part.nbytes

    def read(self, sizes: list[int]) -> list[bytearray]:
        """Return the message's arrays, and let the next one come."""
        place, start, parts = self._open(sum(sizes)), 0, []
        for size in sizes:
            parts.append(bytearray(place[start : start + size]))
            start += size
        self._empty.release()
        return parts

    def close(self) -> None:
        self._map = None
        os.close(self._file)

    def _open(self, size: int) -> memoryview:
        if self._map is None or len(self._map) < size:
            if os.fstat(self._file).st_size < size:
                os.ftruncate(self._file, size)
            self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return memoryview(self._map)


def own(message: Any) -> Any:
    """Return a copy of a message whose arrays are the receiver's own: they can be written, and pin no shared memory."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(head, buffers=[bytearray(buffer.raw()) for buffer in buffers])


def aligned(message: Any) -> Any:
    """Return a message whose small arrays are copied: a transport may place them where vector instructions round
    differently. It does so with small ones alone."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    parts = [buffer.raw() for buffer in buffers]
    return pickle.loads(head, buffers=[bytearray(part) if part.nbytes < _SMALL else part for part in parts])


def _always() -> bool:
    return True


class Channel:
    """One end of a two-way connection. ``alive`` says whether the other side still is."""

    def __init__(self, pipe: Connection, out: Region | None, into: Region | None) -> None:
        self._pipe, self._out, self._into = pipe, out, into
        self.alive: Callable[[], bool] = _always

    def send(self, message: Any) -> None:
        """Send any message that can be pickled."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        parts = [buffer.raw() for buffer in buffers]
        if self._out is None or sum(part.nbytes for part in parts) < _INLINE:
            self._pipe.send((head, [bytearray(part) for part in parts], None))
        else:
            self._out.write(parts, self.alive)
            self._pipe.send((head, None, [part.nbytes for part in parts]))

    def recv(self) -> Any:
        """Return the next message; its arrays are the receiver's own."""
        head, inline, sizes = self._pipe.recv()
        if inline is None:
            assert self._into is not None
            inline = self._into.read(sizes)
        return pickle.loads(head, buffers=inline)

    def poll(self, timeout: float = 0.0) -> bool:
        return self._pipe.poll(timeout)

    def fileno(self) -> int:
        """Return what ``multiprocessing.connection.wait`` waits for."""
        return self._pipe.fileno()

    def hang_up(self) -> None:
        """Close the pipe alone: after a fork, a side's copy of the other's end."""
        self._pipe.close()

    def close(self) -> None:
        self.hang_up()
        for region in (self._out, self._into):
            if region is not None:
                region.close()


def pair(context: Any) -> tuple[Channel, Channel]:
    """Return both ends; without fork and ``memfd_create`` (anonymous shared memory) all goes through the pipe."""
    here, there = context.Pipe()
    shared = hasattr(os, "memfd_create") and context.get_start_method() == "fork"
    one, two = (Region(context), Region(context)) if shared else (None, None)
    return Channel(here, one, two), Channel(there, two, one)
