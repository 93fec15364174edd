"""Studies in S3: moto's server on this machine, the command line, several drivers, and a network that fails."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import fedtuner as ft
import s3
import toys
from fedtuner.cli import main
from fedtuner.core.place import place
from fedtuner.core.store import Done
from fedtuner.errors import StoreError
from fedtuner.report import journal_of
from fedtuner.report.diff import differences
from fedtuner.run.store import Objects, bucket
from fedtuner.run.store.bucket import Bucket
from fedtuner.testing import StoreLaws

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not s3.PYTHON.exists(), reason="moto's server is not here: make s3 sets it up"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = s3.Server(tmp_path_factory.mktemp("s3") / "log")
    made.make_bucket("bucket")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def environment(server, monkeypatch):
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def url():
    return f"s3://bucket/studies/{next(numbers)}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "s"
    toys.tune(store=path).evaluate()
    return path


class TestS3(StoreLaws):
    @pytest.fixture(autouse=True)
    def _places(self):
        self.made = {}

    def store(self, folder):
        return Objects(self.made.setdefault(folder, place("store", f"s3://bucket/laws/{next(numbers)}")))


def test_of_many_who_write_at_once_one_succeeds(url):
    """The exclusive create and the compare-and-swap that lock and journal are built on."""
    at = place("store", url)

    def attempt(do):
        with ThreadPoolExecutor(8) as pool:
            data = [b"%d" % next(numbers) for _ in range(8)]  # a version is known by its content, so each has its own
            return [one for one in pool.map(lambda each: do(Bucket(at), each), data) if one is not None]

    [version] = attempt(lambda one, data: one.create("object", data))
    for _ in range(3):
        [version] = attempt(lambda one, data, known=version: one.swap("object", data, known))
    assert Bucket(at).swap("absent", b"x", version) is None
    assert Bucket(at).get("absent") is None
    Bucket(at).delete(["absent", "object"])
    assert Bucket(at).find() == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_study_is_the_one_that_a_folder_has(url, finished, workers):
    study = toys.tune(store=url, workers=workers)
    study.evaluate()
    assert not differences(study.journal, journal_of(finished))
    assert ft.load(url).best.model.tobytes() == ft.load(finished).best.model.tobytes()
    again = toys.tune(store=url)
    assert again.best.score == study.best.score


def test_no_secret_is_written_or_said(url, server):
    toys.tune(store=url)
    for one in Bucket(place("store", url)).below(""):
        found = Bucket(place("store", url)).get(one)
        assert found is not None
        assert s3.SECRET.encode() not in found[0]
        assert b"tester" not in found[0]


def fedtuner(*arguments, code=0, **extra):
    command = [sys.executable, "-m", "fedtuner", *map(str, arguments)]
    done = subprocess.run(command, env=toys.environment(**extra), capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_every_command_takes_a_url(tmp_path, url, monkeypatch, capsys):
    def fedtuner(*arguments):
        assert not main([*map(str, arguments)])
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    study = toys.write_study(tmp_path)
    assert url in fedtuner("run", study, "--store", url, "--baseline", "--retrain", 5, "--quiet")
    fedtuner("run", study, "--store", "here", "--baseline", "--retrain", 5, "--quiet")
    assert "are equal" in fedtuner("diff", url, "here")
    shown = [json.loads(fedtuner("show", where, "--json")) for where in (url, "here")]
    assert shown[0].pop("store") == url
    assert shown[1].pop("store") == "here"
    assert shown[0] == shown[1]
    assert {"untuned", "retrained-5"} <= shown[0]["evaluations"].keys()
    assert json.loads(fedtuner("run", study, "--store", url, "--dry-run", "--json"))["done"] == 30
    name = url.rpartition("/")[2]
    fedtuner("export", url)
    fedtuner("export", url, "--to", "exported")
    assert (tmp_path / f"{name}-export" / "model.safetensors").read_bytes() == (
        tmp_path / "exported" / "model.safetensors"
    ).read_bytes()
    fedtuner("report", url)
    assert url in (tmp_path / f"{name}-report.html").read_text()
    fedtuner("run", study, "--store", "seed1", "--seed", 1, "--quiet")
    fedtuner("report", url, "seed1", "-o", "both.html")
    fedtuner("plot", "race", url, "-o", "race.svg")
    assert "of 8 arms" in fedtuner("compare", url, "seed1")
    fedtuner("run", study, "--start-from", url, "--store", f"{url}-again", "--quiet")
    fedtuner("run", study, "--store", url, "--extend", 60, "--quiet")
    assert ft.load(url).rounds_used == 60


def start(url, tmp_path, nap="0.2"):
    """A driver that has done some rounds, and has many to do."""
    study = toys.write_study(tmp_path)
    command = [sys.executable, "-m", "fedtuner", "run", str(study), "--store", url, "--workers", "1", "--quiet"]
    environment = toys.environment(TOY_NAP=nap)
    driver = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def begun():
        assert driver.poll() is None, driver.communicate()
        events = list(Objects(place("store", url)).events())
        return any(isinstance(event, Done) for event in events)

    toys.until(begun, 60)
    return driver, study


def test_two_drivers_and_one_that_was_killed(url, tmp_path):
    """The second is refused in one line that says who runs; after a kill the same command goes on at once."""
    driver, study = start(url, tmp_path)
    driver.send_signal(signal.SIGSTOP)  # on a busy machine it would be at its end too soon
    refused = fedtuner("run", study, "--store", url, "--quiet", code=2)
    assert re.fullmatch(
        rf"fedtuner: {url} is in use by another running study: \S+@\S+, process {driver.pid}, which renewed its lock "
        rf"\d+ s ago\. Wait for it, stop it, or use another store; if it has died, this command works in \d+ s, or at "
        rf"once after {url}/lock was deleted\n",
        refused.stderr,
    )
    assert "not finished" in repr(ft.load(url))  # it can be looked at meanwhile
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    fedtuner("run", study, "--store", url, "--quiet")
    fedtuner("run", study, "--store", tmp_path / "here", "--quiet")
    assert "are equal" in fedtuner("diff", url, tmp_path / "here").stdout


def test_a_driver_of_another_machine_that_died_is_followed_after_its_lease(url, tmp_path, monkeypatch):
    """By the store's clock; here the lease is made shorter, so that nobody waits."""
    driver, study = start(url, tmp_path)
    driver.kill()
    driver.communicate()
    at = Bucket(place("store", url))
    found = at.get("lock")
    assert found is not None
    about = {**json.loads(found[0]), "machine": "another", "host": "far", "process": 1}
    at.put("lock", json.dumps(about).encode())
    assert "@far, process 1, which" in fedtuner("run", study, "--store", url, code=2).stderr
    at.put("lock", json.dumps({**about, "lease": 0.0}).encode())
    fedtuner("run", study, "--store", url, "--quiet")


