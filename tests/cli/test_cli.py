"""The command line as its users meet it: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
import math
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner import __version__, cli, methods
from fedtuner.cli.output import tell
from fedtuner.report import journal_of, show, summary
from fedtuner.run import session, spec
from fedtuner.run.store import Folder

# Other tests may have left threads of libraries in this process; the workers do not use them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder with a study.toml, to work in."""
    monkeypatch.chdir(tmp_path)
    toys.write_study(tmp_path)
    return tmp_path


def strict(text):
    """JSON as the standard has it: no NaN, no Infinity."""
    return json.loads(text, parse_constant=pytest.fail)


def equal(fedtuner, first, second):
    """Whether two studies are equal to the bit, as the command line says it; their winners' states as files, too."""
    states = [{f.name: f.read_bytes() for f in (path / "states").iterdir()} for path in (first, second)]
    return fedtuner("diff", first, second)[0] == 0 and states[0] == states[1]


def unfinish(path):
    """Take a study back to before it had a winner: all of arm 3 but its start, too."""
    journal = path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    gone = (b'"event":"winner"', b'"event":"evaluated"', b'"event":"eliminated"', b'"record":{"arm":3,')
    journal.write_bytes(b"".join(line for line in lines if not any(word in line for word in gone)))


RUN = ("run", "study.toml", "--workers", "1", "--store", "s")


# run


def test_run_prints_what_was_found_and_where_it_is(here, fedtuner):
    code, out, err = fedtuner(*RUN, "--baseline")
    assert code == 0
    headline, *lines = err.splitlines()
    assert headline.startswith(
        "toy: 6 clients, fedavg; halving of 4 arms around FedEx with 3 candidates each; 30 rounds"
    )
    assert lines[0].startswith("tuning: 0/30 rounds, 4 of 4 arms alive")
    assert any(line.startswith("tuning: 30/30 rounds") for line in lines)
    assert lines[-1].startswith("untuned: 30/30 rounds")
    found = summary(here / "s")
    best = found["result"]
    assert f"Best: arm {best['arm']}, trained for 10 rounds; the study used 30 of 30." in out
    assert f"lr {best['client']['lr']:.4g}" in out
    names = {
        "tuned": "tuned, test",
        "untuned": "untuned (the default, 30 rounds), test",
        "untuned_as_long": "untuned (the default, as long as the winner: 10 rounds), test",
    }
    for key, name in names.items():
        errors = found["evaluations"][key]["test mode error"]
        line = next(line for line in out.splitlines() if line.startswith(name))
        spread = found["spreads"][key]["test mode"]
        for side in ("global", "personalized"):
            low, high = (min(max(0.0, errors[side] + z * spread[side]), 1.0) for z in (-1.96, 1.96))
            assert f"{100 * errors[side]:.1f} % ({100 * low:.1f} to {100 * high:.1f})" in line
    assert "Kept in s: fedtuner show s, fedtuner export s" in out


def test_show_has_a_table_of_arms(here, fedtuner):
    """Also for a study that is not finished: what became of each, its score with an interval, and what was tuned."""
    fedtuner(*RUN, "--quiet")
    found = summary(here / "s")
    _, out, _ = fedtuner("show", "s")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:2] == ["toy:", "6"]
    assert out.splitlines()[1].split("  ")[0] == "arm"
    for arm, line in zip(found["arms"], out.splitlines()[2:6], strict=True):
        assert line.split()[:2] == [str(arm["arm"]), str(arm["rounds"])]
        assert (f"out at {arm['rounds']}" in line) is (arm["arm"] != found["result"]["arm"])
        assert f"{100 * arm['score']:.1f} % (" in line
        assert f" lr {arm['client']['lr']:.4g} " in line
        assert f"server.lr {arm['server']['lr']:.4g}" in line
    assert "server" not in fedtuner(*RUN, "--quiet")[1].split("configuration found")[0]  # run leaves the table out


def test_show_says_how_the_server_steps_if_that_was_not_tuned(here, fedtuner):
    fedtuner("run", "study.toml", "--store", "s", "--workers", "1", "--budget", "70", "--quiet")
    row = next(line for line in fedtuner("show", "s")[1].splitlines() if line.startswith("server"))
    assert "nothing was tuned  (optimiser fedexp, cooled over the last 50 % of its rounds)" in row


