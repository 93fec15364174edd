"""Bad data: each reader refuses it in one line that names the file or the client, and the rule."""

# ruff: noqa: E501 (a row is a line)

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answers import refused

import toys
from fedtuner import Client, Simulation, data
from fedtuner.data import binary, cifar10, digits, femnist, mnist_writers, places, shakespeare, sources

pytest.importorskip("ijson")

X = np.arange(24, dtype=np.float32).reshape(8, 3)
Y = np.array([0, 1] * 4)
IDS = np.array(["a"] * 4 + ["b"] * 4)


def array(values: Any, **more: Any) -> Any:
    return np.array(values, **more)


def with_value(value: float) -> Any:
    made = X.copy()
    made[5, 1] = value
    return made


def simulation(clients: Any) -> Simulation:
    return Simulation(toys.Softmax(), clients)


class Partitions:
    """A Hugging Face data set of two columns."""

    def __init__(self, **columns: Any) -> None:
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]


# id, what is called, what the message must match.
ARRAYS = [
    ("lengths", lambda: data.from_arrays(X, Y[:7], IDS), r"x, y and ids have shapes \(8, 3\), \(7,\) and \(8,\): each example"),
    ("ids-too-few", lambda: data.from_arrays(X, Y, IDS[:7]), r"x, y and ids have shapes .*: each example needs one id"),
    ("ids-two-columns", lambda: data.from_arrays(X, Y, np.stack([IDS, IDS], 1)), r"each example needs one id"),
    ("ids-real", lambda: data.from_arrays(X, Y, Y / 2), r"ids are of type float64, but must be strings or whole numbers"),
    ("ids-true", lambda: data.from_arrays(X, Y, Y > 0), r"ids are of type bool, but must be strings or whole numbers"),
    ("ids-none", lambda: data.from_arrays(X, Y, [None] * 8), r"the id None.*must be a string or a whole number"),
    ("ids-mixed", lambda: data.from_arrays(X, Y, array([1, "a"] * 4, dtype=object)), r"ids are strings and whole numbers, but must all be of one type"),
    ("ids-of-lists", lambda: data.from_arrays(X, Y, array([[1, 2]] * 8, dtype=object)), r"each example needs one id"),
    ("ids-a-number", lambda: data.from_arrays(X, Y, 3), r"each example needs one id"),
    ("ids-bytes-not-utf-8", lambda: data.from_arrays(X, Y, array([b"\xff"] * 8)), r"id b'\\xff'.*UTF-8|ids.*utf-8"),
    ("x-0-d", lambda: data.from_arrays(np.array(1.0), Y, IDS), r"x, y and ids have shapes \(\)"),
    ("y-0-d", lambda: data.from_arrays(X, np.array(1), IDS), r"x, y and ids have shapes \(8, 3\), \(\)"),
    ("x-none", lambda: data.from_arrays(None, Y, IDS), r"x, y and ids have shapes \(\)"),
    ("x-ragged", lambda: data.from_arrays([[1], [1, 2]], [0, 1], ["a", "b"]), r"x .*(one shape|numbers)"),
    ("x-objects", lambda: data.from_arrays(X.astype(object), Y, IDS), r"client 'a': x is of type object, but must be numbers"),
    ("x-texts", lambda: data.from_arrays(np.array(["1"] * 8), Y, IDS), r"client 'a': x is of type <U1, but must be numbers"),
    ("x-complex", lambda: data.from_arrays(X * 1j, Y, IDS), r"client 'a': x is of type complex64, but must be numbers"),
    ("x-dates", lambda: data.from_arrays(np.zeros(8, "datetime64[s]"), Y, IDS), r"client 'a': x is of type datetime64"),
    ("x-nan", lambda: data.from_arrays(with_value(math.nan), Y, IDS), r"client 'b': x of example 1 has values that are NaN"),
    ("x-infinite", lambda: data.from_arrays(with_value(-math.inf), Y, IDS), r"client 'b': x of example 1 has values that are NaN"),
    ("y-nan", lambda: data.from_arrays(X, with_value(math.nan)[:, 1], IDS), r"client 'b': y of example 1 has values that are NaN"),
    ("y-texts", lambda: data.from_arrays(X, IDS, IDS), r"client 'a': y is of type <U1, but must be numbers"),
    ("label-too-large", lambda: data.from_arrays(X, Y + 1, IDS, classes=2), r"the label of example 1 is 2, but must be in 0..1"),
    ("label-negative", lambda: data.from_arrays(X, Y - 100, IDS, classes=2), r"the label of example 0 is -100, but must be in 0..1"),
    ("label-real", lambda: data.from_arrays(X, Y / 2, IDS, classes=2), r"labels are of type float64, but must be whole numbers"),
    ("classes-zero", lambda: data.from_arrays(X, Y, IDS, classes=0), r"classes = 0, but must be a whole number >= 1"),
    ("classes-text", lambda: data.from_arrays(X, Y, IDS, classes="2"), r"classes = '2', but must be a whole number >= 1"),
    ("order", lambda: data.from_arrays(X, Y, IDS, order="random"), r"order = 'random', but must be one of"),
    ("order-none", lambda: data.from_arrays(X, Y, IDS, order=None), r"order = None, but must be one of"),
    ("order-a-list", lambda: data.from_arrays(X, Y, IDS, order=["shuffled"]), r"order = \['shuffled'\], but must be one of"),
    ("seed-none", lambda: data.from_arrays(X, Y, IDS, seed=None), r"seed = None, but must be a whole number"),
    ("seed-text", lambda: data.from_arrays(X, Y, IDS, seed="a"), r"seed = 'a', but must be a whole number"),
    ("all-too-small", lambda: simulation(data.from_arrays(X, Y, range(8))), r"at least one client: 8 have too few examples"),
    ("empty", lambda: simulation(data.from_arrays(X[:0], Y[:0], IDS[:0])), r"a problem needs at least one client"),
    ("rows-out-of-range", lambda: data.from_rows(X, Y, [[0, 1, 99]]), r"client 0: row 99, but there are 8 examples"),
    ("rows-negative", lambda: data.from_rows(X, Y, [[0, 1, -9]]), r"client 0: row -9, but there are 8 examples"),
    ("rows-real", lambda: data.from_rows(X, Y, [[0.5, 1.0, 2.0]]), r"client 0: rows .*float64, but must be whole numbers"),
    ("rows-texts", lambda: data.from_rows(X, Y, [["a", "b", "c"]]), r"client 0: rows .*must be whole numbers"),
    ("rows-ragged", lambda: data.from_rows(X, Y, [[[0], [1, 2]]]), r"client 0: rows"),
    ("rows-none", lambda: data.from_rows(X, Y, None), r"rows = None, but must be"),
    ("rows-a-number", lambda: data.from_rows(X, Y, 3), r"rows = 3, but must be"),
    ("rows-of-numbers", lambda: data.from_rows(X, Y, [1, 2, 3]), r"client 0: rows"),
    ("rows-x-and-y", lambda: data.from_rows(X, Y[:5], [[0, 1, 2]]), r"x and y have shapes \(8, 3\) and \(5,\), but both need"),
    ("examples-none", lambda: data.from_examples(None), r"examples = None, but must be .*\(id, x, y\)"),
    ("examples-pairs", lambda: data.from_examples([(X, Y)]), r"\(id, x, y\)"),
    ("examples-twice", lambda: data.from_examples([("a", X, Y), ("a", X, Y)]), r"two clients have the id 'a': ids must differ"),
    ("examples-id-none", lambda: data.from_examples([(None, X, Y)]), r"the id None.*must be a string or a whole number"),
    ("examples-id-bytes", lambda: data.from_examples([(b"a", X, Y)]), r"the id b'a'.*must be a string or a whole number"),
    ("examples-id-a-list", lambda: data.from_examples([([1], X, Y)]), r"the id \[1\].*must be a string or a whole number"),
    ("examples-id-real", lambda: data.from_examples([(0.5, X, Y)]), r"the id 0.5.*must be a string or a whole number"),
    ("examples-shapes", lambda: data.from_examples([("a", X, Y), ("b", X[:, :2], Y)]), r"client 'b': examples have shape \(2,\), but"),
    ("examples-0-d", lambda: data.from_examples([("a", np.array(1), np.array(1))]), r"client 'a': x has shape \(\) and y \(\)"),
    ("examples-lists", lambda: data.from_examples([("a", [[1], [1, 2]], [0, 1])]), r"client 'a': "),
    ("examples-none-inside", lambda: data.from_examples([("a", None, None)]), r"client 'a': x has shape \(\)"),
    ("examples-uneven", lambda: data.from_examples([("a", X, Y[:3])]), r"client 'a': x has shape \(8, 3\) and y \(3,\)"),
    ("torch-no-length", lambda: data.from_torch(iter([]), lambda i: 0), r"has no length or no index: a stream cannot be split"),
    ("torch-none", lambda: data.from_torch(None, lambda i: 0), r"NoneType has no length or no index"),
    ("torch-single", lambda: data.from_torch([1, 2, 3], lambda i: "a"), r"client 'a': examples must be \(x, y\)"),
    ("torch-shapes", lambda: data.from_torch([(X[:2], 0), (X[:1], 1)], lambda i: "a"), r"client 'a': examples must be \(x, y\) of one"),
    ("torch-client-no-function", lambda: data.from_torch([(X[0], 0)], ["a"]), r"client is list, but must be a function"),
    ("torch-client-raises", lambda: data.from_torch([(X[0], 0)], lambda i: {}[i]), r"client\(0\) .*KeyError"),
    ("torch-client-none", lambda: data.from_torch([(X[0], 0)] * 5, lambda i: None), r"the id None.*must be a string or a whole"),
    ("torch-client-a-list", lambda: data.from_torch([(X[0], 0)] * 5, lambda i: [1]), r"the id \[1\].*must be a string or a whole"),
    ("partitions-none", lambda: data.from_partitions(None), r"partitions = None, but must be"),
    ("partitions-a-number", lambda: data.from_partitions(3), r"partitions = 3, but must be"),
    ("partitions-column", lambda: data.from_partitions([Partitions(img=X, label=Y)]), r"client 0: no column 'image'.*'img'"),
    ("partitions-of-numbers", lambda: data.from_partitions([1]), r"client 0: .*column"),
    ("partitions-ragged", lambda: data.from_partitions([Partitions(image=[[1], [1, 2]], label=[0, 1])]), r"client 0: column 'image'"),
    ("partitions-texts", lambda: data.from_partitions([Partitions(image=["a"] * 4, label=[0] * 4)]), r"client 0: x is of type <U1"),
    ("iid-zero", lambda: data.iid(10, 0), r"devices = 0, but must be in 1..10, the number of examples"),
    ("iid-too-many", lambda: data.iid(10, 11), r"devices = 11, but must be in 1..10, the number of examples"),
    ("iid-real", lambda: data.iid(10, 2.5), r"devices = 2.5, but must be a whole number"),
    ("iid-n-text", lambda: data.iid("10", 2), r"n = '10', but must be a whole number"),
    ("iid-n-array", lambda: data.iid(Y, 2), r"n = .*, but must be a whole number"),
    ("by-label-shards", lambda: data.by_label(Y, 2, 0), r"shards = 0, but must be a whole number >= 1|devices \* shards = 0"),
    ("by-label-2-d", lambda: data.by_label(X, 2), r"labels have shape \(8, 3\), but must be one per example"),
    ("by-label-0-d", lambda: data.by_label(3, 2), r"labels have shape \(\), but must be one per example"),
    ("by-label-ragged", lambda: data.by_label([[1], [1, 2]], 2), r"labels .*one per example"),
    ("by-label-too-many", lambda: data.by_label(Y, 5, 2), r"devices \* shards = 10, but must be in 1..8"),
    ("dirichlet-zero", lambda: data.dirichlet(Y, 2, 0.0), r"alpha = 0.0, but must be > 0"),
    ("dirichlet-nan", lambda: data.dirichlet(Y, 2, math.nan), r"alpha = nan, but must be > 0"),
    ("dirichlet-text", lambda: data.dirichlet(Y, 2, "1"), r"alpha = '1', but must be > 0"),
    ("dirichlet-none", lambda: data.dirichlet(Y, 2, None), r"alpha = None, but must be > 0"),
    ("dirichlet-nan-labels", lambda: data.dirichlet(array([0.0, math.nan, 1.0]), 2, 1.0), r"the label of example 1 is NaN or infinite"),
    ("by-size-infinite", lambda: data.by_size(10, 2, math.inf), r"alpha = inf, but must be > 0"),
    ("split-order", lambda: data.split("a", X, Y, "orderly"), r"order = 'orderly', but must be one of .*'in-order'"),
    ("split-uneven", lambda: data.split("a", X, Y[:3]), r"client 'a': x has shape \(8, 3\) and y \(3,\)"),
    ("split-0-d", lambda: data.split("a", np.array(1), np.array(1)), r"client 'a': x has shape \(\)"),
    ("split-lists", lambda: data.split("a", [[1], [1, 2]], [0, 1]), r"client 'a'"),
    ("check-empty-split", lambda: data.check([Client(0, (X, Y), (X[:0], Y[:0]))]), r"client 0, valid data: no examples; leave"),
    ("check-twice", lambda: data.check([Client(0, (X, Y), None)] * 2), r"two clients have the id 0: ids must differ"),
    ("check-shape", lambda: data.check([Client(0, (X, Y), None)], (2,)), r"client 0, train data: examples have shape \(3,\), but"),
    ("check-no-client", lambda: data.check([3]), r"3 is no Client"),
    ("check-a-dict", lambda: data.check([Client(0, {"x": X}, None)]), r"client 0, train data: .*pair \(x, y\)"),
    ("check-a-number", lambda: data.check([Client(0, 3, None)]), r"client 0, train data: not a pair \(x, y\) of arrays"),
    ("check-none", lambda: data.check(None), r"clients = None, but must be"),
    ("digits-parts", lambda: digits.clients(0), r"parts = 0, but must be in 1..40"),
    ("digits-parts-text", lambda: digits.clients("4"), r"parts = '4', but must be"),
    ("digits-parts-real", lambda: digits.clients(2.5), r"parts = 2.5, but must be"),
    ("places-unknown", lambda: places.find("femnits"), r"no data set 'femnits'; did you mean 'femnist'\?"),
    ("sources-unknown", lambda: sources.get("femnits"), r"no data set 'femnits' to get; did you mean 'femnist'\?"),
    ("sources-none", lambda: sources.get(None), r"no data set None to get"),
    ("femnist-by", lambda: femnist.clients("author"), r"by = 'author', but must be one of \('writer', 'chance'\)"),
    ("mnist-part", lambda: mnist_writers.clients("trian"), r"part = 'trian', but must be one of"),
    ("mnist-by", lambda: mnist_writers.clients(by="author"), r"by = 'author', but must be one of \('writer', 'chance'\)"),
    ("shakespeare-stride", lambda: shakespeare.clients(stride=0), r"stride = 0, but must be"),
    ("shakespeare-examples", lambda: shakespeare.clients(examples=-1), r"examples = -1, but must be"),
    ("shakespeare-stride-text", lambda: shakespeare.clients(stride="2"), r"stride = '2', but must be"),
]  # fmt: skip


