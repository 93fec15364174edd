"""Shakespeare by role: on the real text where it is present, and on short ones made here."""

import json
import lzma
import pickle
import subprocess
import sys

import numpy as np
import pytest
from on_disk import place, sizes, staged

from fedtuner import data
from fedtuner.data import shakespeare
from fedtuner.errors import SpecError


@pytest.mark.slow
@staged("shakespeare", "roles.jsonl.xz")
def test_shakespeare_has_the_numbers_of_its_readme():
    made = shakespeare.clients(folder=place("shakespeare", "roles.jsonl.xz"))
    counted = sizes(made)
    # 1,142 roles pass LEAF's filter; one of them has two windows, which cannot be split in three.
    assert (len(made), len(made.left_out)) == (1_141, 1_373 - 1_141)
    assert sum(counted) == 4_222_334 - 2
    assert max(counted) == 61_268
    assert np.median([2, *counted]) == 1_164
    strided = shakespeare.clients(stride=80, folder=place("shakespeare", "roles.jsonl.xz"))
    assert max(sizes(strided)) == 766


MEASURED = """
import re, sys
from pathlib import Path
from fedtuner.data import shakespeare
made = shakespeare.clients(sys.argv[2], folder=Path(sys.argv[1]))
for client in made:
    for split in (client.train, client.valid, client.test):
        split.load(), split.fingerprint()
print(int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
"""


@pytest.mark.slow
@staged("shakespeare", "roles.jsonl.xz")
@pytest.mark.skipif(sys.platform != "linux", reason="the memory in use is read from /proc")
@pytest.mark.parametrize("order", data.ORDERS)
def test_all_of_shakespeare_is_within_200_mb(order):
    """The whole process, every client visited; the windows as strings would be 4.2 M times 80 characters."""
    folder = place("shakespeare", "roles.jsonl.xz")
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(folder), order], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 200


def roles(folder, *spoken):
    records = [{"play": "p", "role": name, "speeches": speeches} for name, speeches in spoken]
    (folder / "roles.jsonl.xz").write_bytes(lzma.compress("\n".join(map(json.dumps, records)).encode()))


LONG = ["O that this too too solid flesh would melt", "Thaw and resolve itself into a dew!", "Or that"]


def test_windows_are_places_in_the_text(tmp_path):
    roles(tmp_path, ("SHORT", [["a" * 90]]), ("HAMLET", [LONG[:1], LONG[1:]]), ("GHOST", [["b" * 40, "c" * 40, "d"]]))
    made = shakespeare.clients("in-order", folder=tmp_path)
    text = " ".join(LONG)
    (hamlet, ghost) = made
    assert made.left_out == ["p/SHORT"]
    assert (hamlet.id, ghost.id) == ("p/HAMLET", "p/GHOST")
    letters = np.array(list(shakespeare.VOCABULARY))
    read = [
        ("".join(letters[x]), letters[y])
        for split in (hamlet.train, hamlet.valid, hamlet.test)
        for x, y in zip(*split.load(), strict=True)
    ]
    assert read == [(text[i : i + 80], text[i + 80]) for i in range(len(text) - 80)]
    assert "".join(letters[data.labels(hamlet.train)]) == text[80 : 80 + len(hamlet.train)]
    assert sum(map(len, (ghost.train, ghost.valid, ghost.test))) == 83 - 80
    shuffled = shakespeare.clients("shuffled", folder=tmp_path)[0]
    assert list(shuffled.train.rows) != list(hamlet.train.rows)
    assert sorted(np.concatenate([s.rows for s in (shuffled.train, shuffled.valid, shuffled.test)])) == [*range(6)]
    copied = pickle.loads(pickle.dumps(hamlet.train))
    assert np.array_equal(copied.load()[0], hamlet.train.load()[0])
    assert len(pickle.dumps(hamlet.train)) < 1500


def test_roles_can_be_fewer_and_shorter(tmp_path):
    roles(tmp_path, *((f"R{i}", [["x" * 100] * 3]) for i in range(9)))
    assert len(shakespeare.clients(limit=4, folder=tmp_path)) == 4
    assert sizes(shakespeare.clients(stride=10, folder=tmp_path)) == [23] * 9
    assert sizes(shakespeare.clients(examples=12, folder=tmp_path)) == [12] * 9
    few = shakespeare.clients(examples=2, folder=tmp_path)
    assert (len(few), len(few.left_out)) == (0, 9)
    with pytest.raises(SpecError, match="stride = 0"):
        shakespeare.clients(stride=0, folder=tmp_path)


def test_mistakes_in_roles_are_named(tmp_path):
    roles(tmp_path, ("HAMLET", [LONG]), ("HAMLET", [LONG]))
    with pytest.raises(SpecError, match="two clients have the id 'p/HAMLET'"):
        shakespeare.clients(folder=tmp_path)
    roles(tmp_path, ("HAMLET", [[*LONG, "naïve"]]))
    with pytest.raises(SpecError, match="client 'p/HAMLET': the character 'ï'"):
        shakespeare.clients(folder=tmp_path)
    roles(tmp_path, ("SHORT", [["a"]]))
    with pytest.raises(SpecError, match="has no role with more than"):
        shakespeare.clients(folder=tmp_path)
    whole = lzma.compress(b"x" * 5000)
    for damaged in (whole[:40], b"rubbish", lzma.compress(b'{"play": 1')):
        (tmp_path / "roles.jsonl.xz").write_bytes(damaged)
        with pytest.raises(SpecError, match="cannot be read as roles"):
            shakespeare.clients(folder=tmp_path)
