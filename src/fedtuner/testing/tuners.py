"""The laws that every tuner keeps. Subclass in your tests and return your tuner:

class TestMine(fedtuner.testing.TunerLaws):
    def tuner(self): return MyTuner()
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedtuner.core.model import Metrics
from fedtuner.core.records import Arm, Choice, Seen, Tried
from fedtuner.core.tuner import Tuner
from fedtuner.rng import Generator, stream
from fedtuner.space import Float, Int, Space

ODD = (math.nan, math.inf, -math.inf, 0.0, -1e308, 1e308)
SPACE = Space({"lr": Float(1e-3, 1.0, log=True), "epochs": Int(1, 5), "optimiser": ["sgd", "adam"]})


class TunerLaws:
    """Laws of a tuner in the space ``SPACE``; override ``tuner``, and ``learns`` where values do not move it."""

    learns = True  # whether it comes to prefer the configuration whose values are the lowest
    rounds = 60  # after so many rounds

    def tuner(self) -> Tuner:
        raise NotImplementedError("override tuner()")

    def test_a_belief_begins_as_a_function_of_arm_space_and_seed(self) -> None:
        tuner = self.tuner()
        first = _bits(tuner, _begin(tuner, 3))
        _after(tuner, _begin(tuner, 4), 5)
        assert _bits(tuner, _begin(tuner, 3)) == first == _bits(self.tuner(), _begin(self.tuner(), 3))

    def test_a_belief_goes_on_from_its_parents(self) -> None:
        """An arm with its parent's configuration keeps its parent's belief; one with another has other offers."""
        tuner = self.tuner()
        parent = _after(tuner, _begin(tuner), 3)
        same = tuner.begin(_arm(8), SPACE, 0, parent)
        assert _bits(tuner, same) == _bits(tuner, parent)
        changed = tuner.begin(_arm(8, lr=0.5), SPACE, 0, parent)
        assert tuner.offers(changed)[0] != tuner.offers(parent)[0]

    def test_offers_are_a_distribution_over_legal_configurations(self) -> None:
        """Probabilities sum to 1; every configuration has the arm's hyperparameters, within their domains."""
        for tuner, belief in self._cases():
            configs, p = tuner.offers(belief)
            assert len(configs) == len(p) == (len(p) if tuner.labels is None else tuner.labels)
            assert (np.asarray(p) >= 0).all()
            assert math.isclose(float(np.sum(p)), 1.0, rel_tol=1e-9)
            for config in configs:
                assert config.keys() == _arm(0).client.keys()
                assert all(config[name] in domain for name, domain in SPACE.client.items())

    def test_every_client_gets_a_choice_of_known_labels(self) -> None:
        """``choose`` gives n clients at least one choice each and at most ``tried``, of distinct labels."""
        for tuner, belief in self._cases():
            for n in (0, 1, 7):
                chosen = tuner.choose(belief, n, _streams(n))
                assert len(chosen) == n
                for choices in chosen:
                    assert 1 <= len(choices) <= tuner.tried
                    assert len({choice.label for choice in choices}) == len(choices)
                    assert all(self._known(tuner, belief, choice) for choice in choices)

    def test_choices_depend_on_the_belief_and_the_streams_alone(self) -> None:
        """The same streams give the same choices; choosing does not change the belief."""
        for tuner, belief in self._cases():
            before = _bits(tuner, belief)
            assert tuner.choose(belief, 9, _streams(1)) == tuner.choose(belief, 9, _streams(1))
            assert _bits(tuner, belief) == before

    def test_the_best_is_the_most_probable_offer(self) -> None:
        """``best`` is one of the offers, and ``summary`` says which and how probable it is."""
        for tuner, belief in self._cases():
            configs, p = tuner.offers(belief)
            summary = tuner.summary(belief)
            assert tuner.best(belief) in configs
            assert summary.entropy >= 0
            assert math.isclose(summary.confidence, float(np.max(p)), rel_tol=1e-9)
            if tuner.labels is not None:
                assert tuner.best(belief) == configs[summary.mode]
                assert summary.entropy <= math.log(tuner.labels) + 1e-9

    def test_a_round_in_which_nothing_was_seen_changes_nothing(self) -> None:
        """Nobody answered, or nobody has validation examples."""
        for tuner, belief in self._cases():
            before = _bits(tuner, belief)
            assert _bits(tuner, tuner.update(belief, ())) == before
            assert _bits(tuner, tuner.update(belief, self._seen(tuner, belief, lambda j: math.nan, weight=0))) == before

    def test_an_update_is_a_pure_function(self) -> None:
        """The same values give the same belief, and leave the belief before as it was."""
        for tuner, belief in self._cases():
            before, seen = _bits(tuner, belief), self._seen(tuner, belief, lambda j: 0.1 * (j % 4))
            assert _bits(tuner, tuner.update(belief, seen)) == _bits(tuner, tuner.update(belief, seen))
            assert _bits(tuner, belief) == before

    def test_the_order_of_clients_does_not_matter(self) -> None:
        """But for rounding."""
        for tuner, belief in self._cases():
            seen = self._seen(tuner, belief, lambda j: 0.3 + 0.1 * (j % 4))
            _assert_close(tuner, tuner.update(belief, seen), tuner.update(belief, seen[::-1]))

    def test_sums_by_label_give_the_same_belief(self) -> None:
        """One ``Seen`` per label with the weighted mean is as good as one per client, but for rounding.

        Secure aggregation shows the server only such sums. Where ``labels`` is None, or a client tries several
        configurations, nothing is promised.
        """
        for tuner, belief in self._cases():
            if tuner.labels is not None and tuner.tried == 1:
                seen = self._seen(tuner, belief, lambda j: 0.2 + 0.15 * (j % 5))
                _assert_close(tuner, tuner.update(belief, seen), tuner.update(belief, by_label(seen)))

    def test_values_that_are_not_finite_do_no_harm(self) -> None:
        """Whatever clients report, the offers stay a distribution."""
        tuner = self.tuner()
        belief = _begin(tuner)
        for t, odd in enumerate(ODD * 3):
            belief = tuner.update(belief, self._seen(tuner, belief, lambda j, odd=odd: odd if j % 2 else 0.5, t=t))
            p = np.asarray(tuner.offers(belief)[1])
            assert np.isfinite(p).all()
            assert math.isclose(float(p.sum()), 1.0, rel_tol=1e-9)

    def test_packing_is_the_identity(self) -> None:
        """A belief that was packed and unpacked is the same to the bit, and goes on as the belief would have."""
        for tuner, belief in self._cases():
            arrays = {name: np.frombuffer(a.tobytes(), a.dtype) for name, a in tuner.pack(belief).items()}
            again = tuner.unpack(_begin(tuner), arrays)
            assert _bits(tuner, again) == _bits(tuner, belief)
            assert _bits(tuner, _after(tuner, again, 2)) == _bits(tuner, _after(tuner, belief, 2))

    def test_a_value_is_a_number(self) -> None:
        """The value of a measurement of finite metrics is finite; lower is better."""
        tuner = self.tuner()
        good, bad = (Tried(0, Metrics(1.0, 0.5, 3), Metrics(x, x, 3)) for x in (0.1, 0.9))
        assert math.isfinite(tuner.value(good))
        assert tuner.value(good) < tuner.value(bad)

    def test_it_finds_the_best_of_a_noiseless_table(self) -> None:
        """After some rounds it prefers the configuration whose values are the lowest."""
        tuner = self.tuner()
        belief = _begin(tuner)
        start = _cost(tuner.best(belief))
        for t in range(self.rounds if self.learns else 0):
            chosen = tuner.choose(belief, 10, _streams(t))
            belief = tuner.update(belief, [_seen_costs(choices) for choices in chosen])
        if self.learns:
            least = min(map(_cost, tuner.offers(belief)[0]))
            assert _cost(tuner.best(belief)) <= least + 0.1 * (start - least)

    def _cases(self) -> Iterator[tuple[Tuner, Any]]:
        """Yield the tuner with beliefs of one arm: at its beginning, and after some rounds."""
        for rounds in (0, 1, 6):
            tuner = self.tuner()
            yield tuner, _after(tuner, _begin(tuner), rounds)

    def _known(self, tuner: Tuner, belief: Any, choice: Choice) -> bool:
        if tuner.labels is None:
            return all(choice.config[name] in domain for name, domain in SPACE.client.items())
        return choice.config == tuner.offers(belief)[0][choice.label]

    def _seen(self, tuner: Tuner, belief: Any, value: Any, weight: float = 1.0, t: int = 0) -> list[Seen]:
        """Return what nine clients report of the tuner's choices: ``value`` of a label."""
        return [
            _as_seen(choices, [value(choice.label) for choice in choices], weight * (1 + i % 3))
            for i, choices in enumerate(tuner.choose(belief, 9, _streams(100 + t)))
        ]


