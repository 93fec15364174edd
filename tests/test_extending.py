"""docs/extending.md: its parts keep the public laws, are what they say, and are run by name from a study.toml."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner import methods, testing
from fedtuner.core.schedule import outline
from fedtuner.report import summary
from fedtuner.testing.rounds import a_round, advance, an_arm
from fedtuner.testing.schedules import noiseless, play
from fedtuner.testing.toys import quadratics

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


*PARTS, LAWS = blocks("python")
(STUDY,) = blocks("TOML")
page = types.ModuleType("extending_page")
sys.modules["extending_page"] = page  # dataclasses look their module up
exec(compile("\n".join((*PARTS, LAWS)), PAGE.name, "exec"), page.__dict__)


# Laws


class TestFedNova(page.TestFedNova):
    pass


class TestFedExP(page.TestFedExP):
    pass


class TestKnockout(page.TestKnockout):
    pass


class TestGreedy(page.TestGreedy):
    pass


class TestNear(page.TestNear):
    pass


def test_the_laws_are_the_public_ones() -> None:
    pairs = {
        TestFedNova: testing.MethodLaws,
        TestFedExP: testing.MethodLaws,
        TestKnockout: testing.ScheduleLaws,
        TestGreedy: testing.TunerLaws,
        TestNear: testing.SamplerLaws,
    }
    assert all(issubclass(ours, laws) for ours, laws in pairs.items())
    assert {one.__name__ for one in pairs} == set(re.findall(r"class (Test\w+)", LAWS))


def test_the_examples_are_short() -> None:
    """A tuner has eleven members, the others have a few."""
    lines = [len([line for line in part.splitlines() if line.strip()]) for part in PARTS]
    most = [18, 18, 26, 50, 18]  # method, optimiser, schedule, tuner, sampler
    assert all(n <= m for n, m in zip(lines, most, strict=True)), lines


# They are what they say


def run(method, rounds=3, cohort=4, **client):
    return advance(a_round(method, quadratics(), cohort=cohort), an_arm(method, client), rounds).w


@pytest.mark.parametrize("batch", [12, 4])
def test_with_equal_steps_fednova_is_fedavg(batch) -> None:
    np.testing.assert_allclose(run(page.fednova, batch=batch), run(methods.fedavg, batch=batch), rtol=1e-4, atol=1e-6)


def test_with_unequal_steps_it_is_not() -> None:
    uneven = ft.Simulation(
        quadratics().model, [
            ft.Client(i, tuple(part[: 4 + 8 * (i % 2)] if n == 0 else part for n, part in enumerate(c.train)), c.valid)
            for i, c in enumerate(quadratics().clients)
        ],
    )  # fmt: skip
    found = [
        advance(a_round(m, uneven, cohort=8), an_arm(m, {"batch": 4}), 3).w for m in (page.fednova, methods.fedavg)
    ]
    assert not np.allclose(*found, rtol=1e-3)


def test_where_clients_agree_the_step_is_fedavgs() -> None:
    """One client's square is its own: 1/2, so the step is the usual one, to the bit."""
    further = methods.fedavg.with_optimiser(page.further)
    assert run(further, cohort=1).tobytes() == run(methods.fedavg, cohort=1).tobytes()


def test_where_clients_differ_it_steps_further() -> None:
    """By mean |d_i|^2 / (2 |mean d_i|^2), where that is more than 1."""
    server = methods.Server(np.zeros(2, np.float32), {}, 0, 2, page.further)
    tally = methods.Tally(extra={"square": np.array([8.0], np.float32)})
    b = {"lr": 1.0, "momentum": 0.0, "gamma": 1.0, "calm": 0.0}
    change = np.array([1.0, 0.0], np.float32)
    w, _ = page.further.step(server, change, tally, b)
    np.testing.assert_array_equal(w, [4.0, 0.0])  # 8 / (2 * 1)
    w, _ = page.further.step(server, change, tally, {**b, "calm": 3.0})
    np.testing.assert_array_equal(w, [1.0, 0.0])  # 8 / (2 * 4)


def test_knockout_drops_one_arm_at_a_time() -> None:
    schedule = page.Knockout(4, 5)
    course = play(schedule, noiseless(2))
    assert course.winner == (2, 20)
    assert [len(step.until) for step in course.steps] == [4, 3, 2, 1]
    assert course.spent == outline(schedule).cost == schedule.budget == 50


def test_greedy_learns_in_a_study() -> None:
    study = toys.tune(tuner=page.Greedy(k=4), space=ft.Space({"lr": ft.Float(1e-3, 1.0, log=True)}))
    assert study.best.client == study.best.candidates[int(np.argmax(study.best.theta))]
    assert study.best.theta.max() == pytest.approx(0.7 + 0.3 / 4)