def user(x: Any, y: Any, **more: Any) -> dict[str, Any]:
    """LEAF's JSON of one client."""
    n = len(y) if isinstance(y, list) else 0
    return {"users": ["a"], "num_samples": [n], "user_data": {"a": {"x": x, "y": y}}, **more}


GOOD = user([[1.0, 2.0]] * 4, [0, 1, 0, 1])
ROW = [1.0, 2.0]

# id, the file's JSON or bytes, what the message must match. All messages name the file.
LEAF = [
    ("empty", b"", r"is not LEAF's JSON"),
    ("not-json", b"hello", r"is not LEAF's JSON"),
    ("binary", bytes(range(256)), r"is not LEAF's JSON"),
    ("cut", json.dumps(GOOD).encode()[:-20], r"is not LEAF's JSON: .*(premature|incomplete|parse)"),
    ("utf-16", json.dumps(GOOD).encode("utf-16"), r"is not LEAF's JSON"),
    ("latin-1", '{"users": ["é"]}'.encode("latin-1"), r"is not LEAF's JSON"),
    ("byte-order-mark", b"\xef\xbb\xbf" + b"nothing", r"is not LEAF's JSON"),
    ("list", [], r"is not LEAF's JSON: no clients"),
    ("null", None, r"is not LEAF's JSON: no clients"),
    ("number", 3, r"is not LEAF's JSON: no clients"),
    ("object", {}, r"is not LEAF's JSON: no clients"),
    ("users-alone", {"users": ["a"], "num_samples": [4]}, r"client 'a' .*num_samples says 4, but user_data has nothing"),
    ("users-none", {"users": [], "num_samples": [], "user_data": {}}, r"no clients"),
    ("user-data-a-list", {"users": ["a"], "num_samples": [1], "user_data": []}, r"user_data|client 'a'"),
    ("users-a-number", {**GOOD, "users": 3}, r"users .*must be a list"),
    ("users-a-text", {**GOOD, "users": "a"}, r"users .*must be a list"),
    ("users-of-numbers", {**GOOD, "users": [3]}, r"users .*must be a list of strings|client"),
    ("users-others", {**GOOD, "users": ["b"]}, r"client 'b' .*but user_data has nothing|client 'a'"),
    ("users-too-many", {**GOOD, "users": ["a", "b"], "num_samples": [4, 4]}, r"client 'b' .*num_samples says 4, but user_data has nothing"),
    ("num-samples-a-number", {**GOOD, "num_samples": 4}, r"num_samples .*must be a list"),
    ("num-samples-texts", {**GOOD, "num_samples": ["4"]}, r"client 'a' .*num_samples says .*4.*, but user_data has 4"),
    ("num-samples-wrong", {**GOOD, "num_samples": [5]}, r"client 'a' in .*: num_samples says 5, but user_data has 4"),
    ("num-samples-too-few", {**GOOD, "num_samples": []}, r"client 'a' .*num_samples says nothing, but user_data has 4"),
    ("client-a-list", {**GOOD, "user_data": {"a": []}}, r"client 'a' in .*: no x and y: both must be lists"),
    ("client-null", {**GOOD, "user_data": {"a": None}}, r"client 'a' in .*: no x and y: both must be lists"),
    ("client-without-y", {**GOOD, "user_data": {"a": {"x": [ROW]}}}, r"client 'a' in .*: no x and y: both must be lists"),
    ("uneven", user([ROW] * 4, [0, 1, 0]), r"client 'a' in .*: x has 4 examples, y has 3"),
    ("x-ragged", user([[1.0], [1.0, 2.0], [1.0], [1.0]], [0, 1, 0, 1]), r"client 'a' in .*: x .*one shape"),
    ("x-texts", user(["a"] * 4, [0, 1, 0, 1]), r"client 'a' in .*: x .*numbers"),
    ("x-null", user([None] * 4, [0, 1, 0, 1]), r"client 'a' in .*: x of example 0 has values that are NaN"),
    ("x-objects", user([{}] * 4, [0, 1, 0, 1]), r"client 'a' in .*: x .*numbers"),
    ("x-huge", user([[1e300, 1.0]] * 4, [0, 1, 0, 1]), r"client 'a' in .*: x .*infinite"),
    ("y-halves", user([ROW] * 4, [0.5, 1, 0, 1]), r"client 'a' in .*: .*0.5.*whole numbers"),
    ("y-texts", user([ROW] * 4, ["0", "1", "0", "1"]), r"client 'a' in .*: .*whole numbers"),
    ("y-null", user([ROW] * 4, [None, 1, 0, 1]), r"client 'a' in .*: .*whole numbers"),
    ("y-lists", user([ROW] * 4, [[0], [1, 2], [0], [1]]), r"client 'a' in .*: .*whole numbers|one shape"),
    ("y-huge", user([ROW] * 4, [10**30, 1, 0, 1]), r"is not LEAF's JSON: parse error: integer overflow"),
    ("y-too-large", user([ROW] * 4, [0, 1, 2, 1]), r"client 'a'.*: the label of example 2 is 2, but must be in 0..1"),
    ("y-negative", user([ROW] * 4, [0, 1, -100, 1]), r"client 'a'.*: the label of example 2 is -100, but must be in 0..1"),
    ("two-shapes", {"users": ["a", "b"], "num_samples": [3, 3], "user_data":
     {"a": {"x": [ROW] * 3, "y": [0, 1, 0]}, "b": {"x": [[1.0]] * 3, "y": [0, 1, 0]}}}, r"client 'b'.*: examples have shape \(1,\), but"),
    ("empty-clients", user([], []), r"no clients with examples"),
    ("count-a-long-text", b'{"users": ["a"], "num_samples": ["' + b"9" * 5000 + b'"], "user_data": {"a": {"x": [1], "y": [0]}}}', r"client 'a' in all.json: num_samples says '9+ ?\.\.\., but user_data has 1"),
    ("deep", b'{"users": ' + b"[" * 20000 + b"]" * 20000 + b"}", r"all.json is not LEAF's JSON: its lists are nested more than 100 deep"),
    ("deep-x", b'{"user_data": {"a": {"x": ' + b"[" * 2000 + b"]" * 2000 + b', "y": [0]}}}', r"client 'a'|is not LEAF's JSON"),
    ("client-twice", b'{"user_data": {"a": {"x": [[1.0]], "y": [0]}, "a": {"x": [[1.0]], "y": [0]}}}', r"two clients have the id 'a'"),
    ("nan", b'{"user_data": {"a": {"x": [[NaN]], "y": [0]}}}', r"is not LEAF's JSON"),
    ("id-with-a-newline", user([ROW], [0.5]) | {"user_data": {"a\nb": {"x": [ROW], "y": [0.5]}}}, r"client 'a\\nb' in "),
]  # fmt: skip


