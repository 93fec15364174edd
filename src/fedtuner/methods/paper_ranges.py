"""The paper's own ranges of the server's step, for studies that repeat it.

Khodak et al. 2021, appendix D.2, draw the server's lr from 0.1 to 10 and its momentum from 0 to 0.9: effective steps
lr / (1 - momentum) of up to 100 times the mean change. Beyond 2 a step overshoots the clients' mean by more than its
distance, and nothing converges once the clients do; so the ranges that methods have by default end there (momentum.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedtuner.core.method import Method
from fedtuner.core.model import Hyper
from fedtuner.methods.momentum import HYPERS
from fedtuner.space import PAPER_SERVER


def paper_ranges(method: Method) -> Method:
    """Return the method with the paper's ranges of the server's lr and momentum, where it has the usual ones.

    Other optimisers, and methods that step along something else (MAML), have ranges of their own, which stay.

    >>> from fedtuner import methods
    >>> paper_ranges(methods.fedavg).server["momentum"].domain
    Float(low=0.0, high=0.9, log=False)
    """
    known = {name: replace(o, hypers=_wide(o.hypers)) for name, o in method.optimisers.items()}
    return replace(method, server=_wide(method.server), optimisers=known)


def _wide(hypers: Mapping[str, Hyper]) -> dict[str, Hyper]:
    usual = {name: HYPERS[name].domain for name in ("lr", "momentum")}
    return {
        name: replace(hyper, domain=PAPER_SERVER[name]) if name in usual and hyper.domain == usual[name] else hyper
        for name, hyper in hypers.items()
    }
