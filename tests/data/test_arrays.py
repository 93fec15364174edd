"""Clients from arrays, .npz files, PyTorch data sets and partitions: the same clients whichever way they come."""

import pickle

import numpy as np
import pytest

from fedtuner import data
from fedtuner.errors import SpecError
from fedtuner.federations import Lazy

OWNERS = np.array(["b", "a", "c", "a"] * 12 + ["tiny", "tiny"])


def held(id):
    return np.array([owner == id for owner in OWNERS])


def arrays():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (50, 4, 4)).astype(np.uint8), np.arange(50) % 5


def same(ones, others):
    assert [c.id for c in ones] == [c.id for c in others]
    for one, other in zip(ones, others, strict=True):
        for split in ("train", "valid", "test"):
            pairs = [s.load() if isinstance(s, Lazy) else s for s in (getattr(one, split), getattr(other, split))]
            for a, b in zip(*pairs, strict=True):
                assert np.array_equal(a, b)


def files(folder, **changed):
    x, y = arrays()
    for id in np.unique(OWNERS):
        parts = {"x": x[held(id)], "y": y[held(id)]} | changed.get(str(id), {})
        np.savez(folder / f"{id}.npz", **parts)
    return folder


class Pictures:
    """What a torch Dataset is."""

    def __len__(self):
        return 50

    def __getitem__(self, i):
        x, y = arrays()
        return x[i], int(y[i])


class Partition:
    """What a Hugging Face Dataset is, as far as it is used."""

    column_names = ("image", "label")

    def __init__(self, id):
        x, y = arrays()
        self.columns = {"image": list(x[held(id)]), "label": y[held(id)].tolist()}
        self.format = None

    def with_format(self, name):
        self.format = name
        return self

    def __getitem__(self, name):
        assert self.format == "numpy"
        return self.columns[name]


class Partitioner:
    num_partitions = 4

    def load_partition(self, i):
        return Partition(np.unique(OWNERS)[i])


class Federated:
    """What flwr_datasets.FederatedDataset is."""

    partitioners = {"train": Partitioner()}

    def load_partition(self, i, split="train"):
        return self.partitioners[split].load_partition(i)


def test_arrays_with_an_id_column():
    x, y = arrays()
    made = data.from_arrays(x, y, OWNERS, order="in-order")
    assert [c.id for c in made] == ["a", "b", "c"]
    assert made.left_out == ["tiny"]
    assert np.array_equal(np.concatenate([made[0].train[0], made[0].valid[0], made[0].test[0]]), x[OWNERS == "a"])
    assert [len(part[1]) for part in (made[0].train, made[0].valid, made[0].test)] == [20, 2, 2]


def test_ids_may_be_whole_numbers():
    x, y = arrays()
    made = data.from_arrays(x, y, np.arange(50) % 4)
    assert [c.id for c in made] == [0, 1, 2, 3]
    assert all(type(c.id) is int for c in made)


def test_every_way_gives_the_same_clients(tmp_path):
    x, y = arrays()
    usual = data.from_arrays(x, y, OWNERS)
    named = {str(id): np.flatnonzero(held(id)) for id in np.unique(OWNERS)}
    ways = [
        data.from_rows(x, y, named),
        data.from_npz(files(tmp_path)),
        data.from_partitions({id: Partition(id) for id in named}),
        data.from_arrays(x, y, OWNERS, cache=tmp_path / "c1"),
        data.from_npz(tmp_path, cache=tmp_path / "c2"),
    ]
    for way in ways:
        same(usual, way)
        assert way.left_out == ["tiny"]
    torch_like = data.from_torch(Pictures(), lambda i: str(OWNERS[i]), classes=5)
    same(sorted(usual, key=lambda c: c.id), sorted(torch_like, key=lambda c: c.id))


@pytest.mark.parametrize("given", [Federated(), Partitioner(), [Partition(id) for id in np.unique(OWNERS)]])
def test_partitions_are_numbered(given):
    made = data.from_partitions(given)
    assert [c.id for c in made] == [0, 1, 2]
    assert made.left_out == [3]


def test_a_real_torch_dataset():
    torch = pytest.importorskip("torch")
    x, y = arrays()
    held = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    made = data.from_torch(held, lambda i: str(OWNERS[i]))
    same(sorted(made, key=lambda c: c.id), data.from_arrays(x, y, OWNERS))


