"""A suite run to its end: equal to its studies run one by one, with less work, from wherever it was stopped."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import toys
from fedtuner.core.round import Round
from fedtuner.core.schedule import Start
from fedtuner.core.store import Begun, Done, Evaluated, Started
from fedtuner.errors import SpecError, StoreError
from fedtuner.experiments import bench, plan, results, suite
from fedtuner.experiments.family import marks
from fedtuner.run import spec
from fedtuner.run.session import Session
from fedtuner.run.store import Folder
from fedtuner.run.store.files import Files
from fedtuner.run.store.lock import Lock
from fedtuner.run.versions import commit
from fedtuner.schedules import halving, hyperband, outline, random_search

# Other tests may have left threads of libraries in this process; the workers do not use them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SUITE = """
title = "toys"
online = 2
[base]
problem = "toys:problem"
cohort = 3
schedule = { budget = 30, longest = 10, eta = 2, eliminations = 2 }
client = { lr = { low = 0.01, high = 1.0, log = true }, batch = [4, 8] }
[axes.wrapper]
RS = { schedule.kind = "random_search" }
SHA = { schedule.kind = "halving" }
[axes.target]
global = { target = "global" }
personalized = { target = "personalized" }
[axes.tuning]
plain = { fedex = false }
"+ FedEx" = { fedex = { k = 3, eps = 0.3 } }
"""
STUDIES = 2 * 2 * 2
BRACKETS = SUITE.replace("[axes.target]", 'HB = { schedule = { kind = "hyperband", budget = 80 } }\n[axes.target]')


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(SUITE)
    return tmp_path


def read(text=SUITE):
    return suite.parse("mine", suite.spec.tomllib.loads(text))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "mine.jsonl"


def result(out, entry):
    """What the file of results has of a study."""
    (found,) = [s for s in results.read(out).studies if (s["labels"], s["seed"]) == (entry.labels, entry.seed)]
    return found


def run_alone(entry):
    """The same study as ``tune`` runs it, and its winner by the names of a file of results."""
    study = entry.spec.study(None, 1).run(False)
    best = study.best
    winner = {"arm": best.arm, "rounds": best.rounds, "score": best.score, "server": best.server, "client": best.client}
    return study, winner | {"confidence": best.theta.max()}


def events(out):
    """What the journals of the families that are not finished say."""
    return [event for folder in sorted(bench.scratch(out).glob("*/")) for event in Folder(folder).events()]


# Sharing


@pytest.mark.slow
def test_a_study_of_a_suite_is_the_study_run_alone(out):
    """Every study of the suite, each beside the others with its arms shared: equal to ``tune`` to the bit."""
    made = read(BRACKETS)
    report = bench.run(made, out, workers=1)
    assert (report.done, report.failed) == (3 * 2 * 2, [])
    assert not bench.scratch(out).exists()  # no study is left to want the states
    asked = 0
    for entry in made.entries:
        kept = result(out, entry)
        alone, winner = run_alone(entry)
        assert kept["test"] == alone.evaluate("test")
        assert (kept["rounds"], kept["trainings"]) == (alone.rounds_used, 3 * alone.rounds_used)
        assert kept["winner"] == winner
        assert kept["online"]["curve"][-1][-2:] == list(kept["test"].values())
        asked += alone.rounds_used
    assert report.asked == asked
    assert report.computed < 0.5 * asked  # two targets are one set of rounds, wrappers share their first arms


def test_rounds_are_computed_once_for_all_who_ask(out):
    """Random search for both targets: the same arms to the same rounds, read in two ways."""
    text = SUITE.replace('SHA = { schedule.kind = "halving" }\n', "")
    report = bench.run(read(text), out, workers=1)
    assert (report.done, report.asked, report.computed) == (4, 4 * 30, 2 * 30)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_methods_that_remember_are_evaluated_as_they_were(out, method, monkeypatch):
    """What clients remember belongs to the round that is evaluated, though the arm has gone on since."""
    monkeypatch.setattr("fedtuner.core.memory.LIMIT", 0)  # in files of their own, which are swept away
    text = SUITE.replace("[base]", f'[base]\nmethod = "{method}"')
    text = text.replace("RS = { schedule.kind", "RS = { schedule.longest = 15, schedule.kind")  # goes on past SHA's end
    text = text.replace("online = 2", "online = 0")
    made = read(text)
    bench.run(made, out, workers=1)
    for entry in made.entries:
        assert result(out, entry)["test"] == run_alone(entry)[0].evaluate("test")


@pytest.mark.slow
def test_the_results_do_not_tell_how_many_worked(tmp_path):
    made = read(SUITE)
    for workers in (1, 2):
        bench.run(made, tmp_path / f"{workers}.jsonl", workers)
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()


def test_every_problem_has_its_first_seed_before_any_has_its_second(out):
    base = SUITE.split("[axes")[0].replace('problem = "toys:problem"\n', "")
    data = """[axes.data]
    one = { problem = "toys:problem", seeds = [7, 5] }
    other = { problem = "toys:moody", seeds = [60, 61, 62] }
    """
    text = base + data + "[axes" + SUITE.split("[axes", 1)[1]
    order = [(group.problem, group.first.seed) for group in plan.families(read(text), out)]
    one, other = "toys:problem", "toys:moody"
    firsts = list(dict.fromkeys(order))
    assert firsts == [(one, 5), (other, 60), (one, 7), (other, 61), (other, 62)]


def test_rounds_are_counted_in_the_order_of_the_algorithm(out):
    """The curve of halving by hand: arm after arm within a rung, the best latest score of those not out."""
    text = SUITE.replace("online = 2", "online = 100")
    entry = next(e for e in read(text).entries if e.name == "SHA / personalized / plain")
    bench.run(read(text), out, workers=1)
    curve = result(out, entry)["online"]["curve"]
    study, _ = run_alone(entry)
    scoring = study.schedule.scoring
    latest, used, expected = {}, 0, []
    for rung, (before, until) in enumerate([(0, 5), (5, 10)]):
        alive = sorted(latest, key=lambda arm: (*latest[arm], arm))[:2] if rung else range(4)
        latest = {arm: latest[arm] for arm in alive if arm in latest}
        for arm in sorted(alive):
            used += until - before
            latest[arm] = scoring.score(study.journal.records(arm, until), "personalized")
            best = min(latest, key=lambda a: (*latest[a], a))
            row = [best, until if best <= arm else before]  # arms go in the order of their numbers
            if not expected or expected[-1][1:3] != row:
                expected.append([used, *row, latest[best][0]])
    assert [row[:4] for row in curve] == expected


def test_marks_are_where_an_arm_may_be_evaluated():
    for schedule, online, expected in (
        (random_search(60, 20), 0, [20]),
        (halving(2000, 200), 0, [200]),
        (halving(2000, 200), 80, [50, 80, 100, 150, 160, 200]),
        (hyperband(80, 10), 0, [10]),
        (hyperband(80, 10), 5, [3, 5, 10]),
    ):
        assert set(marks(schedule, online)) == set(range(outline(schedule).arms))
        assert all(own == expected for own in marks(schedule, online).values())


@pytest.mark.slow
def test_states_are_dropped_as_soon_as_nobody_wants_them(out, monkeypatch):
    """While random search goes on, beside the arms' latest only states are there that a study may still evaluate."""
    most = []
    sweep = Session.sweep

    def watched(self):
        sweep(self)
        names = [file.stem.split("-") for file in (self.where.path / "states").iterdir()]
        latest = {(arm, self.journal.saved_round(arm)) for arm in self.journal.arms}
        kept = {(int(arm), int(round)) for arm, round in names} - latest
        assert kept <= set(self.keep)
        most.append(len(kept))

    monkeypatch.setattr(Session, "sweep", watched)
    bench.run(read(SUITE), out, workers=1)
    assert most[0] > 0
    assert most[-1] == 0


