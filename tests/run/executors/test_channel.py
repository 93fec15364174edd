"""Messages between processes: whole, in order, and nothing left behind."""

import multiprocessing
import os
import threading

import numpy as np
import pytest

from fedtuner.run.executors.channel import pair

CONTEXT = multiprocessing.get_context("fork")
linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory files here: everything goes by pipe")


@pytest.fixture
def ends():
    here, there = pair(CONTEXT)
    yield here, there
    here.close()
    there.hang_up()


def arrays(size):
    return {"w": np.arange(size, dtype=np.float32), "more": [np.full((3, 5), 7.0), "text"]}


def same(a, b):
    return (
        np.array_equal(a["w"], b["w"]) and np.array_equal(a["more"][0], b["more"][0]) and a["more"][1] == b["more"][1]
    )


@pytest.mark.parametrize("size", [0, 10, 300_000, 2_000_000])
def test_messages_arrive_whole_and_writable(ends, size):
    here, there = ends
    # Pipes hold little: a long message needs its reader at the same time.
    received = []
    reader = threading.Thread(target=lambda: received.append(there.recv()))
    reader.start()
    here.send(arrays(size))
    reader.join()
    assert same(received[0], arrays(size))
    received[0]["w"] += 1  # the receiver's own


@pytest.mark.slow
@linux
def test_large_messages_of_any_size_come_in_order_from_another_process(ends):
    here, there = ends
    sizes = [400_000, 2_000_000, 300_000, 5, 3_000_000, 1_000_000]

    def send():
        here.hang_up()
        for size in sizes:
            there.send(arrays(size))  # waits until the one before has been read

    child = CONTEXT.Process(target=send)
    child.start()
    for size in sizes:
        assert same(here.recv(), arrays(size))
    child.join()
    assert child.exitcode == 0


@linux
def test_the_same_array_is_sent_once(ends):
    here, _ = ends
    w = np.zeros(1_000_000, np.float32)
    sent = []
    here._out.write = lambda parts, alive: sent.append(sum(p.nbytes for p in parts))
    here.send([w, {"again": w}, (w,)])
    assert sent == [w.nbytes]


@pytest.mark.slow
@linux
def test_a_sender_whose_reader_is_gone_does_not_wait_forever(ends):
    here, _ = ends
    here.alive = lambda: False
    here.send(arrays(500_000))
    with pytest.raises(OSError, match="gone"):
        here.send(arrays(500_000))
