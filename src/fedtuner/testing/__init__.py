"""Laws that third parties can hold their own parts to: subclass one in pytest and override its hook."""

from fedtuner.testing.executors import ExecutorLaws
from fedtuner.testing.federations import FederationLaws
from fedtuner.testing.methods import MethodLaws
from fedtuner.testing.samplers import SamplerLaws
from fedtuner.testing.schedules import ScheduleLaws
from fedtuner.testing.stores import StoreLaws
from fedtuner.testing.tasks import TaskLaws
from fedtuner.testing.tuners import TunerLaws

__all__ = [
    "ExecutorLaws", "FederationLaws", "MethodLaws", "SamplerLaws", "ScheduleLaws", "StoreLaws", "TaskLaws", "TunerLaws",
]  # fmt: skip
