"""CIFAR-10, partitioned into devices: it has no natural clients, and the paper's partition is i.i.d.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. Read from the author's Python batches, or
from ``cifar10_20k.npz``, a balanced third of the images. In the paper 10,000 of the 50,000 training images are for
validation, and each of 500 devices has 80 images for training, 20 for validation and 20 for testing. In a smaller set a
fifth of the training images is for validation, too, and a device has 80 of the others: 16,000 images give 160 devices.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedtuner.core.federation import SPLITS
from fedtuner.data import checks, places
from fedtuner.data.lazy import Array
from fedtuner.data.partition import Clients, dirichlet, iid
from fedtuner.errors import SpecError, one_line
from fedtuner.federations import Client
from fedtuner.rng import stream

PER_DEVICE = 80  # training images: 40,000 for 500 devices


def clients(
    devices: int | None = None, alpha: float | None = None, seed: int = 0, limit: int | None = None,
    folder: Path | None = None,
) -> Clients:  # fmt: skip
    """Return the devices, each with its part of the training, validation and test images.

    By default the partition is i.i.d.; with ``alpha`` each device's shares of the labels are drawn from
    Dirichlet(alpha), and are the same in all three splits. ``limit`` keeps the first devices only. x are bytes of shape
    (3, 32, 32).
    """
    x, y, tested = read(folder or places.find("cifar10"))
    train = np.flatnonzero(~tested)
    shuffled = stream(seed, "cifar10 validation").permutation(train)
    held = len(train) // 5
    pools = {"train": shuffled[held:], "valid": shuffled[:held], "test": np.flatnonzero(tested)}
    devices = devices or max(1, round(len(pools["train"]) / PER_DEVICE))
    parts = {}
    for split in SPLITS:
        rows = pools[split]
        dealt = iid(len(rows), devices, seed) if alpha is None else dirichlet(y[rows], devices, alpha, seed)
        parts[split] = [rows[part] for part in dealt]
    made = Clients()
    for i in range(devices if limit is None else min(limit, devices)):
        id = f"device{i:03d}"
        if all(len(parts[split][i]) for split in SPLITS):
            mine = [parts[split][i] for split in SPLITS]
            images = (np.ascontiguousarray(x[rows].transpose(0, 3, 1, 2)) for rows in mine)  # as PyTorch has them
            made.append(Client(id, *zip(images, (y[rows] for rows in mine), strict=True)))
        else:
            made.left_out.append(id)
    return made


def read(folder: Path) -> tuple[Array, Array, Array]:
    """Return images (n, 32, 32, 3), labels, and which of them are test images."""
    for batches in (folder / "cifar-10-batches-py", folder):
        if (batches / "data_batch_1").exists():
            return _batches(batches)
    path = folder / "cifar10_20k.npz"
    if not path.exists():
        raise SpecError(places.absent("cifar10"))
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            x = np.concatenate([file["x_train"], file["x_test"]])
            y = np.concatenate([file["y_train"], file["y_test"]])
            tested = np.arange(len(x)) >= len(file["x_train"])
    except Exception as error:  # a damaged file may raise anything
        raise SpecError(f"{path} cannot be read ({one_line(str(error), 150)}): place another one there") from error
    checks.examples(str(path), x, y, (32, 32, 3), 10)
    return x, y, tested


def _batches(folder: Path) -> tuple[Array, Array, Array]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise SpecError(f"{folder} has no {', '.join(missing)}: CIFAR-10 is the five data batches and the test batch")
    batches = [_batch(folder / name) for name in names]
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return x, y, np.arange(len(x)) >= len(x) - len(batches[-1][0])


def _batch(path: Path) -> tuple[Array, Array]:
    try:
        whole = path.read_bytes()
        batch = _Arrays(io.BytesIO(whole)).load()
        rows, y = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"], np.uint8)
        if rows.nbytes > len(whole):
            raise ValueError(f"its images have {rows.nbytes} bytes, but the file has {len(whole)}")
        x = np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    except Exception as error:  # a damaged pickle may raise anything
        why = one_line(f"{type(error).__name__}: {error}", 150)
        raise SpecError(f"{path} cannot be read as a batch of CIFAR-10: {why}") from error
    checks.examples(str(path), x, y, (32, 32, 3), 10)
    return x, y


class _Arrays(pickle._Unpickler):
    """An unpickler that loads arrays and nothing else, since a pickle can run any code.

    It is the one in Python: the other makes a table as long as the largest number that a damaged file has for a memo,
    which may be more than there is memory.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise SpecError(f"it names {module}.{name}, which is no array")
        return _ALLOWED[module, name]


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("_codecs", "encode"): str.encode,
}
