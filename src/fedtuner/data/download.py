"""One file from its home on the network: resumed where it broke off, and checked against what is published of it."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fedtuner.errors import DataError

Tell = Callable[[str, int, int | None], None]  # what is going on, how much is done, of how much if known

_BLOCK = 1 << 20
_PASSING = (408, 425, 429, 500, 502, 503, 504)  # answers that a second try may change


@dataclass(frozen=True)
class File:
    """A file at its home, with what is published of it."""

    url: str
    size: int | None = None  # bytes
    md5: str = ""
    sha256: str = ""
    most: int = 2 << 30  # bytes; more than this is not the file

    @property
    def name(self) -> str:
        """The name to keep it under."""
        return urlsplit(self.url).path.rpartition("/")[2]

    def __str__(self) -> str:
        known = [f"{self.size:,} bytes" if self.size else "", f"MD5 {self.md5}" if self.md5 else ""]
        known += [f"SHA-256 {self.sha256}" if self.sha256 else ""]
        said = ", ".join(filter(None, known))
        return f"{self.name}  from {self.url}" + (f"  ({said})" if said else "")


def quiet(what: str, done: int, total: int | None) -> None:
    """Tell nobody."""


def fetch(file: File, folder: Path, tell: Tell = quiet, tries: int = 5, pause: float = 1.0) -> Path:
    """Return the file in the folder, downloaded unless it is there; what an earlier try left is continued.

    ``tries`` counts those in a row that bring nothing new; ``pause`` seconds are waited after the first, then twice as
    long each time. A file that someone has placed there by hand is checked in the same way.
    """
    if urlsplit(file.url).scheme not in ("http", "https"):
        raise DataError(f"{file.url} is no http or https address")
    whole, part = folder / file.name, folder / f"{file.name}.part"
    if whole.exists():
        wrong = _wrong(whole, file, tell)
        if wrong:
            raise DataError(f"{whole} {wrong}: delete it and run the command again")
        return whole
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make {folder}: {error.strerror}") from error
    most, failed = _length(part), 0
    while True:
        try:
            _receive(file, part, tell)
            break
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in _PASSING:
                raise DataError(f"{file.url}: the server says {error.code} {error.reason}") from error
            reason: Exception = error
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = error
        if _length(part) > most:
            most, failed = _length(part), 0
        failed += 1
        if failed >= tries:
            kept = f"; {most:,} bytes of it are kept and will be continued" if most else ""
            raise DataError(f"cannot download {file.url}: {_because(reason)}{kept}") from reason
        time.sleep(pause * 2 ** (failed - 1))
    wrong = _wrong(part, file, tell)
    if wrong:
        _forget(part)
        raise DataError(f"{file.url} {wrong}: it was thrown away; run the command again to download it anew")
    part.replace(whole)
    _forget(part)
    return whole


def _receive(file: File, part: Path, tell: Tell) -> None:
    """Get what is missing of a file; a server that cannot continue sends it all."""
    have, version = _length(part), _version(part)
    headers = {"User-Agent": "fedtuner", "Accept-Encoding": "identity"}
    if have and (version or file.md5 or file.sha256):  # else nothing would show that the two halves are of one file
        headers["Range"] = f"bytes={have}-"
        if version:
            headers["If-Range"] = version
    try:
        answer = urllib.request.urlopen(urllib.request.Request(file.url, headers=headers), timeout=30)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        if have == file.size:
            return
        _forget(part)  # nothing lies behind what we have, and that is not the file
        raise ConnectionError("the server has no more of it than was kept; starting again") from error
    with answer:
        if urlsplit(file.url).scheme == "https" and urlsplit(answer.url).scheme != "https":
            raise DataError(f"{file.url} leads to {answer.url}, where anybody on the way could change it")
        continued = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if answer.status == 206 and not continued:
            _forget(part)
            raise ConnectionError("the server sent another piece than was asked for; starting again")
        start = have if continued else 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length and length.isdigit() else None
        limit = file.size if file.size is not None else file.most
        if (file.size is not None and total not in (None, file.size)) or (total or 0) > limit:
            raise DataError(f"{file.url} has {total:,} bytes, but must have {limit:,}: the source has changed")
        try:
            _keep_version(part, answer.headers.get("ETag"), answer.headers.get("Last-Modified"))
            with part.open("ab" if continued else "wb") as out:
                while block := answer.read(_BLOCK):
                    start += len(block)
                    if start > limit:
                        raise DataError(f"{file.url} sends more than {limit:,} bytes: the source has changed")
                    _write(out.write, block, part)
                    tell(f"downloading {file.name}", start, total)
        except http.client.IncompleteRead as error:
            raise ConnectionError(f"the connection broke after {start:,} bytes") from error
        if total is not None and start < total:
            raise ConnectionError(f"the connection broke after {start:,} of {total:,} bytes")


def _write(write: Callable[[bytes], int], block: bytes, to: Path) -> None:
    try:
        write(block)
    except OSError as error:
        raise DataError(f"cannot write {to}: {error.strerror}") from error


def _wrong(path: Path, file: File, tell: Tell) -> str:
    """Return how a file differs from what is published of it, or nothing."""
    size = _length(path)
    if file.size is not None and size != file.size:
        return f"has {size:,} bytes, but must have {file.size:,}"
    for kind, published in (("sha256", file.sha256), ("md5", file.md5)):
        if published:
            found = _digest(path, kind, tell)
            if found != published.lower():
                return f"has the {kind.upper().replace('SHA', 'SHA-')} {found}, but {published} is published"
    return ""


def _digest(path: Path, kind: str, tell: Tell) -> str:
    digest, done, total = hashlib.new(kind, usedforsecurity=False), 0, _length(path)
    with path.open("rb") as source:
        while block := source.read(_BLOCK):
            digest.update(block)
            done += len(block)
            tell(f"checking {path.name.removesuffix('.part')}", done, total)
    return digest.hexdigest()


def _because(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason) or type(error).__name__


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _beside(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _version(part: Path) -> str:
    return _beside(part).read_text() if _beside(part).exists() else ""


def _keep_version(part: Path, tag: str | None, modified: str | None) -> None:
    strong = tag if tag and not tag.startswith("W/") else modified  # a weak tag cannot join two halves
    if strong:
        _beside(part).write_text(strong)
    else:
        _beside(part).unlink(missing_ok=True)


def _forget(part: Path) -> None:
    for path in (part, _beside(part)):
        with suppress(OSError):
            path.unlink(missing_ok=True)
