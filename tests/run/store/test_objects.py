"""Studies in an object store end as in a folder, wherever they are stopped; what is wrong is said in one line."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest

import buckets
import fedtuner as ft
import toys
from buckets import content, filled, store
from crashes import Evolving
from fedtuner.core import memory
from fedtuner.core.records import Blob, State
from fedtuner.core.store import Done, Joined, Note
from fedtuner.errors import SpecError, StoreError
from fedtuner.page import html
from fedtuner.report import journal_of, summary
from fedtuner.report.diff import as_lines, differences
from fedtuner.run import saving
from fedtuner.run.store import Folder, Objects, segments
from fedtuner.run.store import bucket as bucket_module
from fedtuner.run.store.bucket import Bucket

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
HALVING = {}
CHILDREN = {"schedule": Evolving()}
VECTORS = {"last": np.ones(3, np.float32)}


def run(where, **changed):
    """A whole study, and its evaluation."""
    toys.tune(store=where, **changed).evaluate()


def kept(url):
    return {name: data for name, data in content(url).items() if name.startswith(("states/", "memory/"))}


def assert_same(one, other):
    journals = [journal_of(url) for url in (one, other)]
    assert not as_lines(differences(*journals), (str(one), str(other)))
    assert len({journal.rounds_used for journal in journals}) == 1
    assert kept(one) == kept(other)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("spilled", [False, True])
def test_a_study_is_the_one_that_a_folder_has(tmp_path, monkeypatch, workers, spilled):
    """To the bit: events, states and clients' memories, for any number of workers."""
    if spilled:
        monkeypatch.setattr(memory, "LIMIT", 0)
    url = buckets.new()
    run(str(url), workers=workers)
    run(tmp_path / "s")
    assert not differences(journal_of(url), journal_of(tmp_path / "s"))
    files = toys.files(tmp_path / "s")
    assert kept(url) == {name: data for name, data in files.items() if name.startswith(("states/", "memory/"))}
    assert any(name.startswith("memory/") for name in kept(url)) == spilled
    before = content(url)
    run(str(url), workers=workers)  # again: nothing is left to do
    changed = {name for name, data in content(url).items() if data != before[name]}
    assert changed == {"journal-000001.jsonl", "lock"}  # the mark of who opened it


def test_its_journal_is_that_of_a_folder(tmp_path):
    """Downloaded, with its objects one after the other, it is a folder's."""
    url = buckets.new()
    run(str(url))
    for name, data in content(url).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name.replace("-000001", "")).write_bytes(data)
    assert repr(list(Folder(tmp_path).events())) == repr(list(Objects(url).events()))
    assert ft.load(tmp_path).best.score == ft.load(str(url)).best.score
    run(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spilled", "save", "changed"),
    [
        (False, 2.0, HALVING),
        (False, -1.0, HALVING),
        (False, 2.0, CHILDREN),
        (True, 2.0, HALVING),
        (True, 2.0, CHILDREN),
    ],
    ids=["rarely", "often", "children", "memories", "children's memories"],
)
def test_killed_at_any_change_of_an_object(monkeypatch, spilled, save, changed):
    """What a kill leaves behind at each change is continued to the same end, and no round is counted twice."""
    if spilled:
        monkeypatch.setattr(memory, "LIMIT", 0)
    monkeypatch.setattr(saving, "_SAVE", save)
    whole = buckets.new()
    bucket = buckets.Snapshots(whole)
    run(Objects(whole, bucket, buckets.quiet), **changed)
    assert any(name.startswith("memory/") for name in content(whole)) == spilled
    assert bucket.changes >= len(bucket.kept) > 20
    for objects in bucket.kept.values():
        url, watched = filled(objects), []
        run(store(url), watch=watched.append, **changed)
        assert_same(url, whole)
        redone = [(e.record.arm, e.record.round) for e in watched if isinstance(e, Done)]
        assert len(redone) == len(set(redone))


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_network_that_fails_at_any_change_loses_nothing(after):
    """What was kept is whole; when the network is back, the study ends as if nothing had been."""
    whole = buckets.new()
    run(store(whole))
    failed = 0
    for n in range(1, 200):
        url = buckets.new()
        failing = store(url, buckets.Failing, n, ".*", after)
        try:
            run(failing)
        except StoreError:
            failed += 1
        else:
            if failing.bucket.left > 0:
                break
        run(store(url))
        assert_same(url, whole)
    assert failed > 15


def test_the_same_study_goes_on_when_the_network_is_back():
    """The object that met the failure, too."""
    url = buckets.new()
    failing = store(url, buckets.Failing, 12)
    settings = toys.settings(store=failing)
    del settings["progress"]
    study = ft.prepare(**settings)
    with pytest.raises(StoreError, match="the network is gone"):
        study.run(False)
    failing.bucket.mended = True
    study.run(False)
    study.evaluate()
    whole = buckets.new()
    run(store(whole))
    assert_same(url, whole)


