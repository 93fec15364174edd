"""The ready data sets: on the real files where they are present, and on small ones made here."""

import json
import lzma
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest

from fedtuner import data
from fedtuner.data import cifar10, femnist, mnist_writers, places, shakespeare
from fedtuner.errors import SpecError


def needs(name):
    here = any(places.holds(folder / name, name) for folder in places.folders())
    return pytest.mark.skipif(not here, reason=f"the data set {name} is not on this machine")


def staged(name, file):
    here = any((folder / name / file).exists() for folder in places.folders())
    return pytest.mark.skipif(not here, reason=f"{name}/{file} is not on this machine")


def sizes(clients):
    return [sum(len(data.labels(s)) for s in (c.train, c.valid, c.test)) for c in clients]


# MNIST by writer


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


@staged("mnist_by_writer", "mnist_by_writer.npz")
def test_mnist_loads_within_two_seconds():
    start = time.perf_counter()
    assert len(mnist_writers.clients()) == 836
    assert time.perf_counter() - start < 2


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
    with pytest.raises(SpecError, match="by = 'label', but must be 'writer' or 'chance'"):
        mnist_writers.clients(folder=tmp_path, by="label")


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


# Shakespeare


@staged("shakespeare", "roles.jsonl.xz")
def test_shakespeare_has_the_numbers_of_its_readme():
    made = shakespeare.clients(folder=_staged("shakespeare", "roles.jsonl.xz"))
    counted = sizes(made)
    # 1,142 roles pass LEAF's filter; one of them has two windows, which cannot be split in three.
    assert (len(made), len(made.left_out)) == (1_141, 1_373 - 1_141)
    assert sum(counted) == 4_222_334 - 2
    assert max(counted) == 61_268
    assert np.median([2, *counted]) == 1_164
    strided = shakespeare.clients(stride=80, folder=_staged("shakespeare", "roles.jsonl.xz"))
    assert max(sizes(strided)) == 766


def _staged(name, file):
    return next(folder / name for folder in places.folders() if (folder / name / file).exists())


MEASURED = """
import re, sys
from pathlib import Path
from fedtuner.data import shakespeare
made = shakespeare.clients(sys.argv[2], folder=Path(sys.argv[1]))
for client in made:
    for split in (client.train, client.valid, client.test):
        split.load(), split.fingerprint()
print(int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
"""


@staged("shakespeare", "roles.jsonl.xz")
@pytest.mark.skipif(sys.platform != "linux", reason="the memory in use is read from /proc")
@pytest.mark.parametrize("order", data.ORDERS)
def test_all_of_shakespeare_is_within_200_mb(order):
    """The whole process, every client visited; the windows as strings would be 4.2 M times 80 characters."""
    folder = _staged("shakespeare", "roles.jsonl.xz")
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(folder), order], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 200


def roles(folder, *spoken):
    records = [{"play": "p", "role": name, "speeches": speeches} for name, speeches in spoken]
    (folder / "roles.jsonl.xz").write_bytes(lzma.compress("\n".join(map(json.dumps, records)).encode()))


LONG = ["O that this too too solid flesh would melt", "Thaw and resolve itself into a dew!", "Or that"]


def test_windows_are_places_in_the_text(tmp_path):
    roles(tmp_path, ("SHORT", [["a" * 90]]), ("HAMLET", [LONG[:1], LONG[1:]]), ("GHOST", [["b" * 40, "c" * 40, "d"]]))
    made = shakespeare.clients("in-order", folder=tmp_path)
    text = " ".join(LONG)
    (hamlet, ghost) = made
    assert made.left_out == ["p/SHORT"]
    assert (hamlet.id, ghost.id) == ("p/HAMLET", "p/GHOST")
    letters = np.array(list(shakespeare.VOCABULARY))
    read = [
        ("".join(letters[x]), letters[y])
        for split in (hamlet.train, hamlet.valid, hamlet.test)
        for x, y in zip(*split.load(), strict=True)
    ]
    assert read == [(text[i : i + 80], text[i + 80]) for i in range(len(text) - 80)]
    assert "".join(letters[data.labels(hamlet.train)]) == text[80 : 80 + len(hamlet.train)]
    assert sum(map(len, (ghost.train, ghost.valid, ghost.test))) == 83 - 80
    shuffled = shakespeare.clients("shuffled", folder=tmp_path)[0]
    assert list(shuffled.train.rows) != list(hamlet.train.rows)
    assert sorted(np.concatenate([s.rows for s in (shuffled.train, shuffled.valid, shuffled.test)])) == [*range(6)]
    copied = pickle.loads(pickle.dumps(hamlet.train))
    assert np.array_equal(copied.load()[0], hamlet.train.load()[0])
    assert len(pickle.dumps(hamlet.train)) < 1500


