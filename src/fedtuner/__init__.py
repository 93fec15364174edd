"""Tune the hyperparameters of federated learning while the model trains.

FedEx, successive halving, random search and Hyperband over any method that splits into local training and
aggregation. Khodak et al., "Federated Hyperparameter Tuning", NeurIPS 2021.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedtuner import methods, samplers, schedules, space
from fedtuner.core.model import Metrics
from fedtuner.errors import FedtunerError, Interrupted
from fedtuner.federations import Client, Outside, Simulation
from fedtuner.run.study import Study, prepare, tune, untuned
from fedtuner.schedules import halving, hyperband, random_search
from fedtuner.space import Choice, Float, Int, OneMinus, PowerOfTwo, Space
from fedtuner.tuners import FedEx, fedex

if TYPE_CHECKING:
    from fedtuner import data, flower, pytorch

__version__ = "0.1.0"

__all__ = [
    # spaces
    "Space", "Float", "Int", "PowerOfTwo", "Choice", "OneMinus",
    # problems
    "Client", "Simulation", "Outside", "Metrics",
    # tuning
    "tune", "prepare", "untuned", "Study", "FedEx", "halving", "random_search", "hyperband",
    # errors
    "FedtunerError", "Interrupted",
    # modules
    "data", "fedex", "flower", "methods", "pytorch", "samplers", "schedules", "space",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import ``pytorch`` (and with it torch), ``flower`` (and with it flwr) and ``data`` when first used."""
    if name in ("data", "flower", "pytorch"):
        return importlib.import_module(f"fedtuner.{name}")
    raise AttributeError(f"module 'fedtuner' has no attribute {name!r}")
