"""Scikit-learn's estimators as models: ``Simulation(sklearn.Estimator(SGDClassifier(), 64, 10), clients)``."""

from fedtuner.tasks.estimator import Estimator

__all__ = ["Estimator"]
