"""The server's ranges: by default those that can work, and the paper's for studies that repeat it."""

import pytest

from fedtuner import methods
from fedtuner.core.method import default_space
from fedtuner.errors import SpecError
from fedtuner.run import spec
from fedtuner.space import PAPER_SERVER

BY_SGD = [method for method in methods.ALL.values() if method.server["optimiser"].default == "sgd"]


def server_of(**table):
    """The server's space of a study.toml."""
    return spec.parse({"problem": "toys:problem", "cohort": 3, **table}).study(None, 1).setup.space.server


@pytest.mark.parametrize("method", BY_SGD, ids=lambda method: method.name)
def test_effective_steps_are_from_a_half_to_two(method):
    space = default_space(method, {}).server
    assert max(space["lr"].ends()) / (1 - max(space["momentum"].ends())) <= 2
    assert min(space["lr"].ends()) / (1 - min(space["momentum"].ends())) >= 0.5
    assert all(hyper.default in space[name] for name, hyper in method.server.items() if name in ("lr", "momentum"))


@pytest.mark.parametrize("method", BY_SGD, ids=lambda method: method.name)
def test_the_papers_ranges_are_one_word_away(method):
    wide = methods.paper_ranges(method)
    found = default_space(wide, {})
    assert {name: found.server[name] for name in PAPER_SERVER} == dict(PAPER_SERVER)
    assert found.client == default_space(method, {}).client
    assert server_of(method=method.name, ranges="paper") == found.server
    assert (
        server_of(method=method.name, ranges="usual")
        == server_of(method=method.name)
        == default_space(method, {}).server
    )


def test_ranges_of_other_optimisers_stay():
    wide = methods.paper_ranges(methods.fedavg)
    for name in ("adam", "yogi", "adagrad", "fedexp"):
        assert wide.stepping_by(name).server == methods.fedavg.stepping_by(name).server
        assert server_of(ranges="paper", server={"optimiser": name}) == server_of(server={"optimiser": name})
    by_adam = wide.stepping_by("adam")
    assert by_adam.stepping_by("sgd").server["lr"].domain == PAPER_SERVER["lr"]
    assert methods.paper_ranges(methods.maml).server == methods.maml.server


def test_what_a_file_gives_is_taken():
    assert server_of(ranges="paper", server={"lr": 0.5})["lr"].ends() == (0.5,)


def test_every_preset_has_the_papers():
    for name in spec.presets():
        assert spec.parse(spec.read(name)[1]).ranges == "paper"


def test_other_ranges_are_refused():
    with pytest.raises(SpecError, match=r"ranges = 'wide', but must be one of \('usual', 'paper'\)"):
        server_of(ranges="wide")