def save(path: Path, **arrays: Any) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def damaged(path: Path) -> None:
    save(path, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:200])


def member(path: Path, old: bytes, new: bytes) -> None:
    """A sound archive, in which the header of an array is damaged."""
    one_array(path)
    content = path.read_bytes()
    assert old in content
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, content.replace(old, new))


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, X)


SPLIT = {"x_train": X, "y_train": Y, "x_valid": X, "y_valid": Y}

# id, what makes the folder's file, what the message must match.
NPZ = [
    ("nothing", lambda p: None, r"no .npz files in .*: give a folder with one for each client"),
    ("a-text", lambda p: p.write_text("hello"), r"client 'a': .*a.npz cannot be read as .npz"),
    ("empty", lambda p: p.touch(), r"client 'a': .*a.npz cannot be read as .npz"),
    ("damaged", damaged, r"client 'a': .*a.npz cannot be read as .npz"),
    ("header-of-code", lambda p: member(p, b"'shape': (8, ", b"'shape': (x, "), r"client 'a': .*a.npz cannot be read as .npz: "),
    ("header-type", lambda p: member(p, b"<f4", b"<q9"), r"client 'a': .*a.npz cannot be read as .npz: .*descr"),
    ("header-keys", lambda p: member(p, b"'descr'", b"'desc!'"), r"client 'a': .*a.npz cannot be read as .npz: .*keys"),
    ("header-version", lambda p: member(p, b"NUMPY\x01", b"NUMPY\x09"), r"client 'a': .*a.npz cannot be read as .npz: "),
    ("a-folder", lambda p: p.mkdir(), r"client 'a': .*a.npz cannot be read as .npz"),
    ("a-loop", lambda p: p.symlink_to(p), r"client 'a': .*a.npz cannot be read as .npz|no .npz files"),
    ("a-pickle", lambda p: save(p, x=X.astype(object), y=Y), r"client 'a': .*cannot be read as .npz: .*pickle"),
    ("npy", one_array, r"client 'a': .*a.npz"),
    ("no-arrays", lambda p: save(p), r"client 'a': no array 'x_train' in a.npz"),
    ("no-y", lambda p: save(p, x=X), r"client 'a': no array 'y' in a.npz, which has \['x'\]"),
    ("misspelt", lambda p: save(p, X=X, Y=Y), r"client 'a': no array 'x_train' in a.npz, which has \['X', 'Y'\]"),
    ("no-valid", lambda p: save(p, x_train=X, y_train=Y), r"client 'a': no array 'x_valid' in a.npz"),
    ("no-test-labels", lambda p: save(p, **SPLIT, x_test=X), r"client 'a': no array 'y_test' in a.npz"),
    ("uneven", lambda p: save(p, x=X, y=Y[:3]), r"client 'a': x has shape \(8, 3\) and y \(3,\)"),
    ("0-d", lambda p: save(p, x=np.array(1.0), y=np.array(1)), r"client 'a': x has shape \(\) and y \(\)"),
    ("nan", lambda p: save(p, x=with_value(math.nan), y=Y), r"client 'a': x of example 5 has values that are NaN"),
    ("texts", lambda p: save(p, x=IDS, y=Y), r"client 'a': x is of type <U1, but must be numbers"),
    ("label", lambda p: save(p, x=X, y=Y + 7), r"client 'a': the label of example 0 is 7, but must be in 0..1"),
    ("split-label", lambda p: save(p, **{**SPLIT, "y_valid": Y + 7}), r"client 'a', valid data: the label of example 0 is 7"),
    ("split-empty", lambda p: save(p, **{**SPLIT, "x_valid": X[:0], "y_valid": Y[:0]}), r"client 'a', valid data: no examples"),
    ("split-shapes", lambda p: save(p, **{**SPLIT, "x_valid": X[:, :2]}), r"client 'a', valid data: examples have shape \(2,\)"),
    ("split-0-d", lambda p: save(p, **{**SPLIT, "x_train": np.array(1.0)}), r"client 'a', train data: x has shape \(\)"),
    ("many-arrays", lambda p: save(p, **{f"array_number_{i}": Y for i in range(200)}), r"client 'a': no array 'x_train' in a.npz"),
]  # fmt: skip


