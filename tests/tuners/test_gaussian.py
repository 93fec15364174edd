"""The Gaussian belief: its update by hand, what it may draw, what it finds, and all that reads a study that has one."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner.core.records import Arm, Seen
from fedtuner.errors import SpecError
from fedtuner.experiments.compare import _of_store
from fedtuner.report.show import headline
from fedtuner.report.summary import summary
from fedtuner.rng import stream
from fedtuner.run import spec
from fedtuner.run.result import load, round_rows
from fedtuner.space import Choice, Float, Int, Space, When
from fedtuner.testing.toys import quadratics
from fedtuner.tuners import Gaussian
from fedtuner.tuners.gaussian import NARROWEST, WIDEST

LINE = Space({"lr": Float(1e-4, 1.0, log=True)})


def begun(client, space=LINE, tuner=None, server=None):
    return (tuner or Gaussian()).begin(Arm(0, client, server or {}), space, 0, None)


def seen(*pairs, weights=None):
    weights = weights or [1.0] * len(pairs)
    return [Seen((i,), (v,), w, (c,)) for i, ((c, v), w) in enumerate(zip(pairs, weights, strict=True))]


def test_the_update_by_hand():
    """One hyperparameter, mean 1/2 (lr 10^-2 of 10^-4 to 1), deviation 0.1; d = 1, so NES wants 4 clients.

    Four clients of equal |V| at 0.6, 0.6, 0.4, 0.4 (lr 10^-1.6 and 10^-2.4) have values 1, 1, 3, 3. The baseline is 2,
    the deviation of values 1, so a = (1, 1, -1, -1); s = (1, 1, -1, -1). sum p a s = 1: mean 1/2 + 0.1 = 0.6. The sum
    of p a (s^2 - 1) is 0: the deviation stays.
    """
    tuner, belief = Gaussian(), begun({"lr": 1e-2})
    up, down = {"lr": 10**-1.6}, {"lr": 10**-2.4}
    moved = tuner.update(belief, seen((up, 1.0), (up, 1.0), (down, 3.0), (down, 3.0)))
    assert moved.mean["lr"] == pytest.approx(0.6)
    assert moved.log_deviation["lr"] == pytest.approx(math.log(0.1))
    assert tuner.best(moved)["lr"] == pytest.approx(10**-1.6)


def test_the_deviation_by_hand():
    """The two clients two deviations away did better than the two at the mean: a = (1, 1, -1, -1), s = (2, -2, 0, 0).

    sum p a s = 0; sum p a (s^2 - 1) = (3 + 3 + 1 + 1) / 4 = 2. With e = 3/5 the logarithm grows by 0.6 / 2 * 2.
    """
    far = {"lr": 10**-1.2}, {"lr": 10**-2.8}
    moved = Gaussian().update(begun({"lr": 1e-2}), seen(*((c, 1.0) for c in far), *(({"lr": 1e-2}, 3.0),) * 2))
    assert moved.mean["lr"] == pytest.approx(0.5)
    assert moved.log_deviation["lr"] == pytest.approx(math.log(0.1) + 0.6)


def test_odds_by_hand():
    """Two values, the arm's own redrawn with probability 0.2: odds (0.9, 0.1). Clients with a = (1, -1), shares 1/2.

    Better was the second value: sum p a (1[value] - pi) = (1/2)(0 - 0.9) - (1/2)(1 - 0.9) = -1/2 for the first, 1/2 for
    the second. Two clients of the four that NES wants: the rate is 1/2, so the log of their quotient falls by 1/2.
    """
    space = Space({"optimiser": ["sgd", "adam"]})
    tuner = Gaussian(deviation=0.2)
    belief = begun({"optimiser": "sgd"}, space, tuner)
    assert np.exp(belief.log_odds["optimiser"]).tolist() == pytest.approx([0.9, 0.1])
    moved = tuner.update(belief, seen(({"optimiser": "adam"}, 1.0), ({"optimiser": "sgd"}, 2.0))).log_odds["optimiser"]
    assert moved[0] - moved[1] == pytest.approx(math.log(9) - 0.5)


def test_values_count_by_their_differences_alone():
    """The scale and the level of values do not matter; shares do."""
    tuner, belief = Gaussian(), begun({"lr": 1e-2})
    at = [{"lr": 10.0**e} for e in (-1.5, -2.2, -2.6)]
    values = list(zip(at, (1, 2, 4), strict=True))
    moved = [
        tuner.update(belief, seen(*((c, scale * v + level) for c, v in values), weights=weights))
        for scale, level, weights in ((1, 0, [1, 2, 3]), (1e-3, 7, [2, 4, 6]), (1, 0, [3, 2, 1]))
    ]  # fmt: skip
    assert moved[0].mean["lr"] == pytest.approx(moved[1].mean["lr"])
    assert moved[0].mean["lr"] != pytest.approx(moved[2].mean["lr"])


def test_rounds_that_say_nothing():
    tuner, belief = Gaussian(), begun({"lr": 1e-2})
    assert tuner.update(belief, seen(({"lr": 0.1}, 0.3))) is belief  # one client is its own baseline
    assert tuner.update(belief, seen(({"lr": 0.1}, 0.3), ({"lr": 0.2}, 0.3))) is belief
    assert tuner.update(belief, seen(({"lr": 0.1}, math.nan), ({"lr": 0.2}, math.nan))) is belief


def test_a_client_that_diverged_is_avoided():
    tuner, belief = Gaussian(), begun({"lr": 1e-2})
    for bad in (math.nan, math.inf):
        moved = tuner.update(belief, seen(({"lr": 0.05}, bad), ({"lr": 5e-3}, 0.4), ({"lr": 5e-3}, 0.5)))
        assert moved.mean["lr"] < 0.5


def test_it_begins_at_the_arms_own_values_to_the_bit():
    client = {"lr": 0.1, "epochs": 3, "optimiser": "sgd", "other": "kept"}
    space = Space({"lr": Float(1e-4, 1.0, log=True), "epochs": Int(1, 5), "optimiser": ["sgd", "adam"]})
    assert Gaussian().best(begun(client, space)) == client


def test_values_outside_of_their_domain_stay():
    space = Space({"lr": Float(1e-4, 1.0, log=True), "weight_decay": Float(1e-5, 1e-1, log=True), "batch": [8, 16]})
    belief = begun({"lr": 0.1, "weight_decay": 0.0, "batch": 32}, space)
    for (choice,) in Gaussian().choose(belief, 20, lambda use: stream(0, use)):
        assert (choice.config["weight_decay"], choice.config["batch"]) == (0.0, 32)
    assert set(belief.mean) == {"lr"}


def test_constraints_hold():
    """Draws meet them; the mean that would not is the last place on the way to it that does."""
    space = Space({"lr": Float(1e-4, 1.0, log=True), "epochs": Int(1, 5)}, constraints=("lr * epochs <= 0.5",))
    tuner = Gaussian(deviation=0.3)
    belief = begun({"lr": 0.1, "epochs": 3}, space, tuner)
    drawn = [c.config for (c,) in tuner.choose(belief, 200, lambda use: stream(0, use))]
    assert all(c["lr"] * c["epochs"] <= 0.5 for c in drawn)
    assert len({c["epochs"] for c in drawn}) == 5
    best = tuner.best(replace(belief, mean={"lr": 0.95, "epochs": 0.95}))
    assert 0.1 < best["lr"] * best["epochs"] <= 0.5


def test_conditional_hyperparameters():
    """They are drawn where they apply, and only such draws move them."""
    space = Space({"optimiser": Choice(["sgd", "adam"]), "beta2": When(Float(0.0, 1.0), optimiser="adam")})
    tuner = Gaussian(deviation=0.5)
    belief = begun({"optimiser": "sgd"}, space, tuner)
    drawn = [c.config for (c,) in tuner.choose(belief, 60, lambda use: stream(0, use))]
    assert {("beta2" in c) == (c["optimiser"] == "adam") for c in drawn} == {True}
    sgd, low, high = {"optimiser": "sgd"}, {"optimiser": "adam", "beta2": 0.2}, {"optimiser": "adam", "beta2": 0.8}
    moved = tuner.update(belief, seen((sgd, 5.0), (low, 1.0), (high, 2.0), (low, 1.0), (high, 2.0)))
    assert moved.mean["beta2"] < 0.5
    assert moved.log_odds["optimiser"][1] > belief.log_odds["optimiser"][1]
    same = tuner.update(belief, seen((sgd, 1.0), (sgd, 2.0), (sgd, 3.0)))
    assert same.mean == belief.mean


@pytest.mark.parametrize("best", [-3.0, -1.0, -0.2])
def test_it_finds_the_best_of_noisy_values_far_away(best):
    """From lr 10^-2 to the lr of least cost, with noise as large as a decade's cost; the deviation falls at the end."""
    tuner, belief = Gaussian(), begun({"lr": 1e-2, "epochs": 3}, Space({**LINE.client, "epochs": Int(1, 5)}))
    for t in range(100):
        chosen = tuner.choose(belief, 10, lambda use, t=t: stream(0, use, t))
        noise = stream(0, "noise", t).normal(0, 1, 10)
        cost = [abs(math.log10(c.config["lr"]) - best) + e for (c,), e in zip(chosen, noise, strict=True)]
        belief = tuner.update(belief, seen(*((c.config, x) for (c,), x in zip(chosen, cost, strict=True))))
        assert math.log(NARROWEST) - 1e-9 <= belief.log_deviation["lr"] <= math.log(WIDEST) + 1e-9
    assert abs(math.log10(tuner.best(belief)["lr"]) - best) < 0.5


