"""Where a study is kept: a folder by its path, or an object store by its URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from fedtuner import checks
from fedtuner.errors import SpecError, StoreError, brief, named, suggest

SCHEMES = ("s3", "gs", "az", "memory")  # a file:// URL is a folder
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True)
class Url:
    """The place of a study in an object store: what a ``Path`` is for a folder. It holds no credentials."""

    scheme: str
    bucket: str
    key: str  # the names below the bucket, with "/" between them

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    def __truediv__(self, name: str) -> Url:
        return Url(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        """The last of its names."""
        return PurePosixPath(self.key).name or self.bucket

    @property
    def suffix(self) -> str:
        """What a file's name ends in: an object store has studies alone, and no files."""
        return ""


Place = Path | Url


def at_home(path: Path) -> Path:
    """Return a path in which a leading ~ is the home folder."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise StoreError(f"{path} begins with ~, but there is no such home folder: give the whole path") from error


def place(name: str, value: Any) -> Place:
    """Return a folder's path or an object store's URL; refuse what can be neither, without a word of credentials."""
    if isinstance(value, Url):
        return value
    found = _URL.match(value) if isinstance(value, str) else None
    if found is None:
        return at_home(checks.path(name, value, "a folder, or a URL such as s3://bucket/name"))
    scheme, parts = found[1].lower(), urlsplit(value)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise SpecError(
            f"{name} is a {scheme} URL with more than a bucket and a name in it: credentials and options come from the "
            f"environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL ...), so give {scheme}://bucket/name alone"
        )
    if scheme == "file":
        if parts.netloc not in ("", "localhost") or len(parts.path) < 2:
            raise SpecError(f"{name} = {named(value)}, but a file URL names a folder of this machine: file:///folder")
        return checks.path(name, unquote(parts.path), "a folder")
    if scheme not in SCHEMES:
        known = [f"{one}://" for one in (*SCHEMES, "file")]
        raise SpecError(f"{name} = {named(value)}, but must be a folder or a URL{suggest(f'{scheme}://', known)}")
    key = parts.path.strip("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", parts.netloc):
        raise SpecError(f"{name} = {named(value)}, but must name a bucket: {scheme}://bucket/name")
    if any(part in ("", ".", "..") for part in key.split("/") if key) or not key.isprintable():
        raise SpecError(f"{name} = {brief(value)}, but names between / must be plain and not empty")
    return Url(scheme, parts.netloc, key)