def test_roles_can_be_fewer_and_shorter(tmp_path):
    roles(tmp_path, *((f"R{i}", [["x" * 100] * 3]) for i in range(9)))
    assert len(shakespeare.clients(limit=4, folder=tmp_path)) == 4
    assert sizes(shakespeare.clients(stride=10, folder=tmp_path)) == [23] * 9
    assert sizes(shakespeare.clients(examples=12, folder=tmp_path)) == [12] * 9
    few = shakespeare.clients(examples=2, folder=tmp_path)
    assert (len(few), len(few.left_out)) == (0, 9)
    with pytest.raises(SpecError, match="stride = 0"):
        shakespeare.clients(stride=0, folder=tmp_path)


def test_mistakes_in_roles_are_named(tmp_path):
    roles(tmp_path, ("HAMLET", [LONG]), ("HAMLET", [LONG]))
    with pytest.raises(SpecError, match="two clients have the id 'p/HAMLET'"):
        shakespeare.clients(folder=tmp_path)
    roles(tmp_path, ("HAMLET", [[*LONG, "naïve"]]))
    with pytest.raises(SpecError, match="client 'p/HAMLET': the character 'ï'"):
        shakespeare.clients(folder=tmp_path)
    roles(tmp_path, ("SHORT", [["a"]]))
    with pytest.raises(SpecError, match="has no role with more than"):
        shakespeare.clients(folder=tmp_path)
    whole = lzma.compress(b"x" * 5000)
    for damaged in (whole[:40], b"rubbish", lzma.compress(b'{"play": 1')):
        (tmp_path / "roles.jsonl.xz").write_bytes(damaged)
        with pytest.raises(SpecError, match="cannot be read as roles"):
            shakespeare.clients(folder=tmp_path)


# CIFAR-10


@staged("cifar10", "cifar10_20k.npz")
def test_cifar_subset_is_160_devices_as_large_as_the_papers_500():
    made = cifar10.clients(folder=_staged("cifar10", "cifar10_20k.npz"))
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


# As problems


PROBLEMS = [
    pytest.param(mnist_writers.problem, marks=needs("mnist_by_writer")),
    pytest.param(mnist_writers.problem_iid, marks=needs("mnist_by_writer")),
    pytest.param(mnist_writers.problem_small, marks=needs("mnist_by_writer")),
    pytest.param(mnist_writers.problem_iid_small, marks=needs("mnist_by_writer")),
    pytest.param(shakespeare.problem, marks=needs("shakespeare")),
    pytest.param(shakespeare.problem_iid, marks=needs("shakespeare")),
    pytest.param(shakespeare.problem_small, marks=needs("shakespeare")),
    pytest.param(shakespeare.problem_iid_small, marks=needs("shakespeare")),
    pytest.param(femnist.problem, marks=needs("femnist")),
    pytest.param(femnist.problem_iid, marks=needs("femnist")),
    pytest.param(femnist.problem_small, marks=needs("femnist")),
    pytest.param(femnist.problem_iid_small, marks=needs("femnist")),
    pytest.param(cifar10.problem, marks=needs("cifar10")),
    pytest.param(cifar10.problem_small, marks=needs("cifar10")),
]


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_problems_can_be_worked_on(problem):
    pytest.importorskip("torch")
    made = problem()
    made.check()
    assert made.name.startswith(("mnist", "shakespeare", "femnist", "cifar10"))
    assert made.fingerprint() == problem().fingerprint()
    pickle.dumps(made.task)
    smallest = min(range(len(made.clients)), key=lambda i: len(data.labels(made.clients[i].train)))
    held = made.data(smallest, "train")
    with made.task.training(held, {}, 0) as trainer:
        gradient = trainer.gradient(made.task.initial(0), np.arange(min(4, len(held))))
    assert np.isfinite(gradient).all()
