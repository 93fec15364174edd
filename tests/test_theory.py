"""The theorem's experiment: its tasks are as the theorem wants them, its FedEx is fedex.py's, its regret obeys."""

from __future__ import annotations

import json
import math
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest

from fedtuner import cli
from fedtuner.errors import SpecError
from fedtuner.experiments import theory, theory_report
from fedtuner.experiments.theory import Setting
from fedtuner.rng import stream

ODD = Setting(m=4, similarities=(0.0, 0.15), diameter=2.0, lipschitz=3.0, dimensions=3)  # no constant is 1


def loss(setting, w, z):
    return setting.lipschitz / math.sqrt(setting.dimensions) * np.abs(w - z).sum(axis=-1)


def tasks(setting, similarity, seed, n):
    """Optima and points of n tasks, made from the same streams in the plainest way."""
    d = setting.dimensions
    scale = similarity * setting.diameter * math.sqrt(3 / d)
    centre = stream(seed, "theory", "centre").uniform(-1, 1, d) * (setting.half - scale)
    where, points = theory.draw(setting, stream(seed, "theory", "optima"), stream(seed, "theory", "points"), n)
    optima = centre + scale * where
    return optima, np.clip(optima[:, None] + points, -setting.half, setting.half)


# The tasks


@pytest.mark.parametrize("m", [1, 4, 9])
def test_a_task_s_optimum_is_a_minimiser_inside_the_box(m):
    setting = Setting(m=m, diameter=2.0, lipschitz=3.0, dimensions=3)
    optima, points = tasks(setting, 0.2, 0, 50)
    assert np.abs(points).max() <= setting.half
    assert np.abs(optima).max() <= setting.half
    others = stream(0, "others").uniform(-setting.half, setting.half, (500, 1, 1, 3))
    least = loss(setting, optima[:, None], points).sum(axis=1)
    assert (loss(setting, others, points).sum(axis=2) >= least - 1e-12).all()
    nearby = optima[:, None] + 1e-3 * stream(0, "nearby").normal(size=(500, 1, 1, 3))
    assert (loss(setting, nearby, points).sum(axis=2) >= least - 1e-12).all()


def test_losses_are_lipschitz_and_bounded():
    rng = stream(0, "pairs")
    u, v, z = rng.uniform(-ODD.half, ODD.half, (3, 10_000, 3))
    assert (np.abs(loss(ODD, u, z) - loss(ODD, v, z)) <= ODD.lipschitz * np.linalg.norm(u - v, axis=1) + 1e-12).all()
    corner = np.full(3, ODD.half)
    assert np.linalg.norm(2 * corner) == pytest.approx(ODD.diameter)
    assert loss(ODD, corner, -corner) == pytest.approx(ODD.b)  # b is reached, so no smaller one would do


def test_regret_is_that_of_gradient_descent_from_the_server_s_start():
    """Task by task, loss by loss: OGD with a subgradient of norm G, and w <- (1 - 1/t) w + w* / t."""
    n, sizes = 30, theory.steps(ODD, 3)
    ((first, table),) = theory.tables(ODD, 2, n, np.tile(sizes, (4, 1)), ())
    assert (first, table.shape) == (0, (4, n, 3))
    for run, (similarity, seed) in enumerate([(0.0, 0), (0.0, 1), (0.15, 0), (0.15, 1)]):
        optima, points = tasks(ODD, similarity, seed, n)
        start = np.zeros(3)
        for t in range(1, n + 1):
            for j, size in enumerate(sizes):
                w, regret = start.copy(), 0.0
                for z in points[t - 1]:
                    regret += loss(ODD, w, z) - loss(ODD, optima[t - 1], z)
                    subgradient = ODD.lipschitz / math.sqrt(3) * np.where(np.signbit(w - z), -1.0, 1.0)
                    assert np.linalg.norm(subgradient) == pytest.approx(ODD.lipschitz)
                    w = np.clip(w - size * subgradient, -ODD.half, ODD.half)
                assert table[run, t - 1, j] == pytest.approx(regret, abs=1e-9)
            start = (1 - 1 / t) * start + optima[t - 1] / t


