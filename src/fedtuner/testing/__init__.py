"""Laws that third parties can hold their own parts to: subclass one in pytest and override its hook."""

from fedtuner.testing.tasks import TaskLaws

__all__ = ["TaskLaws"]