def test_it_moves_to_a_rate_that_trains():
    """Arms begin at rates that hardly train, which the study's own first round shows; the result is another."""
    study = ft.tune(
        quadratics(spread=1.0), Space({"lr": Float(1e-3, 1.0, log=True)}), tuner=Gaussian(deviation=0.2),
        include=[{"client": {"lr": 2e-3}}], schedule=ft.random_search(30, 30), cohort=8, workers=1, progress=False,
    )  # fmt: skip
    assert study.best.client["lr"] > 0.02


def test_settings_that_make_no_sense():
    for wrong, why in (
        ({"deviation": 0.01}, r"tuner.deviation = 0.01, but must be in \[0.05, 0.5\]"),
        ({"rate": -1}, "tuner.rate = -1, but must be >= 0"),
        ({"metric": "f1"}, "tuner.metric = 'f1'"),
        ({"signal": "after"}, "tuner.signal = 'after'"),
    ):
        with pytest.raises(SpecError, match=why):
            Gaussian(**wrong)


def test_a_study_toml_names_it():
    read = spec.parse({"problem": "toys:problem", "cohort": 3, "tuner": {"kind": "gaussian", "deviation": 0.2}})
    assert read.study(None, 1).setup.tuner == Gaussian(deviation=0.2)
    with pytest.raises(SpecError, match=r"no setting tuner.deviaton in gaussian; did you mean 'deviation'"):
        spec.parse({"problem": "toys:problem", "tuner": {"kind": "gaussian", "deviaton": 0.2}})


