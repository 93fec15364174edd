"""The stream of a path: the same in any order and any process, another for any other path."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtuner.rng import number, stream

seeds = st.integers(-(2**70), 2**70)
paths = st.lists(st.text(max_size=8) | st.integers(-(2**70), 2**70), max_size=4).map(tuple)


@given(seeds, paths)
def test_a_stream_depends_on_its_seed_and_path_alone(seed, path):
    before = stream(seed, *path).random(4)
    stream(seed, "another").random(1000)
    np.random.default_rng(0).random(10)
    assert np.array_equal(stream(seed, *path).random(4), before)


@given(seeds, paths, seeds, paths)
def test_other_names_have_other_streams_and_numbers(seed, path, other_seed, other_path):
    same = (seed, path) == (other_seed, other_path)
    assert np.array_equal(stream(seed, *path).random(2), stream(other_seed, *other_path).random(2)) == same
    assert (number(seed, *path) == number(other_seed, *other_path)) == same


# Names that a careless encoding (joining, str, abs) would confuse.
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, 1), (0, "1")),
        ((0, "a", "b"), (0, "ab")),
        ((0, "a", "b"), (0, "b", "a")),
        ((0, 1, 23), (0, 12, 3)),
        ((0, "a', 'b"), (0, "a", "b")),
        ((0, "1, 2"), (0, 1, 2)),
        ((0,), (0, 0)),
        ((0, ""), (0,)),
        ((1, 2), (2, 1)),
        ((-1,), (1,)),
    ],
)
def test_names_that_look_alike_are_different(one, other):
    assert stream(*one).random() != stream(*other).random()
    assert number(*one) != number(*other)


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_numpy_integer_is_the_integer(n):
    assert number(0, np.int64(n)) == number(0, n)
    assert number(np.int64(n), "a") == number(n, "a")


@given(seeds, paths)
def test_a_number_is_a_seed_for_any_library(seed, path):
    assert 0 <= number(seed, *path) < 2**63  # torch.manual_seed takes a signed 64-bit integer


def test_numbers_fill_their_range():
    numbers = [number(0, i) for i in range(400)]
    # Each of the 63 bits is fair: 400 flips, five standard deviations of 10 around 200.
    for bit in range(63):
        assert 150 < sum(n >> bit & 1 for n in numbers) < 250


def test_streams_of_neighbouring_paths_are_independent():
    draws = np.array([stream(0, "client", i).random(2) for i in range(2000)])
    # Mean 1/2 and correlation 0, each with a standard error below 0.007 and 0.023: five of them.
    assert np.abs(draws.mean(axis=0) - 0.5).max() < 0.033
    assert abs(np.corrcoef(draws.T)[0, 1]) < 0.115
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.115


def test_golden_the_name_is_the_hashed_tuple():
    """A kept study can be continued only while this stays: blake2b of Python's (seed, *path)."""
    name = b"(7, 'arm', 3, 'client')"
    assert number(7, "arm", 3, "client") == int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") // 2
    seed = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")
    assert stream(7, "arm", 3, "client").random() == np.random.Generator(np.random.PCG64(seed)).random()


@pytest.mark.slow
def test_another_process_gives_the_same_numbers():
    code = "from fedtuner.rng import number, stream; print(number(1, 'a', 2), stream(1, 'a', 2).random().hex())"
    drawn = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert drawn[0] == drawn[1] == [str(number(1, "a", 2)), stream(1, "a", 2).random().hex()]
