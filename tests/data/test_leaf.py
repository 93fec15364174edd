"""LEAF's JSON: read as json.loads reads it; mistakes name the client; fast, in little memory."""

import io
import json
import subprocess
import sys
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtuner.data import femnist, leaf, places, shakespeare
from fedtuner.data import labels as labels_of
from fedtuner.errors import SpecError


def document(data, **more):
    counts = [len(held["y"]) for held in data.values()]
    return {"users": list(data), "num_samples": counts, "user_data": data} | more


def write(path, data, **more):
    path.write_text(json.dumps(document(data, **more)))
    return path


def pictures(n, seed=0):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (n, 784)) / 255
    return {"x": pixels.tolist(), "y": rng.integers(0, 62, n).tolist()}


def windows(text):
    places = range(len(text) - 80)
    return {"raw": text, "x": [text[i : i + 80] for i in places], "y": [text[i + 80] for i in places]}


LABELS = st.integers(-(2**62), 2**62)  # ijson's numbers are those of C


@pytest.mark.slow
@given(
    users=st.dictionaries(
        st.text(max_size=5),
        st.lists(st.tuples(st.text(max_size=6) | st.lists(st.floats(0, 1)), LABELS | st.text(max_size=2))),
        max_size=5,
    ),
    indent=st.sampled_from([None, 1]),
    ascii=st.booleans(),
)
def test_any_file_is_read_as_json_reads_it(users, indent, ascii, tmp_path_factory):
    held = {u: {"x": [x for x, _ in pairs], "y": [y for _, y in pairs]} for u, pairs in users.items()}
    text = json.dumps({**document(held), "hierarchies": ["}", "]"], "version": 2}, indent=indent, ensure_ascii=ascii)
    path = tmp_path_factory.getbasetemp() / "all.json"
    path.write_text(text)
    assert list(leaf.read(path)) == [(u, data["x"], data["y"]) for u, data in held.items()]


@pytest.mark.parametrize("order", list(permutations(("users", "num_samples", "user_data"))))
def test_the_lists_may_stand_anywhere(order, tmp_path):
    whole = document({"u": pictures(5)}, num_samples=[4])
    (tmp_path / "a.json").write_text(json.dumps({key: whole[key] for key in order}))
    with pytest.raises(SpecError, match=r"client 'u' in a\.json: num_samples says 4, but user_data has 5"):
        list(leaf.read(tmp_path / "a.json"))


def test_a_file_may_have_no_clients_but_must_say_so(tmp_path):
    """LEAF's filter of small clients leaves such files."""
    assert list(leaf.read(write(tmp_path / "a.json", {}))) == []
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(SpecError, match=r"a\.json is not LEAF's JSON: no clients"):
        list(leaf.read(tmp_path / "a.json"))


def test_femnist_is_all_files_of_a_folder(tmp_path):
    (tmp_path / "all_data").mkdir()
    first, second = pictures(30), pictures(20, 1)
    write(tmp_path / "all_data" / "all_data_0.json", {"f1": first, "two": pictures(2, 2)})
    write(tmp_path / "all_data" / "all_data_1.json", {"f2": second, "none": {"x": [], "y": []}})
    made = femnist.clients(order="in-order", folder=tmp_path)
    assert [c.id for c in made] == ["f1", "f2"]
    assert made.left_out == ["two", "none"]
    x, y = made[0].train.load()
    assert (x.shape, x.dtype) == ((24, 28, 28), np.uint8)
    assert np.array_equal(x, np.rint(np.array(first["x"][:24]) * 255).reshape(-1, 28, 28))
    assert y.tolist() == first["y"][:24]
    assert (tmp_path / "femnist.safetensors").exists()
    for file in (tmp_path / "all_data").iterdir():  # once converted the text is not needed
        file.unlink()
    again = femnist.clients(order="in-order", folder=tmp_path)
    assert again[0].train.fingerprint() == made[0].train.fingerprint()
    assert labels_of(again[1].test).tolist() == second["y"][-2:]


def test_a_changed_folder_is_converted_again(tmp_path):
    write(tmp_path / "a.json", {"f1": pictures(30)})
    assert len(femnist.clients(folder=tmp_path)) == 1
    write(tmp_path / "b.json", {"f2": pictures(30, 1)})
    assert len(femnist.clients(folder=tmp_path)) == 2


def test_a_folder_that_cannot_be_written_to_is_converted_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTUNER_DATA", str(tmp_path / "home"))
    monkeypatch.setattr(leaf.os, "access", lambda *_: False)
    (tmp_path / "given").mkdir()
    write(tmp_path / "given" / "a.json", {"f1": pictures(30)})
    assert len(femnist.clients(folder=tmp_path / "given")) == 1
    assert (places.home() / "femnist" / "femnist.safetensors").exists()
    assert not (tmp_path / "given" / "femnist.safetensors").exists()