def test_a_driver_that_was_taken_over_stops_and_writes_nothing_more():
    url, second = buckets.new(), []

    def watch(event):
        if isinstance(event, Done) and not second:
            other = store(url)  # as if the first one's lease had expired
            other._lock = lambda bucket: buckets.quiet(bucket)
            taken = buckets.Late(url)
            found = taken.get("lock")
            taken.delete(["lock"])
            assert found is not None
            other.open()
            second.append((other, content(url)))

    with pytest.raises(StoreError, match=r"is written to by another study|was taken over by") as error:
        toys.tune(store=store(url), watch=watch)
    assert "\n" not in str(error.value)
    other, then = second[0]
    now = content(url)
    assert {name for name in now if name.startswith("journal")} == {name for name in then if name.startswith("journal")}
    assert all(now[name] == then[name] for name in now if name.startswith("journal"))
    other.close()
    run(store(url))
    whole = buckets.new()
    run(store(whole))
    assert_same(url, whole)


WRITES = {
    "append": lambda one: one.append([Joined(("phone",))]),
    "log": lambda one: one.append((), [Note("late", "too late")]),
    "save": lambda one: one.save((3, 1), State(1, np.ones(4, np.float32), None), {}),
    "drop": lambda one: one.drop([(0, 10)]),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nothing_is_written_after_the_lock_was_lost(write):
    url, now = buckets.new(), [0.0]
    run(store(url))
    from fedtuner.run.store.lease import Lease

    one = Objects(url, Bucket(url), lambda bucket: Lease(bucket, clock=lambda: now[0], beats=False))
    one.open()
    Bucket(url).delete(["lock"])
    other = store(url)
    other.open()
    now[0] += 60.0
    before = content(url)
    with pytest.raises(StoreError, match=r"was taken over by .*: nothing more is written there"):
        write(one)
    assert content(url) == before
    one.close()
    assert content(url) == before
    other.close()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_store_is_opened_before_it_is_written_to(write):
    one = store(buckets.new())
    one._states.add("0-10.safetensors")
    with pytest.raises(StoreError, match=r"is not open: open\(\) it"):
        write(one)


def test_a_worker_elsewhere_uses_the_store_itself():
    """One that was not forked: its blobs come pickled."""
    url = buckets.new()
    mine = store(url)
    mine.open()
    theirs = pickle.loads(pickle.dumps(mine.blobs))
    for client in (2, 3):
        theirs.put(Blob(0, client, 1), VECTORS)
    assert set(content(url)) >= {"memory/0/2-1.safetensors", "memory/0/3-1.safetensors"}
    state = State(1, np.ones(4, np.float32), None, memory={2: Blob(0, 2, 1)})
    mine.save((0, 1), state, {})
    assert mine.blobs.get(Blob(0, 2, 1))["last"].tolist() == [1.0] * 3
    theirs.check([Blob(0, 2, 1)])
    missing = State(1, np.ones(4, np.float32), None, memory={2: Blob(0, 7, 1)})
    for attempt in (
        lambda: mine.save((0, 2), missing, {}),
        lambda: theirs.check([Blob(0, 7, 1)]),
        lambda: theirs.get(Blob(0, 7, 1)),
        lambda: mine.blobs.get(Blob(0, 7, 1)),
    ):
        with pytest.raises(StoreError, match=r"what clients remember is missing: memory/0/7-1\.safetensors"):
            attempt()
    mine.blobs.sweep(0, ())
    assert not [name for name in content(url) if name.startswith("memory/")]
    mine.close()


def test_a_fork_does_not_use_the_store():
    """obstore would wait forever there: it is an error, and letting go of the store does nothing."""
    url = buckets.new()
    one = store(url)
    one.open()

    def work():
        one.close()
        with pytest.raises(StoreError, match="and not by its forks"):
            list(store(url).events())

    assert toys.forked(work) == 0
    one.append([], [Note("late", "a client came after the round")])
    one.close()
    assert b"a client came after" in content(url)["log-000001.jsonl"]


def test_a_damaged_journal_is_an_error_with_its_object_and_line():
    url = buckets.new()
    run(store(url))
    lines = content(url)["journal-000001.jsonl"].splitlines(keepends=True)
    lines[2] = lines[2].replace(b":", b";", 1)
    Bucket(url).put("journal-000001.jsonl", b"".join(lines))
    for attempt in (lambda: list(Objects(url).events()), store(url).open):
        with pytest.raises(StoreError, match=r"journal-000001\.jsonl, line 3 is damaged"):
            attempt()


def test_states_without_a_journal_are_an_error():
    url = buckets.new()
    Bucket(url).put("states/0-5.safetensors", b"x")
    with pytest.raises(StoreError, match="has states of a study, but no journal that says which"):
        store(url).open()
    assert set(content(url)) == {"states/0-5.safetensors", "lock"}


def test_states_that_no_line_names_are_deleted():
    url = buckets.new()
    run(store(url))
    before = kept(url)
    for name in ("states/9-5.safetensors", "states/notes.txt"):
        Bucket(url).put(name, b"stray")
    run(store(url))
    assert kept(url) == {**before, "states/notes.txt": b"stray"}


def test_a_state_that_is_damaged_or_missing_is_named():
    url = buckets.new()
    run(store(url))
    study = ft.load(str(url))
    arm, round = study.winner
    Bucket(url).put(f"states/{arm}-{round}.safetensors", b"half")
    with pytest.raises(StoreError, match=rf"{url}/states/{arm}-{round}\.safetensors is missing or damaged \(its check"):
        study.best  # noqa: B018
    Bucket(url).delete([f"states/{arm}-{round}.safetensors"])
    with pytest.raises(StoreError, match="there is no such object"):
        study.best  # noqa: B018


def test_reading_no_study_says_so():
    url = buckets.new()
    with pytest.raises(StoreError, match=rf"no study in {url}: there is no journal"):
        ft.load(str(url))
    with pytest.raises(StoreError, match=r"the store is not there|no study in"):
        journal_of(url)


def test_without_obstore_the_extra_is_named(monkeypatch):
    def absent():
        raise ImportError("obstore")

    monkeypatch.setattr(bucket_module, "_obstore", absent)
    for attempt in (lambda: ft.load("s3://bucket/x"), lambda: toys.tune(store="memory://a/b")):
        with pytest.raises(StoreError, match=r"^\S+ needs obstore: pip install 'fedtuner\[objects\]'$"):
            attempt()


def test_a_url_that_is_none_is_refused_before_any_work():
    for attempt in (lambda: ft.load("s4://bucket/x"), lambda: toys.tune(store="s3://user:geheim@bucket/x")):
        with pytest.raises(SpecError) as error:
            attempt()
        assert "geheim" not in str(error.value)


@pytest.mark.parametrize("limit", [1, 10**6])
def test_a_journal_is_followed_by_what_is_new(monkeypatch, limit):
    """Each event comes once; a study in its place begins again."""
    monkeypatch.setattr(segments, "LIMIT", limit)
    url, seen = buckets.new(), []
    counting = buckets.Counting(url)
    tail = Objects(url, counting).tail()
    assert tail.new() == ([], False)

    def watch(event):
        new, again = tail.new()
        seen.extend(new)
        assert not again

    study = toys.tune(store=store(url), watch=watch)
    seen += tail.new()[0]
    assert repr(seen) == repr(list(Objects(url).events()))
    counting.counts.clear()
    assert tail.new() == ([], False)
    assert counting.counts == {"list": 1}  # what has not changed is not read
    study.evaluate()
    assert type(seen[-1]).__name__ == "Evaluated"
    Bucket(url).delete(list(content(url)))
    toys.tune(store=store(url), seed=5)
    events, again = tail.new()
    assert again
    assert repr(events) == repr(list(Objects(url).events()))


@pytest.mark.slow
def test_what_shows_a_study_takes_its_place(tmp_path):
    url = buckets.new()
    study = toys.tune(store=str(url))
    study.evaluate()
    ft.untuned(study).evaluate()
    study.retrain(3).evaluate()
    shown = summary(url)
    assert {"tuned", "untuned", "retrained-3"} <= shown["evaluations"].keys()
    assert str(url) in repr(study)
    assert study.path == url
    assert tmp_path / "export" / "model.safetensors" in study.export(tmp_path / "export")
    assert html.report([url], tmp_path / "r.html").exists()
    warm = toys.tune(start_from=str(url))
    assert warm.finished
    assert study.plot("race") is not None


def test_requests_of_a_study_are_few(monkeypatch):
    """A flush is a state, a line, and the old state's end: three requests, however many rounds it holds."""
    url = buckets.new()
    bucket = buckets.Counting(url)
    toys.tune(store=Objects(url, bucket, buckets.quiet))
    events = list(Objects(url).events())
    flushes = sum(isinstance(event, Done) and bool(event.state) for event in events)
    assert flushes == 6
    assert bucket.counts["write states"] == flushes
    assert bucket.counts["write journal"] <= flushes + 5  # the study, its arms, two eliminations, the winner
    assert bucket.counts["delete"] <= flushes
    assert sum(bucket.counts.values()) < 3 * flushes + 12


def test_a_slow_store_is_given_a_tenth_of_the_time(monkeypatch):
    """Between two saves the driver works at least ten times as long as the first took."""
    now, saves = [0.0], []
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])

    class Slow(Objects):
        def save(self, key, state, belief):
            saves.append(now[0])
            now[0] += 1.5
            return super().save(key, state, belief)

    def nap(event=None):
        now[0] += 0.25

    url = buckets.new()
    monkeypatch.setattr(toys, "nap", nap)
    schedule = ft.halving(budget=120, longest=60, eta=2, eliminations=1)
    toys.tune(store=Slow(url, Bucket(url), buckets.quiet), schedule=schedule)
    gaps = [b - a - 1.5 for a, b in pairwise(saves)]
    assert len(saves) > 5
    assert sorted(gaps)[2] >= 15.0 - 1e-9  # but where an arm is finished
