"""A task from any PyTorch module."""

from fedtuner.tasks.pytorch import Task

__all__ = ["Task"]
