"""Every executor keeps the laws; large client memory and arms that diverge included."""

import pytest

from fedtuner.core import memory
from fedtuner.run.executors import Processes, Serial, open_executor
from fedtuner.testing import ExecutorLaws

MEMBERS = {
    "serial": lambda round, blobs: Serial(round, blobs),
    "one worker is this process": lambda round, blobs: open_executor(round, blobs, 1),
    "two processes": lambda round, blobs: Processes(round, blobs, 2),
    "more processes than arms": lambda round, blobs: Processes(round, blobs, 5),
}


@pytest.mark.parametrize(
    "member", [pytest.param(name, marks=pytest.mark.slow) if "more" in name else name for name in MEMBERS]
)
class TestEveryExecutor(ExecutorLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, member):
        self.member = member

    def executor(self, round, blobs):
        return MEMBERS[self.member](round, blobs)


class TestProcessesWithMemoryInBlobs(ExecutorLaws):
    @pytest.fixture(autouse=True)
    def _tiny(self, monkeypatch):
        monkeypatch.setattr(memory, "LIMIT", 1)

    def executor(self, round, blobs):
        return Processes(round, blobs, 2)


def test_the_hook_must_be_overridden():
    with pytest.raises(NotImplementedError, match=r"override executor\(\)"):
        ExecutorLaws().test_work_that_is_done_gives_nothing()