def cached(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """A converted file that something has happened to since."""

    def make(path: Path) -> None:
        binary.convert([("a", X, Y)], path)
        change(path)

    return make


def rewritten(old: bytes, new: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new.ljust(len(old))))


# id, what makes the cache, what the message must match.
CACHES = [
    ("a-folder", lambda p: p.mkdir(), r"is no converted data set .*: delete it and convert again"),
    ("empty", lambda p: p.touch(), r"is no converted data set .*: delete it and convert again"),
    ("a-text", lambda p: p.write_text("hello"), r"is no converted data set .*: delete it and convert again"),
    ("zeros", lambda p: p.write_bytes(bytes(4096)), r"is no converted data set .*: delete it and convert again"),
    ("huge-header", lambda p: p.write_bytes(b"\xff" * 4096), r"is no converted data set .*: delete it and convert again"),
    ("cut", cached(lambda p: p.write_bytes(p.read_bytes()[:1100])), r"is no converted data set .*: delete it and convert again"),
    ("cut-header", cached(lambda p: p.write_bytes(p.read_bytes()[:100])), r"is no converted data set .*: delete it and convert"),
    ("a-list", cached(rewritten(b'{"x"', b'[   ')), r"is no converted data set"),
    ("other-type", cached(rewritten(b'"F32"', b'"F99"')), r"is no converted data set .*F99"),
    ("other-shape", cached(rewritten(b"[8, 3]", b"[9, 3]")), r"is no converted data set"),
    ("negative-shape", cached(rewritten(b"[8, 3]", b"[-8,3]")), r"is no converted data set"),
    ("no-metadata", cached(rewritten(b'"__metadata__"', b'"__metadate__"')), r"is no converted data set"),
    ("other-ids", cached(rewritten(b'["a"]', b'["b\xff')), r"is no converted data set"),
    ("of-another-folder", lambda p: p.symlink_to("/dev/full"), r"is no converted data set"),
]  # fmt: skip


