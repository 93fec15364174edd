"""Downloads from a server on this machine that breaks off, lies and sends hostile archives."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import pickle
import random
import re
import stat
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from fedtuner import cli
from fedtuner.data import archive, binary, cifar10, convert, download, femnist, places, shakespeare, sources
from fedtuner.data.download import File, fetch
from fedtuner.errors import DataError, SpecError

BODY = bytes(range(256)) * 4000  # a little over a megabyte


@dataclass
class Behaviour:
    """What the server does, and what it was asked."""

    body: bytes = BODY
    ranges: bool = True
    tag: str | None = '"one"'
    breaks: list[int] = field(default_factory=list)  # bytes to send before hanging up, one per request
    status: list[int] = field(default_factory=list)  # answers to give first
    length: int | None = None  # a Content-Length that is not the body's
    shift: int = 0  # how far off the pieces are
    asked: list[dict[str, str]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    does: Behaviour

    def do_GET(self) -> None:
        does, headers = self.does, dict(self.headers)
        does.asked.append(headers)
        if does.status:
            self.send_error(does.status.pop(0))
            return
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", headers.get("Range", ""))
        if asked and does.ranges and headers.get("If-Range", does.tag) == does.tag:
            start = int(asked.group(1))
            if start >= len(does.body):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start + does.shift}-{len(does.body) - 1}/{len(does.body)}")
        else:
            self.send_response(200)
        rest = does.body[start:]
        self.send_header("Content-Length", str(len(rest) if does.length is None else does.length))
        if does.tag:
            self.send_header("ETag", does.tag)
        self.end_headers()
        stop = does.breaks.pop(0) if does.breaks else len(rest)
        self.wfile.write(rest[:stop])

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client that has heard enough hangs up
            super().handle()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Behaviour]]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    does = Behaviour()
    running = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"does": does}))
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}", does
    running.shutdown()
    thread.join()
    running.server_close()


def published(url: str, body: bytes = BODY, **changes: Any) -> File:
    known = {"size": len(body), "md5": hashlib.md5(body).hexdigest(), "sha256": hashlib.sha256(body).hexdigest()}
    return File(f"{url}/set.bin", **{**known, **changes})


def test_a_file_arrives_whole_and_is_not_fetched_again(server, tmp_path):
    url, does = server
    told = []
    path = fetch(published(url), tmp_path / "new", lambda *what: told.append(what))
    assert path == tmp_path / "new" / "set.bin"
    assert path.read_bytes() == BODY
    assert told[0][0] == "downloading set.bin"
    assert [what for what in told if what[0].startswith("downloading")][-1][1:] == (len(BODY), len(BODY))
    assert told[-1] == ("checking set.bin", len(BODY), len(BODY))
    fetch(published(url), tmp_path / "new")
    assert len(does.asked) == 1
    assert [p.name for p in path.parent.iterdir()] == ["set.bin"]


@pytest.mark.parametrize("tag", ['"one"', None, 'W/"weak"'])
def test_a_broken_download_continues_where_it_broke(server, tmp_path, tag):
    url, does = server
    does.tag, does.breaks = tag, [300_000, 1, 200_000]
    assert fetch(published(url), tmp_path, pause=0).read_bytes() == BODY
    assert [asked.get("Range") for asked in does.asked] == [
        None, "bytes=300000-", "bytes=300001-", "bytes=500001-",
    ]  # fmt: skip
    assert [asked.get("If-Range") for asked in does.asked[1:]] == ([tag] * 3 if tag == '"one"' else [None] * 3)


def test_what_an_earlier_command_left_is_continued(server, tmp_path):
    url, does = server
    does.breaks = [700_000, 0, 0]
    with pytest.raises(DataError, match="700,000 bytes of it are kept"):
        fetch(published(url), tmp_path, tries=2, pause=0)
    assert not (tmp_path / "set.bin").exists()
    assert fetch(published(url), tmp_path, pause=0).read_bytes() == BODY
    assert does.asked[-1]["Range"] == "bytes=700000-"


def test_tries_that_bring_something_do_not_count(server, tmp_path):
    url, does = server
    does.breaks = [100] * 10
    assert fetch(published(url), tmp_path, tries=2, pause=0).read_bytes() == BODY


def test_a_server_that_cannot_continue_sends_it_all(server, tmp_path):
    url, does = server
    does.ranges, does.breaks = False, [300_000]
    assert fetch(published(url), tmp_path, pause=0).read_bytes() == BODY


def test_halves_of_two_versions_are_not_joined(server, tmp_path):
    url, does = server
    does.breaks = [300_000] + [0] * 2
    unknown = File(f"{url}/set.bin")
    with pytest.raises(DataError):
        fetch(unknown, tmp_path, tries=2, pause=0)
    does.body, does.tag = BODY[::-1], '"two"'
    assert fetch(unknown, tmp_path, pause=0).read_bytes() == BODY[::-1]


def test_without_checksum_or_version_nothing_is_joined(server, tmp_path):
    url, does = server
    does.tag, does.breaks = None, [300_000]
    assert fetch(File(f"{url}/set.bin"), tmp_path, pause=0).read_bytes() == BODY
    assert "Range" not in does.asked[1]


def test_a_wrong_piece_is_not_taken(server, tmp_path):
    url, does = server
    does.breaks, does.shift = [300_000], 7
    assert fetch(published(url), tmp_path, pause=0).read_bytes() == BODY


def test_a_part_that_is_too_long_is_thrown_away(server, tmp_path):
    url, _ = server
    (tmp_path / "set.bin.part").write_bytes(BODY + b"more")
    assert fetch(published(url), tmp_path, pause=0).read_bytes() == BODY


def test_a_part_that_is_whole_is_only_checked(server, tmp_path):
    url, does = server
    (tmp_path / "set.bin.part").write_bytes(BODY)
    assert fetch(published(url), tmp_path, pause=0).read_bytes() == BODY
    assert len(does.asked) == 1


@pytest.mark.parametrize(("kind", "said"), [("md5", "MD5"), ("sha256", "SHA-256")])
def test_a_wrong_checksum_throws_the_file_away(server, tmp_path, kind, said):
    url, _ = server
    with pytest.raises(DataError, match=f"has the {said} .* but 00ff is published: it was thrown away"):
        fetch(published(url, **{kind: "00ff"}), tmp_path, pause=0)
    assert not list(tmp_path.iterdir())


def test_a_file_placed_by_hand_is_used_without_a_network(tmp_path):
    (tmp_path / "set.bin").write_bytes(BODY)
    assert fetch(published("http://127.0.0.1:9"), tmp_path).read_bytes() == BODY


def test_a_wrong_file_placed_by_hand_is_named_and_kept(tmp_path):
    (tmp_path / "set.bin").write_bytes(BODY[:-1])
    with pytest.raises(DataError, match=r"set.bin has 1,023,999 bytes, but must have 1,024,000: delete it"):
        fetch(published("http://127.0.0.1:9"), tmp_path)
    assert (tmp_path / "set.bin").exists()


def test_a_source_of_another_size_is_refused_before_it_is_downloaded(server, tmp_path):
    url, _ = server
    with pytest.raises(DataError, match="has 1,024,000 bytes, but must have 999: the source has changed"):
        fetch(published(url, size=999), tmp_path, pause=0)
    with pytest.raises(DataError, match="has 1,024,000 bytes, but must have 5,000"):
        fetch(File(f"{url}/set.bin", most=5000), tmp_path, pause=0)


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_final(server, tmp_path, status):
    url, does = server
    does.status = [status] * 9
    with pytest.raises(DataError, match=f"the server says {status}"):
        fetch(published(url), tmp_path, pause=0)
    assert len(does.asked) == 1


def test_a_passing_refusal_is_tried_again(server, tmp_path):
    url, does = server
    does.status = [503, 429]
    assert fetch(published(url), tmp_path, pause=0).read_bytes() == BODY


def test_no_server(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(DataError, match=r"cannot download http://127.0.0.1:9/set.bin: .*refused"):
        fetch(published("http://127.0.0.1:9"), tmp_path, tries=2, pause=0)


def test_waits_grow(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    waited: list[float] = []
    monkeypatch.setattr(download.time, "sleep", waited.append)
    with pytest.raises(DataError):
        fetch(published("http://127.0.0.1:9"), tmp_path)
    assert waited == [1, 2, 4, 8]


def test_only_the_web(tmp_path):
    with pytest.raises(DataError, match="no http or https address"):
        fetch(File("file:///etc/hosts"), tmp_path)


def test_a_safe_address_that_leads_to_an_unsafe_one_is_refused(tmp_path, monkeypatch):
    answer = io.BytesIO(BODY)
    answer.url = "http://127.0.0.1/set.bin"  # type: ignore[attr-defined]
    monkeypatch.setattr(download.urllib.request, "urlopen", lambda *a, **k: answer)
    with pytest.raises(DataError, match="anybody on the way could change it"):
        fetch(File("https://127.0.0.1/set.bin"), tmp_path)
    assert not list(tmp_path.iterdir())


# Archives.


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


# From archives to sets.


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FEDTUNER_DATA", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


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


def batch(seed: int, n: int = 30) -> bytes:
    x = np.random.default_rng(seed).integers(0, 256, (n, 3072), np.uint8)
    return pickle.dumps({b"data": x, b"labels": [i % 10 for i in range(n)]}, protocol=2)


def cifar() -> dict[str, bytes]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta", "readme.html"]
    return {f"cifar-10-batches-py/{name}": batch(i) for i, name in enumerate(names)}


def served(name: str, monkeypatch: pytest.MonkeyPatch, *files: File) -> None:
    source = sources.SOURCES[name]
    monkeypatch.setitem(sources.SOURCES, name, sources.Source(files, source.convert, source.needs))


def test_cifar10_from_the_server_to_the_reader(home, tmp_path, server, monkeypatch):
    url, does = server
    does.body, does.breaks = tarred(tmp_path / "c.tar.gz", cifar()).read_bytes(), [1000]
    served("cifar10", monkeypatch, published(url, does.body))
    assert not places.holds(home / "cifar10", "cifar10")
    assert sources.get("cifar10", pause=0) == home / "cifar10"
    x, y, tested = cifar10.read(places.find("cifar10"))
    assert x.shape == (180, 32, 32, 3)
    assert (y[:10] == np.arange(10)).all()
    assert tested.sum() == 30
    before = len(does.asked)
    assert sources.get("cifar10") == home / "cifar10"  # already there
    assert len(does.asked) == before


def test_a_batch_that_is_missing_is_told(home, tmp_path):
    files = cifar()
    del files["cifar-10-batches-py/data_batch_3"]
    with pytest.raises(DataError, match="has not the six batches"):
        convert.cifar10([tarred(tmp_path / "c.tar.gz", files)], home / "cifar10", download.quiet)
    assert not places.holds(home / "cifar10", "cifar10")


def test_a_hostile_archive_leaves_nothing(home, tmp_path, server, monkeypatch):
    url, does = server
    does.body = tarred(tmp_path / "c.tar.gz", {**cifar(), "../../escaped": b"!"}).read_bytes()
    served("cifar10", monkeypatch, File(f"{url}/cifar.tar.gz"))
    with pytest.raises(DataError, match="leads out of the folder"):
        sources.get("cifar10", pause=0)
    assert not places.holds(home / "cifar10", "cifar10")
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {"c.tar.gz", "cifar.tar.gz"}


def test_without_a_network_the_files_to_place_are_named(home, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    served(
        "femnist", monkeypatch, File("http://127.0.0.1:9/by_class.zip", md5="12ab"), File("http://127.0.0.1:9/b.zip")
    )
    with pytest.raises(DataError) as told:
        sources.get("femnist", tries=1)
    message = str(told.value)
    assert f"place these files in {home / 'downloads' / 'femnist'} and run the command again:" in message
    assert "by_class.zip  from http://127.0.0.1:9/by_class.zip  (MD5 12ab)" in message
    assert "b.zip  from" in message


@pytest.mark.parametrize(
    ("name", "said"), [("femnst", "did you mean 'femnist'"), ("mnist_by_writer", "place mnist_by_writer.npz in")]
)
def test_sets_that_cannot_be_got(name, said, home):
    with pytest.raises(SpecError, match=said):
        sources.get(name)


def test_the_sources_are_the_official_ones():
    hosts = {urlsplit(file.url).hostname for source in sources.SOURCES.values() for file in source.files}
    assert hosts == {"s3.amazonaws.com", "www.gutenberg.org", "www.cs.toronto.edu"}
    for source in sources.SOURCES.values():
        for file in source.files:
            assert file.url.startswith("https://")
            assert len(file.md5) in (0, 32)
            assert len(file.sha256) in (0, 64)
    assert set(sources.SOURCES) == {name for name, needed in places.SETS.items() if needed.get}


# FEMNIST, from a few images in NIST's folders.


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


# The command line.


def test_the_command_gets_a_set_and_says_where(home, tmp_path, server, monkeypatch, capsys):
    url, does = server
    does.body = zipped(tmp_path / "s.zip", {"100.txt": PLAYS.encode()}).read_bytes()
    served("shakespeare", monkeypatch, File(f"{url}/1994-01-100.zip"))
    assert cli.main(["data", "get", "shakespeare"]) == 0
    said = capsys.readouterr()
    assert said.out == (f"shakespeare is in {home / 'shakespeare'}; look at it with: fedtuner data show shakespeare\n")
    assert "downloading 1994-01-100.zip: 100 % of" in said.err


def test_the_command_fails_with_code_2(home, monkeypatch, capsys):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    served("shakespeare", monkeypatch, File("http://127.0.0.1:9/1994-01-100.zip"))
    assert cli.main(["data", "get", "shakespeare", "--quiet"]) == 2
    assert "place these files in" in capsys.readouterr().err
    assert cli.main(["data", "get", "shakespeare", "femnst"]) == 2
    assert "did you mean 'femnist'" in capsys.readouterr().err
