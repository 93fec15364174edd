"""Federated methods as pairs of local training and aggregation: appendix B of the paper as a table.

| method  | Loc_c                       | Agg_b                                                     |
|---------|-----------------------------|-----------------------------------------------------------|
| fedavg  | SGD                         | weighted mean, learning rate schedule, momentum           |
| fedprox | SGD + mu/2 |w - w_t|^2      | as fedavg                                                 |
| reptile | SGD                         | as fedavg; a step part of the way to the mean             |
"""

from __future__ import annotations

from fedtuner.errors import SpecError, suggest
from fedtuner.methods.averaging import fedavg, fedprox, reptile
from fedtuner.methods.base import Contribution, Job, Local, Method, Server, Update

ALL = {method.name: method for method in (fedavg, fedprox, reptile)}


def named(name: str) -> Method:
    """Return the method of this name."""
    if name not in ALL:
        raise SpecError(f"no method {name!r}{suggest(name, ALL)}")
    return ALL[name]


__all__ = [
    "ALL", "Contribution", "Job", "Local", "Method", "Server", "Update",
    "fedavg", "fedprox", "named", "reptile",
]  # fmt: skip
