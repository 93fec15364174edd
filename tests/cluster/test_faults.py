"""Whatever dies on the way, a study on a cluster ends with the bits of one machine, and no round is counted twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedtuner as ft
import toys
from cluster.conftest import NAP
from crashes import assert_same
from fedtuner.core.model import Part
from fedtuner.errors import ClientError, ClusterError, WorkerError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The study on one machine, without a fault."""
    store = tmp_path_factory.mktemp("alone") / "study"
    toys.tune(store=store)
    return store


@pytest.fixture
def study(cluster, tmp_path, alone):
    """Run the study on the cluster, with a fault once so many rounds are done, and compare it."""

    def run(fault=lambda: None, at=8, **changed):
        done = []

        def watch(status):
            if status.used >= at and not done:
                done.append(status)
                fault()

        on_ray = ft.ray(cluster.address, every=changed.pop("every", 0.5))
        made = toys.tune(store=tmp_path / "study", executor=on_ray, workers=None, progress=watch, **changed)
        assert done, "the fault never came"
        return made

    return run


def there(pids: Path) -> list[int]:
    """The processes that have done work, and still run."""
    return [int(file.name) for file in pids.iterdir() if toys.running(int(file.name))]


@pytest.mark.faults
def test_all_workers_killed_again_and_again(study, tmp_path, alone, pids, cluster):
    """Each time all of them at once, at every tenth round."""
    left = [20, 10, 1]

    def watch(status):
        if left and status.used >= left[-1]:
            left.pop()
            for pid in there(pids):
                os.kill(pid, signal.SIGKILL)

    toys.tune(store=tmp_path / "study", executor=ft.ray(cluster.address, every=0.5), workers=None, progress=watch)
    assert not left
    assert_same(tmp_path / "study", alone)


def test_without_a_fault(study, tmp_path, alone, fedtuner):
    study()
    assert_same(tmp_path / "study", alone)
    code, said, _ = fedtuner("diff", tmp_path / "study", alone)
    assert (code, "are equal: 4 arms, 30 rounds" in said) == (0, True)


def test_a_worker_killed(study, tmp_path, alone, pids):
    study(lambda: os.kill(there(pids)[0], signal.SIGKILL))
    assert_same(tmp_path / "study", alone)


def test_a_node_killed(study, cluster, tmp_path, alone, pids):
    """It has two of the three workers, whose states are lost; the head goes on alone."""
    [node] = cluster.worker_nodes
    study(lambda: cluster.remove_node(node, allow_graceful=False))
    assert_same(tmp_path / "study", alone)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_NAP", NAP)
        patch.setenv("TOY_PIDS", str(pids))
        cluster.add_node(num_cpus=2)


@pytest.mark.faults
def test_a_node_added(study, add_node, tmp_path, alone, pids):
    """Three workers fit on the cluster before it comes."""
    for file in pids.iterdir():
        file.unlink()
    study(add_node, at=2, schedule=LONGER)
    toys.tune(store=tmp_path / "alone", schedule=LONGER)
    assert_same(tmp_path / "study", tmp_path / "alone")
    assert len(list(pids.iterdir())) > 3


LONGER = ft.halving(budget=300, longest=100, eta=2, eliminations=2)  # 4 arms to round 50, 2 of them to round 100
DRIVER = """
import sys, fedtuner as ft, toys
toys.tune(store=sys.argv[1], executor=ft.ray(sys.argv[2], every=0.5), workers=None)
"""


@pytest.mark.faults
def test_the_driver_killed_and_the_study_continued(study, cluster, tmp_path, alone, pids):
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "study"), cluster.address]
    driver = subprocess.Popen(command, env=dict(os.environ))
    journal = tmp_path / "study" / "journal.jsonl"
    try:
        toys.until(lambda: journal.exists() and journal.read_bytes().count(b'"round"') > 3, 60)
        workers = there(pids)
    finally:
        driver.kill()
        driver.wait()
    toys.until(lambda: not any(map(toys.running, workers)))  # they do not outlive it
    study(at=0)
    assert_same(tmp_path / "study", alone)


