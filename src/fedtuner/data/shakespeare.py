"""Shakespeare's plays by speaking role: predict the next character from the 80 before it.

McMahan et al., AISTATS 2017; Caldas et al., "LEAF", 2018, for the vocabulary and the filter of roles. A window is kept
as its position in the text of all roles and cut out when its role is visited. LEAF's own JSON is read, too; it has the
windows as strings, which are converted as they are.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedtuner.checks import whole
from fedtuner.data import checks, lazy, leaf, places
from fedtuner.data.lazy import Array
from fedtuner.data.partition import Clients, Id, subset
from fedtuner.errors import SpecError

VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80
_CODES = np.full(256, 255, np.uint8)
_CODES[np.frombuffer(VOCABULARY.encode(), np.uint8)] = np.arange(len(VOCABULARY))


class Windows:
    """A source of windows: x are the 80 characters from a position of the text on, y is the next one."""

    def __init__(self, text: Array) -> None:
        self._text = text
        self._views = sliding_window_view(text, WINDOW + 1)
        self._fingerprint = hashlib.blake2b(text.data, digest_size=12).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        return Windows, (self._text,)  # a pickled view would be a copy of all windows

    def take(self, rows: Array) -> tuple[Array, Array]:
        cut = self._views[rows]
        return cut[:, :WINDOW], cut[:, WINDOW]

    def labels(self, rows: Array) -> Array:
        following: Array = self._text[np.asarray(rows) + WINDOW]
        return following

    def fingerprint(self) -> str:
        return self._fingerprint


def clients(
    order: str = "in-order", seed: int = 0, limit: int | None = None, stride: int = 1, examples: int | None = None,
    folder: Path | None = None,
) -> Clients:  # fmt: skip
    """Return the roles, each with a window at every ``stride``-th character, at most the first ``examples`` of them.

    ``in-order`` is the paper's non-i.i.d. split, by the position in the play; ``shuffled`` its i.i.d. split. Left out
    are the roles that LEAF leaves out (two lines or fewer, or 80 characters or fewer) and those with fewer than three
    windows; ``limit`` of the other roles are drawn at random.
    """
    for name, value in (("stride", stride), ("examples", 1 if examples is None else examples)):
        whole(name, value)
    folder = folder or places.find("shakespeare")
    source: lazy.Source
    if (folder / "roles.jsonl.xz").exists():
        source, owners, left_out = _roles(folder / "roles.jsonl.xz")
    else:
        source = file = leaf.of_set("shakespeare", folder, encode, len(VOCABULARY))
        owners, left_out = file.owners, []
    owners = [(id, rows[::stride][:examples]) for id, rows in owners]
    left_out += [id for id, rows in owners if len(rows) < 3]
    made = lazy.clients(source, subset([o for o in owners if len(o[1]) >= 3], limit, seed), order, seed)
    made.left_out = left_out
    return made


def _roles(path: Path) -> tuple[Windows, list[tuple[Id, range]], list[Id]]:
    """Return the windows of all roles, the positions of each role's windows, and the roles that LEAF leaves out."""
    owners: list[tuple[Id, range]] = []
    left_out: list[Id] = []
    texts: list[Array] = []
    ids, end = checks.Ids(), 0
    try:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                role = json.loads(line)
                id = f"{role['play']}/{role['role']}"
                ids.add(id)
                spoken = [text for speech in role["speeches"] for text in speech]
                codes = characters(" ".join(spoken), f"client {id!r}")
                if len(spoken) <= 2 or len(codes) <= WINDOW:
                    left_out.append(id)
                    continue
                texts.append(codes)
                owners.append((id, range(end, end + len(codes) - WINDOW)))
                end += len(codes)
    except (OSError, EOFError, lzma.LZMAError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise SpecError(f"{path} cannot be read as roles: {type(error).__name__}: {error}") from error
    if not owners:
        raise SpecError(f"{path} has no role with more than two lines and {WINDOW} characters")
    return Windows(np.concatenate(texts)), owners, left_out


def characters(text: str, what: str = "the text") -> Array:
    """Return the indices of a text's characters in the vocabulary."""
    try:
        codes = _CODES[np.frombuffer(text.encode("latin-1"), np.uint8)]
    except UnicodeEncodeError:
        codes = np.array([255], np.uint8)
    if (codes == 255).any():
        wrong = next(c for c in text if c not in VOCABULARY)
        raise SpecError(f"{what}: the character {wrong!r} is not among the {len(VOCABULARY)} of LEAF's vocabulary")
    return codes


def encode(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    """Return LEAF's windows and next characters, which are strings, as indices into the vocabulary."""
    for name, strings, length in (("x", x, WINDOW), ("y", y, 1)):
        if any(not isinstance(s, str) or len(s) != length for s in strings):
            raise SpecError(f"{name} must be strings of length {length}")
    return characters("".join(x)).reshape(-1, WINDOW), characters("".join(y))
