"""What models are judged by: the metrics that a client measures, and what the problem's own metric is.

Inside a study lower is better: the *error* is the metric itself or, where higher is better, 1 minus it (of a rate) or
its negative. A metric that can be computed from sums over examples (``Metric.sums``: counts for F1, a histogram of
scores for AUC) can be *pooled*: clients send their sums, and the value is that of all their data together.
A client for which a metric is not defined, such as AUC where there is one class alone, has the error NaN: it is left
out of means, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtuner import checks
from fedtuner.errors import SpecError, brief

Z = 1.96  # standard errors on each side of a mean: an interval of 95 %
Sums = Callable[[Any, Any], Any]  # (output, y) -> numbers that add up over examples


@dataclass(frozen=True)
class Metrics:
    """Mean loss and error over ``count`` examples; NaN where there are none. ``sums`` are for pooled metrics."""

    loss: float
    error: float
    count: int
    sums: tuple[float, ...] = ()

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss)

    @property
    def undefined(self) -> bool:
        """Whether there are examples, and yet no error."""
        return bool(self.count) and math.isnan(self.error)


NOTHING = Metrics(math.nan, math.nan, 0)


def mean_metrics(metrics: Sequence[Metrics]) -> Metrics:
    """Return the mean by |V|, of errors where they are defined; NaN where there are no examples."""
    counted = [m for m in metrics if m.count]
    total = sum(m.count for m in counted)
    if not total:
        return NOTHING
    defined = [m for m in counted if not m.undefined]
    of = sum(m.count for m in defined)
    error = sum(m.count * m.error for m in defined) / of if of else math.nan
    return Metrics(sum(m.count * m.loss for m in counted) / total, error, total)


def penalised(metrics: Metrics, worst: float) -> Metrics:
    """Return the metrics; where the loss is not finite, an infinite loss and the worst error."""
    return metrics if metrics.finite or not metrics.count else Metrics(math.inf, worst, metrics.count)


@dataclass(frozen=True, init=False)
class Metric:
    """A problem's metric: its name, whether it is a rate, whether higher is better, and how it is computed.

    ``value(output, y)`` is computed on all of a client's examples, as NumPy arrays; with ``sums(output, y)``, numbers
    that add up over examples, ``value(sums)`` is. ``rate``: it is from 0 to 1, and shown in percent. ``worst`` is the
    error of a model that is not finite: by default 1 for a rate, else infinity. ``pooled``, the default where there are
    sums: clients' sums are added, and arms compared by the value of the total, not by the mean of clients' values.
    """

    name: str
    worst: float
    rate: bool
    maximise: bool
    value: Callable[..., Any] | None
    sums: Sums | None
    pooled: bool
    size: int | None  # how many sums there are: needed where devices send them

    def __init__(
        self, name: str = "error", worst: float | None = None,
        *, rate: bool | None = None, maximise: bool = False, value: Callable[..., Any] | None = None,
        sums: Sums | None = None, pooled: bool | None = None, size: int | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(name, str) or not name.isprintable() or not name.strip():
            raise SpecError(f"a metric has the name {brief(name)}, but must have one of one line")
        for what, given in (("value", value), ("sums", sums)):
            if given is not None:
                checks.function(f"{name}: {what}", given)
        if sums is not None and value is None:
            raise SpecError(f"{name}: sums are given, but not value(sums), the metric's value of their total")
        for what, said in (("rate", rate), ("maximise", maximise), ("pooled", pooled)):
            if said is not None and not isinstance(said, (bool, np.bool_)):
                raise SpecError(f"{name}: {what} = {brief(said)}, but must be true or false")
        if pooled and sums is None:
            raise SpecError(f"{name}: pooled = true, but there are no sums to add: give sums(output, y)")
        if worst is None:
            worst = 1.0 if rate or (rate is None and name == "error") else math.inf
        elif worst != math.inf and not checks.is_number(worst):
            raise SpecError(f"{name}: worst = {brief(worst)}, but must be a number, or math.inf")
        rate = worst == 1.0 if rate is None else bool(rate)
        pooled = sums is not None if pooled is None else bool(pooled)
        checks.settle(
            self, name=name, worst=float(worst), rate=rate, maximise=bool(maximise), value=value, sums=sums,
            pooled=pooled, size=None if size is None else checks.whole(f"{name}: size", size),
        )  # fmt: skip

    def turned(self, number: float) -> float:
        """Return the error of a value of the metric; or of an error the value.

        >>> Metric("f1", rate=True, maximise=True).turned(0.75), Metric("reward", maximise=True).turned(3.0)
        (0.25, -3.0)
        """
        return number if not self.maximise else 1.0 - number if self.rate else -number

    def text(self, error: float, spread: float = math.nan) -> str:
        """Return an error as a person reads it: the metric's value, in percent where it is a rate.

        ``spread`` is its standard error, if known: then the interval of 95 % follows.

        >>> Metric().text(0.03, 0.01), Metric("mse").text(0.03), Metric("f1", rate=True, maximise=True).text(0.2)
        ('3.0 % (1.0 to 5.0)', '0.03', '80.0 %')
        """
        if not math.isfinite(error):
            return "none" if math.isnan(error) else "infinite"
        ends = sorted(map(self.turned, (error - Z * spread, error + Z * spread)))
        if self.rate:
            text, ends = f"{100 * self.turned(error):.1f} %", [100 * min(max(end, 0.0), 1.0) for end in ends]
        else:
            text = f"{self.turned(error):.4g}"
        digits = ".1f" if self.rate else ".4g"
        return f"{text} ({ends[0]:{digits}} to {ends[1]:{digits}})" if math.isfinite(spread) else text

    def measured(self, loss: float, parts: Sequence[tuple[Any, Any]], count: int) -> Metrics:
        """Return the metrics of a split, given as (output, y) of one or several parts of it."""
        if self.value is None:
            raise SpecError(f"{self.name}: the metric has no value(output, y), so it cannot be measured here")
        if self.sums is None:
            output, y = (_joined(side) for side in zip(*parts, strict=True))
            return Metrics(loss, self.error_of(self.value(output, y)), count)
        total = np.sum([np.asarray(self.sums(*part), np.float64).reshape(-1) for part in parts], axis=0)
        return Metrics(loss, self.error_of(self.value(total)), count, tuple(map(float, total)))

    def pool(self, metrics: Sequence[Metrics], mean: Metrics) -> Metrics:
        """Return the mean of clients' metrics with the error of all their examples together.

        Clients whose model is not finite have no sums: their examples count with the worst error.
        """
        sums = [m.sums for m in metrics if m.count and m.sums]
        if not sums or self.value is None or not self.pooled:
            return mean
        total = np.sum(sums, axis=0)
        lost = sum(m.count for m in metrics if m.count and not m.finite) / mean.count
        error = self.of_sums(total, lost)
        return replace(mean, error=error, sums=tuple(map(float, total)))

    def of_sums(self, total: NDArray[np.float64], lost: float = 0.0) -> float:
        """Return the error of sums over clients; the part ``lost`` of their examples counts with the worst error."""
        assert self.value is not None
        error = self.error_of(self.value(total))
        if lost:
            error = self.worst if lost == 1 or math.isinf(self.worst) else (1 - lost) * error + lost * self.worst
        return error

    @property
    def sent(self) -> int:
        """How many sums a client sends; 0 where they are not needed."""
        return (self.size or 0) if self.pooled else 0

    def error_of(self, value: Any) -> float:
        """Return the error of a value; NaN for None: not defined."""
        return math.nan if value is None else self.turned(float(value))

    def table(self) -> dict[str, Any]:
        """Return what a journal says of it."""
        return {name: getattr(self, name) for name in ("name", "worst", "rate", "maximise", "pooled")}

    @staticmethod
    def of(problem: Mapping[str, Any]) -> Metric:
        """Return the metric of a problem as a journal describes it; without functions to compute it."""
        table = problem.get("metric")
        if not isinstance(table, Mapping):
            return Metric()
        made = Metric(table["name"], float(table["worst"]), rate=table["rate"], maximise=table["maximise"])
        checks.settle(made, pooled=bool(table["pooled"]))
        return made


def _joined(parts: Sequence[Any]) -> Any:
    """Return arrays, or tables and tuples of arrays, as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(map(_joined, zip(*parts, strict=True)))
    return np.concatenate([np.asarray(part) for part in parts])