@pytest.mark.slow
def test_a_family_is_several_plays_over_one_session(out):
    """Its journal has arms, rounds and evaluations, each once; who wins and who is out, each study says for itself."""
    bench.run(read(), out, workers=1, only="RS")
    found = events(out)
    assert {type(event) for event in found} == {Begun, Started, Done, Evaluated}
    rounds = [(e.record.arm, e.record.round) for e in found if isinstance(e, Done)]
    assert len(rounds) == 2 * len(set(rounds)) == 2 * 30  # plain and with FedEx, each for both targets
    evaluated = [(e.arm, e.round) for e in found if isinstance(e, Evaluated)]
    assert max(map(evaluated.count, evaluated)) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Population", "Race"])
def test_schedules_whose_arms_depend_on_scores_take_part(out, kind):
    """Arms that start from other arms' states; arms that are compared as long as they are close."""
    text = SUITE.replace("online = 2", "online = 4\nevery_arm = true")
    text = text.replace(
        'RS = { schedule.kind = "random_search" }', f'RS = {{ schedule.kind = "own_schedules:{kind}" }}'
    )
    made = read(text)
    report = bench.run(made, out, workers=1)
    assert (report.done, report.failed) == (STUDIES, [])
    for entry in (e for e in made.entries if e.labels["wrapper"] == "RS"):
        alone, winner = run_alone(entry)
        kept = result(out, entry)
        assert (kept["test"], kept["winner"]) == (alone.evaluate("test"), winner)
        assert (kept["rounds"], kept["arms"]) == (alone.rounds_used, len(alone.journal.arms))
        assert kept["online"]["curve"][-1][0] <= kept["rounds"]


