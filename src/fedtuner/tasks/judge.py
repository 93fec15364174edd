"""What a model's outputs are worth: the loss and the error of a task, by functions of the user's own or by torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtuner.core.metric import Metric, Metrics
from fedtuner.errors import FAILURES, TaskError
from fedtuner.tasks import given, nested

_IGNORED = -100  # the label that torch's cross-entropy passes over


class Judge:
    """A task's loss, error and metric. What the user's functions raise becomes a ``TaskError``, with the shapes."""

    def __init__(
        self, loss: Callable[[Any, Any], Tensor], error: Any, metric: Metric | None, worst_error: float | None
    ) -> None:
        given.function("loss", loss, "output, y")
        self.metric = given.metric(metric, error, worst_error, _classifies(loss))
        self._loss, self._error = loss, error if callable(error) else None

    @property
    def code(self) -> dict[str, Any]:
        """The functions by which it judges."""
        metric = {"metric": self.metric.value, "metric's sums": self.metric.sums}
        return {"loss": self._loss, "error": self._error, **metric}

    @property
    def usual(self) -> bool:
        """Whether these are cross-entropy and the arg-max error."""
        known = (self._error, self.metric.value, self.metric.name)
        return self._loss is F.cross_entropy and known == (None, None, "error")

    def loss(self, output: Any, y: Any) -> Tensor:
        """Return the mean loss over a batch."""
        try:
            loss = nested.own_loss(output) if self._loss is F.cross_entropy else None
            if loss is None:
                loss = self._loss(nested.scores(output) if self._loss is F.cross_entropy else output, y)
        except TaskError:
            raise
        except FAILURES as error:  # a loss of one's own may raise anything
            raise TaskError(f"the loss does not fit: {given.fit(output, y)}: {given.said(error)}") from error
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = given.shape(loss) if isinstance(loss, Tensor) else type(loss).__name__
            raise TaskError(
                f"the loss must be one number, the mean over the batch, but is {what} for {given.fit(output, y)}"
            )
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise TaskError("the loss has no gradient: compute it from the model's output, by torch's functions")
        return loss

    def error(self, output: Any, y: Any) -> float:
        """Return the mean error over a batch; where there is a metric of its own, that is computed instead."""
        if self._error is not None:
            try:
                return float(torch.as_tensor(self._error(output, y)).double().mean())
            except FAILURES as error:
                raise TaskError(f"the error function failed: {given.fit(output, y)}: {given.said(error)}") from error
        said = nested.scores(output)
        if not isinstance(y, Tensor) or y.is_floating_point() or said.ndim != y.ndim + 1:
            raise TaskError(
                f"no arg-max error for {given.fit(output, y)}: give Task(..., error=function) that returns a mean "
                "error, or error='loss'"
            )
        wrong = said.argmax(1) != y
        if y.ndim > 1 and said is not output and (y == _IGNORED).any():
            wrong = wrong[y != _IGNORED]  # places that the model's own loss passes over, too
        return float(wrong.double().mean())

    def measured(self, loss: float, parts: Sequence[tuple[Any, Any]], count: int, fit: str) -> Metrics:
        """Return the metrics of a split from the arrays of its parts; ``fit`` says what the model gives, and y."""
        try:
            return self.metric.measured(loss, parts, count)
        except FAILURES as wrong:
            raise TaskError(f"the metric {self.metric.name!r} failed: {fit}: {given.said(wrong)}") from wrong


def arrays(output: Any, y: Any) -> tuple[Any, Any]:
    """Return what a metric reads: scores of classes where there are any, else all that the model returns; and y."""
    scored = isinstance(output, Mapping) and "logits" in output
    return nested.array(nested.scores(output) if scored else output), nested.array(y)


def _classifies(loss: Any) -> bool:
    """Return whether a loss is that of classes: torch's cross-entropy or its like, also with settings of its own."""
    loss = loss.func if isinstance(loss, partial) else loss
    return loss in (F.cross_entropy, F.nll_loss) or isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss))
