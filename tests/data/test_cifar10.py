"""CIFAR-10: on the real images where they are present, and on random ones made here."""

import pickle
import tracemalloc

import numpy as np
import pytest
from on_disk import place, sizes, staged

from fedtuner import data
from fedtuner.data import cifar10
from fedtuner.errors import SpecError


@pytest.mark.slow
@staged("cifar10", "cifar10_20k.npz")
def test_cifar_subset_is_160_devices_as_large_as_the_papers_500():
    made = cifar10.clients(folder=place("cifar10", "cifar10_20k.npz"))
    assert len(made) == 160
    assert [len(data.labels(s)) for s in (made[0].train, made[0].valid, made[0].test)] == [80, 20, 25]
    for split, per_class in (("test", 400), ("train", 1280)):
        counts = np.bincount(np.concatenate([data.labels(getattr(c, split)) for c in made]))
        assert counts.sum() == 10 * per_class
        if split == "test":
            assert (counts == per_class).all()


def batches(folder, n=100, protocol=2, **changed):
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        rows = rng.integers(0, 256, (n, 3072)).astype(np.uint8)
        rows[:, 0], rows[:, 1024], rows[:, 2048] = 10 * i, 10 * i + 1, 10 * i + 2
        content = {b"batch_label": b"x", b"data": rows, b"labels": [j % 10 for j in range(n)], b"filenames": []}
        (folder / name).write_bytes(pickle.dumps(content | changed, protocol))


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifars_own_batches(protocol, tmp_path):
    batches(tmp_path / "cifar-10-batches-py", protocol=protocol)
    x, y, tested = cifar10.read(tmp_path)
    assert x.shape == (600, 32, 32, 3)
    assert x[150, 0, 0].tolist() == [10, 11, 12]
    assert y[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert tested.tolist() == [False] * 500 + [True] * 100
    made = cifar10.clients(folder=tmp_path)
    assert len(made) == 5  # 400 images to train on
    assert made[0].train[0].shape == (80, 3, 32, 32)
    assert {tuple(image[:, 0, 0] % 10) for image in made[0].train[0]} == {(0, 1, 2)}
    assert [len(data.labels(s)) for s in (made[0].train, made[0].valid, made[0].test)] == [80, 20, 20]
    assert sum(sizes(made)) == 600
    assert len(cifar10.clients(devices=10, limit=3, folder=tmp_path)) == 3


def test_cifar_by_dirichlet_has_the_same_skew_in_all_splits(tmp_path):
    batches(tmp_path / "cifar-10-batches-py", n=400)
    made = cifar10.clients(devices=4, alpha=0.5, folder=tmp_path)
    for client in made:
        train, valid = (np.bincount(data.labels(s), minlength=10) for s in (client.train, client.valid))
        assert np.corrcoef(train, valid)[0, 1] > 0.9
    lopsided = cifar10.clients(devices=100, alpha=0.01, folder=tmp_path)
    assert lopsided.left_out
    assert len(lopsided) + len(lopsided.left_out) == 100


class Evil:
    def __reduce__(self):
        return print, ("pwned",)


def test_a_batch_that_would_run_code_is_refused(tmp_path, capsys):
    batches(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(SpecError, match=r"data_batch_3 cannot be read.*print, which is no array"):
        cifar10.clients(folder=tmp_path)
    assert capsys.readouterr().out == ""


def test_batches_as_python_2_wrote_them(tmp_path):
    """Strings of Python 2 are bytes here; numpy was numpy.core then."""
    batches(tmp_path / "cifar-10-batches-py", protocol=2)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    content = path.read_bytes()
    assert b"numpy._core.multiarray" in content or b"numpy.core.multiarray" in content
    path.write_bytes(content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert len(cifar10.read(tmp_path)[0]) == 600


def test_damaged_and_missing_batches_are_named(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    batches(folder)
    (folder / "data_batch_2").write_bytes((folder / "data_batch_2").read_bytes()[:1000])
    with pytest.raises(SpecError, match="data_batch_2 cannot be read"):
        cifar10.clients(folder=tmp_path)
    (folder / "data_batch_2").unlink()
    with pytest.raises(SpecError, match="has no data_batch_2"):
        cifar10.clients(folder=tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(SpecError, match="fedtuner data get cifar10"):
        cifar10.clients(folder=tmp_path / "other")


def test_a_damaged_batch_takes_no_more_memory_than_it_has_bytes(tmp_path):
    """It asks for a memo of half a billion entries; and says that it has more images than bytes."""
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (tmp_path / name).write_bytes(b"\x80\x02}r\x00\x00\x00\x20.")
    tracemalloc.start()
    with pytest.raises(SpecError, match=r"data_batch_1 cannot be read as a batch of CIFAR-10: KeyError"):
        cifar10.read(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": _Huge((10**6, 3072)), b"labels": []}))
    with pytest.raises(SpecError, match=r"its images have 3072000000 bytes, but the file has \d+"):
        cifar10.read(tmp_path)


class _Huge:
    """Something that is pickled as an array of which nothing is written."""

    def __init__(self, shape):
        self.shape = shape

    def __reduce__(self):
        return np.ndarray, (self.shape, np.uint8().dtype)
