"""The laws that every federated method keeps. Subclass in your tests and name your method:

class TestMine(fedtuner.testing.MethodLaws):
    method = my_method
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedtuner.core.method import Method, Shape, check, default_space, defaults
from fedtuner.core.model import Vectors
from fedtuner.core.records import Arm, Report
from fedtuner.core.round import Round
from fedtuner.federations import Client, Simulation
from fedtuner.rng import stream
from fedtuner.run.store.states import unpack
from fedtuner.run.tuning import tune
from fedtuner.schedules import random_search
from fedtuner.space import Config, Domain, Float, Space
from fedtuner.testing.rounds import a_round, advance, an_arm, bits, reported, settle
from fedtuner.testing.toys import optimum, quadratics
from fedtuner.tuners import FedEx


class MethodLaws:
    """Laws of a method on small quadratics; ``client`` and ``server`` override its defaults for them."""

    method: Method
    client: Config = {}  # noqa: RUF012
    server: Config = {}  # noqa: RUF012
    rounds = 40

    def test_the_default_configuration_and_space_are_legal(self) -> None:
        for hypers in (self.method.client, self.method.server):
            for name, hyper in hypers.items():
                assert hyper.wrong(hyper.default) is None, name
        check(self.method, default_space(self.method, {}), {})

    def test_it_lowers_the_loss_of_a_convex_toy(self) -> None:
        """After some rounds the server's model is much nearer to the optimum than it was."""
        problem = quadratics(spread=1.0)
        round, arm = self._round(problem)
        target = optimum(problem)
        gaps = [np.linalg.norm(advance(round, arm, until).w - target) for until in (0, self.rounds)]
        assert gaps[1] < 0.5 * gaps[0]

    def test_a_round_is_a_pure_function_of_its_state(self) -> None:
        round, arm = self._round(quadratics())
        state = advance(round, arm, 2)
        before = bits(round, state)
        once, again = (advance(round, arm, 4, state) for _ in range(2))
        assert bits(round, state) == before
        assert bits(round, once) == bits(round, again)

    def test_the_order_in_which_clients_work_does_not_matter(self) -> None:
        """The tally adds in the plan's order, whichever client was first to report."""
        round, arm = self._round(quadratics())
        state = advance(round, arm, 2)
        plan, forward = reported(round, arm, state)
        backward = [round.work(plan, job) for job in reversed(plan.jobs)][::-1]
        one, other = (settle(round, arm, state, *reports)[0] for reports in (forward, backward))
        assert bits(round, one) == bits(round, other)

    def test_its_state_is_saved_and_loaded_to_the_bit(self) -> None:
        """Training that is stopped, saved, loaded and continued is training that was never stopped."""
        round, arm = self._round(quadratics(), k=5)
        stopped = advance(round, arm, 3)
        state, belief = unpack(bits(round, stopped))
        loaded = replace(state, belief=round.setup.tuner.unpack(round.begin(arm).belief, belief))
        assert bits(round, advance(round, arm, 6, loaded)) == bits(round, advance(round, arm, 6))

    def test_its_vectors_are_as_declared(self) -> None:
        """``extra``, ``memory`` and ``sends`` name what travels, with its shape: a transport checks them."""
        assert set(self.method.sums) <= set(self.method.extra)
        problem = quadratics(statistics=2)
        round, arm = self._round(problem)
        state = advance(round, arm, 3)
        plan, reports = reported(round, arm, state)
        assert set(plan.slots) <= set(self.method.sends)
        declared = dict(self.method.extra)
        for report in reports:
            added = round.setup.method.optimiser(arm.server).extra(report.change[: problem.model.trainable])
            self._fit(report.extra, declared | {name: v.shape for name, v in added.items()}, problem)
            self._fit(report.memory, self.method.memory, problem)

    def test_statistics_are_averaged(self) -> None:
        """Entries of w without gradients, such as batch-norm's, become the mean of the clients' by |T|."""
        round, arm = self._round(quadratics(statistics=2))
        state = advance(round, arm, 2)
        _, reports = reported(round, arm, state)
        following, _ = settle(round, arm, state, *reports)
        shares = np.array([report.examples for report in reports]) / sum(report.examples for report in reports)
        expected = state.w[-2:] + shares @ np.array([report.change[-2:] for report in reports])
        assert np.allclose(following.w[-2:], expected, rtol=1e-5)

    def test_it_is_tuned_by_fedex_on_any_executor(self) -> None:
        """One candidate or five, one process or two: it runs, and the executors agree to the bit."""
        for k in (1, 5):
            one, two = (
                tune(
                    quadratics(), method=self._with_defaults(), fedex=FedEx(k=k), schedule=random_search(12, 6),
                    cohort=4, workers=workers,
                )
                for workers in (1, 2)
            )  # fmt: skip
            assert [repr(r) for r in one.history] == [repr(r) for r in two.history]
            assert one.journal.beliefs == two.journal.beliefs
            assert one.best.model.tobytes() == two.best.model.tobytes()
            assert np.isclose(one.best.theta.sum(), 1.0)

    def test_absent_clients_change_nothing(self) -> None:
        """A round in which nobody answers leaves the model as it was; one in which some answer still counts."""
        round, arm = self._round(quadratics())
        state = advance(round, arm, 2)
        _, reports = reported(round, arm, state)
        empty, record = settle(round, arm, state, *[None] * len(reports))
        assert np.array_equal(empty.w, state.w)
        assert record.dropped == len(reports)
        following, record = settle(round, arm, state, None, *reports[1:])
        assert record.dropped == 1
        assert np.isfinite(following.w).all()

    def test_a_broken_client_is_left_out(self) -> None:
        """An update that is not finite does not reach the model: it is as if the client had been absent."""
        round, arm = self._round(quadratics())
        state = round.begin(arm)
        _, (first, *others) = reported(round, arm, state)
        broken: Report = replace(first, finite=False, change=np.full_like(first.change, np.nan))
        with_broken, record = settle(round, arm, state, broken, *others)
        without, _ = settle(round, arm, state, None, *others)
        assert record.broken == 1
        assert np.array_equal(with_broken.w, without.w)

    def test_clients_without_examples_do_no_harm(self) -> None:
        """No training or no validation examples are ordinary: the round goes on, and the numbers stay finite."""
        usual = quadratics()
        bare = [
            Client("no training", None, usual.clients[0].valid),
            Client("no validation", usual.clients[0].train, None),
            Client("nothing", None, None),
        ]
        round, arm = self._round(Simulation(usual.model, [*usual.clients, *bare]))
        assert np.isfinite(advance(round, arm, 5).w).all()

    def test_every_hyperparameter_reaches_the_training(self) -> None:
        """Changing any hyperparameter of the default space changes what a few rounds give."""
        problem = quadratics(examples=40)
        for side, hypers in (("client", self.method.client), ("server", self.method.server)):
            for name, hyper in hypers.items():
                if hyper.domain is None:
                    continue
                low, high = extremes(hyper.domain)
                ends = [self._outcome(problem, side, {name: value}) for value in (low, high)]
                assert ends[0] != ends[1], f"{side}.{name} = {low} and {high} give the same"

    def _outcome(self, problem: Simulation, side: str, changed: Config) -> bytes:
        round, arm = self._round(problem)
        if side == "client":
            arm = replace(arm, client={**arm.client, **changed})
        else:
            arm = replace(arm, server={**arm.server, **changed})
        state = advance(round, arm, 3)
        after = [report.after for report in reported(round, arm, state)[1]]
        return bits(round, state) + repr(after).encode()

    def _fit(self, vectors: Vectors, declared: Any, problem: Simulation) -> None:
        assert vectors.keys() <= declared.keys(), f"{sorted(vectors)}, but {sorted(declared)} are declared"
        for name, vector in vectors.items():
            shape = _length(declared[name], problem)
            assert vector.shape == shape, f"{name} is of shape {vector.shape}, but is declared as {declared[name]!r}"
            assert vector.dtype == np.float32, f"{name} is of type {vector.dtype}, but vectors are of float32"

    def _with_defaults(self) -> Method:
        return self.method.with_defaults(self.client, self.server)

    def _round(self, problem: Simulation, k: int = 0) -> tuple[Round, Arm]:
        """Return rounds of the default configuration; with k, tuned by FedEx among that many learning rates."""
        method = self._with_defaults()
        if not k:
            return a_round(method, problem), an_arm(method)
        rate = float(defaults(method.client)["lr"])
        space = Space({"lr": Float(0.5 * rate, 2 * rate, log=True)})
        return a_round(method, problem, space=space, tuner=FedEx(k=k, gamma=0.5)), an_arm(method)


def _length(declared: Shape, problem: Simulation) -> tuple[int, ...]:
    lengths = {"trainable": (problem.model.trainable,), "all": (problem.model.size,)}
    return lengths[declared] if isinstance(declared, str) else declared


def extremes(domain: Domain) -> tuple[Any, Any]:
    """Return two values of a domain that are far apart."""
    drawn = [domain.draw(stream(0, "extremes", i)) for i in range(64)]
    return min(drawn), max(drawn)
