"""Archives for the tests, and what is in those that the sources publish."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np


def zipped(path: Path, files: dict[str, bytes], **attributes: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            for key, value in attributes.items():
                setattr(info, key, value)
            out.writestr(info, content)
    return path


def tarred(path: Path, files: dict[str, bytes], **attributes: Any) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in attributes.items():
                setattr(info, key, value)
            out.addfile(info, io.BytesIO(content))
    return path


def batch(seed: int, n: int = 30) -> bytes:
    x = np.random.default_rng(seed).integers(0, 256, (n, 3072), np.uint8)
    return pickle.dumps({b"data": x, b"labels": [i % 10 for i in range(n)]}, protocol=2)


def cifar() -> dict[str, bytes]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta", "readme.html"]
    return {f"cifar-10-batches-py/{name}": batch(i) for i, name in enumerate(names)}


PLAYS = """The Complete Works

1609

THE SONNETS

by William Shakespeare

  From. fairest creatures we desire increase,
    That. thereby

1603

ALLS WELL THAT ENDS WELL

by William Shakespeare

Dramatis Personae
  KING OF FRANCE
ACT I. SCENE 1.

  COUNTESS. In delivering my son from me, I bury
    a   second husband.
  Ber. And I in going,
madam, not spoken
    weep o'er my $ father's
                           Exit
  COUNTESS. Be thou blest, Bertram

<<THIS ELECTRONIC VERSION BY WORLD LIBRARY>>

1593

THE COMEDY OF ERRORS

by William Shakespeare

ACT I. SCENE 1

AEGEON. Proceed, Solinus,
And by the doom of death

<<THIS ELECTRONIC VERSION>>
of nobody.
DUKE. Merchant of Syracuse,
plead no more.
THE END

A LOVER'S COMPLAINT

by William Shakespeare

  From. off a hill
  Whose. concave womb
"""
