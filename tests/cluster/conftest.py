"""One cluster of two nodes for all tests here: real processes, of which none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import toys

pytest.importorskip("ray")

MARK = f"FEDTUNER_TESTS={uuid.uuid4().hex}"  # in the environment of every process that these tests start
NAP = "0.05"  # seconds that a client of the toys takes on the cluster: a round takes three times as much

# Before Ray is imported: the driver is these tests' process.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_AUTH_MODE": "disabled"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The faults that are rare, and take long, are for make faults."""
    for item in items:
        if item.get_closest_marker("faults") and not os.environ.get("FAULTS"):
            item.add_marker(pytest.mark.skip(reason="make faults runs it"))


def ours(mark: str = MARK) -> list[int]:
    """The processes whose environment has the mark, and their descendants: some write their title over it."""
    marked, parents = set[int](), dict[int, int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if mark.encode() in (folder / "environ").read_bytes():
                marked.add(int(folder.name))
    while more := {pid for pid, parent in parents.items() if parent in marked} - marked:
        marked |= more
    return [pid for pid in marked - {os.getpid()} if toys.running(pid)]


def end_all(mark: str = MARK) -> None:
    for pid in ours(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*MARK.split("="))
        patch.setenv("PYTHONPATH", toys.environment()["PYTHONPATH"])
        try:
            yield
        finally:
            end_all()


@pytest.fixture(scope="session")
def pids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which each process that does a toy client's work leaves its id."""
    return tmp_path_factory.mktemp("pids")


@pytest.fixture(scope="session")
def cluster(pids: Path, _nothing_is_left: None) -> Iterator[object]:
    """A head with one CPU and a node with two."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_NAP", NAP)
        patch.setenv("TOY_PIDS", str(pids))
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        made.add_node(num_cpus=2)
        patch.undo()
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


@pytest.fixture(scope="session")
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The nodes that were started by the command; to end one in good order takes a while."""
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.wait()


@pytest.fixture
def add_node(cluster, pids, started):
    """Start a node by the command, as one does on a further machine. It goes at the test's end."""

    def add(cpus: int = 2) -> subprocess.Popen[bytes]:
        command = [Path(sys.executable).with_name("ray"), "start", f"--address={cluster.address}", f"--num-cpus={cpus}"]
        environment = {**os.environ, "TOY_NAP": NAP, "TOY_PIDS": str(pids)}
        out = subprocess.DEVNULL
        started.append(subprocess.Popen([*command, "--block"], env=environment, stdout=out, stderr=out))
        return started[-1]

    yield add
    for process in started:
        process.terminate()
