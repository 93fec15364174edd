"""Downloads from a server that breaks off and lies."""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
from typing import Any

import pooch
import pytest
import requests
from serving import BODY

from fedtuner.data import download
from fedtuner.data.download import File, fetch
from fedtuner.errors import DataError, SpecError


def published(url: str, body: bytes = BODY, **changes: Any) -> File:
    known = {"size": len(body), "hash": f"sha256:{hashlib.sha256(body).hexdigest()}"}
    return File(f"{url}/set.bin", **{**known, **changes})


def test_a_file_arrives_whole_and_is_not_fetched_again(server, tmp_path):
    url, does = server
    calls = []
    path = fetch(published(url), tmp_path / "new", lambda *what: calls.append(what))
    assert path == tmp_path / "new" / "set.bin"
    assert path.read_bytes() == BODY
    assert calls[0][0] == "downloading set.bin"
    assert [what for what in calls if what[0].startswith("downloading")][-1][1:] == (len(BODY), len(BODY))
    assert calls[-1] == ("checking set.bin", len(BODY), len(BODY))
    fetch(published(url), tmp_path / "new")
    assert len(does.asked) == 1
    assert [p.name for p in path.parent.iterdir()] == ["set.bin"]


def test_a_broken_download_continues_where_it_broke(server, tmp_path):
    url, does = server
    does.breaks = [300_000, 1, 200_000]
    assert fetch(published(url), tmp_path, pause=0).read_bytes() == BODY
    assert [asked.get("Range") for asked in does.asked] == [
        None, "bytes=300000-", "bytes=300001-", "bytes=500001-",
    ]  # fmt: skip


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


@pytest.mark.parametrize("known", [True, False])
def test_halves_of_two_versions_are_not_joined(server, tmp_path, known):
    """A hash shows that they are; without one nothing is continued."""
    url, does = server
    does.breaks = [300_000, 0, 0]
    after = BODY[::-1]
    file = published(url, after) if known else File(f"{url}/set.bin")
    with pytest.raises(DataError) as caught:
        fetch(file, tmp_path, tries=2, pause=0)
    assert ("300,000 bytes of it are kept" in str(caught.value)) == known
    does.body = after
    if known:
        with pytest.raises(DataError, match="does not match the known hash"):
            fetch(file, tmp_path, pause=0)
    assert fetch(file, tmp_path, pause=0).read_bytes() == after
    assert ("Range" in does.asked[2]) == known
    assert "Range" not in does.asked[-1]


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


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_file_of_another_hash_is_deleted(server, tmp_path, kind):
    url, _ = server
    found = hashlib.new(kind, BODY).hexdigest()
    with pytest.raises(DataError, match=rf"set.bin: .*expected {kind}:00ff but got {found}.* Run the command again"):
        fetch(published(url, hash=f"{kind}:00ff"), tmp_path, pause=0)
    assert not list(tmp_path.iterdir())
    assert fetch(published(url, hash=f"{kind}:{found.upper()}"), tmp_path, pause=0).read_bytes() == BODY


def test_an_archive_stays_compressed(server, tmp_path):
    """Some servers send NAME.tar.gz as a tar archive that is compressed for the way."""
    url, does = server
    does.body, does.encoding = gzip.compress(BODY), "x-gzip"
    assert fetch(published(url, does.body), tmp_path, pause=0).read_bytes() == does.body


def test_a_file_placed_by_hand_is_used_without_a_network(tmp_path):
    (tmp_path / "set.bin").write_bytes(BODY)
    assert fetch(published("http://127.0.0.1:9"), tmp_path).read_bytes() == BODY


def test_a_wrong_file_placed_by_hand_is_named_and_kept(tmp_path):
    (tmp_path / "set.bin").write_bytes(BODY[:-1])
    with pytest.raises(DataError, match=r"set.bin has 1,023,999 bytes, but must have 1,024,000: delete it"):
        fetch(published("http://127.0.0.1:9"), tmp_path)
    (tmp_path / "set.bin").write_bytes(BODY[::-1])
    with pytest.raises(DataError, match=r"set.bin has the hash sha256:\w+, but must have sha256:\w+: delete it"):
        fetch(published("http://127.0.0.1:9"), tmp_path)
    assert (tmp_path / "set.bin").read_bytes() == BODY[::-1]


def test_a_folder_that_cannot_be_made_is_named(server, tmp_path):
    url, _ = server
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot write to .*file/new: Not a directory"):
        fetch(published(url), tmp_path / "file" / "new", pause=0)


def test_without_pooch_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(SpecError, match=r"downloaded by pooch: pip install 'fedtuner\[data\]'"):
        fetch(published("http://127.0.0.1:9"), tmp_path)


def test_nothing_is_said_but_what_is_told(server, tmp_path, capfd):
    url, _ = server
    level = pooch.get_logger().level
    fetch(File(f"{url}/set.bin"), tmp_path, pause=0)
    assert capfd.readouterr() == ("", "")
    assert pooch.get_logger().level == level


def test_a_source_of_another_size_is_refused_before_it_is_downloaded(server, tmp_path):
    url, _ = server
    with pytest.raises(DataError, match="has 1,024,000 bytes, but must have 999: the source has changed"):
        fetch(published(url, size=999), tmp_path, pause=0)
    with pytest.raises(DataError, match="has 1,024,000 bytes, but must have at most 5,000"):
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


@pytest.mark.parametrize("schemes", [("https", "http"), ("https", "http", "https")])
def test_a_safe_address_that_leads_to_an_unsafe_one_is_refused(tmp_path, monkeypatch, schemes):
    *before, answer = (requests.Response() for _ in schemes)
    for step, scheme in zip((*before, answer), schemes, strict=True):
        step.url, step.status_code, step.raw = f"{scheme}://127.0.0.1/set.bin", 200, io.BytesIO(BODY)
    answer.history = before
    monkeypatch.setattr(requests, "get", lambda *a, **k: answer)
    with pytest.raises(DataError, match="anybody on the way could change the file"):
        fetch(File("https://127.0.0.1/set.bin"), tmp_path)
    assert not list(tmp_path.iterdir())