def test_ctrl_c_keeps_everything_and_lets_go(url, tmp_path):
    driver, study = start(url, tmp_path)
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate(timeout=60)
    assert f"Everything is kept in {url}: run the same command again to continue." in said
    lock = Bucket(place("store", url)).get("lock")
    assert lock is not None
    assert json.loads(lock[0])["free"]
    fedtuner("run", study, "--store", url, "--quiet")


def test_a_live_page_follows_a_study(url, tmp_path):
    from fedtuner.page.history import Study

    driver, _ = start(url, tmp_path, nap="0.05")
    followed = Study(place("store", url))
    assert followed.history.journal.rounds_used > 0
    driver.communicate(timeout=120)
    followed.refresh()
    assert not followed.refresh()
    assert followed.history.journal.won is not None
    assert not differences(followed.history.journal, ft.load(url).journal)


@pytest.fixture
def network(server, monkeypatch):
    made = s3.Network(server.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{made.port}")
    yield made
    made.close()


def test_a_network_that_is_gone_for_a_moment_is_not_noticed(url, network, finished):
    events = []

    def watch(event):
        events.append(event)
        if len(events) % 5 == 0:
            network.down(2)

    study = toys.tune(store=url, watch=watch)
    study.evaluate()
    assert network.cut >= 4
    assert not differences(study.journal, journal_of(finished))


def test_a_network_that_is_gone_for_good_stops_the_study_in_one_line(url, network, server, finished, monkeypatch):
    monkeypatch.setattr(bucket, "_TRIES", 1)

    def watch(event):
        if isinstance(event, Done) and event.record.arm == 2:
            network.down()

    with pytest.raises(StoreError) as error:
        toys.tune(store=url, watch=watch)
    said = str(error.value)
    assert re.match(rf"cannot \w+ {url}/\S+: .*error sending request\. What was kept before is whole, and rounds", said)
    assert "\n" not in said
    assert s3.SECRET not in said
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    assert 0 < ft.load(url).rounds_used < 30
    study = toys.tune(store=url)  # the lock is this process's, which holds it no more
    study.evaluate()
    assert not differences(study.journal, journal_of(finished))


def test_what_is_wrong_is_said_in_one_line_and_soon(tmp_path, network):
    study = toys.write_study(tmp_path)
    missing = fedtuner("run", study, "--store", "s3://nowhere/x", code=2).stderr
    assert missing.splitlines()[-1] == (
        "fedtuner: s3://nowhere/x: there is no bucket 'nowhere': make it, or use another --store (store=)"
    )
    assert "there is no bucket 'nowhere'" in fedtuner("show", "s3://nowhere/x", code=2).stderr
    assert "no study in s3://bucket/nothing" in fedtuner("show", "s3://bucket/nothing", code=2).stderr
    without = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9"}
    said = fedtuner("show", "s3://bucket/x", code=2, **without).stderr
    assert said.count("\n") == 1
    network.down()
    gone = fedtuner("show", "s3://bucket/x", code=2).stderr
    assert re.fullmatch(r"fedtuner: cannot list s3://bucket/x: .*\n", gone)


def test_no_credentials_are_said(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"refuses this machine's credentials, or there are none: set AWS_ACCESS_KEY_"):
        ft.load("s3://bucket/x")
