"""What tunes client hyperparameters while an arm trains: the protocol of tuners.

A tuner has no state. What it has learned in an arm is a *belief*, which every function takes as an argument. In each
round ``choose`` gives every client a configuration, and ``update`` returns the belief after their values are known.
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
Streams = Callable[[str], Generator]  # gives the random numbers for a named purpose


@runtime_checkable
class Tuner(Protocol):
    """Tunes client configurations within an arm. A frozen dataclass: its fields are settings in a study.toml."""

    @property
    def labels(self) -> int | None:
        """The number of configurations it chooses from, if sums of values by configuration are enough; else None."""

    @property
    def tried(self) -> int:
        """The number of configurations that a client tries in a round."""

    def begin(self, arm: Arm, space: Space, seed: int, parent: Belief | None) -> Belief:
        """Return an arm's belief before its first round; ``parent`` is the belief of the state that it continues."""

    def choose(self, belief: Belief, n: int, streams: Streams) -> tuple[tuple[Choice, ...], ...]:
        """Return the choices of each of n clients: the first gives the update, further ones are only measured."""

    def value(self, tried: Tried) -> float:
        """Return the value of a configuration, given a client's metrics; lower is better. Devices call it, too."""

    def update(self, belief: Belief, seen: Sequence[Seen]) -> Belief:
        """Return the belief after a round."""

    def best(self, belief: Belief) -> Config:
        """Return the best configuration so far, which evaluations and the result use."""

    def offers(self, belief: Belief) -> tuple[tuple[Config, ...], Floats]:
        """Return the configurations it chooses from, in the order of their labels, and their probabilities."""

    def summary(self, belief: Belief) -> Summary:
        """Return what a record keeps of the belief."""

    def pack(self, belief: Belief) -> Vectors:
        """Return the belief as arrays, without the parts that ``begin`` gives again."""

    def unpack(self, begun: Belief, arrays: Vectors) -> Belief:
        """Return the belief that was packed; ``begun`` is the belief that the arm began with."""