def test_how_tables_are_cut_changes_nothing():
    sizes = np.tile(theory.steps(ODD, 2), (2, 1))
    whole = np.concatenate([t for _, t in theory.tables(ODD, 1, 1500, sizes, ())], axis=1)
    parts = np.concatenate([t for _, t in theory.tables(ODD, 1, 1500, sizes, (7, 100, 1200))], axis=1)
    np.testing.assert_allclose(whole, parts, atol=1e-12)


def test_v_is_the_distance_to_the_best_single_start():
    (found,) = theory.spreads(ODD, 2, [40])
    for s, similarity in enumerate(ODD.similarities):
        for seed in range(2):
            optima, _ = tasks(ODD, similarity, seed, 40)
            mean = optima.mean(axis=0)
            assert found[s, seed] == pytest.approx(math.sqrt(((optima - mean) ** 2).sum(axis=1).mean()), abs=1e-12)


# What the theorem prescribes


def test_steps_k_and_eta_by_hand():
    setting = Setting(m=2)  # D = G = b = 1
    np.testing.assert_allclose(theory.steps(setting, 3), [0.70711, 0.35355, 0.23570], atol=1e-5)
    assert theory.candidates(setting, 256) == 4  # sqrt(256 / 4) = 8 = 4^(3/2)
    assert theory.candidates(setting, 256, full=True) == 8
    assert theory.eta(setting, 4, 256) == pytest.approx(math.sqrt(math.log(4) / 1024) / 2)
    assert theory.candidates(Setting(m=2, k=5), 256) == 5


def test_the_step_for_a_known_v_minimises_the_bound_on_fixed_steps():
    v, tau = 0.3, 500
    best = float(theory.known_step(ODD, np.array(v), tau))

    def limit(c):
        spread = ODD.diameter**2 * (1 + math.log(tau)) / tau + v**2
        return spread / (2 * c) + c * ODD.m * ODD.lipschitz**2

    assert all(limit(best) < limit(best * x) for x in (0.5, 0.99, 1.01, 2))


def test_the_bound_s_terms():
    setting, tau, v = Setting(), 10_000, 0.1
    found = theory.bound(setting, tau, v)
    k = theory.candidates(setting, tau)
    assert found["feedback"] == pytest.approx(2 * 9 * math.sqrt(k * math.log(k) / tau))
    assert found["similarity"] == pytest.approx(math.sqrt(2) * 0.1 * 3)
    assert found["total"] == pytest.approx(found["feedback"] + found["start"] + found["similarity"])
    assert found["start"] > 0
    far = theory.bound(setting, 10**15, v)  # all but the V-term vanishes
    assert far["total"] == pytest.approx(far["similarity"], rel=1e-3)
    exponent = math.log(theory.bound(setting, 10**15, 0)["total"] / theory.bound(setting, 10**12, 0)["total"], 1000)
    assert exponent == pytest.approx(-1 / 3, abs=0.02)  # and as the theorem says, up to logarithms


# FedEx here is FedEx there


@pytest.mark.parametrize("setting", [Setting(), ODD, Setting(m=1, k=7)], ids=["default", "odd", "k"])
def test_fedex_s_own_functions_give_the_same_theta(setting):
    assert theory.check(setting, tau=400, seed=1) < 1e-12


def test_the_check_would_see_another_step():
    values = stream(0, "values").uniform(0, 1, (200, 4))
    draws = stream(0, "draws").random((1, 200))
    log_theta, _, _ = theory.play(np.full((1, 4), -math.log(4)), values[None], values[None], draws, 0.02)
    assert np.abs(np.exp(log_theta[0]) - theory.replay(values, stream(0, "draws"), 0.02)).max() < 1e-12
    assert np.abs(np.exp(log_theta[0]) - theory.replay(values, stream(0, "draws"), 0.03)).max() > 1e-3
    assert np.abs(np.exp(log_theta[0]) - theory.replay(values, stream(1, "draws"), 0.02)).max() > 1e-3


