"""Who proposes the arms: ``uniform`` draws (the paper's), or ``optuna``, which learns from finished arms."""

from fedtuner.core.sampler import Past, Sampler
from fedtuner.samplers.ball import Ball
from fedtuner.samplers.by_optuna import KINDS, Optuna, optuna
from fedtuner.samplers.uniform import Uniform, uniform

__all__ = ["KINDS", "Ball", "Optuna", "Past", "Sampler", "Uniform", "optuna", "uniform"]
