"""Sets from their sources: downloaded, checked and converted by one command."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import urlsplit

import numpy as np
import pytest
from archives import PLAYS, cifar, tarred, zipped

from fedtuner import cli
from fedtuner.data import cifar10, download, places, sources
from fedtuner.data.download import File
from fedtuner.errors import DataError, SpecError


def served(name: str, monkeypatch: pytest.MonkeyPatch, *files: File) -> None:
    source = sources.SOURCES[name]
    monkeypatch.setitem(sources.SOURCES, name, sources.Source(files, source.convert, source.needs))


def test_cifar10_from_the_server_to_the_reader(home, tmp_path, server, monkeypatch):
    url, does = server
    does.body, does.breaks = tarred(tmp_path / "c.tar.gz", cifar()).read_bytes(), [1000]
    known = f"sha256:{hashlib.sha256(does.body).hexdigest()}"
    served("cifar10", monkeypatch, File(f"{url}/cifar.tar.gz", len(does.body), known))
    assert not places.holds(home / "cifar10", "cifar10")
    assert sources.get("cifar10", pause=0) == home / "cifar10"
    x, y, tested = cifar10.read(places.find("cifar10"))
    assert x.shape == (180, 32, 32, 3)
    assert (y[:10] == np.arange(10)).all()
    assert tested.sum() == 30
    before = len(does.asked)
    assert sources.get("cifar10") == home / "cifar10"  # already there
    assert len(does.asked) == before


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
        "femnist",
        monkeypatch,
        File("http://127.0.0.1:9/by_class.zip", hash="md5:12ab"),
        File("http://127.0.0.1:9/b.zip"),
    )
    with pytest.raises(DataError) as raised:
        sources.get("femnist", tries=1)
    message = str(raised.value)
    assert f"place these files in {home / 'downloads' / 'femnist'} and run the command again:" in message
    assert message.endswith("again: http://127.0.0.1:9/by_class.zip and http://127.0.0.1:9/b.zip")


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
            assert re.fullmatch("|md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", file.hash)
    assert set(sources.SOURCES) == {name for name, needed in places.SETS.items() if needed.get}


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
