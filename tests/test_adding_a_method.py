"""docs/adding-a-method.md: its method runs, keeps the laws, and is what it says."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedtuner import methods
from fedtuner.testing import MethodLaws
from fedtuner.testing.methods import advance, begin
from test_methods import an_arm

PAGE = Path(__file__).parent.parent / "docs" / "adding-a-method.md"


def page():
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), names)
    return names


NAMES = page()


class TestTheExample(NAMES["TestFedNova"]):
    pass


def test_the_laws_are_the_public_ones():
    assert issubclass(NAMES["TestFedNova"], MethodLaws)


def test_the_example_is_about_fifteen_lines():
    first = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL).group(1)
    assert len([line for line in first.splitlines() if line.strip()]) <= 18


@pytest.mark.parametrize("batch", [12, 4])
def test_with_equal_steps_it_is_fedavg(batch):
    def run(method):
        setting, problem, arm = an_arm(method, {"batch": batch})
        return advance(setting, problem, arm, begin(setting, problem, arm), 3).w

    np.testing.assert_allclose(run(NAMES["fednova"]), run(methods.fedavg), rtol=1e-4, atol=1e-6)
