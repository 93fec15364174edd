"""Metrics of problems: ``pytorch.Task(build, metric=metrics.f1())``; docs/metrics.md."""

from fedtuner.core.metric import Metric, Metrics, accuracy, auc, f1

__all__ = ["Metric", "Metrics", "accuracy", "auc", "f1"]
