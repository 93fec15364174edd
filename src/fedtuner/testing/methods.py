"""The laws that every federated method keeps. Subclass in your tests and name your method:

class TestMine(fedtuner.testing.MethodLaws):
    method = my_method
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner import arm as arms
from fedtuner.arm import Arm, Setting, State, begin, fold, plan, work
from fedtuner.engines import work_all
from fedtuner.federation import Client, Report, Simulation
from fedtuner.fedex import FedEx
from fedtuner.methods.base import Method, Update, check, default_space, defaults
from fedtuner.rng import stream
from fedtuner.schedules import random_search
from fedtuner.space import Config, Domain
from fedtuner.store import pack, unpack
from fedtuner.testing.toys import optimum, quadratics
from fedtuner.tuning import tune

NOWHERE = Path("nowhere")  # the toys' client memory is far below the limit at which it goes to files


class MethodLaws:
    """Laws of a method on small quadratics; ``client`` and ``server`` override its defaults for them."""

    method: Method
    client: Config = {}  # noqa: RUF012
    server: Config = {}  # noqa: RUF012
    rounds = 40

    def test_the_default_configuration_and_space_are_legal(self) -> None:
        """Defaults keep the method's own rules, and its default space is accepted."""
        for hypers in (self.method.client, self.method.server):
            for name, hyper in hypers.items():
                assert hyper.wrong(hyper.default) is None, name
        check(self.method, default_space(self.method, {}), {})

    def test_it_lowers_the_loss_of_a_convex_toy(self) -> None:
        """After some rounds the server's model is much nearer to the optimum than it was."""
        problem = quadratics(spread=1.0)
        setting, arm = self._arm(problem)
        start = begin(setting, problem, arm)
        state = advance(setting, problem, arm, start, self.rounds)
        target = optimum(problem)
        assert np.linalg.norm(state.w - target) < 0.5 * np.linalg.norm(start.w - target)

    def test_a_round_is_a_pure_function_of_its_state(self) -> None:
        """The same state gives the same round, and is not changed by it."""
        problem = quadratics()
        setting, arm = self._arm(problem)
        state = advance(setting, problem, arm, begin(setting, problem, arm), 2)
        before = pack(state)
        once, again = (advance(setting, problem, arm, state, 4) for _ in range(2))
        assert pack(state) == before
        assert pack(once) == pack(again)

    def test_the_order_in_which_clients_work_does_not_matter(self) -> None:
        """Reports fold in plan order, whoever came first."""
        problem = quadratics()
        setting, arm = self._arm(problem)
        state = advance(setting, problem, arm, begin(setting, problem, arm), 2)
        jobs = plan(setting, problem, arm, state)
        forward = [work(setting.method, problem, job) for job in jobs]
        backward = [work(setting.method, problem, job) for job in reversed(jobs)][::-1]
        assert pack(fold(setting, problem, arm, state, forward)[0]) == pack(
            fold(setting, problem, arm, state, backward)[0]
        )

    def test_its_state_is_saved_and_loaded_to_the_bit(self) -> None:
        """Training that is stopped, packed, unpacked and continued is training that was never stopped."""
        problem = quadratics()
        setting, arm = self._arm(problem, k=5)
        through = advance(setting, problem, arm, begin(setting, problem, arm), 6)
        stopped = unpack(pack(advance(setting, problem, arm, begin(setting, problem, arm), 3)), NOWHERE)
        assert pack(advance(setting, problem, arm, stopped, 6)) == pack(through)

    def test_it_is_tuned_by_fedex_on_any_executor(self) -> None:
        """One candidate or five, one process or two: it runs, and the executors agree to the bit."""
        for k in (1, 5):
            studies = [
                tune(
                    quadratics(), method=self._with_defaults(), fedex=FedEx(k=k), schedule=random_search(12, 6),
                    cohort=4, workers=workers,
                )
                for workers in (1, 2)
            ]  # fmt: skip
            one, two = studies
            assert {a: pack(s) for a, s in one.states.items()} == {a: pack(s) for a, s in two.states.items()}
            assert [repr(r) for r in one.history] == [repr(r) for r in two.history]
            assert np.isclose(one.best.theta.sum(), 1.0)

    def test_absent_clients_change_nothing(self) -> None:
        """A round from which nobody answers leaves the model as it was; one that some answer still counts."""
        problem = quadratics()
        setting, arm = self._arm(problem)
        state = advance(setting, problem, arm, begin(setting, problem, arm), 2)
        jobs = plan(setting, problem, arm, state)
        empty, record = fold(setting, problem, arm, state, [None] * len(jobs))
        assert np.array_equal(empty.w, state.w)
        assert record.dropped == len(jobs)
        some: list[Report | None] = [work(setting.method, problem, job) for job in jobs]
        some[0] = None
        following, record = fold(setting, problem, arm, state, some)
        assert record.dropped == 1
        assert np.isfinite(following.w).all()

    def test_a_broken_client_is_left_out(self) -> None:
        """An update that is not finite does not reach the model: it is as if the client had been absent."""
        problem = quadratics()
        setting, arm = self._arm(problem)
        state = begin(setting, problem, arm)
        reports: list[Report | None] = [
            work(setting.method, problem, job) for job in plan(setting, problem, arm, state)
        ]
        first = reports[0]
        assert first is not None
        bad = replace(first, finite=False, update=Update(np.full_like(first.update.w, np.nan), first.update.extra))
        with_bad, record = fold(setting, problem, arm, state, [bad, *reports[1:]])
        without, _ = fold(setting, problem, arm, state, [None, *reports[1:]])
        assert record.broken == 1
        assert np.array_equal(with_bad.w, without.w)

    def test_clients_without_examples_do_no_harm(self) -> None:
        """No training or no validation examples are ordinary: the round goes on, and the numbers stay finite."""
        usual = quadratics()
        bare = [
            Client("no training", None, usual.clients[0].valid),
            Client("no validation", usual.clients[0].train, None),
            Client("nothing", None, None),
        ]
        problem = Simulation(usual.task, [*usual.clients, *bare])
        setting, arm = self._arm(problem)
        state = advance(setting, problem, arm, begin(setting, problem, arm), 5)
        assert np.isfinite(state.w).all()

    def test_every_hyperparameter_reaches_the_training(self) -> None:
        """Changing any hyperparameter of the default space changes what a few rounds give."""
        problem = quadratics(examples=40)
        for side, hypers in (("client", self.method.client), ("server", self.method.server)):
            for name, hyper in hypers.items():
                if hyper.domain is None:
                    continue
                low, high = extremes(hyper.domain)
                ends = [self._outcome(problem, side, name, value) for value in (low, high)]
                assert ends[0] != ends[1], f"{side}.{name} = {low} and {high} give the same"

    def _outcome(self, problem: Simulation, side: str, name: str, value: Any) -> bytes:
        setting, arm = self._arm(problem)
        if side == "client":
            arm = replace(arm, candidates=({**arm.candidates[0], name: value},))
        else:
            arm = replace(arm, server={**arm.server, name: value})
        state = advance(setting, problem, arm, begin(setting, problem, arm), 3)
        jobs = plan(setting, problem, arm, state)
        after = [work(setting.method, problem, job).after for job in jobs]
        return pack(state) + repr(after).encode()

    def _with_defaults(self) -> Method:
        return self.method.with_defaults(self.client, self.server)

    def _arm(self, problem: Simulation, k: int = 1) -> tuple[Setting, Arm]:
        """Return the default configuration as an arm; with k > 1, its neighbours in learning rate beside it."""
        method = self._with_defaults()
        base = defaults(method.client)
        rate = float(base["lr"])
        candidates = tuple({**base, "lr": rate * (1 - 0.1 * j)} for j in range(k))
        return Setting(method, FedEx(k=k), cohort=4), Arm(0, defaults(method.server), candidates, 0.5)


def advance(setting: Setting, problem: Simulation, arm: Arm, state: State, until: int) -> State:
    """Return the arm's state after round ``until``."""
    for following, _ in arms.rounds(setting, problem, arm, state, until, NOWHERE, partial(work_all, setting, problem)):
        state = following
    return state


def extremes(domain: Domain) -> tuple[Any, Any]:
    """Return two values of a domain that are far apart."""
    drawn = [domain.draw(stream(0, "extremes", i)) for i in range(64)]
    return min(drawn), max(drawn)