def test_a_cache_is_made_once_and_loaded_when_visited(tmp_path):
    x, y = arrays()
    cache = tmp_path / "deep" / "mine.safetensors"
    made = data.from_arrays(x, y, OWNERS, cache=cache)
    written = cache.stat().st_mtime_ns
    assert isinstance(made[0].train, Lazy)
    assert isinstance(made[0].train.source.x, np.memmap)

    def never():
        raise AssertionError("converted again")
        yield

    again = data.from_examples(never(), cache=cache)
    same(made, again)
    assert cache.stat().st_mtime_ns == written
    assert [f.name for f in cache.parent.iterdir()] == [cache.name]
    copied = pickle.loads(pickle.dumps(made[0].train))
    assert isinstance(copied.source.x, np.memmap)
    assert len(pickle.dumps(made[0].train)) < 2000
    x0, y0 = made[0].train[0]
    assert np.array_equal(x0, made[0].train.load()[0][0])
    assert y0 == data.labels(made[0].train)[0]


def test_a_converted_file_can_be_read_by_others(tmp_path):
    from safetensors.numpy import load_file

    x, y = arrays()
    data.from_arrays(x, y, OWNERS, cache=tmp_path / "c.safetensors")
    read = load_file(tmp_path / "c.safetensors")
    assert np.array_equal(read["y"], y[np.argsort(OWNERS, kind="stable")])
    assert read["ends"].tolist() == [24, 36, 48, 50]


def test_a_failed_conversion_leaves_nothing(tmp_path):
    x = np.ones((50, 2))
    x[4] = np.nan  # the second of client b
    with pytest.raises(SpecError, match="client 'b': x of example 1 has values that are NaN"):
        data.from_arrays(x, np.zeros(50, int), OWNERS, cache=tmp_path / "c")
    assert not list(tmp_path.iterdir())


def test_a_damaged_cache_is_named(tmp_path):
    (tmp_path / "c").write_bytes(b"\x08\0\0\0\0\0\0\0rubbish!")
    with pytest.raises(SpecError, match=r"no converted data set.*delete it"):
        data.from_examples([], cache=tmp_path / "c")


def test_npz_files_that_are_already_split(tmp_path):
    x, y = arrays()
    for id in "ab":
        np.savez(tmp_path / f"{id}.npz", x_train=x[:9], y_train=y[:9], x_valid=x[9:12], y_valid=y[9:12])
    made = data.from_npz(tmp_path)
    assert [c.id for c in made] == ["a", "b"]
    assert len(made[0].valid[0]) == 3
    assert made[0].test is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": np.zeros((12, 3, 3), np.uint8)}, r"client 'b': examples have shape \(3, 3\), but must have \(4, 4\)"),
        ({"y": np.full(12, 7)}, r"client 'b': the label of example 0 is 7, but must be in 0\.\.4"),
        ({"y": np.full(12, -1)}, "client 'b': the label of example 0 is -1"),
        ({"y": np.full(12, 0.5)}, "client 'b': labels are of type float"),
        ({"y": np.zeros(11, int)}, r"client 'b': x has shape \(12, 4, 4\) and y \(11,\)"),
        ({"x": np.full((12, 4, 4), np.nan)}, "client 'b': x of example 0 has values that are NaN or infinite"),
        ({"x": np.array(["text"] * 12)}, "client 'b': examples have shape|client 'b': x is of type"),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_mistakes_name_the_client(changed, words, cached, tmp_path):
    files(tmp_path, b=changed)
    with pytest.raises(SpecError, match=words):
        data.from_npz(tmp_path, classes=5, cache=tmp_path / "cache" if cached else None)


def test_files_that_are_none_are_named(tmp_path):
    with pytest.raises(SpecError, match=r"no \.npz files in"):
        data.from_npz(tmp_path)
    files(tmp_path)
    (tmp_path / "b.npz").write_bytes(b"PK not really")
    with pytest.raises(SpecError, match=r"client 'b': .* cannot be read as \.npz"):
        data.from_npz(tmp_path)
    np.savez(tmp_path / "b.npz", x=np.zeros((9, 4, 4), np.uint8), labels=np.zeros(9))
    with pytest.raises(SpecError, match=r"client 'b': no array 'y' in b.npz, which has \['labels', 'x'\]"):
        data.from_npz(tmp_path)
    np.savez(tmp_path / "b.npz", x=np.array([object()]), y=np.zeros(1))  # a pickle inside
    with pytest.raises(SpecError, match="client 'b'"):
        data.from_npz(tmp_path)


def test_mistakes_in_what_is_given():
    x, y = arrays()
    with pytest.raises(SpecError, match="each example needs one id"):
        data.from_arrays(x, y, OWNERS[:-1])
    with pytest.raises(SpecError, match="ids are of type float64"):
        data.from_arrays(x, y, np.zeros(50))
    with pytest.raises(SpecError, match="client 'a': no column 'label_' in its partition; did you mean 'label'"):
        data.from_partitions({"a": Partition("a")}, y="label_")
    with pytest.raises(SpecError, match="two clients have the id 'a'"):
        data.from_examples([("a", x, y), ("a", x, y)])
    with pytest.raises(SpecError, match="has no length or no index"):
        data.from_torch(iter([]), lambda i: 0)