@pytest.mark.slow
def test_a_disk_without_room_for_what_is_kept_is_refused(out, monkeypatch):
    """Four arms with a state at each of the rounds 2, 4, 5, 6, 8 and 10: 24 of them, in two families."""
    need = 2 * 4 * toys.problem().model.size * 24
    for free, failed in ((need - 1, 2), (need, 0)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        report = bench.run(read(), out, workers=1, only="SHA")
        assert len(report.failed) == failed
        assert all("MB free, but the study needs about" in str(error) for _, error in report.failed)


@pytest.mark.slow
def test_a_schedule_beside_the_suite_is_found(tmp_path, fedtuner, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "here").mkdir()
    shutil.copy(Path(__file__).with_name("own_schedules.py"), tmp_path / "here" / "schedules_beside.py")
    (tmp_path / "here" / "mine.toml").write_text(SUITE.replace('"random_search"', '"schedules_beside:Race"'))
    code, out, err = fedtuner("bench", "here/mine.toml", "--workers", "1", "--quiet", "--only", "RS / global")
    assert code == 0, err
    assert "2 studies of" in out


@pytest.mark.slow
def test_every_arm_is_evaluated_when_asked_for(out):
    text = SUITE.replace("online = 2", "every_arm = true")
    made = read(text)
    bench.run(made, out, workers=1)
    entry = next(e for e in made.entries if e.name == "RS / global / plain")
    kept = result(out, entry)
    assert [row[1] for row in kept["tested"]] == [0, 1, 2]
    assert {row[2] for row in kept["tested"]} == {10}
    assert [row[-2:] for row in kept["tested"] if row[1] == kept["winner"]["arm"]] == [list(kept["test"].values())]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrapper", "ended"),
    [
        ('{ schedule = { kind = "random_search", together = 1 } }', [0, 1, 2]),
        ('{ schedule = { kind = "hyperband", budget = 80 } }', None),
    ],
)
def test_every_arm_is_evaluated_in_every_bracket(out, wrapper, ended):
    text = SUITE.replace("online = 2", "every_arm = true").replace('{ schedule.kind = "random_search" }', wrapper)
    entry = next(e for e in read(text).entries if e.name == "RS / global / plain")
    bench.run(read(text), out, workers=1, only="RS / global / plain")
    kept = result(out, entry)
    journal, schedule = run_alone(entry)[0].journal, entry.spec.schedule
    whole = [arm for arm in sorted(journal.arms) if journal.round_of(arm) == 10]
    assert sorted(row[1] for row in kept["tested"]) == whole == (ended or whole)
    assert all(set(group) & set(whole) for group in outline(schedule).groups)
    assert len(outline(schedule).groups) == len(schedule.brackets) > 1
    assert [row[-2:] for row in kept["tested"] if row[1] == kept["winner"]["arm"]] == [list(kept["test"].values())]


