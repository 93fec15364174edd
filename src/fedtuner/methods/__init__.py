"""Federated methods as pairs of local training and aggregation: appendix B of the paper as a table.

| method   | Loc_c                                               | Agg_b                               | client keeps |
|----------|-----------------------------------------------------|-------------------------------------|--------------|
| fedavg   | SGD or Adam                                         | weighted mean, the server optimiser |              |
| fedprox  | as fedavg + mu/2 |w - w_t|^2                        | as fedavg                           |              |
| reptile  | as fedavg                                           | as fedavg, a step part of the way   |              |
| scaffold | as fedavg + <c - c_i, w>                            | as fedavg; c with the mean of c_i   | c_i          |
| feddyn   | as fedavg - <l_i, w> + alpha/2 |w - w_t|^2 if dyn   | mean - h/alpha, the optimiser       | l_i          |
| fedpa    | samples of the local posterior, by SGD              | as fedavg, on the posterior deltas  |              |
| ditto    | as fedavg; beside it v_i + lambda/2 |v_i - w_t|^2   | as fedavg                           | v_i          |
| maml     | a few gradient steps, and the meta-gradient on V_i  | the optimiser on its mean           |              |
| deltasgd | SGD with step sizes that the client finds itself    | as fedavg                           |              |
"""

from __future__ import annotations

from fedtuner.core.method import Local, Method, Optimiser, Server, Update
from fedtuner.core.records import Job, Plan, Tally
from fedtuner.errors import SpecError, brief, suggest
from fedtuner.methods.averaging import fedavg, fedprox, reptile
from fedtuner.methods.deltasgd import deltasgd
from fedtuner.methods.ditto import ditto
from fedtuner.methods.feddyn import feddyn
from fedtuner.methods.fedpa import fedpa
from fedtuner.methods.maml import maml
from fedtuner.methods.paper_ranges import paper_ranges
from fedtuner.methods.scaffold import scaffold
from fedtuner.tables import find

ALL = {method.name: method for method in (fedavg, fedprox, reptile, scaffold, feddyn, fedpa, ditto, maml, deltasgd)}


def named(name: str) -> Method:
    """Return the method of this name, or one's own that ``package.module:name`` names."""
    if isinstance(name, str) and ":" in name:
        found = find(name, "method")
        if not isinstance(found, Method):
            raise SpecError(f"method = {brief(name)} is {type(found).__name__}, but must be a Method")
        return found
    if not isinstance(name, str) or name not in ALL:
        raise SpecError(f"no method {brief(name)}{suggest(name, list(ALL))}")
    return ALL[name]


__all__ = [
    "ALL", "Job", "Local", "Method", "Optimiser", "Plan", "Server", "Tally", "Update", "named", "paper_ranges",
    "fedavg", "fedprox", "reptile", "scaffold", "feddyn", "fedpa", "ditto", "maml",
    "deltasgd",
]  # fmt: skip