def test_a_dry_run_says_what_a_study_will_do_and_take(here, fedtuner):
    code, out, _ = fedtuner(*RUN, "--dry-run")
    assert code == 0
    assert not (here / "s").exists()
    for words in (
        "4 arms to round 5; 2 of them to round 10", "30, at most 10 for one model; 3 clients each",
        "180; 9.4 kB in all (52 B to a client, 52 B back)", "90 trainings, on about",
    ):  # fmt: skip
        assert words in out
    fedtuner(*RUN, "--quiet")
    done = summary(here / "s")
    told = strict(fedtuner(*RUN, "--dry-run", "--json")[1])
    assert (told["rounds"], told["trainings"], told["done"]) == (30, done["local_work"], 30)
    assert 0.3 < told["examples"] / done["examples_processed"] < 3
    assert told["seconds"] > 0
    assert told["at_once"] == 1
    shared = fedtuner(*RUN, "--dry-run", "--set", "cohorts=shared", "--set", "fedex.tries=2")[1]
    assert "one device trains up to 8 times in the same round" in shared
    assert "--baseline adds 30 rounds of the untuned default" in fedtuner(*RUN, "--dry-run", "--baseline")[1]


def test_a_dry_run_with_a_proxy_says_what_follows_the_search(here, fedtuner):
    run = (*RUN[:2], "--store", "p", "--workers", "1", "--proxy", "toys:untested")
    out = fedtuner(*run, "--dry-run")[1]
    assert "Then the configuration that is found is trained on toy:" in out
    assert "1 arm to round 30" in out
    fedtuner(*run, "--quiet")
    told = strict(fedtuner(*run, "--dry-run", "--json")[1])
    assert (told["arms"], told["done"], told["then"]["arms"], told["then"]["done"]) == (4, 30, 1, 30)


