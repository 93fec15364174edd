"""What all adapters write of a round and of an arm."""

from __future__ import annotations

import importlib
import math
from typing import Any

from fedtuner.core.records import Record
from fedtuner.core.store import Started
from fedtuner.errors import SpecError
from fedtuner.space import Config, flat

SHOWN = ("error", "loss", "entropy", "confidence", "broken", "dropped")  # of a round's record


def numbers(record: Record) -> dict[str, float]:
    """Return a round's numbers, as far as they are finite."""
    found = {name: float(getattr(record, name)) for name in SHOWN}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def configuration(event: Started) -> Config:
    """Return an arm's configuration with the side in the names: client.lr, server.lr ..."""
    return flat(event.arm.client, event.arm.server)


def library(name: str, extra: str) -> Any:
    """Import a library, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SpecError(f"this watcher needs {name.partition('.')[0]}: pip install 'fedtuner[{extra}]'") from error
