"""A model that is known by its named arrays: what is trained, what is averaged, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedtuner.core.model import Metric
from fedtuner.errors import SpecError
from fedtuner.federations.arrays import NamedArrays

GIVEN = {
    "norm.running_mean": np.array([0.5, 1.5]),
    "weight": np.arange(6, dtype=np.float16).reshape(2, 3),
    "steps": np.array(7, np.int64),
}


def test_what_is_trained_comes_first_and_the_rest_is_averaged():
    model = NamedArrays(GIVEN)
    assert (model.size, model.trainable) == (9, 6)
    assert [(part.name, part.shape) for part in model.layout()] == [
        ("weight", (2, 3)), ("norm.running_mean", (2,)), ("steps", ()),
    ]  # fmt: skip
    assert model.initial(1).tolist() == [0, 1, 2, 3, 4, 5, 0.5, 1.5, 7]
    assert model.own_training


def test_arrays_come_back_by_name_and_in_their_own_types():
    model = NamedArrays(GIVEN)
    w = model.initial(0)
    w[-1] = 8.6  # a mean of whole numbers is rounded
    back = model.arrays(w)
    assert list(back) == list(GIVEN)
    assert {name: (a.shape, a.dtype) for name, a in back.items()} == {n: (a.shape, a.dtype) for n, a in GIVEN.items()}
    assert back["steps"] == 9
    assert np.array_equal(model.vector(GIVEN), model.initial(0))


def test_every_arm_begins_from_the_arrays_as_they_were_given():
    model = NamedArrays(GIVEN, Metric("nll", np.inf))
    model.initial(0)[:] = 0
    assert model.start is not None
    assert model.start.tobytes() == model.initial(5).tobytes() == model.vector(GIVEN).tobytes()
    assert model.metric.name == "nll"


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"weight": GIVEN["weight"]}, r"arrays that only one side has: \['norm.running_mean', 'steps'\]"),
        ({**GIVEN, "more": np.zeros(1)}, r"arrays that only one side has: \['more'\]"),
        ({**GIVEN, "weight": np.zeros(6)}, r"array 'weight' is of shape \(6,\), but must be of \(2, 3\)"),
        ({**GIVEN, "steps": "seven"}, "array 'steps' is of type <U5, but must be of numbers"),
    ],
)
def test_other_arrays_are_refused(arrays, why):
    with pytest.raises(SpecError, match=why):
        NamedArrays(GIVEN).vector(arrays)
