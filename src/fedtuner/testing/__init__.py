"""Laws that third parties can hold their own parts to: subclass one in pytest and override its hook."""

from fedtuner.testing.methods import MethodLaws
from fedtuner.testing.schedules import ScheduleLaws
from fedtuner.testing.tasks import TaskLaws
from fedtuner.testing.tuners import TunerLaws

__all__ = ["MethodLaws", "ScheduleLaws", "TaskLaws", "TunerLaws"]
