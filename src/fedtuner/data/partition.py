"""Each client's training, validation and test split, and partitions of data without natural clients into devices.

Splits and partitions are arrays of rows, which are indices into the examples. A device may get fewer than three rows,
too few to split; the functions that make clients leave such devices out and list them in ``Clients.left_out``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtuner import checks
from fedtuner.data.checks import array
from fedtuner.errors import SpecError, brief
from fedtuner.federations import Client
from fedtuner.rng import stream

Id = str | int
Rows = NDArray[np.int64]
Item = TypeVar("Item")

ORDERS = ("shuffled", "in-order")
SMALLEST = 3  # examples of a client: at least one for each split


class Clients(list[Client]):
    """Clients, and in ``left_out`` the ids of those with too few examples for three splits."""

    def __init__(self, clients: Iterable[Client] = (), left_out: Iterable[Id] = ()) -> None:
        super().__init__(clients)
        self.left_out = list(left_out)


def three(n: int, id: Id, order: str = "shuffled", seed: int = 0) -> tuple[Rows, Rows, Rows]:
    """Return the rows of a client's n examples for training (80 %), validation (10 %) and test (10 %).

    ``shuffled`` splits at random (the paper's i.i.d. within a client); ``in-order`` keeps the order of the data, and
    the last examples are for test. With three examples or more, validation and test have at least one each.
    """
    check_order(order, seed)
    rows = np.arange(n) if order == "in-order" else stream(seed, "split", id).permutation(n)
    held = max(round(0.1 * n), 1 if n >= SMALLEST else 0)
    train, valid, test = np.split(rows, [n - 2 * held, n - held])
    return train, valid, test


def check_order(order: str, seed: int) -> None:
    """Refuse orders and seeds that are none."""
    checks.one_of("order", order, ORDERS)
    checks.seed(seed)


def split(id: Id, x: Any, y: Any, order: str = "shuffled", seed: int = 0) -> Client:
    """Return a client with its examples split 80/10/10, as in the paper, by ``three``."""
    what = f"client {brief(id)}"
    x, y = (part if hasattr(part, "shape") else array(what, name, part) for name, part in (("x", x), ("y", y)))
    if not len(x.shape) or not len(y.shape) or len(x) != len(y):
        shapes = f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}"
        raise SpecError(f"{what}: {shapes}, but both need one row per example")
    return Client(id, *((x[rows], y[rows]) for rows in three(len(x), id, order, seed)))


def subset(items: Sequence[Item], limit: int | None, seed: int = 0) -> list[Item]:
    """Return ``limit`` of the items, drawn at random, in their order; all items if it is None or too large."""
    if limit is None or checks.whole("limit", limit) >= len(items):
        return list(items)
    return [items[i] for i in np.sort(stream(seed, "subset").permutation(len(items))[:limit])]


def exchange(parts: Sequence[Rows], rng: np.random.Generator) -> list[Rows]:
    """Return as many parts of the same sizes, with rows drawn at random from all parts."""
    return np.split(rng.permutation(np.concatenate(parts)), np.cumsum([len(part) for part in parts])[:-1])


def iid(n: int, devices: int, seed: int = 0) -> list[Rows]:
    """Partition n examples at random into devices of equal size, up to one example."""
    _check(n, devices)
    return np.array_split(stream(seed, "iid").permutation(n), devices)


def by_label(labels: ArrayLike, devices: int, shards: int = 2, seed: int = 0) -> list[Rows]:
    """Sort by label, cut into ``devices * shards`` shards, draw ``shards`` for each device: few labels per device.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    """
    y, devices, shards = _labels(labels), checks.whole("devices", devices), checks.whole("shards", shards)
    _check(len(y), devices * shards, "devices * shards")
    rng = stream(seed, "by label")
    shuffled = rng.permutation(len(y))
    pieces = np.array_split(shuffled[np.argsort(y[shuffled], kind="stable")], devices * shards)
    dealt = rng.permutation(devices * shards).reshape(devices, shards)
    return [np.concatenate([pieces[i] for i in hand]) for hand in dealt]


def dirichlet(labels: ArrayLike, devices: int, alpha: float, seed: int = 0) -> list[Rows]:
    """Give each device a share of every label drawn from Dirichlet(alpha): the smaller alpha, the more unequal.

    Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019. Sizes differ, too.
    """
    y = _labels(labels)
    _check(len(y), devices)
    _positive(alpha)
    rng = stream(seed, "dirichlet")
    held: list[list[Rows]] = [[] for _ in range(devices)]
    known = np.unique(y)
    shares = rng.dirichlet(np.full(devices, alpha), len(known))  # drawn first: they do not depend on how many examples
    for label, share in zip(known, shares, strict=True):
        rows = rng.permutation(np.flatnonzero(y == label))
        for device, part in zip(held, _cut(rows, share), strict=True):
            device.append(part)
    return [np.concatenate(parts) for parts in held]


def by_size(n: int, devices: int, alpha: float, seed: int = 0) -> list[Rows]:
    """Give each device a share of the examples drawn from Dirichlet(alpha): devices differ in size, not in labels."""
    _check(n, devices)
    _positive(alpha)
    rng = stream(seed, "by size")
    return _cut(rng.permutation(n), rng.dirichlet(np.full(devices, alpha)))


def _cut(rows: Rows, shares: NDArray[np.float64]) -> list[Rows]:
    return np.split(rows, np.round(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64))


def _labels(labels: ArrayLike) -> NDArray[Any]:
    try:
        y = np.asarray(labels)
    except ValueError as error:
        raise SpecError("labels are of no one shape, but must be one per example") from error
    if y.ndim != 1:
        raise SpecError(f"labels have shape {y.shape}, but must be one per example")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise SpecError(f"the label of example {int(np.flatnonzero(~np.isfinite(y))[0])} is NaN or infinite")
    return y


def _check(n: int, parts: int, name: str = "devices") -> None:
    checks.whole("n", n, 0)
    if checks.is_whole(parts) and not 1 <= parts <= n:
        raise SpecError(f"{name} = {brief(parts)}, but must be in 1..{n}, the number of examples")
    checks.whole(name, parts)


def _positive(alpha: float) -> None:
    if not checks.is_number(alpha) or alpha <= 0:
        raise SpecError(f"alpha = {brief(alpha)}, but must be > 0")
