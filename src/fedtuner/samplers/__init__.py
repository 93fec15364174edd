"""Who proposes the arms: ``uniform`` draws (the paper's), or ``optuna``, which learns; ``local`` adds candidates."""

from fedtuner.samplers.ball import Ball
from fedtuner.samplers.base import Past, Proposer, Sampler, Uniform, local, uniform
from fedtuner.samplers.by_optuna import KINDS, Optuna, optuna

__all__ = ["KINDS", "local", "uniform", "optuna", "Past", "Proposer", "Sampler", "Uniform", "Ball", "Optuna"]
