"""The benchmarks of scale measure what they say: clients by the million, and a cluster that is simulated."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

SCALE = Path(__file__).parents[2] / "benchmarks" / "scale"


@pytest.fixture
def scale(monkeypatch):
    """The modules of benchmarks/scale, by name."""
    monkeypatch.syspath_prepend(str(SCALE))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == SCALE:
            del sys.modules[name]


def test_what_a_federations_size_costs_is_measured(scale):
    found = scale("clients").measure(500, True)
    assert (found["clients"], found["rounds"]) == (500, 200)
    assert found["sampled"] == found["all"]  # of no more clients than the sample
    assert found["tune"] > found["resume"] > 0
    assert 500 < found["journal_bytes"] / found["rounds"] < 5_000


def test_one_thing_at_a_time_is_on_a_network(scale):
    """Also where what comes later was put down first."""
    node = scale("virtual").Node()
    node.take(10.0, 2.0, 0.0)
    assert node.gap(0.0, 5.0) == 0.0
    assert node.gap(9.0, 5.0) == 12.0
    assert node.gap(11.0, 1.0) == 12.0
    node.take(12.0, 3.0, 0.0)
    assert node.gap(8.5, 1.5) == 8.5
    assert node.gap(8.5, 2.0) == 15.0
    node.take(20.0, 1.0, 16.0)
    assert node.taken == [(20.0, 21.0)]


def test_calls_take_their_time_on_a_clock_that_only_counts(scale):
    virtual = scale("virtual")
    costs = virtual.Costs(call=0, wait=0, latency=1.0, get_byte=0, put_byte=0, network_byte=1e-3, start=5.0)
    cluster = virtual.Cluster(2, 1, 1e9, costs)

    class Worker:
        def work(self, seconds, given):
            cluster.work(seconds)
            return given

    with virtual.running(cluster, "nothing"):
        import ray

        first, second = (ray.remote(Worker).options().remote() for _ in range(2))
        calls = [first.work.remote(3.0, 1), first.work.remote(2.0, np.zeros(125)), second.work.remote(1.0, 3)]
        ready, rest = ray.wait(calls, timeout=100.0)
        assert [ray.get(call) for call in ready] == [3]
        assert cluster.monotonic() == pytest.approx(
            5 + 1 + 1, abs=0.5
        )  # start, work, latency; and this code's own time
        assert ray.wait(rest, timeout=0.0) == ([], rest)
        assert len(ray.get(calls[1])) == 125
        assert cluster.monotonic() == pytest.approx(5 + 3 + 2 + 1 + 1, abs=0.5)  # 1000 bytes take a second
    assert [actor.busy for actor in cluster.actors] == [5.0, 1.0]
    assert first.node != second.node
    assert cluster.nodes[first.node].moved == 2000  # there and back
    assert "ray" not in sys.modules or sys.modules["ray"].__name__ != "virtual"


@pytest.mark.parametrize(("workers", "arms"), [(5, 9), (9, 9), (6, 1)])
def test_the_simulated_cluster_runs_the_real_study(scale, workers, arms):
    """The records are those of one process, each once; and workers are busy."""
    pytest.importorskip("fedtuner.run.executors.on_ray", reason="the simulated cluster runs the Ray executor's driver")
    cluster, virtual = scale("cluster"), scale("virtual")
    scenario = cluster.Scenario(workers, arms, 1.0, 6, halving=arms > 1, unequal=arms > 1)
    found = cluster.simulate(scenario, virtual.Costs())
    assert found["rounds_used"] == sum(arms * rounds for arms, rounds in scenario.rungs)
    assert 0.2 < found["efficiency"] <= 1
    assert found["hired"] <= workers
    assert found["driver_network_bytes"] > 0
    history = cluster.study_of(scenario, workers=1).history
    assert repr(cluster.LAST[-1].history) == repr(history)


def test_answers_that_overtake_each_other_lose_no_round(scale):
    """A large state is on its way for longer than the rounds after it take: their small answer is there before it."""
    pytest.importorskip("fedtuner.run.executors.on_ray", reason="the simulated cluster runs the Ray executor's driver")
    scenario = scale("cluster").Scenario(16, 16, 100.0, 20, seconds=0.02, every=0.5)
    assert scale("cluster").simulate(scenario, scale("virtual").Costs())["rounds_used"] == 320


def test_what_arms_and_clients_allow_is_computed_by_hand(scale):
    pytest.importorskip("fedtuner.run.executors.on_ray", reason="the simulated cluster runs the Ray executor's driver")
    Scenario = scale("cluster").Scenario
    assert Scenario(27, 27, 1).bound() == 1
    assert Scenario(10, 1, 1).bound() == 1
    assert Scenario(20, 1, 1).bound() == 0.5  # a round has ten clients
    assert Scenario(3, 1, 1).bound() == pytest.approx(10 / 12)  # 4, 3 and 3 of them
    # 9 arms on 9 workers take 10 clients' time, 3 arms 30 / 9; of one arm some worker has 2 of the 10 clients.
    assert Scenario(9, 9, 1, 1, halving=True).bound() == pytest.approx(13 * 10 / ((10 + 30 / 9 + 2) * 9))