@pytest.mark.slow
def test_arms_that_diverge_are_counted(out):
    text = SUITE.replace("batch =", "epochs = 5, batch =")
    text = text.replace("[axes.wrapper]", "server = { lr = 3e38 }\n[axes.wrapper]")
    made = read(text)
    report = bench.run(made, out, workers=1)
    assert report.done == STUDIES
    for entry in made.entries:
        alone, _ = run_alone(entry)
        kept = result(out, entry)
        assert kept["rounds"] == alone.rounds_used
        assert kept["diverged"] == sorted(alone.journal.ended) != []


# Resume


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a suite's results, by method, and the suite; methods that remember have files for it."""

    @functools.cache
    def of(method):
        made, out = read(SUITE.replace("[base]", f'[base]\nmethod = "{method}"')), tmp_path_factory.mktemp(method)
        bench.run(made, out / "whole.jsonl", workers=1)
        return made, (out / "whole.jsonl").read_bytes()

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "moment"),
    [
        ("fedavg", 40),
        *(pytest.param("fedavg", moment, marks=pytest.mark.slow) for moment in (3, 110)),
        *(pytest.param("scaffold", moment, marks=pytest.mark.slow) for moment in (100, 300, 500)),
    ],
)
def test_a_kill_at_any_file_changes_nothing(out, method, moment, whole, monkeypatch):
    monkeypatch.setattr("fedtuner.core.memory.LIMIT", 0)
    made, expected = whole(method)

    def until_killed():
        count = 0

        def dying(change):
            def changed(self, *arguments):
                nonlocal count
                count += 1
                if count == moment:
                    toys.die()
                return change(self, *arguments)

            return changed

        for name in ("replace", "append", "remove"):
            setattr(Files, name, dying(getattr(Files, name)))
        bench.run(made, out, workers=1)

    assert toys.forked(until_killed) == -signal.SIGKILL
    bench.run(made, out, workers=1)
    assert out.read_bytes() == expected
    assert not bench.scratch(out).exists()


@pytest.mark.slow
def test_a_kill_while_a_result_is_written_loses_no_other(out):
    made = read(SUITE)

    def until_killed():
        def dying(path, data):
            if data.count(b"\n") == 1 + 3:  # the suite's line and three results
                path.with_name(f"{path.name}.{os.getpid()}.part").write_bytes(data[:100])
                toys.die()
            write(path, data)

        write = results.replace_file
        results.replace_file = dying
        bench.run(made, out, workers=1)

    assert toys.forked(until_killed) == -signal.SIGKILL
    assert len(results.read(out).studies) == 2
    assert bench.run(made, out, workers=1).done == STUDIES - 2
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.slow
def test_a_part_now_and_the_rest_later(tmp_path):
    """What --only leaves out is done later, with the arms that are there, and to the same bits."""
    made = read(SUITE)
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    once = bench.run(made, whole, workers=1)
    first = bench.run(made, parts, workers=1, only="RS")
    assert first.done == 4
    assert len(list(bench.scratch(parts).glob("*/journal.jsonl"))) == 2  # kept for the others
    second = bench.run(made, parts, workers=1)
    assert first.computed + second.computed == once.computed
    assert parts.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_a_suite_that_has_got_another_study_goes_on_with_its_arms(out):
    """One that comes first, and one that has a result goes: what is left is computed from where it was."""
    bench.run(read(), out, workers=1, only="RS")
    more = read(SUITE.replace("RS = {", 'A = { schedule = { kind = "random_search", longest = 5 } }\nR = {'))
    report = bench.run(more, out, workers=1)
    assert (report.done, report.failed) == (3 * 4, [])  # R is another name
    assert report.computed == 2 * 3 * 5  # arms 3 to 5, plain and with FedEx; halving drops arm 3
    assert {study["labels"]["wrapper"] for study in results.read(out).studies} == {"A", "R", "RS", "SHA"}