def params(rows: Any) -> list[Any]:
    return [pytest.param(*row[1:], id=row[0]) for row in rows]


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data sets are here but for what a test makes."""
    monkeypatch.setenv("FEDTUNER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "folders", lambda: iter([places.home()]))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("call", "match"), params(ARRAYS))
def test_arrays_that_are_wrong(call: Callable[[], Any], match: str) -> None:
    refused(call, match)


@pytest.mark.parametrize("cache", [False, True], ids=["memory", "cache"])
@pytest.mark.parametrize(
    ("call", "match"), params(row for row in ARRAYS if row[0].startswith(("x-", "y-", "label-", "ids-none")))
)
def test_a_cache_is_as_strict(
    call: Callable[..., Any], match: str, cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cache:
        once = data.arrays.from_examples
        monkeypatch.setattr(
            data.arrays, "from_examples",
            lambda examples, order, seed, classes, _: once(examples, order, seed, classes, "cache.safetensors"),
        )  # fmt: skip
    refused(call, match)
    assert not Path("cache.safetensors").exists()


@pytest.mark.parametrize(("content", "match"), params(LEAF))
def test_leaf_files_that_are_wrong(content: Any, match: str, tmp_path: Path) -> None:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    (tmp_path / "leaf").mkdir()
    (tmp_path / "leaf" / "all.json").write_bytes(raw)
    refused(lambda: data.from_leaf("leaf", "cache.safetensors", classes=2), match)
    assert not Path("cache.safetensors").exists()


@pytest.mark.parametrize(("make", "match"), params(NPZ))
def test_npz_files_that_are_wrong(make: Callable[[Path], object], match: str, tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    make(tmp_path / "clients" / "a.npz")
    refused(lambda: data.from_npz("clients", classes=2), match)


@pytest.mark.parametrize(("make", "match"), params(CACHES))
def test_caches_that_are_wrong(make: Callable[[Path], object], match: str, tmp_path: Path) -> None:
    make(tmp_path / "cache.safetensors")
    refused(lambda: data.from_arrays(X, Y, IDS, cache="cache.safetensors"), match)


# id, what is called in a folder that is empty but for a file "file", what the message must match.
FOLDERS = [
    ("npz-absent", lambda: data.from_npz("nowhere"), r"no .npz files in nowhere: give a folder with one for each client"),
    ("npz-a-file", lambda: data.from_npz("file"), r"no .npz files in file: give a folder"),
    ("npz-none", lambda: data.from_npz(None), r"folder = None, but must be"),
    ("npz-number", lambda: data.from_npz(3), r"folder = 3, but must be"),
    ("leaf-absent", lambda: data.from_leaf("nowhere", "c"), r"no .json files in nowhere: give LEAF's data/all_data folder"),
    ("leaf-none", lambda: data.from_leaf(None, "c"), r"folder = None, but must be"),
    ("leaf-cache-none", lambda: data.from_leaf("leaf", None), r"cache = None, but must be"),
    ("cache-empty", lambda: data.from_arrays(X, Y, IDS, cache=""), r"cache = '', but must be"),
    ("cache-below-a-file", lambda: data.from_arrays(X, Y, IDS, cache="file/c"), r"cannot write to file/c: "),
    ("cache-unwritable", lambda: data.from_arrays(X, Y, IDS, cache="/proc/c"), r"cannot write to /proc/c: "),
    ("cache-a-number", lambda: data.from_arrays(X, Y, IDS, cache=3), r"cache = 3, but must be"),
    ("cache-with-nul", lambda: data.from_arrays(X, Y, IDS, cache="a\0b"), r"cache = 'a\\x00b', but must be|cannot write to"),
    ("femnist-absent", femnist.clients, r"'femnist' .* is not here: run 'fedtuner data get femnist', or place"),
    ("cifar10-absent", cifar10.clients, r"'cifar10' .* is not here: run 'fedtuner data get cifar10', or place"),
    ("shakespeare-absent", shakespeare.clients, r"'shakespeare' .* is not here: run 'fedtuner data get shakespeare'"),
    ("mnist-absent", mnist_writers.clients, r"'mnist_by_writer' .* is not here: place mnist_by_writer.npz in"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "match"), params(FOLDERS))
def test_folders_that_are_wrong(call: Callable[[], Any], match: str, tmp_path: Path) -> None:
    Path("file").touch()
    Path("leaf").mkdir()
    Path("leaf/all.json").write_text(json.dumps(GOOD))
    refused(call, match)


# id, the set, its file, the file's bytes, what the message must match.
SETS = [
    ("mnist-a-text", "mnist_by_writer", "mnist_by_writer.npz", b"hello", r"mnist_by_writer.npz cannot be read"),
    ("mnist-empty", "mnist_by_writer", "mnist_by_writer.npz", b"", r"mnist_by_writer.npz cannot be read"),
    ("cifar-a-text", "cifar10", "cifar10_20k.npz", b"hello", r"cifar10_20k.npz cannot be read"),
    ("cifar-one-batch", "cifar10", "data_batch_1", b"hello", r"has no data_batch_2, .*test_batch"),
    ("shakespeare-a-text", "shakespeare", "roles.jsonl.xz", b"hello", r"roles.jsonl.xz cannot be read as roles"),
    ("shakespeare-converted", "shakespeare", "shakespeare.safetensors", b"hello", r"is no converted data set"),
    ("femnist-converted", "femnist", "femnist.safetensors", b"hello", r"is no converted data set"),
    ("femnist-json", "femnist", "a.json", b"hello", r"a.json is not LEAF's JSON"),
]  # fmt: skip
CLIENTS = {
    "mnist_by_writer": mnist_writers.clients, "cifar10": cifar10.clients, "shakespeare": shakespeare.clients,
    "femnist": femnist.clients,
}  # fmt: skip


@pytest.mark.parametrize(("name", "file", "content", "match"), params(SETS))
def test_sets_that_are_wrong(name: str, file: str, content: bytes, match: str, tmp_path: Path) -> None:
    folder = tmp_path / "data" / name
    folder.mkdir(parents=True)
    (folder / file).write_bytes(content)
    refused(CLIENTS[name], match)


# Caches that are stale


def test_a_cache_of_other_arrays_is_made_anew() -> None:
    first = data.from_arrays(X, Y, IDS, cache="c")
    again = data.from_arrays(X + 1, Y, IDS, cache="c")
    assert not np.array_equal(first[0].train.load()[0], again[0].train.load()[0])
    np.testing.assert_array_equal(again[0].train.load()[0], data.from_arrays(X + 1, Y, IDS)[0].train[0])


def test_a_cache_of_the_same_arrays_is_used_again() -> None:
    data.from_arrays(X, Y, IDS, cache="c")
    before = Path("c").stat().st_mtime_ns
    data.from_arrays(X, Y, IDS, cache="c")
    assert Path("c").stat().st_mtime_ns == before


def test_whole_labels_that_are_written_as_reals_are_whole(tmp_path: Path) -> None:
    (tmp_path / "leaf").mkdir()
    (tmp_path / "leaf" / "all.json").write_text(json.dumps(user([ROW] * 4, [0.0, 1.0, 1.0, 0.0])))
    [client] = data.from_leaf("leaf", "cache", order="in-order", classes=2)
    assert client.train.load()[1].tolist() == [0, 1]


def test_numpys_whole_numbers_are_ids_and_numbers() -> None:
    made = data.from_examples([(np.int64(3), X, Y), (np.str_("a"), X, Y)], seed=np.int64(0), classes=np.int64(2))
    assert [type(client.id) for client in made] == [int, str]
    assert len(data.iid(np.int64(10), np.int64(3))) == 3
