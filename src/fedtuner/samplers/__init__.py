"""Who proposes the arms: ``uniform`` draws (the paper's), ``stratified`` ones, or ``optuna``, which learns."""

from fedtuner.core.sampler import Past, Sampler
from fedtuner.samplers.ball import Ball
from fedtuner.samplers.by_optuna import KINDS, Optuna, optuna
from fedtuner.samplers.include import Include, both_sides
from fedtuner.samplers.latin_hypercube import Stratified, stratified
from fedtuner.samplers.uniform import Uniform, uniform

__all__ = [
    "KINDS", "Ball", "Include", "Optuna", "Past", "Sampler", "Stratified", "Uniform", "both_sides", "optuna",
    "stratified", "uniform",
]  # fmt: skip
