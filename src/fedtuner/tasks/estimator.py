"""A scikit-learn estimator with ``partial_fit`` as a learner: w is its coefficients, its parameters are tuned."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtuner import checks
from fedtuner.core.metric import NOTHING, Metric, Metrics
from fedtuner.core.model import Hyper, ModelDefaults, Part, Vector, named
from fedtuner.errors import FAILURES, TaskError, brief, one_line
from fedtuner.space import PAPER_CLIENT, Config, Domain, Float

_HELD = ("coef_", "intercept_", "coefs_", "intercepts_")  # of linear models, of multi-layer perceptrons
# What is tuned unless a space says otherwise, and what it is.
_KNOWN: Mapping[str, tuple[Domain, str]] = {
    "eta0": (Float(1e-4, 1.0, log=True), "step"),
    "learning_rate_init": (Float(1e-5, 1e-1, log=True), "step"),
    "alpha": (Float(1e-7, 1e-1, log=True), "regulariser"),
}
_DIVERGED = ("overflow", "non-finite", "infinity", "nan")  # what scikit-learn says of it


@dataclass(frozen=True)
class Split:
    """A client's examples."""

    x: NDArray[np.float64]
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.x)


class Estimator(ModelDefaults):
    """A classifier or regressor with ``partial_fit`` and coefficients: SGDClassifier, SGDRegressor, MLPClassifier ...

    A client passes over its data ``epochs`` times; the other client hyperparameters are the estimator's own parameters
    that are numbers, by their names. ``classes`` are a classifier's labels, or how many there are; None for a
    regressor. Metrics read the logarithms of a classifier's probabilities, or a regressor's predictions.
    """

    own_training = True

    def __init__(
        self, estimator: Any, features: int, classes: int | Sequence[Any] | None = None, *, metric: Metric | None = None
    ) -> None:
        for method in ("partial_fit", "predict", "get_params"):
            if not callable(getattr(estimator, method, None)) or isinstance(estimator, type):
                raise TaskError(f"estimator is {brief(estimator)}, but must be one with {method}")
        self._features = checks.whole("features", features)
        labels = range(checks.whole("classes", classes, 2)) if checks.is_whole(classes) else classes
        self.classes = None if labels is None else np.unique(np.asarray(labels))
        self.metric = metric or (Metric() if self.classes is not None else Metric("mse"))
        self._estimator = estimator
        self._check_kind(classes)
        self._fitted = self._first(0)
        arrays = _held(self._fitted)
        if not arrays:
            kind = type(estimator).__name__
            raise TaskError(f"{kind} has no coef_ or coefs_ after partial_fit: use ft.Learner(arrays, fit, evaluate)")
        self._parts = [Part(name, array.shape) for name, array in arrays.items()]
        self.size = self.trainable = sum(part.size for part in self._parts)
        self.hyperparameters = {
            "epochs": Hyper(PAPER_CLIENT["epochs"], 1, low=1, whole=True, about="passes over the data", role="work")
        } | {
            name: _hyper(name, value)
            for name, value in estimator.get_params().items()
            if checks.is_number(value) and name != "random_state"
        }
        self.code = {"estimator": one_line(f"{type(estimator).__qualname__} {sorted(estimator.get_params().items())}")}

    def __repr__(self) -> str:
        return f"<Estimator: {type(self._estimator).__name__}, {self.size:,} coefficients, {self.metric.name}>"

    def layout(self) -> list[Part]:
        return list(self._parts)

    def initial(self, seed: int) -> Vector:
        if "coef_" in (part.name for part in self._parts):
            return np.zeros(self.size, np.float32)
        return _flat(_held(self._first(seed)))

    def prepare(self, split: Any) -> Split:
        x, y = (np.zeros((0, self._features)), np.zeros(0)) if split is None else split
        x, y = np.asarray(x, np.float64), np.asarray(y)
        x = x.reshape(len(x), -1) if len(x) else x.reshape(0, self._features)
        if x.shape[1:] != (self._features,) or len(x) != len(y):
            raise TaskError(
                f"x is of shape {x.shape}, y of {y.shape}, but x must have rows of {self._features} features"
            )
        if not np.isfinite(x).all():
            raise TaskError("x has values that are NaN or infinite")
        if self.classes is not None and not np.isin(y, self.classes).all():
            other = checks.python(y[~np.isin(y, self.classes)][0])
            raise TaskError(f"y has the label {brief(other)}, but the classes are {brief(self.classes.tolist())}")
        return Split(x, y)

    def fit(self, w: Vector, data: Split, config: Config, seed: int) -> Vector:
        if not len(data):
            return w
        made = self._made(w, config, seed)
        if hasattr(made, "_validate_params"):  # scikit-learn itself checks values before the first fit alone
            made._validate_params()
        try:
            for _ in range(int(config.get("epochs", 1))):
                self._pass(made, data.x, data.y)
        except ValueError as error:
            if any(word in str(error).lower() for word in _DIVERGED):
                return np.full_like(w, np.nan)
            raise
        return _flat(_held(made))

    def evaluate(self, w: Vector, data: Split, config: Config) -> Metrics:
        if not len(data):
            return NOTHING
        made = self._made(w, {}, 0)
        if self.classes is None:
            output = made.predict(data.x)
            loss = float(np.mean((output - data.y) ** 2))
            error = loss
        else:
            output, place = _log_probabilities(made, data.x), np.searchsorted(self.classes, data.y)
            loss = float(-np.mean(output[np.arange(len(place)), place]))
            error = float(np.mean(output.argmax(1) != place))
        if self.metric.value is None:
            return Metrics(loss, error, len(data))
        return self.metric.measured(loss, [(output, data.y if self.classes is None else place)], len(data))

    def estimator(self, w: Vector, config: Config | None = None) -> Any:
        """Return a fitted estimator that holds a copy of w."""
        return self._made(w, config or {}, 0)

    def _made(self, w: Vector, config: Config, seed: int) -> Any:
        made = copy.deepcopy(self._fitted)
        made.set_params(**{name: value for name, value in config.items() if name != "epochs"})
        if "random_state" in made.get_params():
            made.set_params(random_state=np.random.RandomState(seed % 2**32))
        for name, array in named(w, self._parts).items():
            held = getattr(made, name.partition(".")[0])
            target = held[int(name.partition(".")[2])] if isinstance(held, list) else held
            target[...] = array
        if hasattr(made, "t_"):
            made.t_ = type(made.t_)(1)  # steps so far, by which some learning rates fall
        made.__dict__.pop("_optimizer", None)  # a perceptron's, with the learning rate that it was made with
        return made

    def _check_kind(self, classes: Any) -> None:
        """Refuse a classifier without classes, and a regressor with them."""
        try:
            from sklearn.base import is_classifier, is_regressor

            is_classifier(self._estimator)
        except (ImportError, AttributeError):  # an object of another package, which does not say
            return
        name = type(self._estimator).__name__
        if self.classes is None and is_classifier(self._estimator):
            how = "Estimator(estimator, features, classes=2)"
            raise TaskError(f"{name} is a classifier, but classes is not given: give their number or labels, {how}")
        if self.classes is not None and is_regressor(self._estimator):
            raise TaskError(f"{name} is a regressor, but classes = {brief(classes)} is given: leave it out")

    def _first(self, seed: int) -> Any:
        """Return an estimator that has its arrays, after a pass over examples of zeros."""
        made = copy.deepcopy(self._estimator)
        if "random_state" in made.get_params():
            made.set_params(random_state=np.random.RandomState(seed % 2**32))
        y = np.zeros(2) if self.classes is None else self.classes
        try:
            self._pass(made, np.zeros((len(y), self._features)), y)
        except FAILURES as error:
            raise TaskError(
                f"{type(made).__name__}.partial_fit failed on zeros: {one_line(str(error), 200)}"
            ) from error
        return made

    def _pass(self, made: Any, x: NDArray[np.float64], y: NDArray[Any]) -> None:
        made.partial_fit(x, y, **({} if self.classes is None else {"classes": self.classes}))


