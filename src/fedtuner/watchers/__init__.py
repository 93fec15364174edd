"""Watchers of a study, ``tune(..., watch=...)``: your own, TensorBoard, MLflow, Weights & Biases, Optuna's dashboard.

Each adapter imports its library when it is made; ``pip install 'fedtuner[tensorboard]'``, ``[mlflow]``, ``[wandb]`` or
``[optuna]`` installs it. A study that goes on later goes on in the same place.
"""

from fedtuner.run.watchers import Watcher
from fedtuner.watchers.to_dashboard import Dashboard
from fedtuner.watchers.to_mlflow import MLflow
from fedtuner.watchers.to_tensorboard import TensorBoard
from fedtuner.watchers.to_wandb import WandB

__all__ = ["Dashboard", "MLflow", "TensorBoard", "WandB", "Watcher"]
