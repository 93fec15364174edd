"""Any model that two functions train and evaluate, as a learner: ``Learner(arrays, fit, evaluate)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedtuner import checks
from fedtuner.core.code import known_by
from fedtuner.core.metric import NOTHING, Metric, Metrics
from fedtuner.core.model import Hyper, Vector
from fedtuner.errors import TaskError, brief
from fedtuner.federations.arrays import NamedArrays
from fedtuner.space import Config

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Given:
    """A client's split as it was given: what ``fit`` and ``evaluate`` get."""

    split: Any
    count: int

    def __len__(self) -> int:
        return self.count


class Learner(NamedArrays):
    """A model of named arrays, and the functions that train and evaluate it on a client's split.

    ``fit(arrays, split, config, seed)`` returns arrays as they were given, ``evaluate(arrays, split, config)``
    the loss and the metric's value (by default the error rate), or a ``Metrics``. ``hyperparameters``, names to
    ``Hyper``, say what ``config`` has; without them a space must. A split's length is that of its y, or its own.
    """

    def __init__(
        self, arrays: Mapping[str, Any], fit: Callable[[Arrays, Any, Config, int], Mapping[str, Any]],
        evaluate: Callable[[Arrays, Any, Config], Any],
        *, hyperparameters: Mapping[str, Hyper] | None = None, metric: Metric | None = None,
    ) -> None:  # fmt: skip
        super().__init__(arrays, metric)
        checks.function("fit", fit)
        checks.function("evaluate", evaluate)
        self._fit, self._evaluate = fit, evaluate
        self.hyperparameters = dict(hyperparameters or {})
        self.code = {"fit": known_by(fit), "evaluate": known_by(evaluate)}

    def prepare(self, split: Any) -> Given:
        sized = split[1] if isinstance(split, tuple) and len(split) == 2 else split
        return Given(split, 0 if split is None else len(sized))

    def fit(self, w: Vector, data: Given, config: Config, seed: int) -> Vector:
        if not len(data):
            return w
        made, known = self._fit(self.arrays(w), data.split, config, seed), [part.name for part in self.layout()]
        if not isinstance(made, Mapping):
            raise TaskError(f"fit returned {brief(made)}, but must return a table of arrays by name: {known}")
        if set(made) != set(known):
            raise TaskError(f"fit returned the arrays {brief(list(made))}, but must return {brief(known)}")
        return self.vector(made)

    def evaluate(self, w: Vector, data: Given, config: Config) -> Metrics:
        if not len(data):
            return NOTHING
        found = self._evaluate(self.arrays(w), data.split, config)
        if isinstance(found, Metrics):
            return found
        if not isinstance(found, tuple) or len(found) != 2:
            raise TaskError(f"evaluate returned {brief(found)}, but must return a loss and a value, or Metrics")
        if self.metric.pooled:
            what = "so evaluate must return Metrics(loss, error, count, sums)"
            raise TaskError(f"{self.metric.name} is pooled, {what}; or give the metric pooled=False")
        return Metrics(float(found[0]), self.metric.error_of(found[1]), len(data))