def test_long_lines_are_broken_between_words_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    tell("a sentence that is longer than the terminal is wide, with/a/path/that/is/longer/still")
    assert capsys.readouterr().err.splitlines() == [
        "a sentence that is longer than", "the terminal is wide,", "with/a/path/that/is/longer/still",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_budget_in_place_of_a_schedule(here, fedtuner):
    code, out, err = fedtuner("run", "study.toml", "--workers", "1", "--budget", "70", "--baseline", "--quiet")
    assert (code, err) == (0, "")
    found = summary(here / "runs" / "study-fedavg-70-rounds-seed0")
    assert found["spec"]["schedule"]["kind"] == "duel"
    assert found["rounds_used"] == 70
    assert "untuned (the default, 70 rounds), test" in out
    valid = [found["evaluations"][name]["valid mode error"]["personalized"] for name in ("tuned", "untuned")]
    assert ("here tuning has not paid" in out) is (valid[0] >= valid[1])
    assert ("Fine-tuning does not pay" in out) is not found["result"]["fine_tune"]


@pytest.mark.slow
def test_a_study_goes_on_after_its_end(here, fedtuner):
    """A second halving, then the winner alone, then its configuration from new weights; the same command is a no-op."""
    command = (*RUN, "--quiet", "--extend", "60", "--resume-winner", "4", "--retrain", "5")
    code, out, err = fedtuner(*command)
    assert (code, err) == (0, "")
    assert "trained for 14 rounds; the study used 64 of 64." in out
    assert "retrained from new weights, 5 rounds, test" in out
    before = toys.files(here / "s")
    assert fedtuner(*command)[1] == fedtuner("run", "study.toml", "--store", "s", "--quiet")[1] == out
    assert toys.files(here / "s") == before
    assert fedtuner(*command, "--extend", "40")[::2] == (
        2,
        "fedtuner: budget = 40, but the study has 64 rounds already, of which 64 are used: give more\n",
    )


@pytest.mark.slow
def test_a_study_starts_from_another_or_is_tuned_elsewhere(here, fedtuner):
    assert fedtuner(*RUN, "--quiet")[0] == 0
    assert fedtuner(*RUN[:2], "--store", "w", "--workers", "1", "--quiet", "--start-from", "s")[0] == 0
    assert journal_of(here / "w").arms[0].server == summary(here / "s")["result"]["server"]
    code, out, err = fedtuner(*RUN[:2], "--store", "p", "--workers", "1", "--quiet", "--proxy", "toys:untested")
    assert (code, err) == (0, "")
    found = summary(here / "p" / "proxy")["result"]
    assert summary(here / "p")["result"]["client"] == found["client"]
    assert f"lr {found['client']['lr']:.4g}" in out


def test_running_again_continues_and_changes_nothing(here, fedtuner, monkeypatch):
    first = fedtuner(*RUN)
    before = toys.files(here / "s")
    monkeypatch.setattr(session, "open_executor", pytest.fail)
    again = fedtuner(*RUN)
    assert again[:2] == first[:2]
    assert toys.files(here / "s") == before


def test_the_folder_is_by_default_named_by_study_method_and_seed(here, fedtuner):
    assert fedtuner("run", "study.toml", "--workers", "1", "--seed", "3", "--quiet")[0] == 0
    assert summary(Path("runs/study-fedavg-seed3"))["spec"]["seed"] == 3
    changed = ("--set", "seed=4", "--set", "method=fedtuner.methods:reptile")
    assert fedtuner("run", "study.toml", "--workers", "1", "--quiet", *changed)[0] == 0
    assert summary(Path("runs/study-reptile-seed4"))["spec"]["seed"] == 4


def test_no_test_examples_are_said_in_words(here, fedtuner):
    code, out, err = fedtuner(*RUN, "--quiet", "--set", "problem=toys:untested")
    said = "No client has test examples, so there is no test error."
    assert (code, err) == (0, "")
    assert said in out
    assert "nan" not in out
    code, out, err = fedtuner("show", "s", "--json")
    assert (code, err) == (0, f"fedtuner: {said}\n")
    assert strict(out)["evaluations"]["tuned"]["test mode error"] == {"global": None, "personalized": None}


@pytest.mark.parametrize("side", ["client", "server"])
def test_only_what_was_tuned_is_shown(here, fedtuner, side):
    """For clients and the server alike: the rest is as it was given, or the method's default."""
    space = ft.Space(**{side: {"lr": [0.1, 0.2]}})
    toys.tune(method=methods.fedavg, space=space, fedex=None, store=here / "s")
    rows = dict(
        line.rstrip().split(maxsplit=1)
        for line in fedtuner("show", "s")[1].splitlines()
        if line[:6] in ("client", "server")
    )
    other = {"client": "server", "server": "client"}[side]
    assert rows[side] in ("lr 0.1", "lr 0.2")
    assert rows[other] == "nothing was tuned"


def test_quiet_is_quiet(here, fedtuner):
    code, out, err = fedtuner(*RUN, "--quiet")
    assert (code, err) == (0, "")
    assert "Best: arm" in out


def test_settings_arrive(here, fedtuner):
    changes = ["schedule.budget=26", "fedex=false", "client.lr=0.25", "target=global", "method=reptile"]
    code, out, _ = fedtuner(*RUN, "--json", *(word for change in changes for word in ("--set", change)))
    answer = strict(out)
    assert code == 0
    assert answer["spec"]["schedule"]["budget"] == 26
    assert answer["spec"]["fedex"]["k"] == 1
    assert answer["spec"]["tuner"] == {"kind": "none"}
    assert answer["spec"]["target"] == "global"
    assert answer["spec"]["method"] == "reptile"
    assert answer["result"]["client"]["lr"] == 0.25


def test_json_is_the_result(here, fedtuner):
    code, out, err = fedtuner(*RUN, "--json")
    answer = strict(out)
    assert code == 0
    assert "tuning: 30/30" in err  # progress is not in the way
    assert answer["rounds_used"] == 30
    assert answer["store"] == "s"
    study = spec.parse(spec.read("study.toml")[1]).study(Path("s"), 1).run(False)
    best = study.best
    assert answer["result"] == {
        "arm": best.arm, "rounds": best.rounds, "score": best.score, "rounds_used": 30, "budget": 30, "diverged": [],
        "stalled": [],
        "server": best.server, "client": best.client, "theta": best.theta.tolist(),
        "candidates": list(best.candidates), "fine_tune": best.fine_tune,
        "schedule": [vars(held) for held in best.schedule],
    }  # fmt: skip
    assert answer["evaluations"]["tuned"] == {
        "test mode error": study.evaluate("test"), "test mode loss": study.evaluate("test", metric="loss")
    }  # fmt: skip
    assert answer["local_work"] == study.local_work == 90
    assert answer["spec"] | {"fedex": None, "format": None, "layout": None} == {
        **study.describe(), "fedex": None, "format": None, "layout": None
    }  # fmt: skip
    assert answer["spec"]["fedex"] == {k: v for k, v in answer["spec"]["tuner"].items() if k != "kind"}
    assert [a["arm"] for a in answer["arms"]] == [0, 1, 2, 3]
    assert fedtuner("show", "s", "--json")[1] == out


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(here, fedtuner):
    for workers in (1, 2, 4):
        fedtuner("run", "study.toml", "--workers", workers, "--store", f"s{workers}", "--baseline", "--quiet")
    for other in ("s2", "s4"):
        assert equal(fedtuner, here / other, here / "s1")
        assert equal(fedtuner, here / other / "untuned", here / "s1" / "untuned")


def test_if_every_arm_diverges_it_is_said(here, fedtuner):
    fixed = ("server.lr=3e38", "server.momentum=0.0", "client.lr=0.5", "client.momentum=0.0")
    code, out, _ = fedtuner(*RUN, *(word for change in fixed for word in ("--set", change)))
    assert code == 0
    assert "4 of 4 arms diverged" in out
    assert "Every arm diverged: narrow the space (lower learning rates), or raise the budget." in out
    answer = strict(fedtuner("show", "s", "--json")[1])
    assert answer["result"]["score"] is None
    assert answer["result"]["diverged"] == [0, 1, 2, 3]
    assert all(arm["error"] is None for arm in answer["arms"])


# What goes wrong


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "nowhere.toml"), "cannot read nowhere.toml: No such file"),
        (("run", "digts"), "no preset and no file 'digts'; did you mean 'digits'?"),
        ((*RUN, "--workers", "0"), "workers = 0, but must be a whole number >= 1"),
        ((*RUN, "--set", "fedex.epss=1"), "no setting fedex.epss; did you mean 'eps'?"),
        ((*RUN, "--set", "fedex.eps"), "--set 'fedex.eps', but must be KEY=VALUE"),
        ((*RUN, "--set", "cohort=7"), "cohort = 7, but the problem has 6 clients"),
        ((*RUN, "--set", "method=fedvag"), "no method 'fedvag'; did you mean 'fedavg'?"),
        ((*RUN, "--set", "problem=toys:problme"), "toys has no 'problme'; did you mean 'problem'?"),
        (
            (*RUN, "--store", "study.toml", "--quiet"),
            "study.toml is a file, but a study's store is a folder: use another --store",
        ),
        ((*RUN, "--set", "seed=x"), "seed = 'x', but must be a whole number"),
        (("show", "nowhere"), "no study in nowhere: there is no journal; 'fedtuner run' makes one"),
        (("show", "."), "no study in .: there is no journal; 'fedtuner run' makes one"),
        (("show", "study.toml"), "no study in study.toml"),
        (("show", "old"), "old holds a study of the first format (it has a spec.json)"),
        (("export", "nowhere"), "no study in nowhere"),
        (("export", "old"), "old holds a study of the first format"),
        (("export", "old", "--to", "optuna", "x.log"), "old holds a study of the first format"),
        (("diff", "nowhere", "old"), "no study in nowhere"),
        (("diff", "old", "nowhere"), "old holds a study of the first format"),
        (("compare", "old"), "old holds a study of the first format"),
        (("init", "study.toml"), "study.toml exists: give another name, or --force"),
        (("init", "no/folder/study.toml"), "cannot write no/folder/study.toml: No such file or directory"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_line(here, fedtuner, arguments, said):
    (here / "old").mkdir()
    (here / "old" / "spec.json").write_text("{}")
    code, out, err = fedtuner(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("fedtuner: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("rnu",), ("run",), ("run", "a", "--seed", "x"), ("list", "everything")])
def test_arguments_that_are_none_are_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_changed_study_is_refused(here, fedtuner):
    fedtuner(*RUN, "--quiet")
    before = toys.files(here / "s")
    code, _, err = fedtuner(*RUN, "--quiet", "--set", "fedex.eps=0.5")
    assert code == 2
    assert "tuner.eps: 0.3 in the store, 0.5 now" in err
    assert toys.files(here / "s") == before


def test_a_store_in_use_is_refused(here, fedtuner):
    held = Folder(here / "s")
    held.open()
    code, _, err = fedtuner(*RUN, "--quiet")
    held.close()
    assert code == 2
    assert "s is in use by another running study" in err


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_fails_is_exit_code_1(here, fedtuner, workers):
    arguments = ("run", "study.toml", "--store", "s", "--workers", workers, "--quiet", "--set", "problem=toys:raising")
    code, out, err = fedtuner(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("fedtuner: arm ")
    assert "client 'phone4', configuration {'lr': " in err
    assert "RuntimeError: the disk of this phone is broken" in err


def test_work_that_kills_its_workers_is_exit_code_1(here, fedtuner):
    code, _, err = fedtuner(*RUN, "--workers", "2", "--quiet", "--set", "problem=toys:deadly")
    assert code == 1
    assert "a worker died 3 times on arm " in err


# show


def test_show_an_unfinished_study(here, fedtuner):
    fedtuner(*RUN, "--quiet")
    unfinish(here / "s")
    code, out, _ = fedtuner("show", "s")
    assert code == 0
    assert "toy: 6 clients, fedavg; halving of 4 arms" in out
    assert "Not finished: 25 of 30 rounds used." in out or "Not finished: 20 of 30 rounds used." in out
    assert "To continue, run the command that made it, with --store s" in out
    answer = strict(fedtuner("show", "s", "--json")[1])
    assert answer["result"] is None
    assert [a["arm"] for a in answer["arms"]] == [0, 1, 2]
    for to in ((), ("--to", "optuna", "x.log")):
        code, _, err = fedtuner("export", "s", *to)
        assert code == 2
        assert "s is not finished, so there is no winner: 'fedtuner run'" in err


def test_show_a_study_that_has_only_begun(here, fedtuner):
    fedtuner(*RUN, "--quiet")
    journal = here / "s" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    code, out, _ = fedtuner("show", "s")
    assert code == 0
    assert "Not finished: 0 of 30 rounds used." in out
    answer = strict(fedtuner("show", "s", "--json")[1])
    assert (answer["rounds_used"], answer["arms"], answer["result"], answer["evaluations"]) == (0, [], None, {})


@pytest.mark.slow
def test_an_unfinished_study_shown_and_run_again_is_the_whole_one(here, fedtuner):
    fedtuner(*RUN, "--quiet")
    fedtuner("run", "study.toml", "--workers", "1", "--store", "cut", "--quiet")
    unfinish(here / "cut")
    before = toys.files(here / "cut")
    assert fedtuner("show", "cut")[0] == 0
    assert toys.files(here / "cut") == before  # showing changes nothing
    assert fedtuner("run", "study.toml", "--workers", "1", "--store", "cut", "--quiet")[0] == 0
    assert equal(fedtuner, here / "s", here / "cut")


@pytest.mark.slow
def test_show_and_compare_read_no_state(here, fedtuner):
    fedtuner(*RUN, "--baseline", "--quiet")
    shown, answer = fedtuner("show", "s"), fedtuner("show", "s", "--json")
    for folder in (here / "s", here / "s" / "untuned"):
        shutil.rmtree(folder / "states")
    assert fedtuner("show", "s") == shown
    assert fedtuner("show", "s", "--json") == answer
    assert fedtuner("compare", "s")[0] == 0
    assert fedtuner("export", "s", "--to", "optuna", "x.log")[0] == 0


def test_export_reads_the_winners_state_alone(here, fedtuner):
    fedtuner(*RUN, "--quiet")
    won = journal_of(here / "s").won
    for file in (here / "s" / "states").iterdir():
        if file.name != f"{won.arm}-{won.round}.safetensors":
            file.unlink()
    assert fedtuner("export", "s")[0] == 0


def test_show_does_not_need_the_problem(here, fedtuner, monkeypatch):
    fedtuner(*RUN, "--quiet")
    monkeypatch.setattr(spec, "load_problem", pytest.fail)
    assert fedtuner("show", "s")[0] == 0
    assert fedtuner("export", "s")[0] == 0


# list, init, help


def test_list_tells_methods_presets_and_problems(fedtuner):
    code, out, _ = fedtuner("list")
    assert code == 0
    for word in ("fedavg", "deltasgd", "fedhyper", "kernel", "gaussian", "lr", "momentum", "digits", "McMahan"):
        assert word in out
    answer = strict(fedtuner("list", "--json")[1])
    assert set(answer) == {"methods", "optimisers", "schedules", "tuners", "presets", "problems"}
    assert {"fedexp", "fedhyper"} <= {o["name"] for o in answer["optimisers"]}
    assert {t["name"]: t["settings"] for t in answer["tuners"]}["gaussian"]["deviation"] == 0.1
    assert {"fedavg", "fedprox", "reptile"} <= {m["name"] for m in answer["methods"]}
    assert [p["name"] for p in answer["presets"]] == list(spec.presets())
    assert {p["name"]: p["function"] for p in answer["problems"]} == spec.PROBLEMS


@pytest.mark.parametrize("what", ["methods", "optimisers", "tuners", "presets", "problems"])
def test_list_one_kind(fedtuner, what):
    assert set(strict(fedtuner("list", what, "--json")[1])) == {what}
    assert fedtuner("list", what)[0] == 0


def test_init_writes_a_study_that_runs(here, fedtuner):
    code, out, _ = fedtuner("init", "new.toml")
    assert (code, out) == (0, "wrote new.toml; run it with: fedtuner run new.toml\n")
    assert (here / "new.toml").read_text() == spec.template()
    small = ["problem=toys:problem", "cohort=3", "budget=10"]
    settings = [word for change in small for word in ("--set", change)]
    assert fedtuner("run", "new.toml", "--workers", "1", "--quiet", *settings)[0] == 0


def test_init_replaces_only_when_told(here, fedtuner):
    assert fedtuner("init")[0] == 2
    assert (here / "study.toml").read_text() == toys.STUDY
    assert fedtuner("init", "--force")[0] == 0
    assert (here / "study.toml").read_text() == spec.template()


@pytest.mark.parametrize("command", [(), ("run",), ("show",), ("export",), ("diff",), ("list",), ("init",)])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([*command, "--help"])
    assert end.value.code == 0
    assert "usage: fedtuner" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("module", ["fedtuner", "fedtuner.cli"])
def test_the_command_as_a_module(module):
    said = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"fedtuner {__version__}\n"


def test_the_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"fedtuner {__version__}\n"


# export


def test_export_writes_the_model_and_the_configuration(here, fedtuner):
    from safetensors.numpy import load_file

    fedtuner(*RUN, "--quiet")
    code, out, _ = fedtuner("export", "s")
    assert code == 0
    assert out.split() == [
        f"s/export/{name}" for name in ("model.safetensors", "configuration.json", "load.py", "README.md")
    ]
    again = spec.parse(spec.read("study.toml")[1]).study(Path("s"), 1).run(False)
    tensors = load_file("s/export/model.safetensors")
    shapes = {part.name: part.shape for part in again.problem.task.layout()}
    assert {name: t.shape for name, t in tensors.items()} == shapes
    assert np.concatenate([tensors[name].ravel() for name in shapes]).tobytes() == again.best.model.tobytes()
    configuration = strict((here / "s" / "export" / "configuration.json").read_text())
    assert configuration["client"] == again.best.client
    assert configuration["server"] == again.best.server
    assert configuration["theta"] == again.best.theta.tolist()
    assert (configuration["method"], configuration["rounds"], configuration["seed"]) == ("fedavg", 10, 0)


def test_export_to_another_place(here, fedtuner):
    fedtuner(*RUN, "--quiet")
    assert fedtuner("export", "s", "--to", "a/b")[0] == 0
    assert sorted(toys.files(here / "a" / "b")) == ["README.md", "configuration.json", "load.py", "model.safetensors"]
    code, _, err = fedtuner("export", "s", "--to", "study.toml")
    assert code == 2
    assert "study.toml is a file, but must be a folder: give another (--to)" in err


def test_export_replaces_only_when_told(here, fedtuner):
    fedtuner(*RUN, "--quiet")
    assert fedtuner("export", "s", "--to", "out")[0] == 0
    (here / "out" / "configuration.json").write_text("mine")
    (here / "out" / "model.safetensors").unlink()
    code, out, err = fedtuner("export", "s", "--to", "out")
    assert (code, out) == (2, "")
    remedy = "give another folder (--to), or --force (force=True) to replace it"
    assert err == f"fedtuner: out/configuration.json exists: {remedy}\n"
    assert not (here / "out" / "model.safetensors").exists()
    assert (here / "out" / "configuration.json").read_text() == "mine"
    assert fedtuner("export", "s", "--to", "out", "--force")[0] == 0
    assert strict((here / "out" / "configuration.json").read_text())["method"] == "fedavg"


def test_export_without_the_winners_state_says_so(here, fedtuner):
    fedtuner(*RUN, "--quiet")
    won = journal_of(here / "s").won
    (here / "s" / "states" / f"{won.arm}-{won.round}.safetensors").unlink()
    code, _, err = fedtuner("export", "s")
    assert code == 2
    assert f"{won.arm}-{won.round}.safetensors is missing or damaged" in err


# Digits, with torch


SMALL = ("schedule.budget=10", "schedule.longest=6", "schedule.eta=2", "schedule.eliminations=1", "fedex.k=3")
DIGITS = ("run", "digits", "--quiet", *(word for change in SMALL for word in ("--set", change)))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits' preset with a small budget, run by one and by two workers, each in its own process."""
    folder = tmp_path_factory.mktemp("digits")
    for workers in ("1", "2"):
        command = [toys.FEDTUNER, *DIGITS, "--workers", workers, "--store", f"s{workers}"]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return folder


@pytest.mark.slow
def test_digits_are_the_same_for_one_and_two_workers(digits, fedtuner):
    one, two = summary(digits / "s1"), summary(digits / "s2")
    assert one["result"] is not None
    assert one["evaluations"]
    assert {**two, "store": ""} == {**one, "store": ""}
    assert equal(fedtuner, digits / "s1", digits / "s2")


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.ALL)
def test_every_method_tunes_the_digits_with_fedex(here, fedtuner, method):
    settings = (
        f"method={method}",
        "schedule.kind=random_search",
        "schedule.budget=6",
        "schedule.longest=3",
        "fedex.k=5",
    )
    chosen = [part for setting in settings for part in ("--set", setting)]
    code, out, error = fedtuner("run", "digits", *chosen, "--store", "m", "--workers", "2", "--json", "--quiet")
    assert code == 0, error
    answer = strict(out)
    assert answer["spec"]["method"] == method
    assert answer["rounds_used"] == 6
    assert len(answer["result"]["theta"]) == 5
    assert 0 <= answer["evaluations"]["tuned"]["test mode error"]["personalized"] <= 1


@pytest.mark.slow
def test_the_exported_model_is_the_studys_model(digits, fedtuner):
    import torch
    from safetensors.torch import load_file

    from fedtuner.problems.digits import problem
    from fedtuner.problems.models import mlp

    assert fedtuner("export", digits / "s1")[0] == 0
    table = spec.override(spec.read("digits")[1], SMALL)
    finished = spec.parse(table).study(digits / "s1", 1).run(False)
    ours = finished.problem.task.module(finished.best.model)
    theirs = mlp(64, 64, 10)
    theirs.load_state_dict(load_file(digits / "s1" / "export" / "model.safetensors"))
    theirs.eval()
    x = torch.from_numpy(problem().clients[0].train[0])
    with torch.no_grad():
        assert torch.equal(theirs(x), ours(x))
    wrong = total = 0
    for client in finished.problem.clients:
        with torch.no_grad():
            guess = theirs(torch.from_numpy(client.test[0])).argmax(1).numpy()
        wrong, total = wrong + (guess != client.test[1]).sum(), total + len(guess)
    assert wrong / total == pytest.approx(finished.evaluate("test")["global"])


# As a process: signals, terminals, pipes


def start(folder, *arguments, nap="0", **streams):
    command = [toys.FEDTUNER, "run", "study.toml", "--store", "s", *arguments]
    settings = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True} | streams
    (folder / "working").mkdir(exist_ok=True)
    environment = toys.environment(TOY_NAP=nap, TOY_PIDS=str(folder / "working"))
    return subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **settings)


def interrupt(process, number):
    """As a terminal does it: to all processes of the group."""
    os.killpg(process.pid, number)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_continued(here, fedtuner, number, workers):
    fedtuner("run", "study.toml", "--store", "whole", "--workers", "1", "--quiet")
    with start(here, "--workers", workers, nap="0.05") as process:
        for line in process.stderr:
            if line.startswith("tuning: "):
                break
        process.send_signal(number) if number == signal.SIGTERM else interrupt(process, number)
        said = process.stderr.read()
    assert process.returncode == 3
    assert "fedtuner: stopped after " in said
    assert "Everything is kept in s: run the same command again to continue." in said
    assert "Traceback" not in said
    assert summary(here / "s")["result"] is None
    assert fedtuner("run", "study.toml", "--store", "s", "--workers", workers, "--quiet")[0] == 0
    assert equal(fedtuner, here / "s", here / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_second_interrupt_ends_at_once(here, fedtuner, workers):
    with start(here, "--workers", workers, nap="600") as process:
        toys.until(lambda: any((here / "working").iterdir()))  # a client's work has begun
        sent = 0
        while process.poll() is None:  # the first is taken at once; the second, whenever it comes, does not wait
            assert sent < 4
            interrupt(process, signal.SIGINT)
            sent += 1
            try:
                process.wait(timeout=0.5 if sent == 1 else 20)
            except subprocess.TimeoutExpired:
                continue
        said = process.stderr.read()
    assert sent >= 2
    assert process.returncode == 3
    assert "fedtuner: stopped at once; run the same command again to continue" in said
    assert fedtuner("run", "study.toml", "--store", "s", "--workers", "1", "--quiet")[0] == 0


def read_terminal(controller):
    text = b""
    while True:
        try:
            more = os.read(controller, 65536)
        except OSError:  # the other end is closed
            return text.decode()
        if not more:
            return text.decode()
        text += more


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_bar_on_a_terminal(here, monkeypatch, workers):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    controller, terminal = pty.openpty()
    with start(here, "--workers", workers, nap="0.005", stderr=terminal, text=False) as process:
        os.close(terminal)
        text = read_terminal(controller)
    os.close(controller)
    assert process.returncode == 0
    assert "\x1b[" in text
    assert "/30 rounds" in text
    assert "of 4 arms alive" in text
    assert "tuning: " not in text  # no plain lines


@pytest.mark.slow
def test_lines_where_there_is_no_terminal(here):
    with start(here, "--workers", "2") as process:
        said = process.stderr.read()
    assert process.returncode == 0
    assert "\x1b[" not in said
    assert "tuning: 30/30 rounds, 2 of 4 arms alive, best personalized error " in said


@pytest.mark.slow
@pytest.mark.parametrize("command", [("list",), ("list", "--json"), ("run", "study.toml", "--quiet", "--workers", "1")])
def test_a_reader_that_goes_away_is_no_error(here, command):
    """As in ``fedtuner list | head -1``."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [toys.FEDTUNER, *command]
    done = subprocess.run(command, cwd=here, env=toys.environment(), stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_a_problem_beside_the_study(here):
    """The installed script finds a module in the folder that it is called from."""
    (here / "mine.py").write_text("import toys\n\ndef problem():\n    return toys.problem()\n")
    with start(here, "--set", "problem=mine:problem", "--quiet", "--workers", "2") as process:
        said = process.stderr.read()
    assert (process.returncode, said) == (0, "")


@pytest.mark.parametrize(
    ("metric", "found", "shown"),
    [
        (ft.Metric(), {"global": 0.25, "personalized": 1.0}, ["25.0 %", "100.0 %"]),
        (ft.Metric("mse"), {"global": 0.03, "personalized": "inf"}, ["0.03", "infinite"]),
        (ft.Metric(), {"global": 0.5, "personalized": "nan"}, ["50.0 %", "none"]),
        (ft.metrics.f1(), {"global": 0.25, "personalized": 0.1}, ["75.0 %", "90.0 %"]),
    ],
)
def test_errors_are_shown_as_rates_only_where_they_are(capsys, metric, found, shown):
    spreads = {"tuned": {"test mode": {"global": math.nan, "personalized": math.nan}}}
    told = {
        "evaluations": {"tuned": {"test mode error": found}},
        "spreads": spreads,
        "across": {},
        "untuned_across": {},
        "budget": 5,
    }
    show._print_evaluations(show.console(), {**told, "spec": {"schedule": {"longest": 5}}}, metric)
    last = capsys.readouterr().out.splitlines()[-1]
    assert all(word in last for word in shown)
    assert ("%" in last) is any("%" in word for word in shown)