@pytest.mark.slow
def test_femnist_by_chance_mixes_the_writers(tmp_path):
    users = {f"f{i}": {"x": [[i / 255] * 784] * 40, "y": [i] * 40} for i in range(10)}
    write(tmp_path / "a.json", users)
    own, dealt = femnist.clients(folder=tmp_path), femnist.clients("chance", folder=tmp_path)
    assert [c.id for c in own] == [c.id for c in dealt]
    assert all(len(np.unique(labels_of(c.train))) == 1 for c in own)
    assert all(len(np.unique(labels_of(c.train))) > 4 for c in dealt)
    everything = np.concatenate([labels_of(s) for c in dealt for s in (c.train, c.valid, c.test)])
    assert np.bincount(everything).tolist() == [40] * 10
    assert len(femnist.clients(limit=3, folder=tmp_path)) == 3


def test_shakespeare_of_leaf(tmp_path):
    text = 'Now is the winter of our discontent {"made} glorious summer by this sun of York; ' * 2
    text = text.replace("{", "")  # the vocabulary has only the closing brace
    write(tmp_path / "all_data.json", {"RICHARD_III_GLOUCESTER": windows(text)}, hierarchies=["Richard III"])
    (made,) = shakespeare.clients("in-order", folder=tmp_path)
    x, y = made.train.load()
    letters = np.array(list(shakespeare.VOCABULARY))
    assert "".join(letters[x[3]]) == text[3:83]
    assert letters[y[3]] == text[83]
    assert len(made.train) + len(made.valid) + len(made.test) == len(text) - 80


WRONG = {
    "pixels": ({"x": [[0.5] * 783], "y": [1]}, "client 'bad' in a.json: images have shape"),
    "grey": ({"x": [[0.5] * 784], "y": [1]}, "client 'bad' in a.json: pixels must be multiples of 1/255"),
    "nan": ({"x": [[float("nan")] * 784], "y": [1]}, r"a\.json is not LEAF's JSON: .*after client 'good'"),
    "ragged": ({"x": [[0.0] * 784, [0.0]], "y": [1, 2]}, "client 'bad' in a.json: "),
    "label": ({"x": [[0.0] * 784], "y": [62]}, r"client 'bad': the label of example 0 is 62, but must be in 0\.\.61"),
    "wrapped": ({"x": [[0.0] * 784], "y": [2**16 + 5]}, r"client 'bad': the label of example 0 is 65541, but must be"),
    "lengths": ({"x": [[0.0] * 784], "y": [1, 2]}, "client 'bad' in a.json: x has 1 examples, y has 2"),
    "no y": ({"x": [[0.0] * 784]}, "client 'bad' in a.json: no x and y"),
    "no list": ({"x": [[0.0] * 784], "y": {}}, "client 'bad' in a.json: no x and y"),
    "large": ({"x": [[0.0] * 784], "y": [2**70]}, r"a\.json is not LEAF's JSON: .*after client 'good'"),
}


@pytest.mark.parametrize(("bad", "words"), WRONG.values(), ids=WRONG)
def test_mistakes_name_the_client(bad, words, tmp_path):
    users = {"good": pictures(5), "bad": bad}
    text = {"users": list(users), "num_samples": [5, len(bad.get("y", []))], "user_data": users}
    (tmp_path / "a.json").write_text(json.dumps(text))
    with pytest.raises(SpecError, match=words):
        femnist.clients(folder=tmp_path)
    assert not list(tmp_path.glob("*safetensors*"))


@pytest.mark.parametrize("pixel", [float("nan"), float("inf"), -1 / 255, 256 / 255, 0.5 / 255])
def test_pixels_must_be_bytes(pixel):
    images = [[0.0] * 784, [1.0] * 783 + [pixel]]
    with pytest.raises(SpecError, match="pixels must be multiples of 1/255"):
        femnist.encode(images, [1, 2])


def test_without_ijson_it_says_what_to_install(tmp_path, monkeypatch):
    write(tmp_path / "a.json", {"u": pictures(5)})
    monkeypatch.setitem(sys.modules, "ijson", None)
    with pytest.raises(SpecError, match=r"a\.json is read by ijson: pip install 'fedtuner\[data\]'"):
        femnist.clients(folder=tmp_path)


