"""What tunes the client's hyperparameters while an arm trains: the protocol of tuners.

A tuner is a value; what it has learned in an arm is a *belief*, passed in and out. It gives each client of a round a
configuration (``choose``) and learns from the values that come back (``update``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtuner.core.model import Vectors
from fedtuner.core.records import Arm, Choice, Seen, Summary, Tried
from fedtuner.rng import Generator
from fedtuner.space import Config, Space

Floats = NDArray[np.float64]
Belief = Any
Streams = Callable[[str], Generator]  # the generator for a purpose


@runtime_checkable
class Tuner(Protocol):
    """Tunes client configurations within an arm. A frozen dataclass, so that it can stand in a study.toml."""

    @property
    def labels(self) -> int | None:
        """How many configurations it chooses from, if values can be summed by label; else None."""
        ...

    @property
    def tried(self) -> int:
        """How many configurations a client tries in a round."""
        ...

    def begin(self, arm: Arm, space: Space, seed: int, parent: Belief | None) -> Belief:
        """Return the belief of an arm before its first round; ``parent`` is that of the state that it goes on from."""
        ...

    def choose(self, belief: Belief, n: int, streams: Streams) -> tuple[tuple[Choice, ...], ...]:
        """Return the configurations that each of n clients uses: the first trains the model, others are only tried."""
        ...

    def value(self, tried: Tried) -> float:
        """Return what a client's measurement says of a configuration; lower is better. Also called on devices."""
        ...

    def update(self, belief: Belief, seen: Sequence[Seen]) -> Belief:
        """Return the belief after a round."""
        ...

    def best(self, belief: Belief) -> Config:
        """Return the configuration that it would use now."""
        ...

    def offers(self, belief: Belief) -> tuple[tuple[Config, ...], Floats]:
        """Return the configurations that it chooses from, by label, and their probabilities."""
        ...

    def summary(self, belief: Belief) -> Summary:
        """Return what a record keeps of the belief."""
        ...

    def pack(self, belief: Belief) -> Vectors:
        """Return the belief as arrays, without what ``begin`` gives again."""
        ...

    def unpack(self, begun: Belief, arrays: Vectors) -> Belief:
        """Return the belief that was packed; ``begun`` is the belief that the arm began with."""
        ...
