"""Archives are read without unpacking them; those that are hostile or damaged are refused."""

from __future__ import annotations

import random
import stat
import tarfile
from pathlib import Path

import pytest
from archives import tarred, zipped

from fedtuner.data import archive
from fedtuner.errors import DataError


def everything(path: Path, **limits: int) -> dict[str, bytes]:
    return dict(archive.members(path, lambda name: True, **limits))


MAKERS = pytest.mark.parametrize("make", [zipped, tarred])


@MAKERS
def test_wanted_members_are_read(make, tmp_path):
    path = make(tmp_path / "a", {"in/one.bin": b"1" * 5000, "in/two.bin": b"2", "read..me": b"3"})
    assert everything(path) == {"in/one.bin": b"1" * 5000, "in/two.bin": b"2", "read..me": b"3"}
    assert [name for name, _ in archive.members(path, lambda name: "two" in name)] == ["in/two.bin"]


@MAKERS
@pytest.mark.parametrize("name", ["../out", "in/../../out", "/etc/out", "C:/out", "in\\..\\out", ".."])
def test_paths_that_leave_the_folder_are_refused(make, name, tmp_path):
    path = make(tmp_path / "a", {"good": b"1", name: b"2"})
    with pytest.raises(DataError, match=r"is refused: .* leads out of the folder"):
        everything(path)


def test_links_are_refused(tmp_path):
    path = zipped(tmp_path / "a.zip", {"link": b"/etc/passwd"}, external_attr=(stat.S_IFLNK | 0o777) << 16)
    with pytest.raises(DataError, match="'link' is a link"):
        everything(path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_tar_are_refused(kind, tmp_path):
    path = tarred(tmp_path / "a.tar.gz", {"link": b""}, type=kind, linkname="/etc/passwd")
    with pytest.raises(DataError, match="'link' is a link or a device"):
        everything(path)


@MAKERS
def test_absurd_sizes_are_refused_unread(make, tmp_path):
    path = make(tmp_path / "a", {f"{i}": bytes(1 << 20) for i in range(4)})
    assert path.stat().st_size < 1 << 16
    with pytest.raises(DataError, match="unpacks to more than 3,000,000 bytes"):
        everything(path, most=3_000_000)


@MAKERS
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_truncated_archives_are_damaged(make, kept, tmp_path):
    path = make(tmp_path / "a", {f"{i}": random.Random(i).randbytes(20_000) for i in range(5)})
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(DataError, match=r"damaged|cannot read"):
        everything(path)


@MAKERS
def test_flipped_bits_are_noticed(make, tmp_path):
    path = make(tmp_path / "a", {"one": random.Random(0).randbytes(20_000)})
    body = bytearray(path.read_bytes())
    body[9000] ^= 255
    path.write_bytes(body)
    with pytest.raises(DataError, match=r"damaged|cannot read"):
        everything(path)


def test_a_page_of_html_is_no_archive(tmp_path):
    (tmp_path / "a.zip").write_text("<html>please log in</html>")
    with pytest.raises(DataError, match="no archive"):
        everything(tmp_path / "a.zip")
