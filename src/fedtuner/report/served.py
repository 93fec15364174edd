"""Whom an arm serves: the errors of all clients, of the worst tenth of them, and of each group of clients.

They are made of the clients' rows of the journal's rounds. A round's worst tenth is that by which ``across`` compares
arms (``core.across``). Of a pooled metric, such as F1, a row has the client's own value: then these are means of
clients' values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtuner.core.across import ALL, MEAN, TENTH, across
from fedtuner.core.metric import Metric, Metrics
from fedtuner.core.records import Record
from fedtuner.core.tuner import Floats

Groups = Mapping[str | int, str]  # by the id of a client


class ClientMeans(NamedTuple):
    """One client's mean errors over some rounds."""

    client: str | int
    examples: int  # |T|
    validated: int  # |V|
    rounds: int
    before: float
    after: float


class Whom(NamedTuple):
    """The errors of some of an arm's clients, before and after local training: means by |V|."""

    who: str  # clients, worst tenth, group NAME, worst group
    clients: int
    before: float
    after: float


def later(records: Sequence[Record]) -> Sequence[Record]:
    """Return the later half of an arm's rounds: what clients say of it."""
    return records[len(records) // 2 :]


def by_client(records: Sequence[Record]) -> list[ClientMeans]:
    """Return each client's means over some rounds, where its errors are finite; largest |T| first."""
    found: dict[str | int, list[float]] = {}
    for record in records:
        for row in record.rows:
            if row.validated and math.isfinite(row.error_before) and math.isfinite(row.error_after):
                sums = found.setdefault(row.client, [0, 0, 0, 0.0, 0.0])
                sums[0], sums[1] = row.examples, row.validated
                sums[2], sums[3], sums[4] = sums[2] + 1, sums[3] + row.error_before, sums[4] + row.error_after
    made = [
        ClientMeans(id, int(size), int(held), int(n), before / n, after / n)
        for id, (size, held, n, before, after) in found.items()
    ]
    return sorted(made, key=lambda one: (-one.examples, str(one.client)))


def whom(clients: Sequence[ClientMeans], groups: Groups) -> list[Whom]:
    """Return the errors of all clients, of the worst tenth and of each group; empty where no client is known."""
    if not clients:
        return []
    of = [groups.get(one.client, "") for one in clients]
    before, after = (
        across([Metrics(math.nan, getattr(one, when), one.validated) for one in clients], of, Metric())
        for when in ("before", "after")
    )
    counts = {ALL: len(clients), TENTH: math.ceil(len(clients) / 10)} | {f"group {g}": of.count(g) for g in of}
    return [Whom(name, counts.get(name, 0), m.error, after[name].error) for name, m in before.items() if name in counts]


def over_rounds(records: Sequence[Record], groups: Groups, window: int, when: str) -> dict[str, Floats]:
    """Return errors "before" or "after" local training, of all clients, the worst tenth and each group.

    Each is, after each round, the mean of the last ``window`` rounds by |V|: NaN where no such client has validated.
    """
    at = np.repeat(np.arange(len(records)), [len(r.rows) for r in records])
    rows = [row for record in records for row in record.rows]
    v, x = np.array([r.validated for r in rows], float), np.array([getattr(r, f"error_{when}") for r in rows], float)
    known = (v > 0) & ~np.isnan(x)
    of = np.array([groups.get(r.client, "") for r in rows], object)
    members = {ALL: known, TENTH: _worst_tenth(at, x, known, len(records))}
    members |= {f"group {name}": known & (of == name) for name in sorted(set(groups.values()) - {""})}
    return {name: _means(at[chosen], v[chosen], x[chosen], len(records), window) for name, chosen in members.items()}


def _worst_tenth(at: NDArray[np.int64], x: Floats, known: NDArray[np.bool_], n: int) -> NDArray[np.bool_]:
    """Return which rows are of the tenth, at least one, of their round's clients with the largest errors."""
    order = np.lexsort((np.arange(len(x)), -np.where(known, x, -np.inf), at))  # as a stable sort by the error
    size, reported = np.bincount(at[known], minlength=n), np.bincount(at, minlength=n)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(reported)[:-1]])
    rank = np.empty(len(x), np.int64)
    rank[order] = np.arange(len(x)) - first[at[order]]
    return np.asarray(known & (rank < -(-size[at] // 10)))


def _means(at: NDArray[np.int64], v: Floats, x: Floats, n: int, window: int) -> Floats:
    total, weight = (np.asarray(np.bincount(at, terms, n), float) for terms in (v * x, v))
    with np.errstate(all="ignore"):
        return np.asarray(_last(total, window) / _last(weight, window))


def _last(values: Floats, window: int) -> Floats:
    """Return sums over the last ``window`` entries; one that is infinite does not outlast them."""
    padded = np.concatenate([np.zeros(window - 1), values])
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, window).sum(axis=1))


def names(groups: Groups) -> list[str]:
    """Return of whom errors are shown."""
    return [ALL, TENTH, *(f"group {name}" for name in sorted(set(groups.values()) - {""}))]


def said(who: str) -> str:
    """Return of whom an error is, for a person."""
    return {ALL: "all clients", TENTH: "worst tenth of clients", MEAN: "mean over clients"}.get(who, who)


def table(some: Sequence[Whom]) -> list[dict[str, Any]]:
    """Return the errors as plain values."""
    return [{"who": one.who, "clients": one.clients, "global": one.before, "personalized": one.after} for one in some]
