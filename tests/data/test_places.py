"""Where data sets are looked for, and what is said where they are not."""

import pytest

from fedtuner.data import cifar10, femnist, mnist_writers, places, shakespeare
from fedtuner.errors import SpecError


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A machine without data."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("FEDTUNER_DATA", raising=False)
    (tmp_path / "work" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "deep")
    return tmp_path


def put(folder):
    (folder / "mnist_by_writer").mkdir(parents=True)
    (folder / "mnist_by_writer" / "mnist_by_writer.npz").touch()
    return folder / "mnist_by_writer"


def test_the_first_place_that_has_the_set_wins(nowhere, monkeypatch):
    assert places.home() == nowhere / "user" / ".cache" / "fedtuner"
    shared = put(nowhere / "shared" / "data")  # two folders above
    assert places.find("mnist_by_writer") == shared
    nearer = put(nowhere / "work" / "shared" / "data")
    assert places.find("mnist_by_writer") == nearer
    cached = put(places.home())
    assert places.find("mnist_by_writer") == cached
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere / "cache"))
    assert places.home() == nowhere / "cache" / "fedtuner"
    assert places.find("mnist_by_writer") == nearer
    monkeypatch.setenv("FEDTUNER_DATA", str(nowhere / "mine"))
    assert places.home() == nowhere / "mine"
    assert places.find("mnist_by_writer") == nearer
    assert places.find("mnist_by_writer") != put(nowhere / "mine").parent
    assert places.find("mnist_by_writer") == nowhere / "mine" / "mnist_by_writer"


def test_an_empty_folder_is_no_set(nowhere):
    (places.home() / "mnist_by_writer").mkdir(parents=True)
    with pytest.raises(SpecError, match="is not here"):
        places.find("mnist_by_writer")


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        (mnist_writers.clients, r"'mnist_by_writer' .*: place mnist_by_writer\.npz in .*fedtuner/mnist_by_writer;"),
        (shakespeare.clients, r"run 'fedtuner data get shakespeare', or place roles\.jsonl\.xz or "),
        (femnist.clients, r"run 'fedtuner data get femnist', or place femnist\.safetensors or all_data/\*\.json"),
        (cifar10.clients, r"run 'fedtuner data get cifar10', or place cifar-10-batches-py/data_batch_1 or "),
    ],
)
def test_an_absent_set_says_what_to_get_and_how(nowhere, clients, words):
    with pytest.raises(SpecError, match=words) as caught:
        clients()
    assert "FEDTUNER_DATA" in str(caught.value)


def test_an_unknown_set_is_named():
    with pytest.raises(SpecError, match="no data set 'femnits'; did you mean 'femnist'"):
        places.find("femnits")
