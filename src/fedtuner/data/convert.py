"""Conversion of the published archives to the files that the readers of this package take.

Every file is written under another name and renamed when it is complete, so that an interrupted conversion leaves no
set that seems complete.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import string
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner.data import binary
from fedtuner.data.archive import members
from fedtuner.data.download import Tell
from fedtuner.data.shakespeare import VOCABULARY
from fedtuner.errors import DataError
from fedtuner.run.store.files import replace_file

FEMNIST_CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase  # as LEAF numbers them
_BY_CLASS = re.compile(r"(?:.*/)?by_class/([0-9a-f]{2})/hsf_\d/[^/]+\.png")
_BY_WRITE = re.compile(r"(?:.*/)?by_write/[^/]+/([^/]+)/[^/]+/[^/]+\.png")
_CIFAR = re.compile(r"cifar-10-batches-py/((?:data_batch_[1-5]|test_batch|batches\.meta))")

_POEMS = ("THE SONNETS", "A LOVER'S COMPLAINT")
_SPEAKER = re.compile(r"([A-Za-z][A-Za-z ]*)\. (.*)")


def cifar10(archives: Sequence[Path], to: Path, tell: Tell) -> None:
    """Copy the six batches from the archive unchanged."""
    (archive,) = archives
    batches = {name.rpartition("/")[2]: content for name, content in members(archive, _matches(_CIFAR), 1 << 30)}
    if len(batches) != 7:
        raise DataError(f"{archive} has not the six batches of CIFAR-10 and their names: {sorted(batches)}")
    folder = to / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    last = "data_batch_1"  # a set with this file is complete
    for number, name in enumerate(sorted(batches, key=lambda name: (name == last, name)), 1):
        replace_file(folder / name, batches[name])
        tell("unpacking CIFAR-10", number, len(batches))


def shakespeare(archives: Sequence[Path], to: Path, tell: Tell) -> None:
    """Group the lines of the 1994 edition by play and speaking role, as LEAF does."""
    (archive,) = archives
    texts = [content for _, content in members(archive, lambda name: name.lower().endswith(".txt"), 1 << 26)]
    text = "\n".join(text.decode("latin-1") for text in texts)
    text = re.sub(f"[^{re.escape(VOCABULARY)}<\r]", " ", text)  # tabs, and the few characters outside the vocabulary
    roles = list(_roles(text))
    if not roles:
        raise DataError(f"{archive} has no plays: it must be Project Gutenberg's edition of January 1994")
    to.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(role, separators=(",", ":")) for role in roles]
    replace_file(to / "roles.jsonl.xz", lzma.compress(("\n".join(lines) + "\n").encode()))
    tell("grouping the plays by role", len(roles), len(roles))


def _roles(text: str) -> Iterator[dict[str, Any]]:
    """Yield each role of each play with its speeches.

    A play starts with its title above the words "by William Shakespeare" and ends with "THE END". A speech starts with
    the speaker, indented by two blanks, and continues in lines indented by four. The Comedy of Errors is not indented;
    there, notes in angle brackets and headings of acts end a speech.
    """
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if "by William Shakespeare" in line]
    plays: list[str] = []
    for start, end in pairwise([*starts, len(lines)]):
        title = next((line.strip() for line in reversed(lines[max(start - 7, 0) : start]) if line.strip()), "")
        speeches = _speeches(lines[start + 1 : end], flush=title == "THE COMEDY OF ERRORS")
        if title in _POEMS or len(speeches) < 2:
            continue
        play = re.sub(r"\W+", "_", title.lower()).strip("_")
        plays.append(play)
        for role, said in speeches.items():
            spoken = [line for speech in said for line in speech]
            yield {
                "play": play if plays.count(play) == 1 else f"{play}_{plays.count(play)}",
                "role": role,
                "n_lines": len(spoken),
                "n_chars": sum(len(line) + 1 for line in spoken),
                "speeches": said,
            }


def _speeches(lines: Sequence[str], flush: bool) -> dict[str, list[list[str]]]:
    """Return the speeches of each role of a play."""
    said: dict[str, list[list[str]]] = {}
    speech: list[str] | None = None
    for line in takewhile(lambda line: line.strip() != "THE END", lines):
        speaker = _SPEAKER.match(line) if flush else line.startswith("  ") and _SPEAKER.match(line[2:])
        if speaker:
            role = speaker.group(1).upper()
            speech = None if flush and role.startswith("ACT ") else [" ".join(speaker.group(2).split())]
            if speech:
                said.setdefault(role, []).append(speech)
        elif speech and flush and line.startswith("<"):
            speech = None
        elif speech and line.strip() and (flush or line.startswith("    ")):
            speech.append(" ".join(line.split()))
    return said


def femnist(archives: Sequence[Path], to: Path, tell: Tell) -> None:
    """Match NIST's images by writer with the same images by class, and scale them down to 28x28, as LEAF does.

    LEAF's script takes the first image of every writer but one twice; here each image is taken once.
    """
    shrink = _shrinker()
    by_class, by_write = archives
    label: dict[bytes, int] = {}
    for number, (name, image) in enumerate(members(by_class, _matches(_BY_CLASS)), 1):
        found = _BY_CLASS.fullmatch(name)
        character = chr(int(found.group(1), 16)) if found else ""
        if character not in FEMNIST_CLASSES:
            raise DataError(f"{by_class}: {name} is of no class: folders are named by the codes of 0-9, A-Z and a-z")
        label.setdefault(_key(image), FEMNIST_CLASSES.index(character))
        if number % 1000 == 0:
            tell("reading NIST's images by class", number, None)
    images: dict[str, bytearray] = defaultdict(bytearray)
    labels: dict[str, bytearray] = defaultdict(bytearray)
    unknown = 0
    for number, (name, image) in enumerate(members(by_write, _matches(_BY_WRITE)), 1):
        found, y = _BY_WRITE.fullmatch(name), label.get(_key(image))
        if y is None or not found:
            unknown += 1
            continue
        images[found.group(1)] += shrink(image, name)
        labels[found.group(1)].append(y)
        if number % 1000 == 0:
            tell("shrinking NIST's images by writer", number, None)
    if not images or unknown > len(label) // 100:
        raise DataError(f"{by_write}: {unknown:,} images are not in {by_class.name}: are both of the second edition?")
    examples = (
        (who, np.frombuffer(images.pop(who), np.uint8).reshape(-1, 28, 28), np.frombuffer(labels[who], np.uint8))
        for who in sorted(labels)
    )
    binary.convert(examples, to / "femnist.safetensors", "NIST SD19", len(FEMNIST_CLASSES))


def _shrinker() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("FEMNIST is made from NIST's PNG images: pip install 'fedtuner[data]'") from error
    import io

    def shrink(image: bytes, name: str) -> bytes:
        try:
            with Image.open(io.BytesIO(image), formats=("PNG",)) as opened:
                grey = opened.convert("L")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{name} is no image: {error}") from error
        grey.thumbnail((28, 28), Image.Resampling.LANCZOS)
        if grey.size != (28, 28):
            raise DataError(f"{name} becomes {grey.size[0]}x{grey.size[1]}, but must be square")
        return grey.tobytes()

    return shrink


def _key(image: bytes) -> bytes:
    return hashlib.blake2b(image, digest_size=16).digest()


def _matches(pattern: re.Pattern[str]) -> Any:
    return lambda name: pattern.fullmatch(name) is not None
