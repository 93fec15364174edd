"""The built-in problems can be worked on: on the real data where it is present, FEMNIST on images made here."""

import ast
import pickle
from pathlib import Path

import numpy as np
import pytest

from fedtuner import data
from fedtuner.data import binary, places
from fedtuner.problems import cifar10, digits, femnist, mnist_writers, shakespeare


def needs(name):
    here = any(places.holds(folder / name, name) for folder in places.folders())
    return pytest.mark.skipif(not here, reason=f"the data set {name} is not on this machine")


PROBLEMS = [
    digits.problem,
    digits.problem_in_order,
    pytest.param(mnist_writers.problem, marks=needs("mnist_by_writer")),
    pytest.param(mnist_writers.problem_iid, marks=needs("mnist_by_writer")),
    pytest.param(mnist_writers.problem_small, marks=needs("mnist_by_writer")),
    pytest.param(mnist_writers.problem_iid_small, marks=needs("mnist_by_writer")),
    pytest.param(shakespeare.problem, marks=needs("shakespeare")),
    pytest.param(shakespeare.problem_iid, marks=needs("shakespeare")),
    pytest.param(shakespeare.problem_small, marks=needs("shakespeare")),
    pytest.param(shakespeare.problem_iid_small, marks=needs("shakespeare")),
    pytest.param(femnist.problem, marks=needs("femnist")),
    pytest.param(femnist.problem_iid, marks=needs("femnist")),
    pytest.param(femnist.problem_small, marks=needs("femnist")),
    pytest.param(femnist.problem_iid_small, marks=needs("femnist")),
    pytest.param(cifar10.problem, marks=needs("cifar10")),
    pytest.param(cifar10.problem_small, marks=needs("cifar10")),
]


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_problems_can_be_worked_on(problem):
    made = problem()
    made.check()
    assert made.name.startswith(("digits", "mnist", "shakespeare", "femnist", "cifar10"))
    assert made.fingerprint() == problem().fingerprint()
    pickle.dumps(made.task)
    smallest = min(range(len(made.clients)), key=lambda i: len(data.labels(made.clients[i].train)))
    held = made.data(smallest, "train")
    with made.task.training(held, {}, 0) as trainer:
        gradient = trainer.gradient(made.task.initial(0), np.arange(min(4, len(held))))
    assert np.isfinite(gradient).all()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["problem", "problem_iid", "problem_small", "problem_iid_small"])
def test_femnist_problems_can_be_worked_on(by, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTUNER_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    sizes = {"f0": 10, "f1": 10, "f2": 10, "f3": 10, "tiny": 2}
    writers = (
        (id, rng.integers(0, 256, (n, 28, 28), np.uint8), rng.integers(0, 62, n, np.int16)) for id, n in sizes.items()
    )
    binary.convert(writers, tmp_path / "femnist" / "femnist.safetensors", "made up", 62)
    problem = getattr(femnist, by)()
    problem.check()
    assert (len(problem.clients), problem.left_out) == (4, ["tiny"])
    held = problem.data(3, "train")
    with problem.task.training(held, {}, 0) as trainer:
        assert np.isfinite(trainer.gradient(problem.task.initial(0), np.arange(4))).all()


def test_data_knows_nothing_of_problems():
    """The layers: a problem is made of data, and not the other way round."""
    for file in Path(data.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [name.name for name in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            parts = {part for name in names for part in name.split(".")}
            assert not parts & {"problems", "pytorch", "torch", "spec", "cli"}, file.name