# What reads a study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    made = toys.tune(tuner=Gaussian(), method=ft.methods.fedavg, store=tmp_path_factory.mktemp("gaussian") / "s")
    made.evaluate("test")
    made.evaluate("test", "sample")
    return made


def test_the_result_is_the_mean(study):
    key = study.winner
    assert study.best.client == study.setup.tuner.best(study.state(key).belief)
    assert study.best.client != study.journal.arms[key[0]].client
    assert (study.best.theta.tolist(), study.best.candidates) == ([1.0], (study.best.client,))
    assert load(study.path).best.client == study.best.client


def test_records_tell_how_sure_it_is(study):
    entropies = [r.entropy for r in study.history if r.arm == study.best.arm]
    assert len(set(entropies)) > 1
    assert all(e >= 0 for e in entropies)
    assert {(r.mode, r.confidence) for r in study.history} == {(0, 1.0)}


def test_frames_have_the_configuration_that_was_saved_last(study):
    rows = [row for row in round_rows(study.journal) if row["arm"] == study.best.arm]
    assert rows[-1]["client.lr"] == study.best.client["lr"]
    arms = {row["arm"]: row for row in study.arms()}
    assert arms[study.best.arm]["client.lr"] == study.best.client["lr"]


def test_the_work_of_clients_is_that_of_the_mean():
    """Two epochs that nobody changes are two passes, whatever a client's label."""
    space = ft.Space({"lr": Float(1e-3, 1.0, log=True), "epochs": 2})
    made = toys.tune(space=space, tuner=Gaussian(), method=ft.methods.fedavg)
    assert made.examples_processed == 2 * sum(r.examples for r in made.history)


def test_show_export_and_compare(study, tmp_path, capsys):
    shown = summary(study.path)
    assert shown["result"]["client"] == dict(study.best.client)
    assert "around a Gaussian belief of each arm" in headline(shown["spec"])
    study.export(tmp_path / "out")
    exported = json.loads((tmp_path / "out" / "configuration.json").read_text())
    assert (exported["client"], exported["theta"]) == (dict(study.best.client), [1.0])
    assert _of_store(study.path)["labels"]["tuning"] == "+ gaussian"


def test_it_goes_to_optuna(study, tmp_path):
    optuna = pytest.importorskip("optuna")
    from fedtuner.report import to_optuna

    url = str(tmp_path / "optuna.log")
    name, _ = to_optuna.export(study.path, url)
    trials = optuna.load_study(study_name=name, storage=to_optuna.storage(url)).trials
    assert study.best.client["lr"] in [trial.params["client.lr"] for trial in trials]


def test_a_warm_start_takes_its_configuration(study):
    again = toys.tune(tuner=Gaussian(), method=ft.methods.fedavg, start_from=study.path)
    assert again.journal.arms[0].client["lr"] == study.best.client["lr"]


def test_with_privacy_it_is_refused():
    from fedtuner.core.privacy import Gaussian as Noise

    with pytest.raises(SpecError, match="Gaussian cannot be summed by label, but with privacy the server sees only"):
        toys.tune(tuner=Gaussian(), method=ft.methods.fedavg, privacy=Noise(50.0), schedule=ft.random_search(4, 2))
