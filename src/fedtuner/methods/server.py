"""The server's step: toward the weighted mean of the clients' models, by an optimiser of the server's choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedtuner.core.method import Method, Optimiser, Server
from fedtuner.core.model import Hyper, Vector, Vectors
from fedtuner.core.records import Tally
from fedtuner.methods.adaptive import adagrad, adam, yogi
from fedtuner.methods.fedexp import fedexp
from fedtuner.methods.fedhyper import fedhyper
from fedtuner.methods.momentum import sgd
from fedtuner.space import Config

OPTIMISERS: Mapping[str, Optimiser] = {o.name: o for o in (sgd, adam, yogi, adagrad, fedexp, fedhyper)}
STEP: Mapping[str, Hyper] = {
    **sgd.hypers,
    "optimiser": Hyper(
        None,
        "sgd",
        options=tuple(OPTIMISERS),
        about="of the server; others have lr and momentum of their own, if not named",
    ),
    **{name: hyper for o in OPTIMISERS.values() for name, hyper in o.hypers.items() if name not in sgd.hypers},
}


def change_of(tally: Tally) -> Vector:
    """Return the mean change of a round in which somebody trained: aggregation is called for no other."""
    assert tally.change is not None
    return tally.change


def average(server: Server, tally: Tally, b: Config) -> tuple[Vector, Vectors]:
    """Take a step toward the weighted mean of the clients' models."""
    return server.step(change_of(tally), tally, b)


def method(name: str, paper: str, local: Any, aggregate: Any = average, **more: Any) -> Method:
    """Return a method whose server has these optimisers."""
    made = Method(name, paper, local, aggregate, more.pop("client"), more.pop("server", STEP), optimisers=OPTIMISERS)
    return replace(made, **more)


def slot(server: Server, name: str) -> Vector:
    """Return one of the server's vectors; zeros before the first round."""
    return server.slots.get(name, np.zeros_like(server.w))
