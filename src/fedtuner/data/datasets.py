"""Clients from other libraries' data sets: PyTorch's, Hugging Face's, and the partitions of flwr-datasets.

None of these libraries is imported: any object with the methods that are called here can be given. ``order``,
``seed``, ``classes`` and ``cache`` are those of ``arrays``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner.checks import client_id
from fedtuner.data.arrays import from_examples
from fedtuner.data.lazy import Array
from fedtuner.data.partition import Clients, Id
from fedtuner.errors import FAILURES, SpecError, brief, one_line, suggest


def from_torch(
    dataset: Any, client: Callable[[int], Id], order: str = "shuffled", seed: int = 0, classes: int | None = None,
    cache: Path | str | None = None,
) -> Clients:  # fmt: skip
    """Return the clients of a ``torch.utils.data.Dataset`` of (x, y); ``client(i)`` is the client of example i."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise SpecError(f"{type(dataset).__name__} has no length or no index: a stream cannot be split")
    if not callable(client):
        raise SpecError(f"client is {type(client).__name__}, but must be a function: client(i) is that of example i")
    return from_examples(_of_dataset(dataset, client), order, seed, classes, cache)


def from_partitions(
    partitions: Any, x: str = "image", y: str = "label", order: str = "shuffled", seed: int = 0,
    *, classes: int | None = None, cache: Path | str | None = None,
) -> Clients:  # fmt: skip
    """Return a client for each partition: a Hugging Face ``Dataset`` with the columns x and y.

    ``partitions`` is a mapping from client id to data set, a list of them, or a flwr-datasets ``Partitioner`` or
    ``FederatedDataset`` (its training split). Partitions are loaded one after the other.
    """
    examples = ((id, _column(data, x, id), _column(data, y, id)) for id, data in _partitions(partitions))
    return from_examples(examples, order, seed, classes, cache)


def _of_dataset(dataset: Any, client: Callable[[int], Id]) -> Iterator[tuple[Id, Array, Array]]:
    held: dict[Id, list[int]] = {}
    for i in range(len(dataset)):
        try:
            id = client(i)
        except FAILURES as error:  # a function of one's own may raise anything
            raise SpecError(f"client({i}) failed: {one_line(f'{type(error).__name__}: {error}', 150)}") from error
        held.setdefault(client_id(id), []).append(i)
    for id, rows in held.items():
        try:
            pairs = [dataset[i] for i in rows]
            made = _stack([x for x, _ in pairs]), _stack([y for _, y in pairs])
        except FAILURES as error:  # a data set of one's own may raise anything
            why = one_line(str(error), 150)
            raise SpecError(f"client {brief(id)}: examples must be (x, y) of one shape: {why}") from error
        yield id, *made


def _partitions(given: Any) -> Iterator[tuple[Id, Any]]:
    if isinstance(given, Mapping):
        yield from given.items()
        return
    if hasattr(given, "partitioners"):  # flwr_datasets.FederatedDataset
        given.load_partition(0)  # the number of partitions is known once the data is loaded
        name = "train" if "train" in given.partitioners else next(iter(given.partitioners))
        given = given.partitioners[name]
    if hasattr(given, "load_partition"):
        for i in range(given.num_partitions):
            yield i, given.load_partition(i)
        return
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
        raise SpecError(f"partitions = {brief(given)}, but must be data sets by client, a list, or a Partitioner")
    yield from enumerate(given)


def _column(data: Any, name: str, id: Id) -> Array:
    what = f"client {brief(id)}"
    names = getattr(data, "column_names", None) or (list(data) if isinstance(data, Mapping) else None)
    if names is None:
        raise SpecError(f"{what}: its partition is {type(data).__name__}, but must be a data set with columns")
    if name not in names:
        raise SpecError(f"{what}: no column {brief(name)} in its partition{suggest(name, names)}")
    if hasattr(data, "with_format"):
        data = data.with_format("numpy")
    try:
        return _stack(data[name][:])
    except (TypeError, ValueError) as error:
        why = one_line(str(error), 150)
        raise SpecError(f"{what}: column {name!r} is not of one shape: {why}") from error


def _stack(values: Any) -> Array:
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values
    return np.stack([np.asarray(value) for value in values])
