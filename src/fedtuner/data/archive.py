"""The members of a zip or tar archive, read into memory without unpacking the archive to disk.

An archive with a path that leaves its folder, a link, a device, an encrypted member or an excessive size is refused,
although nothing is written: its publisher did not make it so.
"""

from __future__ import annotations

import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from fedtuner.errors import DataError

Wanted = Callable[[str], bool]


def members(path: Path, wanted: Wanted, most: int = 8 << 30) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each wanted file; an archive of more than ``most`` bytes is refused."""
    try:
        if zipfile.is_zipfile(path):
            yield from _zip_members(path, wanted, most)
        else:
            yield from _tar_members(path, wanted, most)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError) as error:
        raise DataError(f"{path} is damaged, or no archive ({error}): delete it and run the command again") from error
    except OSError as error:  # gzip's errors are OSErrors, too
        raise DataError(f"cannot read {path}: {error}") from error


def _zip_members(path: Path, wanted: Wanted, most: int) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():  # all are checked before the first is read
            _check_name(path, info.filename)
            if stat.S_ISLNK(info.external_attr >> 16):
                raise _refused(path, f"{info.filename!r} is a link")
            if info.flag_bits & 1:
                raise _refused(path, f"{info.filename!r} is encrypted")
        _check_size(path, sum(info.file_size for info in archive.infolist()), most)
        for info in archive.infolist():
            if not info.is_dir() and wanted(info.filename):
                yield info.filename, archive.read(info)


def _tar_members(path: Path, wanted: Wanted, most: int) -> Iterator[tuple[str, bytes]]:
    total = 0
    with tarfile.open(path) as archive:
        for info in archive:
            _check_name(path, info.name)
            if not (info.isreg() or info.isdir()) or info.issparse():
                raise _refused(path, f"{info.name!r} is a link or a device")
            total += info.size
            _check_size(path, total, most)
            if info.isreg() and wanted(info.name):
                source = archive.extractfile(info)
                content = source.read() if source else b""
                if len(content) != info.size:
                    raise tarfile.ReadError(f"{info.name} ends early")
                yield info.name, content
        while archive.fileobj and (rest := archive.fileobj.read(1 << 20)):  # gzip's CRC-32 is at the end of the file
            total += len(rest)
            _check_size(path, total, most)


def _check_name(path: Path, name: str) -> None:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or "\\" in name or ".." in parts or name[1:2] == ":" or "\0" in name:
        raise _refused(path, f"{name!r} leads out of the folder")


def _check_size(path: Path, total: int, most: int) -> None:
    if total > most:
        raise _refused(path, f"it unpacks to more than {most:,} bytes")


def _refused(path: Path, why: str) -> DataError:
    return DataError(f"{path} is refused: {why}; it is not the archive that was published")
