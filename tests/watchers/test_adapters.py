"""The adapters are tried with their libraries, in the environment that ``make watchers`` makes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import fedtuner as ft
import toys
from fedtuner.errors import SpecError
from fedtuner.watchers import values

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-watchers" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="the libraries are not here: make watchers sets them up")
def test_the_adapters_with_their_libraries():
    command = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "tests" / "watchers" / "libraries.py"]
    done = subprocess.run(command, cwd=ROOT, env=toys.environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("make", "extra"),
    [
        (lambda: ft.watchers.TensorBoard("x"), "tensorboard"),
        (lambda: ft.watchers.MLflow("sqlite:///x"), "mlflow"),
        (lambda: ft.watchers.WandB(), "wandb"),
        (lambda: ft.watchers.Dashboard("x"), "optuna"),
    ],
)
def test_a_library_that_is_not_installed_is_named(monkeypatch, make, extra):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(values.importlib, "import_module", absent)
    with pytest.raises(SpecError, match=rf"this watcher needs \w+: pip install 'fedtuner\[{extra}\]'"):
        make()
