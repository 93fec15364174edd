"""The executor of a cluster keeps the laws of executors."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fedtuner as ft
from fedtuner.testing import ExecutorLaws
from fedtuner.testing.toys import quadratics

pytestmark = pytest.mark.slow


class TestOnACluster(ExecutorLaws):
    @pytest.fixture(autouse=True)
    def _cluster(self, cluster):
        self.address = cluster.address

    def executor(self, round, blobs):
        return ft.ray(self.address)(round, blobs, None)


class Crowd(ft.Simulation):
    """A few clients that say that they are many: what all would keep together is too large for a state."""

    def population(self):
        return 10**7


@pytest.mark.faults
class TestWithMemoryInBlobs(TestOnACluster):
    """What clients keep goes through the keeper."""

    def round(self):
        few = quadratics()
        return replace(super().round(), federation=Crowd(few.model, few.clients))
