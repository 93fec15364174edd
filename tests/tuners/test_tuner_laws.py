"""Every tuner keeps the laws, one of one's own too; and the laws can be broken."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedtuner as ft
from fedtuner import FedEx, FedPop, tuners
from fedtuner.core.records import Choice, Seen, Summary
from fedtuner.errors import SpecError
from fedtuner.space import PAPER_CLIENT, Float, Space
from fedtuner.testing import TunerLaws
from fedtuner.testing.rounds import a_round, an_arm, history
from fedtuner.testing.toys import quadratics
from fedtuner.tuners import Kernel, Untuned, none


@dataclass(frozen=True)
class Gaussian:
    """A belief over the whole range of the learning rate, in decades: it moves toward the best client of a round."""

    labels = None
    tried = 1
    deviation: float = 0.5

    def begin(self, arm, space, seed, parent):
        if parent is not None and parent[0] == arm.client:
            return parent
        return arm.client, math.log10(arm.client["lr"]), self.deviation

    def choose(self, belief, n, streams):
        client, mean, deviation = belief
        drawn = mean + deviation * streams("choose").standard_normal(n)
        return tuple((Choice(i, self._at(client, x)),) for i, x in enumerate(drawn))

    def value(self, tried):
        return tried.after.error - tried.before.error

    def update(self, belief, seen):
        client, mean, deviation = belief
        known = [s for s in seen if s.weight and math.isfinite(s.values[0])]
        if not known:
            return belief
        best = min(known, key=lambda s: (s.values[0], s.configs[0]["lr"]))
        return client, 0.8 * mean + 0.2 * math.log10(best.configs[0]["lr"]), 0.97 * deviation

    def best(self, belief):
        return self._at(belief[0], belief[1])

    def offers(self, belief):
        return (self.best(belief),), np.ones(1)

    def summary(self, belief):
        return Summary()

    def pack(self, belief):
        return {"normal": np.array(belief[1:])}

    def unpack(self, begun, arrays):
        return begun[0], *map(float, arrays["normal"])

    @staticmethod
    def _at(client, decade):
        return {**client, "lr": float(10 ** min(max(decade, -3.0), 0.0))}


MEMBERS = {
    "fedex": FedEx(),
    "one candidate": FedEx(k=1),
    "adaptive steps": FedEx(k=5, eps=0.3, step="adaptive", gamma=0.5),
    "constant steps": FedEx(k=5, eps=0.3, step="constant", gamma=0.0),
    "theta that stays": FedEx(k=5, step="none"),
    "a cutoff": FedEx(k=4, cutoff=0.3),
    "improvement of the loss": FedEx(k=3, metric="loss", signal="improvement", gamma=1.0),
    "several tries": FedEx(k=5, tries=3),
    "full information": FedEx(k=5, tries="all"),
    "client vectors": FedPop(),
    "client vectors that evolve often": FedPop(k=4, every=1, young=12, metric="error"),
    "one client vector": FedPop(k=1),
    "kernel": Kernel(),
    "a kernel of a given width": Kernel(k=9, eps=0.3, width=0.15, gamma=0.5),
    "a narrow kernel": Kernel(k=9, eps=1.0, width=0.05, step="adaptive"),
    "a kernel of several tries": Kernel(k=5, tries=3),
    "a kernel of full information": Kernel(k=5, tries="all"),
    "none": none,
    "gaussian": tuners.Gaussian(),
    "a wide gaussian": tuners.Gaussian(deviation=0.4, metric="loss", signal="absolute"),
    "a slow gaussian": tuners.Gaussian(deviation=0.05, rate=0.1),
    "a gaussian of one's own": Gaussian(),
}


@pytest.mark.parametrize("member", MEMBERS)
class TestEveryTuner(TunerLaws):
    @pytest.fixture(autouse=True)
    def _choose(self, member):
        stays = ("one candidate", "theta that stays", "one client vector", "none")
        self.member, self.learns = member, member not in stays

    def tuner(self):
        return MEMBERS[self.member]


# The laws can be broken.


class Forgetful(FedEx):
    def choose(self, belief, n, streams):
        return super().choose(belief, max(n - 1, 0), streams)


class Inventive(FedEx):
    def choose(self, belief, n, streams):
        return tuple((replace(c[0], label=self.k), *c[1:]) for c in super().choose(belief, n, streams))


class Restless(FedEx):
    def update(self, belief, seen):
        return super().update(belief, seen or [Seen((0,), (1.0,), 1.0)])


class Counting(FedEx):
    draws = itertools.count()

    def begin(self, arm, space, seed, parent):
        return super().begin(arm, space, seed + next(self.draws), parent)


class Unweighted(FedEx):
    def update(self, belief, seen):
        return super().update(belief, [replace(s, weight=min(s.weight, 1.0)) for s in seen])


class Lossy(FedEx):
    def pack(self, belief):
        return {name: array.astype(np.float32).astype(np.float64) for name, array in super().pack(belief).items()}


class Contrary(FedEx):
    def best(self, belief):
        return belief.candidates[int(np.argmin(belief.theta.log_theta))]


class Backward(FedEx):
    def value(self, tried):
        return -super().value(tried)


class Stubborn(Untuned):
    labels = 2


@pytest.mark.parametrize(
    ("tuner", "law"),
    [
        (Forgetful(k=3), "test_every_client_gets_a_choice_of_known_labels"),
        (Inventive(k=3), "test_every_client_gets_a_choice_of_known_labels"),
        (Restless(k=3), "test_a_round_in_which_nothing_was_seen_changes_nothing"),
        (Counting(k=3), "test_a_belief_begins_as_a_function_of_arm_space_and_seed"),
        (Unweighted(k=3), "test_sums_by_label_give_the_same_belief"),
        (Lossy(k=3), "test_packing_is_the_identity"),
        (Contrary(k=3), "test_the_best_is_the_most_probable_offer"),
        (Backward(k=3), "test_a_value_is_a_number"),
        (FedEx(k=3, step="none"), "test_it_finds_the_best_of_a_noiseless_table"),
        (Stubborn(), "test_offers_are_a_distribution_over_legal_configurations"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_the_laws_can_be_broken(tuner, law):
    class Laws(TunerLaws):
        rounds = 20

        def tuner(self):
            return tuner

    with pytest.raises((AssertionError, IndexError, SpecError)):
        getattr(Laws(), law)()


def test_the_hook_must_be_overridden():
    with pytest.raises(NotImplementedError, match=r"override tuner\(\)"):
        TunerLaws().test_a_value_is_a_number()


# Candidates


def begun(arm, space=None, **settings):
    space = space or Space(PAPER_CLIENT, {"lr": Float(0.1, 10, log=True)})
    return FedEx(**settings).begin(arm, space, 3, None)


def drawn(id):
    """An arm as the uniform sampler proposes it."""
    space = Space(PAPER_CLIENT, {"lr": Float(0.1, 10, log=True)})
    client, server = ft.samplers.uniform.propose(space, 3, id, 0, ())
    return replace(an_arm(ft.methods.fedavg, client, server), id=id)


def test_candidates_are_the_papers_local_perturbation():
    belief = begun(drawn(5), k=27, eps=0.1)
    assert len(belief.candidates) == 27
    first, *others = belief.candidates
    assert all(abs(math.log10(c["lr"]) - math.log10(first["lr"])) <= 0.4 + 1e-9 for c in others)
    assert all(abs(c["dropout"] - first["dropout"]) <= 0.05 + 1e-9 for c in others)
    assert len({c["lr"] for c in belief.candidates}) == 27
    assert 0 <= belief.gamma <= 1


def test_an_arms_candidates_are_known_by_its_number_and_begin_with_the_arms_own():
    many, plain = begun(drawn(7), k=9), begun(drawn(7), k=1)
    assert many.candidates == begun(drawn(7), k=9).candidates != begun(drawn(8), k=9).candidates
    assert plain.candidates == many.candidates[:1] == (drawn(7).client,)
    assert begun(drawn(7), k=9, eps=0.0).candidates == many.candidates[:1] * 9
    assert begun(drawn(7), k=9, gamma=0.25).gamma == 0.25
    assert many.gamma == plain.gamma != begun(drawn(8), k=9).gamma


# A tuner of one's own


def test_a_belief_over_the_whole_space_learns_from_configurations():
    """A rate that hardly trains: the Gaussian moves to one that does, as it knows which configurations were used."""
    space = Space({"lr": Float(1e-3, 1.0, log=True)})
    round = a_round(ft.methods.fedavg, quadratics(spread=1.0), space=space, tuner=Gaussian())
    arm = an_arm(ft.methods.fedavg, {"lr": 2e-3})
    state, _ = history(round, arm, 20)
    assert round.setup.tuner.best(state.belief)["lr"] > 0.02


def test_a_study_takes_a_tuner_of_ones_own():
    study = ft.tune(
        quadratics(), Space({"lr": Float(1e-3, 1.0, log=True)}), tuner=Gaussian(),
        schedule=ft.random_search(12, 6), cohort=4, workers=1,
    )  # fmt: skip
    assert study.best.client["lr"] != study.journal.arms[study.best.arm].client["lr"]
    assert study.best.theta.tolist() == [1.0]
    assert math.isfinite(study.evaluate("test")["personalized"])
