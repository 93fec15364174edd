"""Downloads by pooch, which checks a file's hash and renames the file when it is complete.

pooch starts a broken download again from the first byte. ``Resumed`` is a downloader for pooch that keeps the received
bytes in ``NAME.part``, so that the next request, also of a later command, asks for the missing bytes only. This is done
for files with a known hash: without one, bytes of two versions of a file could be joined unnoticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedtuner.errors import DataError, SpecError

Tell = Callable[[str, int, int | None], None]  # reports progress: the activity, the amount done, the total if known

_BLOCK = 1 << 20
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)  # answers that another try may change


@dataclass(frozen=True)
class File:
    """A file on the network, with its size and hash as far as they are published."""

    url: str
    size: int | None = None  # bytes
    hash: str = ""  # as pooch takes it: "md5:..." or "sha256:..."
    most: int = 2 << 30  # bytes; a longer file is refused

    @property
    def name(self) -> str:
        return urlsplit(self.url).path.rpartition("/")[2]


def quiet(what: str, done: int, total: int | None) -> None:
    """Ignore the progress."""


def fetch(file: File, folder: Path, tell: Tell = quiet, tries: int = 5, pause: float = 1.0) -> Path:
    """Return the path of the file in the folder; it is downloaded unless it is there, and checked in either case.

    The download fails after ``tries`` requests in a row that bring no new bytes. After the first of them it waits
    ``pause`` seconds, and after each other twice as long as before.
    """
    if urlsplit(file.url).scheme not in ("http", "https"):
        raise DataError(f"{file.url} is no http or https address")
    try:
        import pooch
    except ImportError as error:
        raise SpecError("data sets are downloaded by pooch: pip install 'fedtuner[data]'") from error
    path = folder / file.name
    if path.exists():
        _check(path, file, tell, pooch.file_hash)
        return path
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")  # below are pooch's lines on its progress; ours is reported through ``tell``
    try:
        resumed = Resumed(file, folder / f"{file.name}.part", tell, tries, pause)
        pooch.retrieve(file.url, file.hash or None, file.name, folder, downloader=resumed)
    except ValueError as error:  # the hash differs
        raise DataError(f"{file.url}: {error} Run the command again to download it anew.") from error
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {error.strerror or error}") from error
    finally:
        logger.setLevel(level)
    size = path.stat().st_size
    tell(f"checking {file.name}", size, size)
    return path


def _check(path: Path, file: File, tell: Tell, file_hash: Callable[[str, str], str]) -> None:
    """Raise an error if a file that was there already, perhaps placed by hand, is not the published one."""
    size, wrong = path.stat().st_size, ""
    tell(f"checking {file.name}", 0, size)
    if file.size is not None and size != file.size:
        wrong = f"has {size:,} bytes, but must have {file.size:,}"
    elif file.hash:
        algorithm, _, published = file.hash.partition(":")
        found = file_hash(str(path), algorithm)
        wrong = "" if found == published.lower() else f"has the hash {algorithm}:{found}, but must have {file.hash}"
    if wrong:
        raise DataError(f"{path} {wrong}: delete it and run the command again")


@dataclass(frozen=True)
class Resumed:
    """A downloader for pooch that continues a file's download where it broke off."""

    file: File
    part: Path  # the bytes received so far
    tell: Tell
    tries: int
    pause: float

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        """Download the file to ``output_file``, where pooch checks it."""
        import requests
        import urllib3

        most, failed = self._length(), 0
        while True:
            try:
                self._receive()
                break
            except (ConnectionError, requests.RequestException, urllib3.exceptions.HTTPError) as error:
                reason = error
            if self._length() > most:
                most, failed = self._length(), 0
            failed += 1
            if failed >= self.tries:
                kept = f"; {most:,} bytes of it are kept and will be continued" if most and self.file.hash else ""
                raise DataError(f"cannot download {url}: {_first_cause(reason)}{kept}") from reason
            time.sleep(self.pause * 2 ** (failed - 1))
        self.tell(f"checking {self.file.name}", 0, self._length())
        self.part.replace(output_file)

    def _receive(self) -> None:
        """Append the missing bytes to the part. A server that cannot continue sends the file from its first byte."""
        import requests

        have, request = self._length(), {"User-Agent": "fedtuner", "Accept-Encoding": "identity"}
        if have and self.file.hash:
            request["Range"] = f"bytes={have}-"
        with requests.get(self.file.url, headers=request, stream=True, timeout=30) as answer:
            if answer.status_code == 416 and have == self.file.size:
                return  # no byte is missing
            start = self._start(answer, have)
            length = answer.headers.get("Content-Length", "")
            total = start + int(length) if length.isdigit() else None
            self._check_size(total)
            with self.part.open("ab" if start else "wb") as out:
                for block in answer.raw.stream(_BLOCK, decode_content=False):  # an archive stays compressed
                    start += len(block)
                    self._check_size(start, whole=False)
                    out.write(block)
                    self.tell(f"downloading {self.file.name}", start, total)

    def _start(self, answer: Any, have: int) -> int:
        """Return the position in the file of an answer's first byte; raise an error if the answer cannot be used."""
        url, status = self.file.url, answer.status_code
        plain = [step.url for step in (*answer.history, answer) if not step.url.startswith("https:")]
        if url.startswith("https:") and plain:
            raise DataError(f"{url} leads to {plain[0]}: without https anybody on the way could change the file")
        sent = answer.headers.get("Content-Range", "")
        if status == 416 or (status == 206 and not sent.startswith(f"bytes {have}-")):
            self.part.unlink(missing_ok=True)
            raise ConnectionError("the server did not send the missing bytes; the download starts again")
        if status in _TEMPORARY:
            answer.raise_for_status()
        if status not in (200, 206):
            raise DataError(f"{url}: the server says {status} {answer.reason}")
        return have if status == 206 else 0

    def _check_size(self, size: int | None, whole: bool = True) -> None:
        """Raise an error if a size, of the whole file or of a part, contradicts the published one or the limit."""
        known, limit = self.file.size, self.file.most if self.file.size is None else self.file.size
        if size is not None and (size > limit or (whole and known not in (None, size))):
            rule = f"{limit:,}" if known is not None else f"at most {limit:,}"
            raise DataError(f"{self.file.url} has {size:,} bytes, but must have {rule}: the source has changed")

    def _length(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


def _first_cause(error: BaseException) -> str:
    """Return the message of the error at the start of a chain: requests and urllib3 wrap the system's error thrice."""
    while earlier := error.__cause__ or error.__context__:
        error = earlier
    return str(error) or type(error).__name__