def test_near_proposes_arms_near_a_learning_rate() -> None:
    study = toys.tune(sampler=page.Near(lr=0.1), space=toys.SPACE)
    rates = [arm.client["lr"] for arm in study.journal.arms.values()]
    reach = 10 ** (3 * 0.1)  # a tenth of the three decades
    assert all(0.1 / reach <= rate <= 0.1 * reach for rate in rates)
    assert len(set(rates)) == 4
    with pytest.raises(ft.FedtunerError, match=r"sampler.lr = 3.0, but must be a learning rate of the space"):
        toys.tune(sampler=page.Near(lr=3.0), space=toys.SPACE)


# By name, from a study.toml


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The page's study on toys, run by one and by two workers from another folder than its own."""
    folder = tmp_path_factory.mktemp("extending")
    (folder / "own").mkdir()
    (folder / "own" / "mine.py").write_text("\n".join(PARTS))
    (folder / "own" / "study.toml").write_text(STUDY.replace('"digits"', '"toys:problem"'))
    for workers in (1, 2):
        command(
            folder, "run", "own/study.toml", "--workers", workers, "--store", f"s{workers}", "--quiet", "--baseline"
        )
    return folder


def command(folder, *words, code=0):
    done = subprocess.run(
        [toys.FEDTUNER, *map(str, words)], cwd=folder, env=toys.environment(), capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_all_parts_are_run_by_their_names(ran) -> None:
    spec, result = summary(ran / "s1")["spec"], summary(ran / "s1")["result"]
    assert spec["method"] == "fednova"
    assert spec["schedule"] == {
        "kind": "mine:Knockout", "arms": 3, "pause": 4, "budget": 24, "longest": 12, "discount": 0.0, "score": "error"
    }  # fmt: skip
    assert spec["tuner"] == {"kind": "mine:Greedy", "k": 5, "explore": 0.3}
    assert spec["sampler"] == {"kind": "mine:Near", "lr": 0.05}
    assert spec["server"]["optimiser"] == "further"
    assert result["server"]["optimiser"] == "further"
    assert result["server"]["calm"] == 1e-3
    assert (result["rounds"], result["rounds_used"], len(result["candidates"])) == (12, 24, 5)
    assert summary(ran / "s1")["evaluations"].keys() == {"tuned", "untuned", "untuned_as_long"}
    assert summary(ran / "s1" / "untuned")["spec"]["defaults"]["server"]["optimiser"] == "further"


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(ran) -> None:
    assert "s1 and s2 are equal: 3 arms, 24 rounds" in command(ran, "diff", "s1", "s2")


@pytest.mark.slow
def test_a_study_continues_only_with_the_same_parts(ran) -> None:
    again = ("run", "own/study.toml", "--workers", 1, "--store", "s1", "--quiet")
    before = toys.files(ran / "s1")
    assert "Best: arm" in command(ran, *again)
    assert toys.files(ran / "s1") == before
    said = command(ran, *again, "--set", "tuner.explore=0.5", code=2)
    assert "tuner.explore: 0.3 in the store, 0.5 now" in said


@pytest.mark.slow
def test_a_stopped_study_is_continued_to_the_same_bits(ran) -> None:
    """The tuner's belief comes back from its state."""
    script = (
        "from pathlib import Path\n"
        "from fedtuner.core.schedule import Play\n"
        "from fedtuner.run import spec\n"
        "from fedtuner.run.session import Session\n"
        "study = spec.parse(spec.read('study.toml')[1]).study(Path('../half'), 1)\n"
        "with Session(study.setup, study.problem, study.where) as session:\n"
        "    step = Play(study.schedule).step\n"
        "    session.take(step)\n"
        "    session.advance(step.until)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ran / "own", env=toys.environment(), check=True)
    assert summary(ran / "half")["rounds_used"] == 12
    command(ran, "run", "own/study.toml", "--workers", 2, "--store", "half", "--quiet", "--baseline")
    assert "are equal" in command(ran, "diff", "half", "s1")


@pytest.mark.slow
def test_it_is_shown_and_exported_without_the_parts(ran) -> None:
    """From a folder in which there is no module of theirs."""
    elsewhere = ran / "elsewhere"
    elsewhere.mkdir()
    assert "Best: arm" in command(elsewhere, "show", "../s1")
    shown = json.loads(command(elsewhere, "show", "../s1", "--json"))
    assert shown["result"]["budget"] == 24
    assert shown["spec"]["fedex"] == {"k": 1}
    assert "model.safetensors" in command(elsewhere, "export", "../s1", "--to", "model")
    assert "with 3 trials" in command(elsewhere, "export", "../s1", "--to", "optuna", "log")
    assert "wrapper" in command(elsewhere, "compare", "../s1")
    journal = (ran / "s2" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (elsewhere / "begun").mkdir()
    (elsewhere / "begun" / "journal.jsonl").write_bytes(b"".join(journal[:4]))
    said = command(elsewhere, "show", "begun")
    assert "toy: 6 clients, fednova; Knockout around Greedy; 24 rounds, at most 12 an arm; seed 0" in said


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("schedule.amrs=3", "no setting schedule.amrs in mine:Knockout; did you mean 'arms'?"),
        ("schedule.arms=0", "schedule.arms = 0, but must be a whole number >= 1"),
        ("schedule.arms=many", "schedule.arms = 'many', but must be a whole number"),
        ("schedule.kind=mine:Knokout", "mine has no 'Knokout'; did you mean 'Knockout'?"),
        ("schedule.kind=mine:Greedy", "no setting schedule.pause in mine:Greedy; known: explore, k, kind"),
        ("sampler.kind=mine:Greedy", "no setting sampler.lr in mine:Greedy; known: explore, k, kind"),
        ("sampler=mine:Greedy", "but must be a sampler such as fedtuner.samplers.optuna('tpe'): Greedy has no learns"),
        ("tuner.kind=mine:Near", "but must be a tuner such as fedtuner.FedEx(k=27): Near has no labels, tried"),
        ("tuner.explor=1", "no setting tuner.explor in mine:Greedy; did you mean 'explore'?"),
        ("sampler.lr=3.0", "sampler.lr = 3.0, but must be a learning rate of the space"),
        ("sampler.lr=fast", "sampler.lr = 'fast', but must be a number"),
        ("method=mine:further", "method = 'mine:further' is Optimiser, but must be a Method"),
        ("server.optimiser=mine:fednova", "server.optimiser = 'mine:fednova' is Method, but must be an Optimiser"),
        ("server.calm=-1.0", "server.calm = -1.0, but must be >= 0"),
        ("server.clam=1.0", "no server hyperparameter 'clam' in fednova; did you mean 'calm'?"),
    ],
)
def test_mistakes_in_the_settings_of_own_parts(ran, fedtuner, monkeypatch, setting, said) -> None:
    monkeypatch.chdir(ran)
    monkeypatch.syspath_prepend(ran / "own")
    code, out, err = fedtuner("run", "own/study.toml", "--store", "wrong", "--quiet", "--set", setting)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (ran / "wrong").exists()
    sys.modules.pop("mine", None)


@pytest.mark.slow
def test_the_kind_alone_can_be_changed_from_one_of_ours(ran) -> None:
    """The settings of [schedule] and [tuner] that only built-in kinds have are passed over."""
    (ran / "own" / "usual.toml").write_text(toys.STUDY)
    changes = ("schedule.kind=mine:Knockout", "schedule.arms=2", "schedule.pause=2", "sampler=mine:Near")
    words = [word for change in (*changes, "fedex=false", "tuner.kind=mine:Greedy") for word in ("--set", change)]
    shown = json.loads(command(ran, "run", "own/usual.toml", "--store", "u", "--quiet", "--json", *words))
    assert shown["spec"]["schedule"]["kind"] == "mine:Knockout"
    assert shown["spec"]["sampler"] == {"kind": "mine:Near", "lr": 0.1}
    assert shown["rounds_used"] == 6


@pytest.mark.slow
def test_hyperparameters_of_an_own_optimiser_are_tuned_and_real(tmp_path) -> None:
    """A range of whole ends is one of real numbers where the hyperparameter is real; a domain of its own is used."""
    (tmp_path / "mine.py").write_text("\n".join(PARTS[:2]).replace("Hyper(None, 1e-3", "Hyper(DOMAIN, 1e-3").replace(
        "import numpy as np", "import numpy as np\nfrom fedtuner import Float\nDOMAIN = Float(0.001, 0.5)", 1
    ))  # fmt: skip
    text = toys.STUDY + '[server]\noptimiser = "mine:further"\n'
    toys.write_study(tmp_path, text)
    shown = json.loads(command(tmp_path, "run", "study.toml", "--quiet", "--json", "--store", "s"))
    assert shown["spec"]["server"]["calm"] == {"low": 0.001, "high": 0.5}
    words = ("--set", "server.calm={low = 0, high = 1}", "--set", 'server.optimiser=["sgd", "mine:further"]')
    shown = json.loads(command(tmp_path, "run", "study.toml", "--quiet", "--json", "--store", "t", *words))
    assert shown["spec"]["server"]["calm"] == {"low": 0.0, "high": 1.0}
    assert shown["spec"]["server"]["optimiser"] == ["sgd", "further"]
