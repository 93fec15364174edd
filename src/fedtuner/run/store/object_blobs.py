"""Clients' large memories in an object store.

Workers that were forked cannot use obstore, and most memories are replaced before a state refers to them. So workers
write to a folder of this machine, and the driver sends what a state refers to before it saves the state. Loading a
state brings back what it refers to. A worker on another machine has no such folder: it uses the store itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from fedtuner.core.model import Vectors
from fedtuner.core.place import Url
from fedtuner.core.records import Blob
from fedtuner.errors import StoreError
from fedtuner.run.store.bucket import Bucket
from fedtuner.run.store.states import FileBlobs, pack_vectors, unpack_vectors

_NAMED = 20  # objects that an error names
_NAME = re.compile(r"memory/(\d+)/(-?\d+)-(\d+)\.safetensors")


class ObjectBlobs:
    """The blobs of a store in a bucket."""

    def __init__(self, bucket: Bucket, here: bool = True) -> None:
        self._bucket, self._here = bucket, here
        self._local = FileBlobs.temporary(self)
        self._sent: set[Blob] = set()  # those that are known to be in the bucket

    def __reduce__(self) -> tuple[Callable[[Url], ObjectBlobs], tuple[Any, ...]]:
        return _elsewhere, (self._bucket.url,)

    def put(self, blob: Blob, vectors: Vectors) -> None:
        if self._here:
            self._local.put(blob, vectors)
        else:
            self._bucket.put(_name(blob), pack_vectors(vectors))

    def get(self, blob: Blob) -> Vectors:
        if self._here:
            self.fetch([blob])
            return self._local.get(blob)
        found = self._bucket.get(_name(blob))
        if found is None:
            raise self._missing([blob])
        return unpack_vectors(found[0])

    def check(self, blobs: Iterable[Blob]) -> None:
        known = list(blobs)
        self.fetch(known)
        if self._here:
            self._local.check(known)

    def sweep(self, arm: int, used: Iterable[Blob], until: int | None = None) -> None:
        kept = {blob for blob in used if blob.arm == arm}
        self._local.sweep(arm, kept, until)
        known = {blob for blob in self._sent if blob.arm == arm}
        if until is None and known:  # what workers elsewhere have put, and no state refers to
            known |= self._listed(arm)
        old = {blob for blob in known - kept if until is None or blob.round <= until}
        self._bucket.delete(sorted(map(_name, old)))
        self._sent -= old

    def open(self) -> None:
        """Learn what is in the bucket: a driver that was killed may have left blobs that no state refers to."""
        self._sent = {blob for name in self._bucket.below("memory") if (blob := _blob(name))}

    def send(self, blobs: Iterable[Blob]) -> None:
        """See that blobs are in the bucket: those that are not are sent."""
        new = sorted(set(blobs) - self._sent, key=_name)
        here = {blob: path for blob in new if (path := self._local.path(blob)).exists()}
        for arm in {blob.arm for blob in new if blob not in here}:
            self._sent |= self._listed(arm)
        if missing := [blob for blob in new if blob not in here and blob not in self._sent]:
            raise self._missing(missing)
        self._bucket.put_all({_name(blob): path.read_bytes() for blob, path in here.items()})
        self._sent |= here.keys()

    def fetch(self, blobs: Iterable[Blob]) -> None:
        """See that blobs are on this machine, if it has a folder for them; raise an error that names those missing."""
        new = [blob for blob in blobs if not (self._here and self._local.path(blob).exists())]
        wanted, missing = sorted(new, key=_name), list[Blob]()
        for blob, found in zip(wanted, self._bucket.get_all([_name(blob) for blob in wanted]), strict=True):
            if found is None:
                missing.append(blob)
            elif self._here:
                self._local.put_bytes(blob, found[0])
                self._sent.add(blob)
        if missing:
            raise self._missing(missing)

    def _listed(self, arm: int) -> set[Blob]:
        return {blob for name in self._bucket.below(f"memory/{arm}") if (blob := _blob(name))}

    def _missing(self, blobs: list[Blob]) -> StoreError:
        names = ", ".join(map(_name, blobs[:_NAMED]))
        more = f" and {len(blobs) - _NAMED} more" if len(blobs) > _NAMED else ""
        what = "what clients remember is missing"
        return StoreError(f"{self._bucket.url}: {what}: {names}{more}: restore these objects, or use another store")


def _elsewhere(url: Url) -> ObjectBlobs:
    return ObjectBlobs(Bucket(url), here=False)


def _name(blob: Blob) -> str:
    return f"memory/{blob.arm}/{blob.client}-{blob.round}.safetensors"


def _blob(name: str) -> Blob | None:
    found = _NAME.fullmatch(name)
    return Blob(*map(int, found.groups())) if found else None