def test_fedex_finds_the_best_of_steps_that_differ():
    costs = np.tile([0.9, 0.1, 0.9], (2, 2000, 1))
    log_theta, paid, lowest = theory.play(
        np.full((2, 3), -math.log(3)), costs, costs, stream(0, "draws").random((2, 2000)), 0.05
    )
    assert (np.exp(log_theta)[:, 1] > 0.99).all()
    assert (paid / 2000 < 0.2).all()
    assert (lowest == 0).all()  # no negative value was reported


# What comes out


@pytest.fixture(scope="module")
def measured():
    return theory.measure(Setting(), tau=10_000, seeds=4)


def test_regret_is_never_above_the_bound(measured):
    setting = Setting()
    for h, tau in enumerate(measured["tau"]):
        for s in range(len(setting.similarities)):
            for seed in range(4):
                limit = theory.bound(setting, tau, measured["v"][h, s, seed])["total"] / setting.unit
                assert measured["regret"]["fedex"][h, s, seed] <= limit


def test_the_order_of_the_tuners(measured):
    """Hindsight, then full information on FedEx's steps, FedEx, uniform draws, the naive step; for every V and seed."""
    last = {name: values[-1] for name, values in measured["regret"].items()}
    order = ("best", "full_same", "fedex", "uniform", "naive")
    for lower, higher in pairwise(order):
        assert (last[lower] < last[higher]).all(), (lower, higher)
    assert (last["best"] <= last["known"]).all()
    assert (last["known"] < last["fedex"]).all()
    np.testing.assert_allclose(last["fedex_start"].mean(axis=1), last["fedex"].mean(axis=1), rtol=0.02)


def test_regret_approaches_the_v_term(measured):
    """Up to 10,000 tasks, and no further: at V = 0.2 D the excess rises again after these, see the last test."""
    regret = {name: values.mean(axis=2) for name, values in measured["regret"].items()}
    above = regret["fedex"] - regret["best"]
    assert (np.diff(above, axis=0) < 0).all()  # with more tasks, always nearer to what a known best step leaves
    assert (above[-1] < 100**-0.2 * above[0]).all()
    v = measured["v"][-1].mean(axis=1)
    assert (np.diff(regret["fedex"][-1]) > 0).all()  # it follows V
    left = regret["best"][-1, 1:] / v[1:]
    assert left == pytest.approx(np.full(3, left.mean()), rel=0.05)  # in proportion
    assert (left < math.sqrt(2)).all()
    v_term = math.sqrt(2) * v
    assert (regret["fedex"][0, 2:3] > v_term[2:3]).all()
    assert (regret["fedex"][-1, 2:] < v_term[2:]).all()


def test_the_rate_is_near_the_theorem_s(measured):
    """Over two decades the logarithms still count, in the bound itself too: it has -0.26 to -0.3 here, not -1/3."""
    for s in range(4):
        above = measured["regret"]["fedex"][:, s] - measured["regret"]["best"][:, s]
        exponents = theory.rate(measured["tau"], above)
        assert exponents.shape == (4,)
        assert ((exponents > -0.5) & (exponents < -0.2)).all()
    exact = np.array([[3.0 * t**-0.4] for t in (10, 100, 1000)])
    assert theory.rate([10, 100, 1000], exact) == pytest.approx([-0.4])
    assert theory.straightness([10, 100, 1000], exact) == pytest.approx(0, abs=1e-9)


def test_the_interval_of_a_rate_is_the_regression_s():
    """As SciPy has it, of the mean over seeds: seeds that agree on a bent curve do not make it a sure line."""
    scipy = pytest.importorskip("scipy.stats", reason="SciPy comes with scikit-learn")
    tau = [100, 316, 1000, 3162, 10_000]
    bent = np.array([[0.5, 0.5], [0.3, 0.3], [0.1, 0.1], [0.12, 0.12], [0.2, 0.2]])
    assert np.ptp(theory.rate(tau, bent)) == 0  # over the seeds alone the interval would be 0
    fit = scipy.linregress(np.log(tau), np.log(bent).mean(axis=1))
    assert theory.rate(tau, bent).mean() == pytest.approx(fit.slope)
    assert theory.straightness(tau, bent) == pytest.approx(scipy.t.ppf(0.95, 3) * fit.stderr)
    assert theory.straightness(tau, bent) > 0.2


