"""The lock of a study in an object store: one owner at a time, by conditional writes; no test waits."""

from __future__ import annotations

import json
import math
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import buckets
import toys
from fedtuner.errors import StoreError
from fedtuner.run.store import lease
from fedtuner.run.store.bucket import Bucket
from fedtuner.run.store.lease import LEASE, Lease, Owner


class Clocked(Bucket):
    """A bucket whose clock is moved by hand, and which is asked by others about an owner's age."""

    def __init__(self, url, clock):
        super().__init__(url)
        self.clock, self.written = clock, clock.setdefault("written", {})

    def age(self, name):
        return self.clock["now"] - self.written[name]

    def create(self, name, data):
        return self._note(name, super().create(name, data))

    def swap(self, name, data, version):
        return self._note(name, super().swap(name, data, version))

    def _note(self, name, version):
        if version is not None:
            self.written[name] = self.clock["now"]
        return version


@pytest.fixture
def clock():
    return {"now": 1000.0}


@pytest.fixture
def take(clock):
    """Return a function that takes the same lock, as a process of another machine would."""
    url = buckets.new()

    def take():
        return Lease(Clocked(url, clock), clock=lambda: clock["now"], beats=False)

    take.url = url
    return take


@pytest.fixture
def elsewhere(monkeypatch):
    """Owners are those of other machines: whether their processes live is not known here."""
    this = Owner.this
    made = iter(range(1, 1000))
    monkeypatch.setattr(
        Owner, "this", staticmethod(lambda lasts: replace(this(lasts), host="far", process=next(made), machine="m"))
    )


def test_a_second_owner_is_refused_with_who_has_it_and_how_long(take, clock, elsewhere):
    take()
    clock["now"] += 10
    with pytest.raises(StoreError) as error:
        take()
    said = str(error.value)
    assert re.search(r"memory://\S+ is in use by another running study: \S+@far, process 1, which renewed its", said)
    assert (
        f"lock 10 s ago. Wait for it, stop it, or use another store; if it has died, this command works in {50} s"
        in said
    )
    assert said.endswith(f"or at once after {take.url}/lock was deleted")
    assert "\n" not in said


def test_a_lease_is_taken_over_only_when_it_has_expired(take, clock, elsewhere):
    first = take()
    clock["now"] += LEASE - 0.001
    with pytest.raises(StoreError, match="is in use"):
        take()
    clock["now"] += 0.001
    second = take()
    with pytest.raises(StoreError, match=r"was taken over by .*process 3, as this study's lock had expired"):
        first.check()
    for _ in range(2):
        with pytest.raises(StoreError, match="nothing more is written there"):
            first.check()  # for good
    second.check()
    first.release()  # does nothing to the other's
    second.renew()


def test_a_lease_that_is_renewed_is_never_taken_over(take, clock, elsewhere):
    first = take()
    for _ in range(50):
        clock["now"] += LEASE / 3
        first.renew()
        with pytest.raises(StoreError, match="is in use"):
            take()
    first.check()


def test_a_check_asks_the_store_only_when_the_lease_may_have_ended(take, clock, monkeypatch):
    first, asked = take(), []
    monkeypatch.setattr(Clocked, "swap", lambda *a: asked.append(a) or Bucket.swap(*a))
    for _ in range(100):
        first.check()
    assert not asked
    clock["now"] += LEASE
    first.check()  # nobody else came: it is its own still
    assert len(asked) == 1


def test_an_owner_that_let_go_is_followed_at_once(take, elsewhere):
    for _ in range(3):
        one = take()
        one.release()
        one.release()
        one.renew()  # a beat that comes late does nothing
    take()


def test_a_lock_that_was_deleted_is_free_and_its_owner_stops(take, clock, elsewhere):
    first = take()
    Bucket(take.url).delete(["lock"])
    second = take()
    clock["now"] += LEASE
    with pytest.raises(StoreError, match=r"was taken over by .*process 2"):
        first.check()
    second.check()


def test_a_process_of_this_machine_that_is_gone_is_followed_at_once(take, monkeypatch):
    this, gone = Owner.this, []
    monkeypatch.setattr(Owner, "this", staticmethod(lambda lasts: replace(this(lasts), process=gone[0])))
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    gone.append(pid)
    take()
    monkeypatch.undo()
    take().check()


def test_a_process_of_this_machine_that_lives_is_not(take, monkeypatch):
    this = Owner.this
    monkeypatch.setattr(Owner, "this", staticmethod(lambda lasts: replace(this(lasts), process=os.getppid())))
    take()
    monkeypatch.undo()
    with pytest.raises(StoreError, match=f"process {os.getppid()}"):
        take()


def test_within_one_process(take):
    first = take()
    with pytest.raises(StoreError, match=r"in this process: close\(\) it"):
        take()
    first.release()
    take()


def test_of_many_who_try_at_once_one_gets_it(clock):
    """When there is no lock, when it is free, and when it has expired."""
    url = buckets.new()

    def attempt(_):
        try:
            return Lease(Clocked(url, clock), clock=lambda: clock["now"], beats=False)
        except StoreError:
            return None

    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            got = [one for one in pool.map(attempt, range(8)) if one]
        assert len(got) == 1
        got[0].release()


def test_a_renewal_whose_answer_was_lost_is_no_loss(clock):
    url = buckets.new()
    bucket = buckets.Failing(url, 1, "swap lock", after=True)
    one = Lease(bucket, clock=lambda: clock["now"], beats=False)
    with pytest.raises(StoreError, match="the answer was lost"):
        one.renew()
    one.renew()
    one.check()
    assert json.loads(buckets.content(url)["lock"])["renewals"] == 1


def test_what_is_no_lock_is_taken_over(take):
    Bucket(take.url).put("lock", b"not json")
    take().check()


def test_the_thread_renews_and_ends(clock):
    url = buckets.new()
    one = Lease(Bucket(url), lasts=0.03)
    toys.until(lambda: json.loads(buckets.content(url)["lock"])["renewals"] >= 2)
    one.release()
    assert json.loads(buckets.content(url)["lock"])["free"]
    other = Lease(Bucket(url), lasts=0.03)
    owner = other.owner.id
    del other  # forgotten without a release: nobody renews it any more
    lease._held.discard(owner)
    Lease(buckets.Late(url), beats=False).check()


def test_the_age_is_that_of_the_stores_clock():
    url = buckets.new()
    bucket = Bucket(url)
    assert bucket.age("lock") == math.inf
    bucket.put("lock", b"x")
    assert 0 <= bucket.age("lock") < 60
    assert set(buckets.content(url)) == {"lock"}