def test_characters_outside_the_vocabulary_are_named(tmp_path):
    for letter in ("é", "…", "{"):
        write(tmp_path / "a.json", {"HAMLET": windows("To be or not to be " * 6 + letter)})
        with pytest.raises(SpecError, match=r"client 'HAMLET' in a\.json: the text: the character '.' is not among"):
            shakespeare.clients(folder=tmp_path)


def test_the_lists_must_agree_with_the_data(tmp_path):
    write(tmp_path / "a.json", {"u": pictures(5)}, num_samples=[4])
    with pytest.raises(SpecError, match=r"client 'u' in a\.json: num_samples says 4, but user_data has 5"):
        femnist.clients(folder=tmp_path)
    write(tmp_path / "a.json", {"u": pictures(5)}, users=["u", "v"], num_samples=[5, 3])
    with pytest.raises(SpecError, match=r"client 'v' in a\.json: num_samples says 3, but user_data has nothing"):
        femnist.clients(folder=tmp_path)


def test_a_client_in_two_files_is_named(tmp_path):
    for name in ("a.json", "b.json"):
        write(tmp_path / name, {"u": pictures(5)})
    with pytest.raises(SpecError, match=r"two clients have the id 'u', the second in b\.json"):
        femnist.clients(folder=tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", "{", '{"users": ["a"', '{"user_data": {"a": {"x": [[0.0', "{3: 4}", "no"]
)
def test_files_that_are_none_are_named(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(SpecError, match=r"a\.json is not LEAF's JSON: .*byte"):
        femnist.clients(folder=tmp_path)


def test_a_folder_without_files_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"no \.json files"):
        leaf.clients(tmp_path, tmp_path / "cache")
    with pytest.raises(SpecError, match=r"no femnist\.safetensors and no \.json"):
        femnist.clients(folder=tmp_path)


def test_any_leaf_data_of_numbers(tmp_path):
    """LEAF's synthetic set, for one: features of any size."""
    users = {f"u{i}": {"x": [[0.5 * i, 1.25, j] for j in range(10)], "y": [j % 2 for j in range(10)]} for i in range(3)}
    write(tmp_path / "a.json", users)
    made = leaf.clients(tmp_path, tmp_path / "c.safetensors", "in-order", classes=2)
    assert made[2].train.load()[0][:2].tolist() == [[1.0, 1.25, 0.0], [1.0, 1.25, 1.0]]


MEASURED = """
import re, sys
from pathlib import Path
from fedtuner.data import femnist
femnist.clients(folder=Path(sys.argv[1]))
print(int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory in use is read from /proc")
def test_conversion_is_fast_and_needs_little_memory(tmp_path):
    """20 MB per CPU-second, in the memory of one client, not of a file."""
    import resource  # not on every system

    one = json.dumps(pictures(200))
    users = ", ".join(f'"u{i}": {one}' for i in range(50))
    head = json.dumps({"users": [f"u{i}" for i in range(50)], "num_samples": [200] * 50})
    (tmp_path / "a.json").write_text(f'{head[:-1]}, "user_data": {{{users}}}}}')
    megabytes = (tmp_path / "a.json").stat().st_size / 1e6
    assert megabytes > 100
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path)], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert megabytes / (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) > 20
    assert float(done.stdout) < 90  # 38 of them are Python and NumPy


# Nesting: outside of texts alone, wherever a chunk ends.


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 16])
@pytest.mark.parametrize(
    ("text", "deep"),
    [
        ("[" * 100 + "]" * 100 + "[" * 100, False),
        ("[" * 101, True),
        ('{"a":[' * 51, True),
        ("[1," * 101, True),
        ('"' + "[" * 500 + '"', False),
        ('"\\"' + "[" * 500 + '"', False),
        ('"\\\\"' + "[" * 500, True),
        ('"a\\\\\\"' + "[" * 500 + '"', False),
    ],
)
def test_lists_that_are_nested_too_deeply_are_refused(text, deep, size):
    file = leaf._Shallow(io.BytesIO(text.encode()), "all.json")
    chunks = iter(lambda: file.read(size), b"")
    if deep:
        with pytest.raises(SpecError, match=r"all\.json is not LEAF's JSON: its lists are nested more than 100 deep"):
            list(chunks)
    else:
        assert b"".join(chunks) == text.encode()


@pytest.mark.parametrize("text", ['{"users": ' + "[" * 200_000, '{"users": [' + "9" * 5000 + "]}", "9" * 5000])
def test_json_that_would_end_the_process(tmp_path, text):
    (tmp_path / "all.json").write_text(text)
    with pytest.raises(SpecError, match=r"all\.json is not LEAF's JSON"):
        list(leaf.read(tmp_path / "all.json"))
