"""The addresses and hashes of the data sets that can be downloaded, and the download of one set.

Hashes, as far as they are published: NIST gives MD5 sums beside its archives. The CIFAR-10 page gives an MD5 sum, and
Keras the SHA-256 of the same file, which is the one taken here: it cannot be forged. Project Gutenberg gives none, so
its file is checked by the CRC-32 in the zip archive alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtuner.data import convert, places
from fedtuner.data.download import File, Tell, fetch, quiet
from fedtuner.errors import DataError, SpecError, brief, suggest


@dataclass(frozen=True)
class Source:
    """A set's published files, and the function that converts them."""

    files: tuple[File, ...]
    convert: Callable[[Sequence[Path], Path, Tell], None]
    needs: str  # what the download and the conversion take


SOURCES = {
    "femnist": Source(
        (
            File("https://s3.amazonaws.com/nist-srd/SD19/by_class.zip", hash="md5:79572b1694a8506f2b722c7be54130c4"),
            File("https://s3.amazonaws.com/nist-srd/SD19/by_write.zip", hash="md5:a29f21babf83db0bb28a2f77b2b456cb"),
        ),
        convert.femnist,
        "a download of 1.6 GB, 2.5 GB of disk, 2 GB of memory, and a quarter of an hour",
    ),
    "shakespeare": Source(
        (File("https://www.gutenberg.org/files/100/old/old/1994-01-100.zip", most=1 << 25),),
        convert.shakespeare,
        "a download of 2 MB",
    ),
    "cifar10": Source(
        (
            File(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                size=170_498_071,
                hash="sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        convert.cifar10,
        "a download of 170 MB",
    ),
}


def downloads(name: str) -> Path:
    """Return the folder for a set's archives, whether downloaded or placed by hand."""
    return places.home() / "downloads" / name


def get(name: str, tell: Tell = quiet, tries: int = 5, pause: float = 1.0) -> Path:
    """Return the folder of a set; it is downloaded, checked and converted unless it is there already."""
    source, to = named(name), places.home() / name
    if places.holds(to, name):
        return to
    try:
        archives = [fetch(file, downloads(name), tell, tries, pause) for file in source.files]
    except DataError as error:
        names = " and ".join(file.url for file in source.files)
        how = f"Without a network, place these files in {downloads(name)} and run the command again: {names}"
        raise DataError(f"{error}. {how}") from error
    try:
        source.convert(archives, to, tell)
    except OSError as error:
        raise DataError(f"cannot write to {to}: {error.strerror}") from error
    return to


def named(name: str) -> Source:
    """Return the source of a set."""
    if name in SOURCES:
        return SOURCES[name]
    if name in places.SETS:
        raise SpecError(places.absent(name))
    raise SpecError(f"no data set {brief(name)} to get{suggest(name, list(SOURCES))}")
