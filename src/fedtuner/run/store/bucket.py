"""Objects of an object store, by obstore: every request that a study makes, and every error that it can meet.

A put is whole or not there. ``create`` and ``swap`` are conditional: of several processes that try, one succeeds.
Tests put another ``Bucket`` in its place, to stop a study before each change.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from fedtuner.core.place import Url
from fedtuner.errors import StoreError, one_line

T = TypeVar("T")
Version = Mapping[str, str]  # what an object's content is known by, to the store

_AT_ONCE = 16  # requests, where there are many
_FIRST_TRIES = 3  # again, of the first request, within a second or two: a wrong address is said soon
_TRIES = 100  # of later ones, for a minute at most: obstore's own ten are over in a few seconds
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_REGION",
    "gs": "GOOGLE_SERVICE_ACCOUNT, the name of a key's file",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|specified bucket does not exist")
_REFUSED = re.compile(
    r"169\.254\.169\.254|latest/api/token|metadata\.google|token request|InvalidAccessKeyId|SignatureDoesNotMatch|"
    r"AccessDenied|AuthenticationFailed|Account must be specified|status code: 40[13]"
)
_AGAIN = 5  # writes under a condition that are begun
_memories: dict[str, Any] = {}  # what memory:// URLs name, in this process
_user = 0  # the process that obstore is used in: in its forks obstore would wait forever


@dataclass(frozen=True)
class Found:
    """An object that was listed."""

    name: str  # the last part of its path
    size: int
    version: Version


class Bucket:
    """The objects whose names begin with a URL."""

    def __init__(self, url: Url) -> None:
        try:
            _obstore()
        except ImportError:
            raise StoreError(f"{url} needs obstore: pip install 'fedtuner[objects]'") from None
        self.url = url
        self._store: Any = None
        self._reached = False

    # Read

    def get(self, name: str) -> tuple[bytes, Version] | None:
        """Return an object's content and version; None if there is none."""
        with self._request("read", name) as store:
            try:
                found = _obstore().get(store, self._path(name))
                return bytes(found.bytes()), _version(found.meta)
            except FileNotFoundError as error:
                if _NO_BUCKET.search(str(error)):
                    raise
                return None

    def get_all(self, names: Sequence[str]) -> list[tuple[bytes, Version] | None]:
        """Return several objects, several at a time."""
        return _at_once(self.get, names)

    def find(self, folder: str = "") -> Sequence[Found]:
        """Return the objects directly in a folder, in order of name."""
        with self._request("list", folder) as store:
            found = _obstore().list_with_delimiter(store, self._path(folder) or None)["objects"]
        named = [Found(one["path"].rpartition("/")[2], one["size"], _version(one)) for one in found]
        return sorted(named, key=lambda one: one.name)

    def below(self, folder: str) -> Sequence[str]:
        """Return the names of all objects in a folder and its folders, from the bucket's own on."""
        with self._request("list", folder) as store:
            found = [one["path"] for some in _obstore().list(store, self._path(folder)) for one in some]
        return sorted(path.removeprefix(self._path("")).lstrip("/") for path in found)

    def folders(self) -> Sequence[str]:
        """Return the names of the folders in this one."""
        with self._request("list") as store:
            found = _obstore().list_with_delimiter(store, self._path("") or None)["common_prefixes"]
        return sorted(one.rstrip("/").rpartition("/")[2] for one in found)

    def age(self, name: str) -> float:
        """Return the seconds since an object was written, by the store's own clock; infinite if there is none."""
        probe = f"{name}.clock-{os.getpid()}"
        self.put(probe, b"")
        now, then = self._written(probe), self._written(name)
        self.delete([probe])
        return math.inf if now is None or then is None else float((now - then).total_seconds())

    def _written(self, name: str) -> Any:
        with self._request("read", name) as store:
            try:
                return _obstore().head(store, self._path(name))["last_modified"]
            except FileNotFoundError:
                return None

    # Change

    def put(self, name: str, data: bytes) -> None:
        """Write an object, in place of what was there."""
        with self._request("write", name) as store:
            _obstore().put(store, self._path(name), data)

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Write several objects, several at a time."""
        _at_once(lambda name: self.put(name, objects[name]), list(objects))

    def create(self, name: str, data: bytes) -> Version | None:
        """Write an object that is not there, and return its version; None if it is there."""
        return self._conditional(name, data, "create")

    def swap(self, name: str, data: bytes, version: Version) -> Version | None:
        """Write an object in place of one version of it, and return the new one; None if it is no longer that.

        S3 knows a version by its content: what is written must be what no process has written there before.
        """
        return self._conditional(name, data, dict(version))

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, those that are there."""
        paths = [self._path(name) for name in names]
        if not paths:
            return
        with self._request("delete") as store:
            try:
                _obstore().delete(store, paths)
            except FileNotFoundError as error:  # stores that delete one by one stop there
                if _NO_BUCKET.search(str(error)):
                    raise
                for path in paths:
                    self._delete(store, path)

    def _delete(self, store: Any, path: str) -> None:
        with suppress(FileNotFoundError):
            _obstore().delete(store, path)

    def _conditional(self, name: str, data: bytes, mode: Any) -> Version | None:
        """Write under a condition. A write whose answer is lost is refused when it is sent again, though it was done.

        So obstore does not always send it again; this does, after a look at what is there.
        """
        exceptions = _obstore().exceptions
        for left in reversed(range(_AGAIN)):
            refused = False
            with self._request("write", name) as store:
                try:
                    return _version(_obstore().put(store, self._path(name), data, mode=mode, use_multipart=False))
                except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                    refused = True
                except exceptions.GenericError:
                    if not left or not self._reached:
                        raise
            found = self.get(name)  # with patience, if the network is gone
            if found is not None and found[0] == data:
                return found[1]
            if refused:
                return None
        return None

    # The store behind it

    def _path(self, name: str) -> str:
        return "/".join(part for part in (self.url.key, name) if part)

    @contextmanager
    def _request(self, doing: str, name: str = "") -> Iterator[Any]:
        """Give obstore's store; what it raises becomes a ``StoreError`` that says what to do, in one line."""
        global _user
        _user = _user or os.getpid()
        if _user != os.getpid():
            raise StoreError(f"{self.url} is read and written by the process that opened it, and not by its forks")
        try:
            if self._store is None:
                self._store = self._connect(_FIRST_TRIES)
            yield self._store
            if not self._reached:  # from now on a failure is worth more patience
                self._reached, self._store = True, self._connect(_TRIES)
        except StoreError:
            raise
        except FileNotFoundError as error:
            if _NO_BUCKET.search(str(error)):
                raise self._wrong(error, doing, name) from None
            raise
        except Exception as error:
            raise self._wrong(error, doing, name) from None  # its text may hold a signed address

    def _connect(self, tries: int) -> Any:
        if self.url.scheme == "memory":
            return _memories.setdefault(self.url.bucket, _obstore().store.MemoryStore())
        address = f"{self.url.scheme}://{self.url.bucket}"
        retries = {"max_retries": tries, "retry_timeout": timedelta(seconds=60)}
        return _obstore().store.from_url(address, retry_config=retries)

    def _wrong(self, error: Exception, doing: str, name: str) -> StoreError:
        text, url = str(error), self.url
        if _NO_BUCKET.search(text):
            return StoreError(f"{url}: there is no bucket {url.bucket!r}: make it, or use another --store (store=)")
        if _REFUSED.search(text):
            needed = _CREDENTIALS.get(url.scheme, "its credentials")
            return StoreError(f"{url} refuses this machine's credentials, or there are none: set {needed}")
        where = f"{url}/{name}" if name else str(url)
        return StoreError(
            f"cannot {doing} {where}: {_said(text)}. What was kept before is whole, and rounds that were not saved are "
            "trained again: mend this and run the same command again"
        )


def _obstore() -> Any:
    import obstore
    import obstore.exceptions
    import obstore.store

    return obstore


def _version(about: Any) -> Version:
    return {key: about[key] for key in ("e_tag", "version") if about.get(key) is not None}


def _said(text: str) -> str:
    """Return the first line of an error, without what a signed address adds to a name."""
    first = text.strip().partition("\n")[0].partition("<?xml")[0]
    return one_line(re.sub(r"\?\S*", "", first), 200).rstrip(" :.-")


def _at_once(do: Callable[[str], T], names: Sequence[str]) -> list[T]:
    if len(names) < 2:
        return [do(name) for name in names]
    with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
        return list(pool.map(do, names))
