"""Lines in objects: they come back in order, a flush is one request, and who has lost them writes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import buckets
from fedtuner.errors import StoreError
from fedtuner.run.store import segments
from fedtuner.run.store.bucket import Bucket
from fedtuner.run.store.segments import Segments


def lines(url):
    """The lines that there are, without marks."""
    data = b"".join(one.data for one in Segments(Bucket(url), "journal").read())
    return [line for line in data.splitlines() if not line.startswith(b"#")]


def taken(url, mark="me", bucket=None):
    found = Segments(bucket or Bucket(url), "journal")
    found.take(mark)
    return found


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=3), max_size=12), st.integers(1, 400))
def test_lines_come_back_in_order_whatever_their_sizes_and_openings(flushes, limit):
    url, known, before = buckets.new(), [], segments.LIMIT
    segments.LIMIT = limit
    try:
        mine = taken(url)
        for n, flush in enumerate(flushes):
            mine = taken(url, f"opening {n}") if n % 4 == 3 else mine
            new = [b"x" * size + b"%d" % n for size in flush]
            mine.append(b"".join(line + b"\n" for line in new))
            known += new
            assert lines(url) == known
    finally:
        segments.LIMIT = before


def test_a_flush_is_one_request_and_objects_are_few(monkeypatch):
    url = buckets.new()
    bucket = buckets.Counting(url)
    mine = taken(url, bucket=bucket)
    bucket.counts.clear()
    for n in range(1000):
        mine.append(b"%1000d\n" % n)  # a megabyte
    assert bucket.counts == {"write journal": 1000}
    assert len(Segments(bucket, "journal").listed()) == 8  # of 128 kB
    assert len(lines(url)) == 1000


@pytest.mark.parametrize("limit", [1, 10**6])
@pytest.mark.parametrize("written", [0, 1, 3])
def test_who_has_lost_the_lines_writes_nothing(monkeypatch, limit, written):
    """Wherever the other took over: in an object that still grows, in a full one, before the first."""
    monkeypatch.setattr(segments, "LIMIT", limit)
    url = buckets.new()
    first = taken(url, "first")
    for n in range(written):
        first.append(b"%d\n" % n)
    second = taken(url, "second")
    if not written:
        second.append(b"second\n")
    before = lines(url)
    for _ in range(2):
        with pytest.raises(StoreError, match="is written to by another study: nothing more is written there"):
            first.append(b"stale\n")
    assert lines(url) == before
    second.append(b"more\n")
    assert lines(url) == [*before, b"more"]


def test_a_write_that_comes_while_the_lines_are_taken_is_read(monkeypatch):
    """The other's last flush is not lost, and its next one is refused."""
    for limit in (1, 10**6):
        monkeypatch.setattr(segments, "LIMIT", limit)
        url = buckets.new()
        first = taken(url, "first")
        first.append(b"one\n")

        class Between(Bucket):
            done = False

            def swap(self, name, data, version):
                if not self.done:
                    self.done = True
                    first.append(b"two\n")  # noqa: B023
                return super().swap(name, data, version)

        second = Segments(Between(url), "journal")
        assert b"two\n" in b"".join(one.data for one in second.take("second"))
        with pytest.raises(StoreError, match="by another study"):
            first.append(b"three\n")
        second.append(b"four\n")
        assert lines(url) == [b"one", b"two", b"four"]


@pytest.mark.parametrize("limit", [1, 10**6])
@pytest.mark.parametrize("after", [False, True])
def test_lines_go_on_after_a_write_that_failed(monkeypatch, limit, after):
    """Whether it was done or not: what failed is not there after the next."""
    monkeypatch.setattr(segments, "LIMIT", limit)
    url = buckets.new()
    bucket = buckets.Failing(url, 2, "(create|swap) journal", after)
    mine = taken(url, bucket=bucket)
    mine.append(b"one\n")
    with pytest.raises(StoreError, match=r"the network is gone|the answer was lost"):
        mine.append(b"failed\n")
    bucket.mended = True
    mine.append(b"two\n")
    mine.append(b"three\n")
    assert lines(url) == [b"one", b"two", b"three"]


def test_an_object_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(segments, "LIMIT", 1)
    url = buckets.new()
    mine = taken(url)
    for n in range(3):
        mine.append(b"%d\n" % n)
    Bucket(url).delete(["journal-000002.jsonl"])
    with pytest.raises(StoreError, match=r"journal-000002\.jsonl is missing: restore it"):
        lines(url)