def test_units_do_not_matter():
    one = theory.measure(Setting(similarities=(0.1,)), 1000, 2)
    two = theory.measure(Setting(similarities=(0.1,), diameter=2.0, lipschitz=3.0), 1000, 2)
    for name in theory.TUNERS:
        np.testing.assert_allclose(one["regret"][name], two["regret"][name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: theory.horizons(999), "tau = 999"),
        (lambda: theory.measure(Setting(), 1000, 1), "seeds = 1"),
        (lambda: Setting(m=0), "m = 0"),
        (lambda: Setting(k=1), "k = 1"),
        (lambda: Setting(similarities=(0.3,)), "0.288"),
        (lambda: Setting(diameter=0), "diameter"),
    ],
)
def test_settings_that_cannot_be(make, says):
    with pytest.raises(SpecError, match=says):
        make()


# The command

SMALL = ("theory", "--tau", "1000", "--seeds", "2")


def test_the_command_prints_tables_and_what_they_show(capsys):
    assert cli.main([*SMALL, "--m", "5"]) == 0
    out, err = capsys.readouterr()
    assert "1,000 tasks of 5 losses, 2 seeds" in out
    assert all(label in out for label in theory_report.LABELS.values())
    assert "never above it" in out
    row = next(
        line for line in out.splitlines() if line.startswith("FedEx  ") and line.count("± ") == 4 and "-0." in line
    )
    assert "± 0.00" not in row  # three points are not on a line, though both seeds agree
    assert "--out DIR" in out
    assert "100 % of 1,000" in err


def test_json_is_strict_and_the_same_each_time(capsys):
    assert cli.main([*SMALL, "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert not err
    told = json.loads(out, parse_constant=pytest.fail)
    assert told["settings"]["tau"] == 1000
    assert len(told["runs"]) == 3 * 4
    assert cli.main([*SMALL, "--json", "--quiet"]) == 0
    assert capsys.readouterr().out == out


def test_a_second_run_reads_what_the_first_wrote(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # it would take most of the time
    assert cli.main([*SMALL, "--out", str(tmp_path)]) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr(theory, "measure", lambda *a: pytest.fail("computed again"))
    assert cli.main([*SMALL, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == first
    monkeypatch.setattr(theory, "measure", lambda *a: (_ for _ in ()).throw(SpecError("computed anew")))
    assert cli.main([*SMALL, "--k", "3", "--out", str(tmp_path)]) == 2  # another experiment is not in the file
    assert "computed anew" in capsys.readouterr().err


@pytest.mark.slow
def test_the_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    assert cli.main([*SMALL, "--out", str(tmp_path)]) == 0
    assert "theory.png" in capsys.readouterr().err
    assert (tmp_path / "theory.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "theory.svg").read_bytes()
    assert ET.fromstring(svg).tag.endswith("svg")
    assert cli.main([*SMALL, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "theory.svg").read_bytes() == svg


def test_without_matplotlib_it_says_how_to_get_the_picture(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main([*SMALL, "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "FedEx" in out
    assert "pip install 'fedtuner[plot]'" in err
    assert [file.name for file in tmp_path.iterdir()] == ["theory.json"]


def test_stopped_it_leaves_nothing(tmp_path, capsys, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(theory, "play", stop)
    assert cli.main([*SMALL, "--out", str(tmp_path / "o")]) == 3
    assert "nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_folder_that_cannot_be_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main([*SMALL, "--out", str(tmp_path / "file"), "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("fedtuner: cannot write to")


@pytest.mark.slow
def test_with_few_steps_it_keeps_approaching_where_the_theorem_s_k_outgrows_it():
    """At V = 0.2 D the theorem's growing k adds steps that are all too small; with k = 8 the excess goes on falling."""
    few = theory.measure(Setting(similarities=(0.2,), k=8), 100_000, 2)
    many = theory.measure(Setting(similarities=(0.2,)), 100_000, 2)
    above = {
        name: (made["regret"]["fedex"] - made["regret"]["best"])[[-3, -1], 0]
        for name, made in (("few", few), ("many", many))
    }
    assert (above["few"][1] < 0.75 * above["few"][0]).all()
    assert (above["many"][1] > above["many"][0]).all()
