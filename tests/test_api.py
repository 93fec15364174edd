"""The public face: these names and no others, and nothing heavy behind them until it is used."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import fedtuner

PUBLIC = {
    "Space", "Float", "Int", "PowerOfTwo", "Choice", "OneMinus", "When",
    "Client", "LazyClients", "Simulation", "Outside", "Learner", "Metric", "Metrics",
    "tune", "prepare", "untuned", "load", "auto", "paper", "Study", "FedEx", "halving", "random_search", "hyperband",
    "fedpop", "FedPop",
    "FedtunerError", "Interrupted", "ray",
    "data", "fedex", "flower", "methods", "metrics", "pytorch", "samplers", "schedules", "sklearn", "space",
    "tuners", "watchers",
}  # fmt: skip
HEAVY = {
    "torch", "greenlet", "flwr", "ray", "optuna", "cmaes", "sqlalchemy", "sklearn", "scipy", "pandas", "matplotlib",
    "PIL", "pooch", "ijson", "rich", "safetensors", "hypothesis", "pytest", "tensorboardX", "mlflow", "wandb",
}  # fmt: skip


def test_the_api_is_what_it_was():
    """A name that comes or goes is a decision: change this list and the changelog together."""
    assert set(fedtuner.__all__) == PUBLIC
    assert len(fedtuner.__all__) == len(PUBLIC)


def test_what_messages_name_is_there():
    """Such as ``fedtuner.halving(budget=2000)`` in a message of what must be given."""
    texts = [file.read_text() for file in Path(fedtuner.__file__).parent.rglob("*.py")]
    named = {
        name for text in texts for name in re.findall(r'"[^"\n]*?\bfedtuner\.((?:\w+\.)*[A-Za-z_]\w*)[^"\n]*"', text)
    }
    assert {"halving", "methods.fedavg"} <= named
    for name in sorted(named - {"arm", "arms", "status"}):  # but for records in a Flower app's state and MLflow's tags
        try:
            found: object = importlib.import_module(f"fedtuner.{name}")
        except ImportError:
            module, _, last = f"fedtuner.{name}".rpartition(".")
            found = getattr(importlib.import_module(module), last, None)
        assert found is not None, name


def test_dir_is_the_api():
    assert set(dir(fedtuner)) == PUBLIC | {"__version__"}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_can_be_imported(name):
    assert getattr(fedtuner, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fedtuner' has no attribute 'tuen'"):
        fedtuner.tuen  # noqa: B018


def test_the_version_is_the_installed_one():
    assert fedtuner.__version__ == metadata.version("fedtuner")


def test_the_command_is_what_it_was():
    [command] = metadata.entry_points(group="console_scripts", name="fedtuner")
    assert command.value == "fedtuner.cli:main"


def imported_by(*command: str) -> set[str]:
    """The modules that a fresh interpreter imports for a command."""
    done = subprocess.run([sys.executable, "-X", "importtime", *command], capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("-c", "import fedtuner"),
        ("-c", "import fedtuner.testing"),
        ("-m", "fedtuner", "--help"),
        ("-m", "fedtuner.cli", "run", "--help"),
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported_before_it_is_used(command):
    seen = imported_by(*command)
    assert "fedtuner" in seen
    assert not {name.partition(".")[0] for name in seen} & HEAVY


@pytest.mark.slow
def test_pytorch_is_imported_when_it_is_named():
    assert "torch" in imported_by("-c", "import fedtuner; fedtuner.pytorch.Task")