@pytest.mark.slow
def test_ctrl_c_is_exit_code_3_and_the_same_command_continues(here):
    environment = toys.environment(TOY_NAP="0.01")
    command = [toys.FEDTUNER, "bench", "mine.toml", "--workers", "1", "--quiet"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    toys.until(lambda: list(here.glob("results/mine.scratch/*/journal.jsonl")))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "studies to go. Everything is kept in results/mine.jsonl: run the same command again to continue" in err
    done = subprocess.run(command, env=toys.environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    bench.run(read(), here / "whole.jsonl", workers=1)
    whole, stopped = (results.read(file).studies for file in (here / "whole.jsonl", here / "results" / "mine.jsonl"))
    assert [{**study, "versions": {}} for study in whole] == [{**study, "versions": {}} for study in stopped]


@pytest.mark.slow
def test_a_second_run_does_nothing_but_print(here, fedtuner, monkeypatch):
    assert fedtuner("bench", "mine.toml", "--workers", "1")[0] == 0
    before = {f: f.stat().st_mtime_ns for f in here.rglob("*") if f.is_file()}
    monkeypatch.setattr(spec, "load_problem", pytest.fail)
    code, out, err = fedtuner("bench", "mine.toml")
    assert (code, err) == (0, "")
    assert "+ FedEx against plain" in out
    assert {f: f.stat().st_mtime_ns for f in here.rglob("*") if f.is_file()} == before
    script = (
        "import sys; from fedtuner import cli; code = cli.main(['bench', 'mine.toml']); "
        "sys.exit(code or int('torch' in sys.modules or 'toys' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=toys.environment())
    assert done.returncode == 0, done.stderr


def test_results_of_other_settings_are_refused(here, fedtuner):
    assert fedtuner("bench", "mine.toml", "--workers", "1", "--only", "RS / global / plain seed0")[0] == 0
    (here / "mine.toml").write_text(SUITE.replace("cohort = 3", "cohort = 4"))
    code, _, err = fedtuner("bench", "mine.toml")
    assert code == 2
    assert "results/mine.jsonl has 'RS / global / plain', seed 0, with other settings (cohort: 3 in the store, " in err


@pytest.mark.slow
def test_a_lost_state_is_a_clear_error(out):
    made = read(SUITE)
    bench.run(made, out, workers=1, only="RS")
    for file in bench.scratch(out).glob("*/states/*"):
        file.unlink()
    report = bench.run(made, out, workers=1, only="SHA")
    assert report.failed
    assert all(isinstance(error, StoreError) for _, error in report.failed)
    assert all(re.search("is missing or damaged .*; or delete .*, and its rounds", str(e)) for _, e in report.failed)
    assert len(results.read(out).studies) == 4
    for folder in bench.scratch(out).glob("*/"):
        shutil.rmtree(folder)
    assert bench.run(made, out, workers=1).done == 4


@pytest.mark.slow
def test_two_processes_lose_no_line(tmp_path):
    """Each does its part, and tries again where the other was at it; the file is that of one process."""
    made, both = read(), tmp_path / "both.jsonl"
    bench.run(made, tmp_path / "whole.jsonl", workers=1)

    def done(only):
        with contextlib.suppress(StoreError):
            return bench.run(made, both, workers=1, only=only).failed == []

    with ThreadPoolExecutor() as two:
        codes = list(two.map(lambda only: toys.forked(lambda: toys.until(lambda: done(only))), ("RS", "SHA")))
    assert codes == [0, 0]
    assert both.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_suite_that_is_running_is_left_alone(out):
    bench.scratch(out).mkdir()
    lock = Lock(bench.scratch(out))
    with pytest.raises(StoreError, match=r"another 'fedtuner bench' is adding to .*mine\.jsonl: wait for it, stop it"):
        bench.run(read(), out, workers=1)
    assert not out.exists()
    lock.release()
    assert bench.run(read(), out, workers=1, only="RS").done == 4


@pytest.mark.slow
def test_what_others_have_done_meanwhile_is_not_done_again(out, monkeypatch):
    """What is to be done is known before the lock is taken; by then another process may have done it."""
    made, take = read(), bench.Lock

    def late(folder):
        monkeypatch.setattr(bench, "Lock", take)
        results.update(out, made, *(study for study in whole.studies if study["labels"]["wrapper"] == "RS"))
        return take(folder)

    bench.run(made, out, workers=1)
    whole, before = results.read(out), out.read_bytes()
    out.unlink()
    monkeypatch.setattr(bench, "Lock", late)
    assert bench.run(made, out, workers=1).done == 4
    assert out.read_bytes() == before


# What is printed and what is kept


@pytest.mark.slow
def test_results_are_made_to_be_committed(here, fedtuner):
    code, out, err = fedtuner("bench", "mine.toml", "--workers", "1")
    assert code == 0, err
    assert "8 studies of" in out
    assert "equal arms are shared" in out
    (file,) = [f for f in here.rglob("*") if f.is_file() and f.name != "mine.toml"]
    assert str(here) not in file.read_text()
    suite_line, *lines = (json.loads(line, parse_constant=pytest.fail) for line in file.read_text().splitlines())
    assert suite_line == {"suite": read().describe()}
    assert [(tuple(line["labels"].values()), line["seed"]) for line in lines] == [
        (tuple(entry.labels.values()), entry.seed) for entry in read().entries
    ]
    assert set(lines[0]["versions"]) >= {"fedtuner", "python", "numpy"}
    assert lines[0]["versions"].get("commit", "") == commit()
    assert set(lines[0]["machine"]) == {"system", "cpu", "cores"}


def test_json_is_for_programs(here, fedtuner):
    code, out, _ = fedtuner("bench", "mine.toml", "--workers", "1", "--only", "RS", "--json")
    assert code == 0
    printed = json.loads(out, parse_constant=pytest.fail)
    assert printed["run"]["done"] == 4
    assert printed["run"]["computed"] < printed["run"]["asked"]
    assert len(printed["studies"]) == 4


@pytest.mark.slow
def test_a_dry_run_says_how_long_and_does_nothing(here, fedtuner):
    code, out, _ = fedtuner("bench", "mine.toml", "--workers", "1", "--dry-run")
    assert code == 0
    assert "In all about" in out
    assert not (here / "results").exists()
    printed = json.loads(fedtuner("bench", "mine.toml", "--workers", "1", "--dry-run", "--json")[1])
    problem = printed["problems"][0]
    assert problem["studies"] == STUDIES
    assert 0 < problem["rounds"] < problem["asked"]
    assert printed["seconds"] > 0
    fedtuner("bench", "mine.toml", "--workers", "1", "--quiet")
    assert "All results are there." in fedtuner("bench", "mine.toml", "--dry-run")[1]


def test_the_trial_times_several_arms(monkeypatch):
    """Batch sizes differ between arms, so the clients of one arm would not do, even where a few take all the time."""
    entry = next(entry for entry in read().entries if entry.name == "SHA / global / plain")
    arms = []
    monkeypatch.setattr(Round, "work", lambda self, plan, job: arms.append(plan.arm))
    plan.calibrate(entry, spec.load_problem("toys:problem"), seconds=0.0)
    assert len(arms) == 5
    assert len(set(arms)) > 2


@pytest.mark.slow
def test_about_as_many_rounds_as_expected_are_computed(out):
    made = read()
    expected = sum(group.expected()[0] for group in plan.groups(made, out))
    computed = bench.run(made, out, workers=1).computed
    assert 0.7 * computed < expected < 1.5 * computed


def test_a_round_in_which_clients_try_more_takes_longer(out, monkeypatch):
    """The calibrated family trains each client once; of the same rounds another trains it three times."""
    monkeypatch.setattr(plan, "calibrate", lambda entry, problem: (1.0, 1.0))

    def estimate(fedex):
        text = SUITE.replace("plain = { fedex = false }", "one = { fedex = { k = 3 } }").replace("k = 3, eps", fedex)
        (found,) = plan.estimate(read(text), out, workers=1)
        return found

    once, thrice = estimate("k = 3, eps"), estimate("tries = 3, k = 3, eps")
    assert (once.rounds, once.evaluations) == (thrice.rounds, thrice.evaluations)
    assert thrice.seconds - once.seconds == pytest.approx(once.rounds / 2 * 2)  # half of the rounds, two trainings more


@pytest.mark.slow
def test_progress_tells_the_time_left(here, fedtuner, monkeypatch):
    monkeypatch.setattr(bench, "EVERY", 0.0)
    _, _, err = fedtuner("bench", "mine.toml", "--workers", "1")
    assert "bench: 1 of 8 studies, toys:problem seed 0, " in err
    assert err.splitlines()[-1].startswith("bench: 8 of 8 studies")
    assert " left" in err


@pytest.mark.slow
def test_what_cannot_be_run_is_told_and_the_rest_is_done(here, fedtuner):
    text = SUITE.replace("[axes.wrapper]", '[axes.data]\nbad = { problem = "toys:absent" }\ngood = {}\n[axes.wrapper]')
    (here / "mine.toml").write_text(text)
    code, out, err = fedtuner("bench", "mine.toml", "--workers", "1", "--quiet")
    assert code == 2
    assert "8 studies of" in out
    assert "bad / RS / global / plain seed0 and what shares its arms: problem = 'toys:absent'" in err
    assert "toys:absent: problem = 'toys:absent'" in fedtuner("bench", "mine.toml", "--dry-run", "--workers", "1")[1]
    (here / "mine.toml").write_text(text.replace("toys:absent", "toys:raising"))
    assert fedtuner("bench", "mine.toml", "--workers", "1", "--quiet", "--only", "bad")[0] == 1


def test_only_must_match_something(out):
    with pytest.raises(SpecError, match="--only 'nothing' matches no study of the suite; names are such as"):
        bench.run(read(), out, only="nothing")


@pytest.mark.slow
def test_a_sampler_that_learns_takes_part(out):
    pytest.importorskip("optuna")
    text = SUITE.replace("[axes.wrapper]", '[axes.wrapper]\nTPE = { sampler = "tpe", schedule = { kind = '
                         '"random_search", longest = 5, together = 1 } }')  # fmt: skip
    made = read(text)
    bench.run(made, out, workers=1, only="TPE")
    for entry in (e for e in made.entries if e.labels["wrapper"] == "TPE"):
        alone, winner = run_alone(entry)
        kept = result(out, entry)
        assert (kept["test"], kept["winner"]) == (alone.evaluate("test"), winner)


def test_the_ball_has_the_candidates_of_one_arm():
    table = {"problem": "toys:problem", "fedex": {"k": 4, "eps": 0.2}, "cohort": 3, "seed": 3}

    def arms(**changed):
        study = spec.parse({**table, **changed}).study(None, 1)
        with Session(study.setup, study.problem, study.where) as session:
            session.start(dict.fromkeys(range(6), Start()))
            return session.journal.candidates, [arm.server for arm in session.journal.arms.values()]

    whole, servers = arms()
    ball, same_servers = arms(fedex=False, sampler={"kind": "ball", "eps": 0.2})
    assert [ball[j] for j in range(4)] == [(candidate,) for candidate in whole[0]]
    assert same_servers == [servers[0]] * 6
    same, _ = arms(fedex=False, sampler={"kind": "ball", "eps": 0.0})
    assert same[5] == same[0]
    with pytest.raises(SpecError, match=r"sampler\.eps = -1"):
        spec.parse({**table, "sampler": {"kind": "ball", "eps": -1}})
