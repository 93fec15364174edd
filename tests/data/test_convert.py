"""From the published archives to the files that the readers take."""

from __future__ import annotations

import io
import json
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest
from archives import PLAYS, cifar, tarred, zipped

from fedtuner.data import binary, convert, download, femnist, places, shakespeare
from fedtuner.errors import DataError


def test_shakespeare_becomes_roles(home, tmp_path):
    (tmp_path / "a").mkdir()
    archive_path = zipped(tmp_path / "a" / "100.zip", {"100.txt": PLAYS.replace("\n", "\r\n").encode()})
    convert.shakespeare([archive_path], home / "shakespeare", download.quiet)
    with lzma.open(home / "shakespeare" / "roles.jsonl.xz", "rt") as lines:
        roles = [json.loads(line) for line in lines]
    assert [(role["play"], role["role"], role["speeches"]) for role in roles] == [
        (
            "alls_well_that_ends_well",
            "COUNTESS",
            [["In delivering my son from me, I bury", "a second husband."], ["Be thou blest, Bertram"]],
        ),
        ("alls_well_that_ends_well", "BER", [["And I in going,", "weep o'er my father's", "Exit"]]),
        ("the_comedy_of_errors", "AEGEON", [["Proceed, Solinus,", "And by the doom of death"]]),
        ("the_comedy_of_errors", "DUKE", [["Merchant of Syracuse,", "plead no more."]]),
    ]
    assert [(role["n_lines"], role["n_chars"]) for role in roles] == [(3, 78), (3, 43), (2, 43), (2, 37)]


def test_what_shakespeare_becomes_can_be_read(home, tmp_path):
    speech = "  KING. " + "Now is the winter of our discontent made glorious.\n    " * 4 + "\n"
    text = "RICHARD\n\nby William Shakespeare\n\n" + speech + speech.replace("KING", "QUEEN") + "  PAGE. Ay.\n"
    path = zipped(tmp_path / "100.zip", {"100.txt": text.encode()})
    convert.shakespeare([path], home / "shakespeare", download.quiet)
    made = shakespeare.clients()
    assert [client.id for client in made] == ["richard/KING", "richard/QUEEN"]
    assert made.left_out == ["richard/PAGE"]


def test_a_text_without_plays_is_refused(tmp_path):
    path = zipped(tmp_path / "100.zip", {"100.txt": b"<html>robots are not welcome</html>"})
    with pytest.raises(DataError, match="has no plays"):
        convert.shakespeare([path], tmp_path / "to", download.quiet)


def test_a_batch_that_is_missing_is_told(home, tmp_path):
    files = cifar()
    del files["cifar-10-batches-py/data_batch_3"]
    with pytest.raises(DataError, match="has not the six batches"):
        convert.cifar10([tarred(tmp_path / "c.tar.gz", files)], home / "cifar10", download.quiet)
    assert not places.holds(home / "cifar10", "cifar10")


def png(value: int, size: int = 128) -> bytes:
    image = pytest.importorskip("PIL.Image")
    pixels = np.full((size, size), 255, np.uint8)
    pixels[: size // 2] = value
    out = io.BytesIO()
    image.fromarray(pixels).convert("RGB").save(out, "PNG")
    return out.getvalue()


def nist(tmp_path: Path, **extra: bytes) -> list[Path]:
    by_class = {
        "by_class/30/hsf_0/hsf_0_00000.png": png(0),
        "by_class/30/train_30/train_30_00000.png": png(99),  # the same images once more, in another order
        "by_class/41/hsf_1/hsf_1_00000.png": png(10),
        "by_class/7a/hsf_4/hsf_4_00000.png": png(20),
        "by_class/7a/hsf_0.mit": b"a table",
    }
    by_write = {
        "by_write/hsf_1/f0001_41/u0001_41/u0001_41_00000.png": png(10),
        "by_write/hsf_0/f0000_14/d0000_14/d0000_14_00000.png": png(0),
        "by_write/hsf_0/f0000_14/l0000_14/l0000_14_00000.png": png(20),
        "by_write/hsf_0/f0000_14/l0000_14/l0000_14_00001.png": png(20),
        "by_write/hsf_0/f0000_14/index.txt": b"",
        **extra,
    }
    return [zipped(tmp_path / "by_class.zip", by_class), zipped(tmp_path / "by_write.zip", by_write)]


def test_femnist_becomes_writers_with_leafs_labels(home, tmp_path):
    convert.femnist(nist(tmp_path), home / "femnist", download.quiet)
    made = femnist.clients()
    assert [client.id for client in made] == ["f0000_14"]
    assert made.left_out == ["f0001_41"]
    file = binary.File(home / "femnist" / "femnist.safetensors")
    assert file.owners == [("f0000_14", range(3)), ("f0001_41", range(3, 4))]
    assert file.y.tolist() == [0, 61, 61, 10]  # 0-9, A-Z, a-z
    assert file.x.shape == (4, 28, 28)
    assert (file.x[0, :10] == 0).all()
    assert (file.x[3, :10] == 10).all()
    assert (file.x[:, -10:] == 255).all()  # white paper, as LEAF has it


def test_images_that_do_not_match_are_told(home, tmp_path):
    archives = nist(tmp_path, **{"by_write/hsf_0/f0000_14/d0000_14/other.png": png(77)})
    with pytest.raises(DataError, match=r"1 images are not in by_class.zip"):
        convert.femnist(archives, home / "femnist", download.quiet)
    assert not places.holds(home / "femnist", "femnist")


def test_images_that_are_none_are_told(home, tmp_path):
    archives = nist(tmp_path, **{"by_write/hsf_0/f0000_14/d0000_14/other.png": b"no image"})
    zipped(archives[0], {"by_class/30/hsf_0/a.png": b"no image"})
    with pytest.raises(DataError, match=r"other.png is no image"):
        convert.femnist(archives, home / "femnist", download.quiet)


def test_femnist_without_pillow_says_what_to_install(home, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pip install 'fedtuner\[data\]'"):
        convert.femnist([tmp_path / "by_class.zip", tmp_path / "by_write.zip"], home / "femnist", download.quiet)
