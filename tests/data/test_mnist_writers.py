"""MNIST by writer: on the real file where it is present, and on small ones made here."""

import time

import numpy as np
import pytest
from on_disk import sizes, staged

from fedtuner import data
from fedtuner.data import mnist_writers
from fedtuner.errors import SpecError


@pytest.mark.slow
@staged("mnist_by_writer", "mnist_by_writer.npz")
@pytest.mark.parametrize(
    ("part", "clients", "examples", "spread"),
    [
        ("train", 539, 60_000, (19, 116, 131)),
        ("test", 297, 10_000, (8, 21, 130)),
        ("both", 836, 70_000, (8, 104.5, 131)),
    ],
)
def test_mnist_has_the_numbers_of_its_readme(part, clients, examples, spread):
    made = mnist_writers.clients(part)
    counted = sizes(made)
    assert (len(made), sum(counted), made.left_out) == (clients, examples, [])
    assert (min(counted), np.median(counted), max(counted)) == spread
    assert made[0].train[0].dtype == np.uint8
    assert made[0].train[0].shape[1:] == (28, 28)


@pytest.mark.slow
@staged("mnist_by_writer", "mnist_by_writer.npz")
def test_mnist_loads_within_two_seconds_of_work():
    start = time.process_time()
    assert len(mnist_writers.clients()) == 836
    assert time.process_time() - start < 2


def digits(folder, **changed):
    n = 40
    arrays = {
        "images": np.arange(n * 784).reshape(n, 28, 28).astype(np.uint8),
        "labels": (np.arange(n) % 10).astype(np.uint8),
        "writers": np.repeat([3, 9, 1, 7], [15, 10, 13, 2]).astype(np.uint16),
        "mnist_test": np.repeat([0, 1], [25, 15]).astype(np.uint8),
    }
    np.savez(folder / "mnist_by_writer.npz", **(arrays | changed))


def test_mnist_on_a_small_file(tmp_path):
    digits(tmp_path)
    made = mnist_writers.clients(order="in-order", folder=tmp_path)
    assert [c.id for c in made] == ["writer0003", "writer0009", "writer0001"]
    assert made.left_out == ["writer0007"]
    assert data.labels(made[0].train).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert [c.id for c in mnist_writers.clients("test", folder=tmp_path)] == ["writer0001"]
    assert len(mnist_writers.clients(limit=2, folder=tmp_path)) == 2
    digits(tmp_path, labels=np.full(40, 10, np.uint8))
    with pytest.raises(SpecError, match="client 'writer0003': the label of example 0 is 10"):
        mnist_writers.clients(folder=tmp_path)
    with pytest.raises(SpecError, match="part = 'valid'"):
        mnist_writers.clients("valid", folder=tmp_path)
    (tmp_path / "mnist_by_writer.npz").write_bytes(b"rubbish")
    with pytest.raises(SpecError, match="cannot be read"):
        mnist_writers.clients(folder=tmp_path)


def test_mnist_dealt_out_has_the_same_sizes_and_all_the_examples(tmp_path):
    digits(tmp_path, images=np.random.default_rng(0).integers(0, 256, (40, 28, 28), np.uint8))  # no two alike
    by_writer, by_chance = (mnist_writers.clients(folder=tmp_path, by=by, seed=1) for by in ("writer", "chance"))
    assert [c.id for c in by_chance] == [c.id for c in by_writer]
    assert sizes(by_chance) == sizes(by_writer)

    def whole(client):
        return {x.tobytes() for split in (client.train, client.valid, client.test) for x in split[0]}

    writers = [whole(client) for client in by_writer]
    assert all(len(whole(client) & writer) < len(whole(client)) for client in by_chance for writer in writers)
    everything = [whole(client) for client in mnist_writers.clients(folder=tmp_path, by="chance", limit=2)]
    chosen = [whole(client) for client in mnist_writers.clients(folder=tmp_path, limit=2)]
    assert set.union(*everything) == set.union(*chosen)  # of these two writers, each image once
    assert sum(map(len, everything)) == sum(map(len, chosen))
    with pytest.raises(SpecError, match="by = 'label', but must be one of \\('writer', 'chance'\\)"):
        mnist_writers.clients(folder=tmp_path, by="label")


@pytest.mark.slow
@staged("mnist_by_writer", "mnist_by_writer.npz")
def test_mnist_dealt_out_has_no_writers():
    """Of a hundred clients, each has the digits of nearly as many writers as it has digits."""
    by_chance = mnist_writers.clients("train", limit=100, by="chance")
    owner = {
        x.tobytes(): client.id
        for client in mnist_writers.clients("train", limit=100)
        for split in (client.train, client.valid, client.test)
        for x in split[0]
    }
    counted = [len({owner[x.tobytes()] for x in client.train[0]}) for client in by_chance]
    assert min(counted) > 10
    assert np.mean(counted) > 40