# Metrics of classifiers. Outputs are scores of classes, [examples, classes, ...] with labels [examples, ...]; or, of
# two classes, one score per example. Labels of -100 are passed over, as torch's cross-entropy does.


def _classified(name: str, output: Any, y: Any, classes: int | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return scores, [labels] or [labels, classes], and labels; refuse what is none. None: as many as the output."""
    if any(isinstance(part, (Mapping, tuple, list)) for part in (output, y)):
        raise SpecError(
            f"{name} reads one array of scores and one of labels, but there are several: give Metric(value=)"
        )
    output, y = np.asarray(output), np.asarray(y)
    if output.size == len(output):
        score, y, classes = output.reshape(-1), y.reshape(-1), 2 if classes is None else classes
    elif output.ndim == y.ndim + 1 and (len(output), *output.shape[2:]) == y.shape:
        classes = output.shape[1] if classes is None else classes
        score, y = np.moveaxis(output, 1, -1).reshape(-1, output.shape[1]), y.reshape(-1)
    else:
        shapes = f"scores are of shape {output.shape} and labels of {y.shape}"
        raise SpecError(f"{name}: {shapes}, but must have a label for each row of scores, and a score for each class")
    known = y != -100
    score, y = score[known], y[known]
    for label in y[~np.isin(y, np.arange(classes))][:1]:
        rule = f"must be whole numbers from 0 to {classes - 1}"
        raise SpecError(f"{name}: a client has the label {brief(checks.python(label))}, but labels {rule}")
    return score, y


@dataclass(frozen=True)
class _Confusion:
    """For each class: examples of it that were found, taken for it wrongly, and missed."""

    classes: tuple[int, ...]
    count: int  # of all classes

    def __call__(self, output: Any, y: Any) -> NDArray[np.float64]:
        width = np.shape(output)[1] if not isinstance(output, (Mapping, tuple)) and np.ndim(output) > 1 else 1
        if width not in (1, self.count):
            raise SpecError(f"f1 is for {self.count} classes, but the output has {width}: give f1(classes={width})")
        score, y = _classified("f1", output, y, self.count)
        said = _said(score)
        rows = [((said == k) & (y == k), (said == k) & (y != k), (said != k) & (y == k)) for k in self.classes]
        return np.array([[np.sum(part) for part in row] for row in rows], np.float64)


def _said(score: NDArray[Any]) -> NDArray[np.int64]:
    """Return the class of each example: that of the highest score; or, of one score, 1 above 0."""
    return np.asarray(score > 0 if score.ndim == 1 else score.argmax(1), np.int64)


def _f1(sums: NDArray[np.float64]) -> float:
    found, wrong, missed = sums.reshape(-1, 3).T
    size = 2 * found + wrong + missed
    there = size > 0
    return float(np.mean(2 * found[there] / size[there])) if there.any() else math.nan


def f1(classes: int = 2, *, positive: int | None = None, pooled: bool = True) -> Metric:
    """Return F1: of the class ``positive`` (1, where there are two classes), else the mean over classes that occur.

    ``classes`` must be the number of the model's outputs, unless that is one.
    Pooled it is computed from counts over all clients. One score per example is a logit: positive above 0.
    """
    count = checks.whole("classes", classes, 2)
    positive = 1 if positive is None and count == 2 else positive
    of = tuple(range(count)) if positive is None else (checks.whole("positive", positive, 0, count - 1),)
    return Metric(
        "f1", rate=True, maximise=True, value=_f1, sums=_Confusion(of, count), pooled=pooled, size=3 * len(of)
    )


@dataclass(frozen=True)
class _Histogram:
    """How many examples of class 0 and of class 1 have scores in each of the bins of [0, 1]."""

    bins: int
    logits: bool

    def __call__(self, output: Any, y: Any) -> NDArray[np.float64]:
        if not isinstance(output, (Mapping, tuple)) and np.ndim(output) > 1 and np.shape(output)[1] > 2:
            raise SpecError(f"auc is for two classes, but the output has {np.shape(output)[1]}: use f1(classes)")
        score, y = _classified("auc", output, y, 2)
        score = score.astype(np.float64)
        score = (score[:, 1] - (score[:, 0] if self.logits else 0.0)) if score.ndim == 2 else score
        p = 0.5 * (1 + np.tanh(0.5 * score)) if self.logits else score
        bin = np.minimum((np.clip(p, 0.0, 1.0) * self.bins).astype(np.int64), self.bins - 1)
        return np.concatenate([np.bincount(bin[y == k], minlength=self.bins) for k in (0, 1)]).astype(np.float64)


def _auc(sums: NDArray[np.float64]) -> float:
    negative, positive = sums.reshape(2, -1)
    pairs = negative.sum() * positive.sum()
    below = np.cumsum(negative) - negative  # scores of one bin count half
    return float((positive * (below + 0.5 * negative)).sum() / pairs) if pairs else math.nan


def auc(bins: int = 1000, *, logits: bool = True, pooled: bool = True) -> Metric:
    """Return the area under the ROC curve of two classes, from a histogram of scores with so many bins.

    Scores are logits, or (``logits=False``) probabilities; those of one bin count as equal. It is not defined where
    there is one class alone. Pooled it is that of all clients' examples together.
    """
    sums = _Histogram(checks.whole("bins", bins, 2), bool(logits))
    return Metric("auc", rate=True, maximise=True, value=_auc, sums=sums, pooled=pooled, size=2 * bins)


def _right(output: Any, y: Any) -> tuple[float, float]:
    score, y = _classified("accuracy", output, y, None)
    return float(np.sum(_said(score) == y)), float(y.size)


def _ratio(sums: NDArray[np.float64]) -> float:
    return float(sums[0] / sums[1]) if sums[1] else math.nan


def accuracy() -> Metric:
    """Return the share of examples whose highest score is that of their class: 1 minus the arg-max error."""
    return Metric("accuracy", rate=True, maximise=True, value=_ratio, sums=_right, size=2)
