"""How often devices whose replies cannot be used are drawn for a cohort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedtuner.core.records import State
from fedtuner.core.tuner import Floats

UNUSABLE = 3  # replies in a row that cannot be used, after which a device is drawn less often


def odds(state: State, present: Sequence[int]) -> Floats | None:
    """Return the odds of the clients who are present to be drawn; None where all have the same.

    A device whose latest ``UNUSABLE`` replies were unusable is drawn half as often as others, and with each further one
    half as often again, down to 1/64. After a reply that can be used it is drawn as often as others.
    """
    halvings = [min(6, state.unusable.get(i, 0) - UNUSABLE + 1) for i in present] if state.unusable else []
    if not any(n > 0 for n in halvings):
        return None
    weights: Floats = np.exp2(-np.maximum(halvings, 0.0))
    return np.asarray(weights / weights.sum(), np.float64)


def unusable(before: Mapping[int, int], usable: Mapping[int, bool]) -> dict[int, int]:
    """Return, by client, how many of its latest replies in a row were unusable, given whether this round's were."""
    failed = {i: before.get(i, 0) + 1 for i, good in usable.items() if not good}
    return {i: n for i, n in {**before, **failed}.items() if not usable.get(i)}
