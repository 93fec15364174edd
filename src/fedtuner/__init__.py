"""Tune the hyperparameters of federated learning while the model trains.

FedEx, successive halving, random search and Hyperband over any method that splits into local training and
aggregation. Khodak et al., "Federated Hyperparameter Tuning", NeurIPS 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtuner import data, flower, methods, metrics, pytorch, samplers, schedules, sklearn, space, tuners, watchers
    from fedtuner.core.metric import Metric, Metrics
    from fedtuner.errors import FedtunerError, Interrupted
    from fedtuner.federations import Client, LazyClients, Learner, Outside, Simulation
    from fedtuner.run.auto import auto
    from fedtuner.run.executors.on_ray import ray
    from fedtuner.run.paper import paper
    from fedtuner.run.result import load
    from fedtuner.run.study import Study
    from fedtuner.run.tuning import prepare, tune, untuned
    from fedtuner.schedules import fedpop, halving, hyperband, random_search
    from fedtuner.space import Choice, Float, Int, OneMinus, PowerOfTwo, Space, When
    from fedtuner.tuners import FedEx, FedPop, fedex

__version__ = "0.1.0"

__all__ = [
    # spaces
    "Space", "Float", "Int", "PowerOfTwo", "Choice", "OneMinus", "When",
    # problems
    "Client", "LazyClients", "Simulation", "Outside", "Learner", "Metric", "Metrics",
    # tuning
    "tune", "prepare", "untuned", "load", "auto", "paper", "Study", "FedEx", "halving", "random_search", "hyperband",
    "fedpop", "FedPop",
    # elsewhere
    "ray",
    # errors
    "FedtunerError", "Interrupted",
    # modules
    "data", "fedex", "flower", "methods", "metrics", "pytorch", "samplers", "schedules", "sklearn", "space",
    "tuners", "watchers",
]  # fmt: skip


_FROM = {
    "space": ("Space", "Float", "Int", "PowerOfTwo", "Choice", "OneMinus", "When"),
    "federations": ("Client", "LazyClients", "Learner", "Simulation", "Outside"),
    "core.metric": ("Metric", "Metrics"),
    "run.auto": ("auto",),
    "run.executors.on_ray": ("ray",),
    "run.paper": ("paper",),
    "run.result": ("load",),
    "run.study": ("Study",),
    "run.tuning": ("tune", "prepare", "untuned"),
    "tuners": ("FedEx", "FedPop", "fedex"),
    "schedules": ("halving", "random_search", "hyperband", "fedpop"),
    "errors": ("FedtunerError", "Interrupted"),
}


def __getattr__(name: str) -> Any:
    """Import what a name stands for when it is first used.

    So torch and flwr are imported with ``pytorch`` and ``flower`` alone, and the command line can catch Ctrl-C from its
    first moment on.
    """
    from importlib import import_module

    for module, names in _FROM.items():
        if name in names:
            return getattr(import_module(f"fedtuner.{module}"), name)
    if name in __all__:
        return import_module(f"fedtuner.{name}")
    raise AttributeError(f"module 'fedtuner' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted([*__all__, "__version__"])