@pytest.mark.faults
def test_ctrl_c_keeps_everything(cluster, tmp_path, alone, study):
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "study"), cluster.address]
    driver = subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.PIPE, text=True, start_new_session=True)
    journal = tmp_path / "study" / "journal.jsonl"
    toys.until(lambda: journal.exists() and journal.read_bytes().count(b'"round"') > 3, 60)
    os.killpg(driver.pid, signal.SIGINT)
    said = driver.communicate(timeout=60)[1]
    assert driver.returncode == 3
    assert said.startswith("fedtuner: stopped after ")
    assert len(said.splitlines()) == 1  # Ray says nothing
    study(at=0)
    assert_same(tmp_path / "study", alone)


def test_an_arm_whose_code_raises(study):
    """As on one machine: the error names arm, round, client and configuration, with the worker's traceback."""
    with pytest.raises(ClientError, match=r"client 'phone4'.*the disk of this phone is broken") as error:
        study(problem=toys.raising(), at=0)
    assert "toys.py" in str(error.value.__cause__)


def test_an_arm_whose_code_raises_ends_alone(study, tmp_path, fedtuner):
    """Where this is asked for; the report has its error."""
    study(problem=toys.picky(), failing="end", at=0)
    toys.tune(problem=toys.picky(), failing="end", store=tmp_path / "alone")
    assert_same(tmp_path / "study", tmp_path / "alone")
    assert "Failed: arm" in fedtuner("show", tmp_path / "study")[1]


def test_the_clients_of_a_round_are_spread(study, tmp_path, pids):
    """One arm, three workers."""
    for file in pids.iterdir():
        file.unlink()
    study(schedule=ft.random_search(10, 10), at=0)
    toys.tune(schedule=ft.random_search(10, 10), store=tmp_path / "alone")
    assert_same(tmp_path / "study", tmp_path / "alone")
    assert len(list(pids.iterdir())) == 3


class Wide(toys.Softmax):
    """A model of 16 MB: nearly all of it is a statistic, which the clients do not change."""

    def __init__(self) -> None:
        super().__init__()
        self.size = self.trainable + 4_000_000

    def layout(self):
        *before, _ = super().layout()
        return [*before, Part("rest", (4_000_000,))]


@pytest.mark.faults
def test_an_object_store_that_is_full(study, tmp_path):
    """What others have put there fills it, and the states of the arms are larger than the rest; Ray uses the disk."""
    wide = ft.Simulation(Wide(), toys.clients(), "wide")
    study(at=0)  # connects
    full = [_ray().put(np.zeros(5_000_000)) for _ in range(5)]  # 200 MB, where there are 150
    toys.tune(problem=wide, store=tmp_path / "full", executor=ft.ray(every=0.5), workers=None)
    toys.tune(problem=wide, store=tmp_path / "alone")
    assert_same(tmp_path / "full", tmp_path / "alone")
    del full


@pytest.mark.faults
def test_work_that_kills_its_worker_every_time_is_an_error(study):
    with pytest.raises(WorkerError, match=r"a worker died 3 times on arm \d before round 5: out of memory\?"):
        study(problem=toys.deadly(), at=0)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:9", "no Ray cluster answers at 127.0.0.1:9 .*: start one with 'ray start --head'"),
        ("nowhere.invalid:6379", "no Ray cluster answers at nowhere.invalid:6379"),
        ("here", "but must be auto, local or HOST:PORT"),
        ("ray://127.0.0.1:10001", "'ray job submit'"),
    ],
)
def test_a_cluster_that_is_not_there(address, said):
    _ray().shutdown()
    began = time.monotonic()
    with pytest.raises(ClusterError, match=said):
        toys.tune(executor=ft.ray(address))
    assert time.monotonic() - began < 10


def _ray():
    import ray

    return ray
