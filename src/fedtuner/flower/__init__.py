"""Flower: a grid of real devices as the federation of a study.

On the server a ``Fleet`` takes the place of a ``Simulation``. On a client, ``client_app`` makes a ClientApp of a task
and its data, and ``tuned`` makes an app that keeps its own training code tunable.
"""

from __future__ import annotations

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError("fedtuner.flower needs Flower: pip install 'fedtuner[flower]'") from error

from fedtuner.flower.client import client_app, tuned
from fedtuner.flower.fleet import Fleet, settings
from fedtuner.flower.secure import SecAgg

__all__ = ["Fleet", "SecAgg", "client_app", "settings", "tuned"]