def _held(fitted: Any) -> dict[str, NDArray[Any]]:
    """Return an estimator's arrays by name; those of a list as name.0, name.1 ..."""
    found: dict[str, NDArray[Any]] = {}
    for name in _HELD:
        held = getattr(fitted, name, None)
        if isinstance(held, list):
            found |= {f"{name}.{n}": array for n, array in enumerate(held)}
        elif isinstance(held, np.ndarray):
            found[name] = held
    return found


def _flat(arrays: Mapping[str, NDArray[Any]]) -> Vector:
    with np.errstate(over="ignore"):
        return np.concatenate([np.asarray(array, np.float32).reshape(-1) for array in arrays.values()])


def _log_probabilities(made: Any, x: NDArray[np.float64]) -> NDArray[np.float64]:
    if hasattr(made, "predict_proba"):
        return np.asarray(np.log(np.maximum(made.predict_proba(x), 1e-15)))
    score = made.decision_function(x)  # of losses without probabilities, such as the hinge
    score = np.stack([-0.5 * score, 0.5 * score], axis=1) if score.ndim == 1 else score
    return np.asarray(score - np.logaddexp.reduce(score, axis=1, keepdims=True))


def _hyper(name: str, value: Any) -> Hyper:
    domain, role = _KNOWN.get(name, (None, ""))
    return Hyper(domain, checks.python(value), whole=checks.is_whole(value), about="of the estimator", role=role)