def by_label(seen: list[Seen]) -> list[Seen]:
    """Return one ``Seen`` per label: the weighted mean of its values, and their total weight."""
    totals: dict[int, tuple[float, float]] = {}
    for one in seen:
        weight, total = totals.get(one.labels[0], (0.0, 0.0))
        totals[one.labels[0]] = weight + one.weight, total + one.weight * one.values[0]
    return [Seen((label,), (total / weight,), weight) for label, (weight, total) in totals.items()]


def _arm(id: int, lr: float = 0.03) -> Arm:
    return Arm(id, {"lr": lr, "epochs": 3, "optimiser": "sgd"}, {})


def _begin(tuner: Tuner, id: int = 0) -> Any:
    return tuner.begin(_arm(id), SPACE, 0, None)


def _streams(t: int) -> Any:
    def of(purpose: str) -> Generator:
        return stream(0, purpose, t)

    return of


def _after(tuner: Tuner, belief: Any, rounds: int) -> Any:
    for t in range(rounds):
        belief = tuner.update(belief, [_seen_costs(choices) for choices in tuner.choose(belief, 5, _streams(t))])
    return belief


def _seen_costs(choices: tuple[Choice, ...]) -> Seen:
    return _as_seen(choices, [_cost(choice.config) for choice in choices], 3.0)


def _as_seen(choices: tuple[Choice, ...], values: list[float], weight: float) -> Seen:
    configs = tuple(choice.config for choice in choices)
    return Seen(tuple(choice.label for choice in choices), tuple(values), weight, configs)


def _cost(config: Any) -> float:
    """Return how far a learning rate is from 0.05, in decades: the table that tuners learn."""
    return abs(math.log10(float(config["lr"]) / 0.05))


def _bits(tuner: Tuner, belief: Any) -> Any:
    configs, p = tuner.offers(belief)
    packed = {name: np.asarray(array).tobytes() for name, array in tuner.pack(belief).items()}
    return [dict(config) for config in configs], np.asarray(p).tobytes(), packed


def _assert_close(tuner: Tuner, one: Any, other: Any) -> None:
    np.testing.assert_allclose(tuner.offers(one)[1], tuner.offers(other)[1], rtol=1e-6, atol=1e-12)
    theirs = tuner.pack(other)
    for name, array in tuner.pack(one).items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-6, atol=1e-12, err_msg=name)
