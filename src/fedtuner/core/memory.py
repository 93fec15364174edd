"""What clients keep between rounds: in the arm's state up to a limit, in blobs of the store above it.

A method such as SCAFFOLD keeps a vector per client and arm: 4 n d bytes for n clients and d parameters. Above ``LIMIT``
bytes for one arm each client's vectors become a blob, named by arm, client and round and never changed, so that states
of earlier rounds stay valid.
"""

from __future__ import annotations

from dataclasses import replace

from fedtuner.core.model import Vectors
from fedtuner.core.records import Blob, Job, Memory
from fedtuner.core.store import Blobs

LIMIT = 16 * 2**20  # bytes per arm, if all its clients kept as much as the largest


def fetch(job: Job, blobs: Blobs) -> Job:
    """Return a job whose memory is read, if it is a blob."""
    return replace(job, memory=blobs.get(job.memory)) if isinstance(job.memory, Blob) else job


def spill(memory: Memory, arm: int, round: int, clients: int, blobs: Blobs) -> Memory:
    """Return the memory with this round's vectors moved to blobs, if those of all ``clients`` would pass the limit."""
    fresh = {i: m for i, m in memory.items() if not isinstance(m, Blob)}
    if clients * max((_size(m) for m in fresh.values()), default=0) <= LIMIT:
        return memory
    moved = {i: Blob(arm, i, round) for i in fresh}
    for i, blob in moved.items():
        blobs.put(blob, fresh[i])
    return {**memory, **moved}


def blobs_of(memory: Memory) -> set[Blob]:
    """Return the blobs that a memory refers to."""
    return {kept for kept in memory.values() if isinstance(kept, Blob)}


def _size(vectors: Vectors) -> int:
    return sum(v.nbytes for v in vectors.values())
